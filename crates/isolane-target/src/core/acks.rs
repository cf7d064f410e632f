//! Samples of the stage `peer`: for one send in N, the time from its end until the host has acknowledged it.
//!
//! The kernel reports no event for an acknowledgment. So the core reads the number of unacknowledged bytes when a turn
//! begins, and wakes up for it if it sleeps. A time is an upper bound: at most an eighth too long, or one turn or the
//! delay of a timer.
//!
//! Invariant: a lane has at most one sample, which ends when the lane is closed or leaves this core.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use isolane_reactor::{Token, socket};

use super::{Core, Driver};
use crate::lane::Lane;
use crate::slab::{Slab, SlabKey};

/// Chooses sends, and has those that are not acknowledged.
#[derive(Debug)]
pub(super) struct AckSampler {
    /// One send in this number is a sample, if any is.
    interval: Option<NonZeroU32>,
    /// Sends until the next sample.
    left: u32,
    samples: Vec<Sample>,
}

/// A send that is not acknowledged.
#[derive(Debug)]
struct Sample {
    lane: SlabKey,
    token: Token,
    /// Position of the byte after its last one.
    end: u64,
    sent_at_ns: u64,
    /// Time of the next check.
    due: Instant,
}

impl AckSampler {
    pub(super) fn new(interval: Option<NonZeroU32>) -> AckSampler {
        AckSampler { interval, left: interval.map_or(0, NonZeroU32::get), samples: Vec::new() }
    }

    pub(super) fn is_on(&self) -> bool {
        self.interval.is_some()
    }

    /// Returns the time of the next check.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.samples.iter().map(|sample| sample.due).min()
    }

    /// Counts a send. Returns `true` if it is a sample.
    fn count(&mut self, lane: SlabKey) -> bool {
        self.left -= 1;
        if self.left > 0 {
            return false;
        }
        self.left = self.interval.map_or(0, NonZeroU32::get);
        self.samples.len() < MAX_SAMPLES && self.samples.iter().all(|sample| sample.lane != lane)
    }
}

impl Core {
    /// Counts a send that has ended, and may sample it.
    pub(super) fn sample_ack(&mut self, lane: &Lane) {
        let Some(token) = lane.token.filter(|_| lane.observed.is_some()) else { return };
        if self.acks.count(lane.key) {
            let (_, end) = lane.conn.transmit_positions();
            let (sent_at_ns, due) = (self.observer.now(), self.now);
            self.acks.samples.push(Sample { lane: lane.key, token, end, sent_at_ns, due });
        }
    }

    #[cold]
    fn check_samples(&mut self, lanes: &Slab<Lane>) {
        let Core { acks, reactor, observer, now, .. } = self;
        acks.samples.retain_mut(|sample| {
            if *now < sample.due {
                return true;
            }
            let is_same = |lane: &&Lane| lane.token == Some(sample.token) && lane.is_open();
            let lane = lanes.get(sample.lane).filter(is_same);
            let unacknowledged =
                reactor.socket(sample.token).and_then(|socket| socket::unacknowledged_bytes(socket).ok());
            let (Some(lane), Some(unacknowledged)) = (lane, unacknowledged) else { return false };
            let age_ns = observer.now().saturating_sub(sample.sent_at_ns);
            let (_, sent) = lane.conn.transmit_positions();
            let is_acknowledged = sent.saturating_sub(unacknowledged as u64) >= sample.end;
            if is_acknowledged {
                lane.observed.iter().for_each(|cells| cells.record_peer(age_ns));
            }
            sample.due = *now + Duration::from_nanos(age_ns / CHECKS_PER_DOUBLING);
            !is_acknowledged
        });
    }
}

impl Driver {
    /// Records the samples that are acknowledged.
    #[inline]
    pub(super) fn poll_acks(&mut self) {
        if !self.core.acks.samples.is_empty() {
            self.core.check_samples(&self.lanes);
        }
    }
}

/// Maximum number of samples of a core.
const MAX_SAMPLES: usize = 64;
/// Checks while the age of a sample doubles.
const CHECKS_PER_DOUBLING: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_one_send_in_n() {
        let mut sampler = AckSampler::new(NonZeroU32::new(3));
        let sampled = (0..9).map(|_| sampler.count(SlabKey::default()));
        assert_eq!(sampled.collect::<Vec<_>>(), [false, false, true].repeat(3));
        assert!(!AckSampler::new(None).is_on());
    }
}

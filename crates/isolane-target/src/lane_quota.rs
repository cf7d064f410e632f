//! Seats for connected queues: a core has as many as its pool can keep memory free for, the target as many as
//! it may have connections.
//!
//! A lane takes its seat when its Connect is admitted, and another before it moves to another core; it gives
//! it back when it has gone for good (or ends with the target). Connections before Connect have no seat and
//! no memory of the pool. Invariant: no core ever has more connected lanes than seats, whoever brings them and
//! from wherever.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The seats of all cores.
#[derive(Debug)]
pub(crate) struct LaneQuota {
    taken: Vec<AtomicUsize>,
    per_core: usize,
    /// Connected lanes, on whichever core.
    connected: AtomicUsize,
    max_connected: usize,
}

impl LaneQuota {
    pub(crate) fn new(cores: usize, per_core: usize, max_connected: usize) -> LaneQuota {
        let taken = (0..cores).map(|_| AtomicUsize::new(0)).collect();
        LaneQuota { taken, per_core, connected: AtomicUsize::new(0), max_connected }
    }

    /// Takes a seat for a lane that connects; `lingering` closed connections count as if they had one. False
    /// if all are taken.
    pub(crate) fn admit(&self, core: usize, lingering: usize) -> bool {
        let has_room = raise(&self.connected, self.max_connected.saturating_sub(lingering));
        let is_admitted = has_room && self.try_acquire(core);
        if has_room && !is_admitted {
            self.connected.fetch_sub(1, Ordering::Relaxed);
        }
        is_admitted
    }

    /// A lane has left the target.
    pub(crate) fn disconnect(&self, core: usize) {
        self.connected.fetch_sub(1, Ordering::Relaxed);
        self.release(core);
    }

    /// Takes a seat for a lane that moves to this core; false if all are taken.
    pub(crate) fn try_acquire(&self, core: usize) -> bool {
        raise(&self.taken[core], self.per_core)
    }

    /// A lane has left a core.
    pub(crate) fn release(&self, core: usize) {
        self.taken[core].fetch_sub(1, Ordering::Relaxed);
    }

    /// How many are taken on a core.
    pub(crate) fn taken(&self, core: usize) -> usize {
        self.taken[core].load(Ordering::Relaxed)
    }

    /// The most connected lanes.
    pub(crate) fn max_connected(&self) -> usize {
        self.max_connected
    }
}

/// Adds one unless that exceeds `max`.
fn raise(count: &AtomicUsize, max: usize) -> bool {
    let more = |count| (count < max).then_some(count + 1);
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_core_takes_nobody_until_somebody_leaves_and_others_do_not_care() {
        let lane_quota = LaneQuota::new(2, 2, 8);
        assert_eq!([1, 1, 1, 0].map(|core| lane_quota.try_acquire(core)), [true, true, false, true]);
        lane_quota.release(1);
        assert_eq!([1, 1].map(|core| lane_quota.try_acquire(core)), [true, false]);
    }

    #[test]
    fn admits_no_more_lanes_than_there_may_be_connections() {
        let lane_quota = LaneQuota::new(2, 2, 3);
        assert_eq!([0, 0, 0, 1, 1].map(|core| lane_quota.admit(core, 0)), [true, true, false, true, false]);
        lane_quota.disconnect(0);
        assert!(!lane_quota.admit(1, 1), "one lingers");
        assert!(lane_quota.admit(1, 0));
    }
}

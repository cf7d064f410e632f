//! One vectored send per turn and lane: directly after a receive if the lane was idle, else at the end of the
//! turn. A long send can use zero copy (S7): the kernel then reads the buffers until it releases them.

use isolane_connection::TransmitPlan;
use isolane_memory::{Pool, ZeroCopySend};
use isolane_reactor::{Sent, Token};

use super::{Core, Driver};
use crate::lane::{Association, Lane, Phase};
use crate::observed::Phase as TurnPhase;
use crate::slab::SlabKey;
use crate::timeline::Mark;

/// Lanes with data to send in this turn.
#[derive(Default)]
pub(super) struct SendList {
    keys: Vec<SlabKey>,
    /// Minimum size in bytes of a zero-copy send, if they are used.
    pub zerocopy_threshold: Option<usize>,
    /// Cleared lists, for later zero-copy sends.
    spare_zerocopy: Vec<ZeroCopySend>,
}

impl SendList {
    pub(super) fn new(zerocopy_threshold: Option<usize>) -> SendList {
        SendList { zerocopy_threshold, ..SendList::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Lists the lane for a send at the end of this turn.
    pub(super) fn add(&mut self, lane: &mut Lane) {
        if !lane.dirty {
            lane.dirty = true;
            self.keys.push(lane.key);
        }
    }

    /// Recycles the buffers of a released zero-copy send.
    fn recycle(&mut self, mut sent: ZeroCopySend, pool: &mut Pool) {
        sent.headers.clear();
        sent.payloads.drain(..).for_each(|payload| pool.recycle_payload(payload));
        sent.bytes = 0;
        if self.spare_zerocopy.len() < MAX_SPARE_ZEROCOPY {
            self.spare_zerocopy.push(sent);
        }
    }
}

impl Core {
    /// Sends once. Data beyond one call is sent in the next turn; data that the socket rejects, when it is
    /// writable again; data that is part of a state which was taken, after a thaw or by the other process.
    pub(super) fn send(&mut self, lane: &mut Lane) {
        let Some(token) = lane.token.filter(|_| !self.captured) else { return };
        if lane.conn.wants_transmit() {
            self.observer.enter(TurnPhase::Send);
            let start = if lane.marks.is_empty() { 0 } else { self.observer.now() };
            let mut plan = TransmitPlan::new();
            lane.conn.fill_transmit_plan(&mut plan);
            let offered = plan.bytes();
            let sent = if self.sends.zerocopy_threshold.is_some_and(|threshold| offered >= threshold) {
                self.reactor.send_zerocopy(token, &plan)
            } else {
                self.reactor.send(token, &plan).map(|bytes| Sent { bytes, zerocopy: false })
            };
            drop(plan);
            match sent {
                Ok(Sent { bytes, zerocopy: true }) => {
                    self.handle_zerocopy(lane, token, bytes, (offered, start))
                }
                Ok(Sent { bytes, zerocopy: false }) => {
                    lane.conn.handle_transmitted(bytes, &mut self.memory.pool);
                    self.handle_sent(lane, bytes, (offered, start));
                }
                Err(error) => {
                    log::debug!("{}: sending failed: {error}", lane.peer());
                    return self.close(lane, "the connection is broken");
                }
            }
        }
        self.shut_write_if_done(lane);
    }

    fn handle_sent(&mut self, lane: &mut Lane, count: usize, (offered, start): (usize, u64)) {
        if start > 0 {
            self.record_sent(lane, start);
            if self.acks.is_on() {
                self.sample_ack(lane);
            }
        }
        self.counters.sent_bytes.add(count as u64);
        lane.send_blocked = count < offered;
        if !lane.send_blocked && (lane.conn.wants_transmit() || lane.is_limited()) {
            self.sends.add(lane);
        }
        self.resume_after_send(lane);
    }

    /// Ends the stages of all commands whose last byte the kernel has accepted. The send began at `start`.
    fn record_sent(&mut self, lane: &mut Lane, start: u64) {
        let now = self.observer.now();
        let (queued, sent) = lane.conn.transmit_positions();
        if sent == queued
            && let (Some(connection), Some(run)) = (&lane.observed, lane.marks.only_run())
        {
            self.observer.record_run(run, connection, (start, now));
            return lane.marks.remove_run();
        }
        lane.marks.begin_send(start, queued, std::iter::from_fn(|| lane.conn.poll_long_chunk()));
        while let Some(mark) = lane.marks.poll_sent(sent) {
            self.record(lane, &mark, now);
        }
    }

    /// Records commands of a lane.
    pub(super) fn record(&mut self, lane: &mut Lane, mark: &Mark, now: u64) {
        if lane.observed.is_none() {
            lane.observed = lane.association.as_ref().map(|association| {
                let Association { id, host, qid, .. } = *association;
                self.shared.connections.add((id, host, qid), lane.connection, self.index)
            });
        }
        if let Some(connection) = &lane.observed {
            self.observer.record(mark, connection, now);
        }
    }

    /// Tracks a zero-copy send, whose buffers the kernel still reads and which count for the lane.
    fn handle_zerocopy(&mut self, lane: &mut Lane, token: Token, count: usize, offer: (usize, u64)) {
        let mut sent = self.sends.spare_zerocopy.pop().unwrap_or_default();
        lane.conn.handle_zerocopy(count, &mut sent);
        lane.zerocopy_bytes += sent.bytes;
        self.reactor.track_zerocopy(token, sent);
        self.counters.zerocopy_bytes.add(count as u64);
        self.handle_sent(lane, count, offer);
    }

    /// Updates the number of closed sockets with zero-copy sends in flight, which count against the
    /// connection limit.
    pub(super) fn count_lingering(&self) {
        let lingering = self.reactor.lingering_count() as u64;
        if lingering != self.counters.connections_lingering.value() {
            self.counters.connections_lingering.set(lingering);
        }
    }

    /// Shuts down writing of a closing lane once all its data is sent.
    fn shut_write_if_done(&mut self, lane: &mut Lane) {
        let Phase::Closing { until, write_shut: false } = lane.phase else { return };
        let Some(token) = lane.token.filter(|_| !lane.conn.wants_transmit()) else { return };
        lane.phase = Phase::Closing { until, write_shut: true };
        if self.reactor.shutdown_write(token).is_err() {
            self.close(lane, "the connection is broken");
        }
    }
}

impl Driver {
    /// Reclaims the buffers of released zero-copy sends.
    pub(super) fn reap_zerocopy(&mut self) {
        while let Some((token, sent)) = self.core.reactor.poll_released() {
            if let Some(key) = self.lane_of(token)
                && let Some(lane) = self.lanes.get_mut(key).filter(|lane| lane.token == Some(token))
            {
                lane.zerocopy_bytes -= sent.bytes;
            }
            self.core.sends.recycle(sent, &mut self.core.memory.pool);
        }
        self.core.count_lingering();
    }

    /// Sends directly after a receive if the lane had nothing queued before, so that its host continues while
    /// others are served. A closing lane sends at the end of the turn.
    pub(super) fn send_if_was_idle(&mut self, key: SlabKey) {
        if self.core.ended.is_empty()
            && self.core.sends.keys.last() == Some(&key)
            && let Some(lane) = self.lanes.get_mut(key)
        {
            self.core.sends.keys.pop();
            lane.dirty = false;
            self.core.send(lane);
        }
    }

    /// Sends from every listed lane.
    pub(super) fn send_dirty(&mut self) {
        // Lanes with more data than one call takes list themselves again, after these.
        let count = self.core.sends.keys.len();
        for index in 0..count {
            if let Some(lane) = self.lanes.get_mut(self.core.sends.keys[index]) {
                lane.dirty = false;
                self.core.send(lane);
            }
        }
        self.core.sends.keys.drain(..count);
    }
}

/// Maximum number of cleared lists kept for later zero-copy sends.
const MAX_SPARE_ZEROCOPY: usize = 256;

//! Closed objects and queues that the engine has not finished yet.
//!
//! A close does not wait for its reply, so dropping an object never blocks.
//!
//! Invariant: few closes are in flight at a time. An engine stops reading from a client that does not receive its
//! replies, so the receiver thread must never block on a send.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::Allocation;
use isolane_engine_api::{CloseMode, PacketSocket, Request};

#[derive(Default)]
pub(super) struct PendingCloses {
    /// Memory that the engine may use until it has closed the object.
    allocations: BTreeMap<u32, Allocation>,
    /// Closes to send.
    due: VecDeque<u32>,
    /// Closes without a reply.
    in_flight: usize,
    /// Time of the last [`Request::Relieve`].
    relieved: Option<Instant>,
}

impl PendingCloses {
    pub fn insert(&mut self, id: u32, allocation: Allocation) {
        self.allocations.insert(id, allocation);
        self.due.push_back(id);
    }

    /// Sends as many closes as may be in flight.
    pub fn send_due(&mut self, socket: &PacketSocket) {
        while self.in_flight < MAX_IN_FLIGHT
            && let Some(id) = self.due.pop_front()
        {
            if !self.allocations.contains_key(&id) {
                continue;
            }
            let close = Request::CloseObject { id, how: CloseMode::Close };
            // Fails if engines died so quickly that requests to all of them are in flight; replies will follow. Or the
            // connection is closed, which the receiver thread detects.
            if socket.send(&close.encode(UNSOLICITED), &[], false).is_err() {
                self.due.push_front(id);
                return;
            }
            self.in_flight += 1;
        }
    }

    /// Asks the engine to abandon closed streams that make no progress, if there may be any, at most once per
    /// [`RELIEF_INTERVAL`].
    pub fn relieve(&mut self, socket: &PacketSocket, now: Instant) {
        let is_due = self.relieved.is_none_or(|at| now.saturating_duration_since(at) >= RELIEF_INTERVAL);
        if is_due
            && !self.allocations.is_empty()
            && self.in_flight < MAX_IN_FLIGHT
            // On failure, the next failed allocation retries.
            && socket.send(&Request::Relieve.encode(UNSOLICITED), &[], false).is_ok()
        {
            self.relieved = Some(now);
            self.in_flight += 1;
        }
    }

    /// Records a reply to a close.
    pub fn on_reply(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// Schedules all closes again, for the new engine.
    pub fn on_restart(&mut self) {
        self.due = self.allocations.keys().copied().collect();
        self.in_flight = 0;
    }

    pub fn contains(&self, id: u32) -> bool {
        self.allocations.contains_key(&id)
    }

    /// Removes an object that the engine has closed. Drop the result without any lock: it may hold the last reference
    /// to the session.
    pub fn remove(&mut self, id: u32) -> Option<Allocation> {
        self.allocations.remove(&id)
    }

    /// Removes all objects because the session is closed. Drop the result without any lock.
    pub fn take_all(&mut self) -> BTreeMap<u32, Allocation> {
        std::mem::take(&mut self.allocations)
    }
}

/// Serial number of unsolicited replies, and of requests whose reply needs no waiting.
pub(super) const UNSOLICITED: u32 = 0;
const MAX_IN_FLIGHT: usize = 32;
/// Interval at which the engine checks.
const RELIEF_INTERVAL: Duration = Duration::from_secs(1);

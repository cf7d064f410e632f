//! What one lane may keep of its core's memory, so that a host which asks for much and then does nothing leaves
//! enough for all others.
//!
//! A command that would exceed its lane's share waits at its lane, where it stands in nobody's way. Only within
//! the share it takes memory, or waits for it in the queue of all ([`waiting`](super::waiting)). When commands
//! wait there for long, lanes that keep memory and let it lie are closed.

use std::time::Duration;

use isolane_memory::PAGE_SIZE;

use super::lane::Lane;
use super::waiting::Waiting;
use super::{Core, Driver};
use crate::config::TRANSFER_BYTES_MAX;

impl Core {
    /// A command wants memory of the pool before it can go on.
    pub(super) fn enter(&mut self, lane: &mut Lane, waiting: Waiting) {
        if lane.beyond_share.is_empty() && self.is_within_share(lane, waiting.bytes_to_take()) {
            return self.admit(lane, waiting);
        }
        if lane.beyond_share.is_empty() {
            self.limited.push(lane.key);
        }
        self.counters.deferred_commands.add(1);
        lane.beyond_share.push_back(waiting);
    }

    /// The command is within its lane's share: it takes memory now or in its turn.
    fn admit(&mut self, lane: &mut Lane, waiting: Waiting) {
        let len = waiting.bytes_to_take();
        lane.claimed_bytes += len;
        if !self.memory.claim(len) {
            return self.wait(waiting);
        }
        if let Some(waiting) = self.go_on(lane, waiting) {
            self.wait(waiting);
        }
    }

    fn is_within_share(&self, lane: &Lane, len: usize) -> bool {
        let kept = kept_bytes(lane);
        kept == 0 || kept + len <= self.share_bytes()
    }

    fn share_bytes(&self) -> usize {
        (self.memory.pool.pages_max() * PAGE_SIZE / LANES_FULL).max(TRANSFER_BYTES_MAX as usize)
    }

    /// Closes a lane that keeps memory and lets it lie while others wait for it.
    pub(super) fn check_idle_memory(&mut self, lane: &mut Lane) {
        let moved = lane.queue.moved_bytes();
        if moved != lane.moved_bytes || idle_bytes(lane) == 0 {
            (lane.moved_bytes, lane.moved_at) = (moved, self.now);
        }
        let lies = self.now.saturating_duration_since(lane.moved_at);
        if self.memory.is_short() && lies >= IDLE_MAX {
            self.counters.fatal_errors.add(1);
            log::warn!("{}: it keeps {} bytes of memory and does nothing", lane.peer(), idle_bytes(lane));
            self.close(lane, "others wait for the memory that it keeps");
        }
    }
}

impl Driver {
    /// Admits commands of lanes that have given memory back.
    pub(super) fn admit_limited(&mut self) {
        let mut limited = std::mem::take(&mut self.core.limited);
        limited.retain(|key| {
            let Some(lane) = self.lanes.get_mut(*key) else { return false };
            while let Some(next) = lane.beyond_share.front()
                && self.core.is_within_share(lane, next.bytes_to_take())
                && let Some(next) = lane.beyond_share.pop_front()
            {
                self.core.admit(lane, next);
            }
            !lane.beyond_share.is_empty()
        });
        limited.append(&mut self.core.limited);
        self.core.limited = limited;
    }
}

/// Memory given to a lane's commands or promised to them.
fn kept_bytes(lane: &Lane) -> usize {
    lane.claimed_bytes + idle_bytes(lane)
}

/// Memory that lies until the host does something: for data that it owes, for answers that it has not taken.
fn idle_bytes(lane: &Lane) -> usize {
    lane.queue.receiving_bytes() + lane.queue.transmit_pending_bytes()
}

/// So many lanes with full shares fill the pool.
const LANES_FULL: usize = 8;
/// While others wait, memory may lie for so long.
const IDLE_MAX: Duration = Duration::from_secs(5);

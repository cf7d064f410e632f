//! What one lane may keep of its core's memory, so that a host which asks for much and then does nothing
//! leaves enough for all others; and how much of its long reads is ready to be sent, so that short ones need
//! not wait.
//!
//! A command that would exceed its lane's share waits at its lane, where it stands in nobody's way: with
//! scheduling, small commands pass large ones, a bounded number of them. Only within the share it takes
//! memory, or waits for it in the queue of all ([`waiting`](super::waiting)). When commands wait there for
//! long, lanes that keep memory and let it lie are closed.

use std::time::Duration;

use isolane_memory::PAGE_SIZE;

use super::job::Job;
use super::lane::Lane;
use super::memory::Size;
use super::waiting::Waiting;
use super::{Core, Driver};
use crate::config::TRANSFER_BYTES_MAX;
use crate::counters::Operation;

impl Core {
    /// A command wants memory of the pool before it can go on, or much output.
    pub(super) fn enter(&mut self, lane: &mut Lane, waiting: Waiting) {
        let size = self.size(&waiting);
        if lane.beyond_share[size as usize].is_empty() && self.may_go_on(lane, &waiting) {
            return self.admit(lane, waiting);
        }
        if !lane.is_limited() {
            self.limited.push(lane.key);
        }
        self.counters.deferred_commands.add(1);
        lane.beyond_share[size as usize].push_back(waiting);
    }

    /// Whether the answer to a command is so long that others should pass it.
    pub(super) fn is_long_read(&self, job: &Job) -> bool {
        Size::of(job.len) == Size::Large && job.operation == Operation::Read && self.shared.scheduling
    }

    /// Without scheduling all commands of a lane wait in one row.
    fn size(&self, waiting: &Waiting) -> Size {
        if self.shared.scheduling { waiting.size() } else { Size::Large }
    }

    /// The command is within its lane's share: it takes memory now or in its turn.
    fn admit(&mut self, lane: &mut Lane, waiting: Waiting) {
        match self.size(&waiting) {
            Size::Small if !lane.beyond_share[Size::Large as usize].is_empty() => lane.passed += 1,
            Size::Small => {}
            Size::Large => lane.passed = 0,
        }
        let len = waiting.bytes_to_take();
        lane.claimed_bytes += len;
        if !self.memory.claim(len) {
            return self.wait_for_memory(waiting);
        }
        if let Some(waiting) = self.go_on(lane, waiting) {
            self.wait(waiting);
        }
    }

    /// Whether a command may go on that is the first of its size.
    fn may_go_on(&self, lane: &Lane, waiting: &Waiting) -> bool {
        let kept = kept_bytes(lane);
        let may_pass = self.size(waiting) == Size::Large || lane.passed < PASSED_MAX;
        let has_room = match waiting {
            Waiting::Start { job, .. } if self.is_long_read(job) => {
                lane.claimed_bytes + lane.queue.transmit_pending_long_bytes() + job.len
                    <= LONG_OUTPUT_BYTES_MAX
            }
            _ => true,
        };
        kept == 0 || (may_pass && has_room && kept + waiting.bytes_to_take() <= self.share_bytes())
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
            for size in [Size::Small, Size::Large] {
                while let Some(next) = lane.beyond_share[size as usize].front()
                    && self.core.may_go_on(lane, next)
                    && let Some(next) = lane.beyond_share[size as usize].pop_front()
                {
                    self.core.admit(lane, next);
                }
            }
            lane.is_limited()
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
    lane.queue.receiving_bytes() + lane.queue.transmit_pending_bytes() + lane.lent_bytes
}

/// So many small commands pass a large one.
const PASSED_MAX: u32 = 256;
/// Long reads are begun while less than this is to be sent or read. Less than what stops a lane from being
/// read from.
const LONG_OUTPUT_BYTES_MAX: usize = 4 << 20;
/// So many lanes with full shares fill the pool.
const LANES_FULL: usize = 8;
/// While others wait, memory may lie for so long.
const IDLE_MAX: Duration = Duration::from_secs(5);

//! Shares of the core's memory for one lane and for one volume, and the limit of a lane's queued long reads.
//!
//! The shares leave memory for others if a host stalls or a volume hangs; the limit lets short reads pass. A
//! command that would exceed a share waits in a queue of its lane and volume, where it delays no other lane.
//! With fair queueing, a bounded number of small commands pass large ones. Within its shares, a command takes
//! memory, or waits for it in the common queue ([`waiting`](super::waiting)). If commands wait there for
//! long, lanes that hold memory without progress are closed.
//!
//! With several volumes, one of them gets memory only while it holds no more than the remainder, on the core
//! and in the share of the lane. So any number of hung volumes leaves memory for the next one. In-capsule
//! data cannot wait without its whole lane, so a volume can hold more of it.

use std::sync::Arc;
use std::time::Duration;

use isolane_memory::{Buffer, PAGE_SIZE, pages_for};
use isolane_observe::stage::{Operation, Stage};
use isolane_proto::target::Permit;
use isolane_volume::Request;

use super::slow::SlowCommands;
use super::{Core, Driver};
use crate::config::MAX_TRANSFER_BYTES;
use crate::lane::Lane;
use crate::memory_budget::GUARANTEED_PAGES;
use crate::orphans::OrphanFence;
use crate::work::{Job, Size, Waiting};

/// State of one volume on this core.
#[derive(Debug, Default)]
pub(super) struct VolumeState {
    /// Memory of the pool that its commands hold or have reserved, in bytes.
    held_bytes: usize,
    /// Commands wait until it holds less memory.
    is_crowded: bool,
    /// Number of closed lanes with commands at it.
    pub lanes_left: usize,
    /// Number of its flushes in the reactor.
    pub flushes: usize,
    /// Limits the lines about its failures.
    pub log: log::Limit,
    pub slow: SlowCommands,
    /// Jobs at it that were answered or have lost their connection.
    pub orphans: usize,
    /// Fence of the changes among those of all cores.
    pub fence: Option<Arc<OrphanFence>>,
    /// Commands answered in its place since the last line about it.
    pub answered: usize,
}

impl VolumeState {
    pub(super) fn hold(&mut self, bytes: usize) {
        self.held_bytes += bytes;
    }

    pub(super) fn release(&mut self, bytes: usize) {
        self.held_bytes -= bytes;
    }

    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes
    }
}

impl Core {
    /// Runs a command that needs memory or produces long output, or queues it if it exceeds a share.
    pub(super) fn enter(&mut self, lane: &mut Lane, mut waiting: Waiting) {
        let (position, size) = (waiting.position(), self.size(&waiting));
        let can_pass_others = !self.volumes[position].is_crowded || waiting.bytes_to_take() == 0;
        if can_pass_others
            && lane.at_volume(position).over_share[size as usize].is_empty()
            && self.can_run(lane, &waiting)
        {
            match self.take_limited_memory(lane, position, waiting.memory_bytes()) {
                Ok(()) => return self.admit(lane, waiting),
                Err(reached) => self.report_memory_limit(lane, reached),
            }
        }
        if !lane.is_limited() {
            self.waiting.limited.push(lane.key);
        }
        let takes_memory = waiting.bytes_to_take() > 0;
        waiting.enter(if takes_memory { Stage::Memory } else { Stage::Limit }, self.observer.now());
        let waits = if takes_memory { &self.counters.memory_waits } else { &self.counters.limit_waits };
        waits.add(1);
        self.counters.deferred_commands.add(1);
        lane.limited += 1;
        lane.at_volume(position).over_share[size as usize].push_back(waiting);
    }

    /// Returns `true` for a read whose long response other commands should pass.
    pub(super) fn is_long_read(&self, job: &Job) -> bool {
        Size::of(job.len) == Size::Large && job.operation == Operation::Read && self.shared.scheduling
    }

    /// Without fair queueing, all commands of a lane to one volume wait in one queue.
    fn size(&self, waiting: &Waiting) -> Size {
        if self.shared.scheduling { waiting.size() } else { Size::Large }
    }

    /// Runs a command within its shares, or queues it for memory.
    fn admit(&mut self, lane: &mut Lane, mut waiting: Waiting) {
        let (position, len) = (waiting.position(), waiting.bytes_to_take());
        let is_counted_here = lane.memory.is_some() && len == 0;
        // The flush before a read with FUA has no memory.
        if let (true, Waiting::Start { job, request: Request::Read { .. }, .. }) =
            (is_counted_here, &mut waiting)
            && job.counted_bytes == 0
        {
            lane.count_job_memory(job, job.len);
        }
        let at = lane.at_volume(position);
        match self.size(&waiting) {
            Size::Small if !at.over_share[Size::Large as usize].is_empty() => at.passed += 1,
            Size::Small => {}
            Size::Large => at.passed = 0,
        }
        lane.reserve(position, len);
        self.volumes[position].hold(len);
        if !self.memory.reserve(len) {
            return self.wait_for_memory(waiting);
        }
        if let Some(waiting) = self.resume_command(lane, waiting) {
            self.wait(waiting);
        }
    }

    /// Returns `true` if the first waiting command of its size at its volume can run.
    fn can_run(&self, lane: &mut Lane, waiting: &Waiting) -> bool {
        let (position, len) = (waiting.position(), waiting.bytes_to_take());
        if !self.is_within_volume(position, len, 1) {
            return false;
        }
        let (held, stalled) = (held_bytes(lane), stalled_bytes(lane));
        let at = lane.at_volume(position);
        let (reserved, passed) = (at.reserved_bytes, at.passed);
        let can_pass = self.size(waiting) == Size::Large || passed < MAX_PASSED;
        let has_output_space = match waiting {
            Waiting::Start { job, .. } if self.is_long_read(job) => {
                reserved + lane.conn.transmit_pending_long_bytes() + job.len <= MAX_LONG_OUTPUT_BYTES
            }
            _ => true,
        };
        let left = self.share_bytes().saturating_sub(held);
        let is_within_lane = if self.has_several_volumes() { reserved + len <= left } else { len <= left };
        reserved + stalled == 0 || (can_pass && has_output_space && is_within_lane)
    }

    /// Returns `true` if a volume with `len` more bytes holds at most `parts` times the remaining memory.
    fn is_within_volume(&self, position: usize, len: usize, parts: usize) -> bool {
        let held = self.volumes[position].held_bytes;
        let is_first = len == 0 || held == 0;
        is_first || !self.has_several_volumes() || held + len <= self.memory.left_for_large() * parts
    }

    fn has_several_volumes(&self) -> bool {
        self.namespaces.used() > 1
    }

    /// Returns memory for in-capsule data: from the shared budget if possible, else from the guarantee of the
    /// lane.
    pub(super) fn in_capsule_buffer(
        &mut self,
        lane: &mut Lane,
        permit: &Permit,
        position: usize,
        len: usize,
    ) -> Option<Buffer> {
        let mut is_spare =
            self.is_within_volume(position, len, IN_CAPSULE_PARTS) && self.memory.has_available(len);
        if is_spare && let Err(reached) = self.take_limited_memory(lane, position, len) {
            is_spare = false;
            // A lane that waits already was counted.
            if !lane.paused {
                self.report_memory_limit(lane, reached);
            }
        }
        // A stalled namespace does not take the guarantee from the others.
        if !is_spare
            && (lane.guaranteed_slot.is_some()
                || pages_for(len) > GUARANTEED_PAGES
                || self.volumes[position].slow.is_stalled)
        {
            return None;
        }
        let buffer = self.memory.pool.buffer(len)?;
        if is_spare {
            self.memory.take(len)
        } else {
            lane.guaranteed_slot = Some(permit.slot())
        }
        Some(buffer)
    }

    /// Counts memory of the pool for data that will arrive.
    pub(super) fn expect_data(&mut self, lane: &mut Lane, position: usize, len: usize) {
        lane.at_volume(position).awaited_bytes += len;
        self.volumes[position].hold(len);
    }

    /// Counts arrived data, which the job of the command holds while it is at its volume.
    pub(super) fn on_expected_data(&mut self, lane: &mut Lane, position: usize, len: usize) {
        lane.at_volume(position).awaited_bytes -= len;
        self.volumes[position].release(len);
    }

    fn share_bytes(&self) -> usize {
        (self.memory.pool.max_pages() * PAGE_SIZE / SHARES_PER_POOL).max(MAX_TRANSFER_BYTES as usize)
    }

    /// Closes a lane that holds memory without progress while commands wait for memory.
    pub(super) fn check_idle_memory(&mut self, lane: &mut Lane) {
        let moved = lane.conn.moved_bytes();
        // A lane that waits for memory is not read, so data that its host sends cannot arrive.
        let unread = if lane.stalled.is_some() { lane.conn.receiving_bytes() } else { 0 };
        if moved != lane.moved_bytes || stalled_bytes(lane) == unread {
            (lane.moved_bytes, lane.moved_at) = (moved, self.now);
        }
        let stalled_for = self.now.saturating_duration_since(lane.moved_at);
        let is_limit_short = lane.memory.as_mut().is_some_and(|memory| memory.is_short());
        let is_short = self.memory.is_short() || is_limit_short;
        if is_short && stalled_for >= MAX_STALL {
            self.counters.fatal_errors.add(1);
            let bytes = stalled_bytes(lane);
            log::limited!(Warn, "{}: holds {bytes} bytes of memory without progress", lane.peer());
            self.close(lane, "others wait for its memory");
        }
    }
}

impl Driver {
    /// Runs commands of lanes and volumes that have released memory, starting with a different lane each
    /// time.
    pub(super) fn admit_limited(&mut self) {
        let core = &mut self.core;
        core.volumes.iter_mut().for_each(|volume| volume.is_crowded = false);
        let mut limited = std::mem::take(&mut core.waiting.limited);
        limited.retain(|key| {
            let Some(lane) = self.lanes.get_mut(*key) else { return false };
            for at in 0..lane.volumes.len() {
                let position = lane.volumes[at].position;
                if lane.volumes[at].is_limited() && !core.volumes[position].is_crowded {
                    core.admit_limited_to(lane, position);
                }
            }
            lane.is_limited()
        });
        if limited.len() > 1 {
            limited.rotate_left(1);
        }
        limited.append(&mut core.waiting.limited);
        core.waiting.limited = limited;
    }
}

impl Core {
    /// Runs the commands of a lane at one volume.
    fn admit_limited_to(&mut self, lane: &mut Lane, position: usize) {
        for size in [Size::Small, Size::Large] {
            while let Some(next) = lane.at_volume(position).over_share[size as usize].pop_front() {
                if self.can_run(lane, &next)
                    && self.take_limited_memory(lane, position, next.memory_bytes()).is_ok()
                {
                    lane.limited -= 1;
                    self.admit(lane, next);
                    continue;
                }
                self.volumes[position].is_crowded |=
                    !self.is_within_volume(position, next.bytes_to_take(), 1);
                lane.at_volume(position).over_share[size as usize].push_front(next);
                break;
            }
        }
    }
}

/// Removes the commands that `is_removed` selects from those that would exceed a share of a lane.
pub(super) fn extract_over_share(lane: &mut Lane, is_removed: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
    let rows = lane.volumes.iter_mut().flat_map(|at| &mut at.over_share);
    let removed: Vec<_> = rows.flat_map(|row| Waiting::extract_from(row, &is_removed)).collect();
    lane.limited -= removed.len();
    removed
}

/// Returns the memory that the commands of a lane hold or have reserved, in bytes.
pub(super) fn held_bytes(lane: &Lane) -> usize {
    lane.reserved_bytes + stalled_bytes(lane)
}

/// Returns the memory that waits for the host, for data to receive and for responses to send, in bytes.
fn stalled_bytes(lane: &Lane) -> usize {
    lane.conn.receiving_bytes() + lane.conn.transmit_pending_bytes() + lane.zerocopy_bytes
}

/// Maximum number of small commands that pass a large one.
const MAX_PASSED: u32 = 256;
/// Limit of queued long responses below which long reads start, in bytes; less than the limit that pauses a
/// lane.
const MAX_LONG_OUTPUT_BYTES: usize = 4 << 20;
/// Memory that a volume can hold before in-capsule data for it stalls its lane, as a multiple of the
/// remainder.
const IN_CAPSULE_PARTS: usize = 3;
/// Number of lanes with full shares that fill the pool.
const SHARES_PER_POOL: usize = 8;
/// Time limit for memory without progress while commands wait.
const MAX_STALL: Duration = Duration::from_secs(5);

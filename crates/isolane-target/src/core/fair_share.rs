//! What one lane, and one volume, may keep of its core's memory, so that a host which asks for much and then
//! does nothing, and a volume that hangs, leave enough for all others; and how much of a lane's long reads is
//! ready to be sent, so that short ones need not wait.
//!
//! A command that would exceed a share waits at its lane, in a row of its volume, where it stands in nobody's
//! way: with scheduling, small commands pass large ones, a bounded number of them. Only within the shares it
//! takes memory, or waits for it in the queue of all ([`waiting`](super::waiting)). When commands wait there for
//! long, lanes that keep memory and let it lie are closed.
//!
//! With several volumes, one of them gets memory only while it holds no more than what is left, on the core
//! and in the lane's share. However many volumes hang, something is left for the next one. The data of a command
//! capsule cannot wait without its whole lane, so a volume may hold more of it.

use std::time::Duration;

use isolane_memory::{Buffer, PAGE_SIZE};
use isolane_proto::target::Permit;

use super::lane::Lane;
use super::work::{Job, Size, Waiting};
use super::{Core, Driver};
use crate::config::MAX_TRANSFER_BYTES;
use crate::counters::IoKind;

/// What one volume holds of a core.
#[derive(Debug, Default)]
pub(super) struct VolumeUse {
    /// Memory of the pool that its commands have or were promised, in bytes.
    held_bytes: usize,
    /// Commands wait until it holds less.
    is_crowded: bool,
    /// Lanes that are gone, and have commands at it.
    pub lanes_left: usize,
    /// Its parts of flushes of all volumes that the reactor carries out.
    pub flushes: usize,
}

impl VolumeUse {
    pub(super) fn hold(&mut self, bytes: usize) {
        self.held_bytes += bytes;
    }

    pub(super) fn release(&mut self, bytes: usize) {
        self.held_bytes -= bytes;
    }
}

impl Core {
    /// A command wants memory of the pool before it can go on, or much output.
    pub(super) fn enter(&mut self, lane: &mut Lane, waiting: Waiting) {
        let (position, size) = (waiting.position(), self.size(&waiting));
        let may_pass_others = !self.volumes[position].is_crowded || waiting.bytes_to_take() == 0;
        if may_pass_others
            && lane.at_volume(position).over_share[size as usize].is_empty()
            && self.can_run(lane, &waiting)
        {
            return self.admit(lane, waiting);
        }
        if !lane.is_limited() {
            self.limited.push(lane.key);
        }
        self.counters.deferred_commands.add(1);
        lane.limited += 1;
        lane.at_volume(position).over_share[size as usize].push_back(waiting);
    }

    /// Whether the answer to a command is so long that others should pass it.
    pub(super) fn is_long_read(&self, job: &Job) -> bool {
        Size::of(job.len) == Size::Large && job.operation == IoKind::Read && self.shared.scheduling
    }

    /// Without scheduling all commands of a lane to one volume wait in one row.
    fn size(&self, waiting: &Waiting) -> Size {
        if self.shared.scheduling { waiting.size() } else { Size::Large }
    }

    /// The command is within its shares: it takes memory now or in its turn.
    fn admit(&mut self, lane: &mut Lane, waiting: Waiting) {
        let (position, len) = (waiting.position(), waiting.bytes_to_take());
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

    /// Whether a command may go on that is the first of its size at its volume.
    fn can_run(&self, lane: &mut Lane, waiting: &Waiting) -> bool {
        let (position, len) = (waiting.position(), waiting.bytes_to_take());
        if !self.is_within_volume(position, len, 1) {
            return false;
        }
        let (kept, idle) = (held_bytes(lane), stalled_bytes(lane));
        let at = lane.at_volume(position);
        let (reserved, passed) = (at.reserved_bytes, at.passed);
        let can_pass = self.size(waiting) == Size::Large || passed < MAX_PASSED;
        let has_room = match waiting {
            Waiting::Start { job, .. } if self.is_long_read(job) => {
                reserved + lane.conn.transmit_pending_long_bytes() + job.len <= MAX_LONG_OUTPUT_BYTES
            }
            _ => true,
        };
        let left = self.share_bytes().saturating_sub(kept);
        let is_within_lane = if self.has_several_volumes() { reserved + len <= left } else { len <= left };
        reserved + idle == 0 || (can_pass && has_room && is_within_lane)
    }

    /// Whether a volume holds no more than `parts` times of what is left with `len` more bytes.
    fn is_within_volume(&self, position: usize, len: usize, parts: usize) -> bool {
        let held = self.volumes[position].held_bytes;
        let is_first = len == 0 || held == 0;
        is_first || !self.has_several_volumes() || held + len <= self.memory.left_for_large() * parts
    }

    fn has_several_volumes(&self) -> bool {
        self.volumes.len() > 1
    }

    /// Memory for in-capsule data.
    pub(super) fn in_capsule_buffer(
        &mut self,
        lane: &mut Lane,
        permit: &Permit,
        position: usize,
        len: usize,
    ) -> Option<Buffer> {
        let can_share = self.is_within_volume(position, len, IN_CAPSULE_PARTS);
        self.memory.in_capsule_buffer(lane, permit, len, can_share)
    }

    /// The data of a command is to arrive in memory of the pool.
    pub(super) fn expect_data(&mut self, lane: &mut Lane, position: usize, len: usize) {
        lane.at_volume(position).awaited_bytes += len;
        self.volumes[position].hold(len);
    }

    /// The data has arrived; while it is at its volume, the job of the command holds it.
    pub(super) fn on_expected_data(&mut self, lane: &mut Lane, position: usize, len: usize) {
        lane.at_volume(position).awaited_bytes -= len;
        self.volumes[position].release(len);
    }

    fn share_bytes(&self) -> usize {
        (self.memory.pool.max_pages() * PAGE_SIZE / SHARES_PER_POOL).max(MAX_TRANSFER_BYTES as usize)
    }

    /// Closes a lane that keeps memory and lets it lie while others wait for it.
    pub(super) fn check_idle_memory(&mut self, lane: &mut Lane) {
        let moved = lane.conn.moved_bytes();
        if moved != lane.moved_bytes || stalled_bytes(lane) == 0 {
            (lane.moved_bytes, lane.moved_at) = (moved, self.now);
        }
        let lies = self.now.saturating_duration_since(lane.moved_at);
        if self.memory.is_short() && lies >= MAX_STALL {
            self.counters.fatal_errors.add(1);
            log::warn!("{}: it keeps {} bytes of memory and does nothing", lane.peer(), stalled_bytes(lane));
            self.close(lane, "others wait for the memory that it keeps");
        }
    }
}

impl Driver {
    /// Admits commands of lanes and volumes that have given memory back. The lanes take turns in being the first.
    pub(super) fn admit_limited(&mut self) {
        let core = &mut self.core;
        core.volumes.iter_mut().for_each(|volume| volume.is_crowded = false);
        let mut limited = std::mem::take(&mut core.limited);
        limited.retain(|key| {
            let Some(lane) = self.lanes.get_mut(*key) else { return false };
            for at in 0..lane.volumes.len() {
                let position = lane.volumes[at].position();
                if lane.volumes[at].is_limited() && !core.volumes[position].is_crowded {
                    core.admit_limited_to(lane, position);
                }
            }
            lane.is_limited()
        });
        if limited.len() > 1 {
            limited.rotate_left(1);
        }
        limited.append(&mut core.limited);
        core.limited = limited;
    }
}

impl Core {
    /// Admits the commands of a lane to one volume.
    fn admit_limited_to(&mut self, lane: &mut Lane, position: usize) {
        for size in [Size::Small, Size::Large] {
            while let Some(next) = lane.at_volume(position).over_share[size as usize].pop_front() {
                if self.can_run(lane, &next) {
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

/// Memory given to a lane's commands or promised to them.
fn held_bytes(lane: &Lane) -> usize {
    lane.reserved_bytes + stalled_bytes(lane)
}

/// Memory that lies until the host does something: for data that it owes, for answers that it has not taken.
fn stalled_bytes(lane: &Lane) -> usize {
    lane.conn.receiving_bytes() + lane.conn.transmit_pending_bytes() + lane.zerocopy_bytes
}

/// So many small commands pass a large one.
const MAX_PASSED: u32 = 256;
/// Long reads are begun while less than this is to be sent or read. Less than what stops a lane from being
/// read from.
const MAX_LONG_OUTPUT_BYTES: usize = 4 << 20;
/// What a volume may hold before in-capsule data for it stops its lane, in parts of what is left.
const IN_CAPSULE_PARTS: usize = 3;
/// So many lanes with full shares fill the pool.
const SHARES_PER_POOL: usize = 8;
/// While others wait, memory may lie for so long.
const MAX_STALL: Duration = Duration::from_secs(5);

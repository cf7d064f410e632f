//! Commands that cannot run now, for lack of memory or because another command uses the same blocks.
//!
//! They wait in two queues. Memory is granted in the order of requests within a size class. Commands that
//! wait for their volumes are retried in rotation, because a hung volume can hold any number of them.
//! Invariants: one turn retries a bounded number of each queue, and all commands that their volumes have
//! started, for which others may wait; a command that waits for its volume blocks no memory.

use std::collections::VecDeque;

use isolane_observe::stage::{Operation, Stage};
use isolane_volume::Request;

use super::held::LANE_REMOVED_EARLY;
use super::over_limit::OverLimit;
use super::{Core, Driver};
use crate::lane::Lane;
use crate::memory_budget::MemoryBudget;
use crate::slab::SlabKey;
use crate::work::{Size, Waiting};

/// Commands that wait, and lanes that wait with theirs.
#[derive(Default)]
pub(super) struct WaitingCommands {
    /// For memory, in the order of their requests.
    memory: VecDeque<Waiting>,
    /// For their volumes; started ones come first.
    blocked: VecDeque<Waiting>,
    /// For changes of older associations.
    pub fenced: VecDeque<Waiting>,
    /// For orphans of their namespaces.
    pub behind: VecDeque<Waiting>,
    /// Number of them that are retried because an orphan has ended.
    behind_left: usize,
    /// Lanes with commands that would exceed a share of memory.
    pub limited: Vec<SlabKey>,
    /// Lanes that are not read until memory is available.
    pub stalled: VecDeque<SlabKey>,
    /// For the limits of their namespaces.
    pub over_limit: OverLimit,
}

impl WaitingCommands {
    pub(super) fn is_empty(&self) -> bool {
        !self.needs_retry()
            && self.fenced.is_empty()
            && self.limited.is_empty()
            && self.stalled.is_empty()
            && self.behind_left == 0
    }

    /// Retries the commands that wait for orphans: one has ended.
    pub(super) fn retry_behind(&mut self) {
        self.behind_left = self.behind.len();
    }

    /// Returns `true` if commands are retried because an orphan has ended.
    pub(super) fn retries_behind(&self) -> bool {
        self.behind_left > 0
    }

    /// Returns `true` if a command waits for memory or for its volume.
    pub(super) fn needs_retry(&self) -> bool {
        !self.memory.is_empty() || !self.blocked.is_empty()
    }

    /// Returns all commands but those that would exceed a share, which are in queues of their lanes.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiting> {
        self.memory.iter().chain(self.iter_at_volumes()).chain(self.over_limit.iter())
    }

    /// Returns the commands that wait for memory.
    pub(super) fn iter_for_memory(&self) -> impl Iterator<Item = &Waiting> {
        self.memory.iter()
    }

    /// Returns the commands that wait for their volumes, or for others there.
    pub(super) fn iter_at_volumes(&self) -> impl Iterator<Item = &Waiting> {
        self.blocked.iter().chain(&self.fenced).chain(&self.behind)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Waiting> {
        let Self { memory, blocked, fenced, behind, over_limit, .. } = self;
        memory.iter_mut().chain(blocked).chain(fenced).chain(behind).chain(over_limit.iter_mut())
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = Waiting> {
        let Self { memory, blocked, fenced, behind, over_limit, .. } = self;
        let at_volumes = blocked.drain(..).chain(fenced.drain(..)).chain(behind.drain(..));
        memory.drain(..).chain(at_volumes).chain(over_limit.drain())
    }

    /// Removes the commands that `is_removed` selects, without those over a limit; its second argument is `true` for those
    /// that wait for memory.
    pub(super) fn extract(&mut self, is_removed: impl Fn(&Waiting, bool) -> bool) -> Removed {
        let at_volume = |row| Waiting::extract_from(row, |waiting| is_removed(waiting, false));
        let mut others = at_volume(&mut self.fenced);
        others.append(&mut at_volume(&mut self.behind));
        let blocked = at_volume(&mut self.blocked);
        Removed {
            memory: Waiting::extract_from(&mut self.memory, |waiting| is_removed(waiting, true)),
            blocked,
            others,
        }
    }

    fn push_blocked(&mut self, waiting: Waiting) {
        if waiting.is_started() { self.blocked.push_front(waiting) } else { self.blocked.push_back(waiting) }
    }
}

/// Commands that were removed from the queues.
pub(super) struct Removed {
    memory: VecDeque<Waiting>,
    blocked: VecDeque<Waiting>,
    others: VecDeque<Waiting>,
}

impl Removed {
    /// Ends their waits for memory. Returns each, and whether it has reserved memory.
    pub(super) fn end_waits(
        self,
        memory: &mut MemoryBudget,
    ) -> impl Iterator<Item = (Waiting, bool)> + use<> {
        self.memory.iter().for_each(|waiting| memory.end_wait(waiting.bytes_to_take()));
        let reserved = self.memory.into_iter().chain(self.blocked).map(|waiting| (waiting, true));
        self.others.into_iter().map(|waiting| (waiting, false)).chain(reserved)
    }
}

impl Core {
    /// Queues a command for a retry in a later turn.
    pub(super) fn wait(&mut self, waiting: Waiting) {
        let Waiting::Start { job, .. } = &waiting else { return self.wait_for_memory(waiting) };
        let is_flush = job.operation == Operation::Flush;
        let counters = &self.counters;
        let waits = if is_flush { &counters.flush_waits } else { &counters.range_waits };
        waits.add(1);
        counters.deferred_commands.add(1);
        self.waiting.push_blocked(waiting);
    }

    /// Queues a command for a retry when memory is available.
    pub(super) fn wait_for_memory(&mut self, mut waiting: Waiting) {
        waiting.enter(Stage::Memory, self.observer.now());
        self.counters.memory_waits.add(1);
        self.counters.deferred_commands.add(1);
        self.memory.begin_wait(waiting.bytes_to_take());
        self.waiting.memory.push_back(waiting);
    }

    /// Cancels all waiting commands of a closed lane.
    pub(super) fn cancel_waiting(&mut self, lane: &mut Lane) {
        self.abandon_held(lane);
        lane.limited = 0;
        let rows = lane.volumes.iter_mut().flat_map(|at| std::mem::take(&mut at.over_share));
        let over_share: Vec<_> = rows.flatten().collect();
        let over_limit = self.waiting.over_limit.extract_for(lane.key);
        over_share.into_iter().chain(over_limit).for_each(|waiting| self.cancel(lane, waiting, false));
        let removed = self.waiting.extract(|waiting, _| waiting.lane() == lane.key);
        for (waiting, has_reserved) in removed.end_waits(&mut self.memory) {
            self.cancel(lane, waiting, has_reserved);
        }
    }

    /// Ends a command that is in no operation, with an answer if its lane is open.
    pub(super) fn cancel(&mut self, lane: &mut Lane, waiting: Waiting, has_reserved: bool) {
        let reserved = match &waiting {
            Waiting::Data { len, .. } if has_reserved => *len,
            Waiting::Start { job, .. } if has_reserved => job.reserved,
            _ => 0,
        };
        lane.unreserve(waiting.position(), reserved);
        self.volumes[waiting.position()].release(reserved);
        match waiting {
            Waiting::Data { permit, position, .. } => self.answer(lane, position, permit),
            Waiting::Start { mut job, request, .. } => {
                self.volumes[job.position].release(job.data_bytes);
                lane.job_bytes -= job.counted_bytes;
                if let Request::Write { data, .. } = request {
                    self.memory.pool.recycle_buffer(data);
                }
                if job.is_orphan {
                    self.end_orphan(lane, &mut job);
                }
                self.end(lane, job.volatile);
                if lane.is_open() {
                    self.add_mark(lane, job.failed_mark(self.namespaces.at(job.position)));
                }
                if let Some(permit) = job.permit.take() {
                    self.answer(lane, job.position, permit);
                }
            }
        }
    }

    /// Continues a command for which memory is available; returns it if it must still wait.
    pub(super) fn resume_command(&mut self, lane: &mut Lane, waiting: Waiting) -> Option<Waiting> {
        match waiting {
            Waiting::Data { lane: key, permit, position, len, since, timeline } => {
                let Some(buffer) = self.memory.pool.buffer(len) else {
                    return Some(Waiting::Data { lane: key, permit, position, len, since, timeline });
                };
                self.begin_transfer(lane, &permit, position, timeline);
                lane.unreserve(position, len);
                lane.at_volume(position).awaited_bytes += len;
                lane.conn.request_data(permit, buffer);
                self.sends.add(lane);
                None
            }
            Waiting::Start { job, request, .. } => self.try_start(lane, job, request),
        }
    }
}

impl Driver {
    /// Retries the first commands that wait for memory; the others keep their order.
    pub(super) fn retry_waiting(&mut self) {
        let mut skipped = VecDeque::new();
        let mut is_short = [false; 2];
        let mut retries_left = RETRIES_PER_TURN;
        for _ in 0..self.core.waiting.memory.len() {
            if retries_left == 0 || is_short == [true; 2] {
                break;
            }
            let Some(waiting) = self.core.waiting.memory.pop_front() else { break };
            let len = waiting.bytes_to_take();
            let is_short = &mut is_short[Size::of(len) as usize];
            if *is_short || !self.core.memory.has_available(len) {
                *is_short = true;
                skipped.push_back(waiting);
                continue;
            }
            retries_left -= 1;
            self.core.memory.end_wait(len);
            if let Some(waiting) = self.retry(waiting) {
                self.core.wait(waiting);
            }
        }
        while let Some(waiting) = skipped.pop_back() {
            self.core.waiting.memory.push_front(waiting);
        }
    }

    /// Retries commands that wait for their volumes: all started ones, and a bounded number of the others in
    /// rotation, so that a hung volume delays no other.
    pub(super) fn retry_blocked(&mut self) {
        let (mut started, mut retried) = (Vec::new(), VecDeque::new());
        let mut retries_left = RETRIES_PER_TURN;
        for _ in 0..self.core.waiting.blocked.len() {
            // Started commands come first.
            if retries_left == 0 {
                break;
            }
            let Some(waiting) = self.core.waiting.blocked.pop_front() else { break };
            retries_left -= usize::from(!waiting.is_started());
            if !self.core.memory.can_reserve(waiting.bytes_to_take()) {
                self.core.wait_for_memory(waiting);
                continue;
            }
            match self.retry(waiting) {
                Some(waiting) if waiting.is_started() => started.push(waiting),
                Some(waiting) => retried.push_back(waiting),
                None => {}
            }
        }
        self.core.waiting.blocked.append(&mut retried);
        while let Some(waiting) = started.pop() {
            self.core.waiting.blocked.push_front(waiting);
        }
    }

    /// Retries a bounded number of the commands that wait for orphans, once one has ended.
    pub(super) fn poll_behind(&mut self) {
        for _ in 0..self.core.waiting.behind_left.min(RETRIES_PER_TURN) {
            let row = &mut self.core.waiting;
            row.behind_left -= 1;
            let Some(waiting) = row.behind.pop_front() else { return row.behind_left = 0 };
            self.continue_held(waiting);
        }
    }

    /// Continues it and counts the memory that it takes; returns it if it must wait longer.
    fn retry(&mut self, waiting: Waiting) -> Option<Waiting> {
        let Some(lane) = self.lanes.get_mut(waiting.lane()) else { unreachable!("{LANE_REMOVED_EARLY}") };
        let len = waiting.bytes_to_take();
        let waiting = self.core.resume_command(lane, waiting);
        if waiting.is_none() {
            self.core.memory.take(len);
        }
        waiting
    }
}

/// Number of commands of each queue that one turn retries.
const RETRIES_PER_TURN: usize = 64;

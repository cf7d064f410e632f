//! Limits of memory on one core: which commands take a part, and what remains of it after a turn.
//!
//! A command that needs memory waits in the queue of its lane, as for a share of the pool, so the data of a write is
//! requested later. In-capsule data can use the memory that is guaranteed to its lane; otherwise the lane is not read. A
//! command that waits for too long is answered, so that its host repeats it.
//!
//! Invariant: after a turn, each queue with limits has counted what its commands hold.

use std::sync::Arc;

use super::fair_share::{extract_over_share, held_bytes};
use super::{Core, Driver};
use crate::lane::{Lane, Stalled};
use crate::limits::LimitReached;
use crate::memory_limits::MemoryLimits;
use crate::work::Job;

impl Core {
    /// Gives a queue the present limits. Admin queues and discovery have none.
    pub(super) fn attach_memory(&mut self, lane: &mut Lane) {
        let association = lane.association.as_ref();
        let storage = association.filter(|it| it.qid != 0 && !it.id.subsystem.is_discovery());
        let (Some(association), Some(limits)) = (storage, &self.memory_limits) else {
            lane.memory = None;
            return;
        };
        let subsystem = self.shared.control(|port| port.name_of(association.id.subsystem));
        lane.memory = limits.of(subsystem.as_ref(), association.host.nqn.as_ref());
        self.list_memory(lane);
    }

    /// Takes a part of all limits for a command that runs now.
    ///
    /// # Errors
    /// A limit because of which it must wait.
    #[inline]
    pub(super) fn take_limited_memory(
        &mut self,
        lane: &mut Lane,
        position: usize,
        bytes: usize,
    ) -> Result<(), LimitReached> {
        if lane.memory.is_none() { Ok(()) } else { self.take_from_limits(lane, position, bytes) }
    }

    #[cold]
    fn take_from_limits(
        &mut self,
        lane: &mut Lane,
        position: usize,
        bytes: usize,
    ) -> Result<(), LimitReached> {
        // The other half is for namespaces that are not stalled.
        let parts = if self.volumes[position].slow.is_stalled { 2 } else { 1 };
        let taken = lane.memory.as_mut().filter(|_| bytes > 0).map(|memory| memory.take(bytes, parts));
        self.list_memory(lane);
        taken.unwrap_or(Ok(()))
    }

    /// Counts a command that waits because of a limit, and logs one per second and limit.
    #[cold]
    pub(super) fn report_memory_limit(&self, lane: &Lane, reached: LimitReached) {
        self.shared.log_memory_limit(&self.counters, lane.peer(), reached);
    }

    fn answer_over_memory_of(&mut self, lane: &mut Lane) {
        let late = extract_over_share(lane, |waiting| self.is_over_limit_late(waiting));
        let mut count = late.len();
        late.into_iter().for_each(|waiting| self.give_back(lane, waiting, false));
        let is_late =
            |stalled: &mut Stalled| self.age(stalled.since, &stalled.timeline) >= self.times.answer_within;
        if let Some(stalled) = lane.stalled.take_if(is_late) {
            self.give_back_stalled(lane, stalled);
            count += 1;
        }
        if count > 0 {
            let (peer, within) = (lane.peer(), self.times.answer_within);
            log::limited!(
                Warn,
                "{peer}: {count} commands have waited for memory for {within:?}; the host was told to repeat them: raise \
                 limits.memory, or let the host send less at a time"
            );
        }
    }

    pub(super) fn list_memory(&mut self, lane: &mut Lane) {
        if let Some(memory) = &mut lane.memory
            && !std::mem::replace(&mut memory.is_listed, true)
        {
            self.metered.push(lane.key);
        }
    }
}

impl Lane {
    /// Counts memory that a job has and its lane has not reserved.
    #[cold]
    pub(super) fn count_job_memory(&mut self, job: &mut Job, bytes: usize) {
        job.counted_bytes += bytes as isize;
        self.job_bytes += bytes as isize;
    }

    /// A job was answered while its volume holds it: its memory counts for no host any longer.
    pub(super) fn discount_job_memory(&mut self, job: &mut Job) {
        self.job_bytes -= job.counted_bytes;
        job.counted_bytes = if self.memory.is_some() { -(job.reserved as isize) } else { 0 };
        self.job_bytes += job.counted_bytes;
    }
}

impl Driver {
    /// Uses these limits from now on.
    pub(super) fn set_memory_limits(&mut self, limits: Option<Arc<MemoryLimits>>) {
        self.core.memory_limits = limits;
        self.lanes.values_mut().for_each(|lane| self.core.attach_memory(lane));
    }

    /// Answers the commands of queues with limits that have waited for too long. Called in each tick.
    pub(super) fn answer_over_memory(&mut self) {
        if self.core.memory_limits.is_none() {
            return;
        }
        let core = &mut self.core;
        let waits = |lane: &&mut Lane| lane.is_limited() || lane.stalled.is_some();
        let limited = self.lanes.values_mut().filter(|lane| lane.memory.is_some()).filter(waits);
        limited.for_each(|lane| core.answer_over_memory_of(lane));
    }

    /// Counts what the commands of queues with limits hold after this turn.
    pub(super) fn settle_memory(&mut self) {
        if self.core.metered.is_empty() {
            return;
        }
        let mut metered = std::mem::take(&mut self.core.metered);
        metered.retain(|key| {
            let Some(lane) = self.lanes.get_mut(*key) else { return false };
            let bytes = held_bytes(lane).saturating_add_signed(lane.job_bytes);
            let Some(memory) = &mut lane.memory else { return false };
            memory.settle(bytes);
            memory.is_listed = bytes > 0;
            memory.is_listed
        });
        self.core.metered = metered;
    }
}

//! Commands that their volumes do not complete in time: answered, while their operations go on.
//!
//! In each tick, a command older than [`answer_within`](crate::TargetConfig::answer_within) is completed with a status
//! that lets its host repeat it: the operation may still be at the volume, in the kernel, or the command may wait there
//! or in a queue of this core. A job whose command was answered has no permit; it keeps its memory until the volume lets
//! go, and its result is dropped. A change becomes an [orphan](crate::orphans) first: an answer is sent only once all
//! cores know the fence, so that no later command of the host passes the change.
//!
//! Invariants: a command is answered once; a stalled namespace holds no lane, and a bounded number of answered jobs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isolane_observe::stage::Operation;
use isolane_proto::Failure;
use isolane_proto::target::Permit;
use isolane_volume::Outcome;

use super::fair_share::extract_over_share;
use super::io::has_retry_delays;
use super::{Core, Driver};
use crate::lane::{Lane, Stalled};
use crate::orphans::{OrphanChange, OrphanFence};
use crate::shared::Message;
use crate::slab::SlabKey;
use crate::timeline::Timeline;
use crate::work::{FileWork, Job, Waiting};

/// Answers that wait until every core has the fences of their changes.
#[derive(Debug, Default)]
pub(super) struct Answers {
    jobs: Vec<SlabKey>,
    /// Shared with a message to every core; `None` if no answer waits.
    checkpoint: Option<Arc<()>>,
}

impl Core {
    /// Returns `true` if a command must wait for orphans of its namespace: they overlap, or there are too many. A fault holds
    /// all commands.
    #[cold]
    pub(super) fn is_behind_orphan(&self, job: &Job) -> bool {
        let volume = &self.volumes[job.position];
        self.is_faulty(job)
            || volume.orphans >= MAX_ORPHANS
            || volume.fence.as_ref().is_some_and(|fence| fence.holds(job.blocks))
    }

    /// Commands at this position follow the orphans of the fence from now on.
    pub(super) fn set_fence(&mut self, position: usize, fence: Arc<OrphanFence>) {
        // A namespace that was removed in the meantime has no orphan.
        if let Some(volume) = self.volumes.get_mut(position) {
            volume.fence = Some(fence);
            self.has_orphans = true;
        }
    }

    /// Makes orphans of jobs at volumes. The checkpoint is free once all cores know it.
    fn make_orphans(&mut self, tokens: &[SlabKey], checkpoint: &Arc<()>) {
        let mut changes = BTreeMap::<usize, Vec<OrphanChange>>::new();
        for token in tokens {
            let Some(FileWork::Command { job, .. }) = self.files.get_mut(*token) else { continue };
            if std::mem::replace(&mut job.is_orphan, true) {
                continue;
            }
            self.volumes[job.position].orphans += 1;
            self.has_orphans = true;
            if job.is_change() {
                changes.entry(job.position).or_default().push(OrphanChange {
                    operation: job.operation,
                    blocks: job.blocks,
                    started: job.started,
                    mark: Arc::downgrade(job.mark()),
                });
            }
        }
        for (position, changes) in changes {
            let fence = self.shared.orphans.enter(position, changes);
            self.set_fence(position, Arc::clone(&fence));
            self.shared.post_to_all(|| {
                let (fence, checkpoint) = (Arc::clone(&fence), Arc::clone(checkpoint));
                Message::Fence { position, fence, _checkpoint: checkpoint }
            });
        }
    }

    /// Makes orphans of the changes of a lane that has lost its connection.
    pub(super) fn leave_orphans(&mut self, lane: &Lane) {
        if lane.active == 0 {
            return;
        }
        let left = self.files.iter().filter_map(|(token, work)| match work {
            FileWork::Command { lane: key, job, .. } if *key == lane.key && job.is_change() => Some(token),
            _ => None,
        });
        let left: Vec<_> = left.collect();
        self.make_orphans(&left, &Arc::default());
    }

    /// Called when the volume has let go of a job.
    #[cold]
    pub(super) fn end_orphan(&mut self, lane: &mut Lane, job: &mut Job) {
        if std::mem::take(&mut job.holds_guarantee) {
            lane.guaranteed_slot = None;
        }
        job.is_orphan = false;
        // Before the others look at it.
        job.unmark();
        let volume = &mut self.volumes[job.position];
        let was_full = volume.orphans >= MAX_ORPHANS;
        volume.orphans -= 1;
        if was_full {
            self.waiting.retry_behind();
        }
        if volume.fence.as_ref().is_some_and(|fence| fence.take_awaited()) {
            self.shared.post_to_all(|| Message::RetryBehind);
        }
    }

    /// Drops the result of a command that was answered before.
    #[cold]
    pub(super) fn drop_result(&mut self, position: usize, operation: Operation, outcome: Outcome) {
        match outcome {
            Ok(payload) => self.memory.pool.recycle_payload(payload),
            Err(error) => self.log_failure(position, operation, &error),
        }
    }

    /// Fails a command that its volume does not complete; the host can repeat it.
    pub(super) fn answer(&mut self, lane: &mut Lane, position: usize, permit: Permit) {
        let status = Failure::Stalled.status();
        let status = if has_retry_delays(lane) { status } else { status.with_crd(0) };
        self.volumes[position].answered += usize::from(lane.is_open());
        self.fail(lane, permit, status);
    }

    /// Returns the time since the receive of a command, or since its data arrived if the receive was not recorded.
    pub(super) fn age(&self, since: Instant, timeline: &Timeline) -> Duration {
        let received = timeline.received();
        let recorded = if received > 0 { self.observer.now().saturating_sub(received) } else { 0 };
        self.now.saturating_duration_since(since).max(Duration::from_nanos(recorded))
    }

    /// Returns `true` for a late command. Time that it waited for memory or for a limit counts only once its volume has
    /// had time for it.
    fn is_late(&self, job: &Job) -> bool {
        let volume_time = self.times.answer_within.min(self.times.stall_after);
        let is_there = |since: Instant| self.now.saturating_duration_since(since) >= volume_time;
        job.permit.is_some()
            && job.there_since.is_some_and(is_there)
            && self.age(job.started, &job.timeline) >= self.times.answer_within
    }

    /// Returns `true` for a waiting command that must be answered now. One that waits for memory can wait for other
    /// namespaces.
    fn is_waiting_late(&self, waiting: &Waiting, is_for_memory: bool) -> bool {
        if is_for_memory && !self.volumes[waiting.position()].slow.is_stalled {
            return false;
        }
        match waiting {
            Waiting::Data { since, timeline, .. } => self.age(*since, timeline) >= self.times.answer_within,
            Waiting::Start { job, .. } if is_for_memory => {
                job.permit.is_some() && self.age(job.started, &job.timeline) >= self.times.answer_within
            }
            Waiting::Start { job, .. } => self.is_late(job),
        }
    }

    /// Returns `true` for a command over the limits of its namespace that must be answered now.
    pub(super) fn is_over_limit_late(&self, waiting: &Waiting) -> bool {
        match waiting {
            Waiting::Data { since, timeline, .. } => self.age(*since, timeline) >= self.times.answer_within,
            Waiting::Start { job, .. } => self.age(job.started, &job.timeline) >= self.times.answer_within,
        }
    }

    /// Answers the late commands of a lane that would exceed a share of memory.
    fn answer_limited(&mut self, lane: &mut Lane) {
        for waiting in extract_over_share(lane, |waiting| self.is_waiting_late(waiting, true)) {
            self.cancel(lane, waiting, false);
        }
    }

    /// Answers the command whose in-capsule data has no memory because its namespace is stalled.
    fn answer_in_capsule(&mut self, lane: &mut Lane) {
        let is_stalled = |stalled: &mut Stalled| self.volumes[stalled.position].slow.is_stalled;
        if let Some(stalled) = lane.stalled.take_if(is_stalled) {
            self.skip_in_capsule(lane, stalled);
        }
    }

    /// Answers a command whose in-capsule data has no memory. Its data is skipped.
    pub(super) fn skip_in_capsule(&mut self, lane: &mut Lane, stalled: Stalled) {
        lane.conn.extend_deadline(self.now.saturating_duration_since(stalled.since));
        self.answer(lane, stalled.position, stalled.permit);
    }

    /// Forgets fences that are over, so that commands pay nothing for them.
    fn forget_fences(&mut self) {
        for volume in &mut self.volumes {
            volume.fence.take_if(|fence| fence.is_over());
        }
        let is_needed = self.volumes.iter().any(|volume| volume.orphans > 0 || volume.fence.is_some());
        self.has_orphans = is_needed || self.namespaces.has_faults();
    }

    fn log_answered(&mut self) {
        for (position, volume) in
            self.volumes.iter_mut().enumerate().filter(|(_, volume)| volume.answered > 0)
        {
            let (count, limit) = (std::mem::take(&mut volume.answered), &volume.log);
            let (name, within) = (self.namespaces.at(position).volume.name(), self.times.answer_within);
            log::limited!(
                by limit,
                Warn,
                "{name}: has not completed {count} commands within {within:?}, so their hosts repeat them; check its storage"
            );
        }
    }
}

impl Driver {
    /// Answers the commands that are late. Called in each tick, after the watch.
    pub(super) fn answer_late(&mut self) {
        self.send_answers();
        self.answer_over_limit();
        self.answer_over_memory();
        if self.core.has_orphans {
            self.core.forget_fences();
        }
        let limit = self.core.times.answer_within.min(self.core.times.stall_after);
        if self.core.volumes.iter().any(|volume| volume.slow.age >= Some(limit)) {
            self.prepare_answers();
            self.answer_waiting();
            self.core.log_answered();
        }
    }

    /// Makes orphans of the late commands at volumes.
    fn prepare_answers(&mut self) {
        let core = &mut self.core;
        if core.answers.checkpoint.is_some() {
            return;
        }
        let late = core.files.iter().filter_map(|(token, work)| match work {
            FileWork::Command { job, .. } if core.is_late(job) => Some(token),
            _ => None,
        });
        let late: Vec<_> = late.collect();
        if !late.is_empty() {
            let checkpoint = Arc::default();
            core.make_orphans(&late, &checkpoint);
            core.answers = Answers { jobs: late, checkpoint: Some(checkpoint) };
            self.send_answers();
        }
    }

    /// Sends the answers whose fences all cores have.
    fn send_answers(&mut self) {
        let core = &mut self.core;
        let is_known = |checkpoint: &mut Arc<()>| Arc::get_mut(checkpoint).is_some();
        if core.answers.checkpoint.take_if(is_known).is_none() {
            return;
        }
        for token in std::mem::take(&mut core.answers.jobs) {
            // Some have ended, or are at their next operation.
            let Some(FileWork::Command { lane, job, .. }) = core.files.get_mut(token) else { continue };
            let Some(lane) = self.lanes.get_mut(*lane) else {
                unreachable!("a lane was removed before its last command")
            };
            let Some(permit) = job.permit.take() else { continue };
            if lane.guaranteed_slot == Some(permit.slot()) {
                (lane.guaranteed_slot, job.holds_guarantee) = (Some(NO_SLOT), true);
            }
            lane.discount_job_memory(job);
            let (position, mark) = (job.position, job.failed_mark(core.namespaces.at(job.position)));
            core.add_mark(lane, mark);
            core.answer(lane, position, permit);
        }
    }

    /// Answers the late commands that are in no operation. Nothing remains of them.
    fn answer_waiting(&mut self) {
        let core = &mut self.core;
        let mut waiting = std::mem::take(&mut core.waiting);
        let late = waiting.extract(|waiting, is_for_memory| core.is_waiting_late(waiting, is_for_memory));
        core.waiting = waiting;
        for (waiting, has_reserved) in late.end_waits(&mut core.memory) {
            if let Some(lane) = self.lanes.get_mut(waiting.lane()) {
                core.cancel(lane, waiting, has_reserved);
            }
        }
        for lane in self.lanes.values_mut() {
            if lane.is_limited() {
                core.answer_limited(lane);
            }
            core.answer_in_capsule(lane);
        }
    }
}

/// Jobs at one volume that were answered or have lost their connection, from which it gets no new commands.
const MAX_ORPHANS: usize = 1024;
/// In place of the slot of an answered command that still uses the memory guaranteed to its lane.
const NO_SLOT: u16 = u16::MAX;

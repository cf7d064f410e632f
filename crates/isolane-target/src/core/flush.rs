//! Flushes of all volumes: for a controller shutdown, a disabled write cache, and the end of the target.
//!
//! Invariant: a flush starts only after the writes that it must cover have completed.

use std::sync::Arc;
use std::time::Instant;

use isolane_proto::Completion;
use isolane_proto::subsystem::AssociationId;
use isolane_proto::target::Permit;
use isolane_reactor::file::FileCompletion;
use isolane_volume::{Outcome, Request, Step, Task, Volume};
use isolane_wire::Status;

use super::work::{FileWork, Waiting};
use super::{Core, Driver};
use crate::counters::{InFlight, IoKind};
use crate::nvme_status;
use crate::shared::Message;
use crate::slab::SlabKey;

/// A flush of all volumes in progress.
pub(super) struct FlushGroup {
    /// Positions of volumes that have not completed.
    remaining: Vec<usize>,
    /// Parts are still being started.
    starting: bool,
    failures: usize,
    /// Deadline for the remaining volumes.
    until: Instant,
    /// Status of one of the failures.
    status: Option<Status>,
    then: AfterFlush,
}

/// Continuation of a flush of all volumes.
#[derive(Debug)]
pub(super) enum AfterFlush {
    /// Complete a command.
    Complete { lane: SlabKey, permit: Permit, completion: Completion },
    /// Notify the port that the controller can finish its shutdown.
    ReportShutdown(AssociationId),
    /// Finish the shutdown of this core.
    Shutdown,
}

/// A flush of all volumes that waits for commands at volumes.
pub(super) struct PendingFlush {
    in_flight: Vec<Arc<InFlight>>,
    /// Shared with a message to every core. Once this is the only reference, every core has seen the change
    /// of the port, and has counted its earlier commands in `in_flight`.
    checkpoint: Arc<()>,
    /// Deadline: a shutdown then continues without the commands, and a command fails.
    until: Instant,
    then: AfterFlush,
}

impl PendingFlush {
    fn is_late(&self, now: Instant) -> bool {
        now >= self.until && !matches!(self.then, AfterFlush::Shutdown)
    }

    fn is_due(&mut self) -> bool {
        let is_seen = Arc::get_mut(&mut self.checkpoint).is_some();
        is_seen
            && self.in_flight.iter().all(|in_flight| match self.then {
                AfterFlush::ReportShutdown(_) | AfterFlush::Shutdown => in_flight.is_idle(),
                AfterFlush::Complete { .. } => in_flight.is_durable(),
            })
    }
}

impl Core {
    /// Flushes all volumes once `in_flight` allows it: for a controller shutdown when no command is at a volume,
    /// for a command when no earlier one can leave data in a volatile cache.
    pub(super) fn plan_flush(&mut self, in_flight: Vec<Arc<InFlight>>, then: AfterFlush) {
        let checkpoint = Arc::new(());
        self.shared.post_to_all(|| Message::Checkpoint(Arc::clone(&checkpoint)));
        let until = self.now + self.shared.stuck_after;
        self.pending_flushes.push(PendingFlush { in_flight, checkpoint, until, then });
    }

    /// Flushes all volumes now, after `failures` earlier failures.
    pub(super) fn start_flush(&mut self, then: AfterFlush, failures: usize) {
        let until = self.now + self.shared.stuck_after;
        let positions = self.positions_to_flush(&then);
        let remaining = positions.clone();
        let group = FlushGroup { remaining, starting: true, failures, until, status: None, then };
        let group = self.flushes.insert(group);
        for position in positions {
            if let Some(waiting) = self.try_start_flush(group, position, Request::Flush) {
                self.wait(waiting);
            }
        }
        if let Some(group) = self.flushes.get_mut(group) {
            group.starting = false;
        }
        self.finish_if_done(group);
    }

    /// A command flushes only volumes with a volatile cache.
    fn positions_to_flush(&self, then: &AfterFlush) -> Vec<usize> {
        let is_needed = |position: &usize| {
            let volume = &self.shared.namespaces.at(*position).volume;
            !matches!(then, AfterFlush::Complete { .. }) || volume.info().volatile_cache
        };
        (0..self.shared.namespaces.len()).filter(is_needed).collect()
    }

    /// Starts the part of one volume, unless earlier parts are stuck at that volume.
    pub(super) fn try_start_flush(
        &mut self,
        group: SlabKey,
        position: usize,
        request: Request,
    ) -> Option<Waiting> {
        // The flush may have expired.
        self.flushes.get(group)?;
        if self.volumes[position].flushes >= MAX_FLUSHES && !matches!(request, Request::Continue(_)) {
            return Some(Waiting::Flush { group, position, request });
        }
        let volume = &self.shared.namespaces.at(position).volume;
        let step = volume.start(request, &mut self.memory.pool);
        self.advance_flush(group, position, step)
    }

    /// Continues a part after its operation.
    pub(super) fn resume_flush(
        &mut self,
        group: SlabKey,
        position: usize,
        task: Task,
        finished: FileCompletion,
    ) {
        let FileCompletion { result, operation, .. } = finished;
        let volume = &self.shared.namespaces.at(position).volume;
        self.volumes[position].flushes -= 1;
        let step = volume.resume(task, result, operation, &mut self.memory.pool);
        if let Some(waiting) = self.advance_flush(group, position, step) {
            self.wait(waiting);
        }
    }

    fn advance_flush(&mut self, group: SlabKey, position: usize, step: Step) -> Option<Waiting> {
        match step {
            Step::Done(result) => {
                let failure = self.record_flush(position, result);
                self.finish_part(group, position, failure);
            }
            Step::File(operation, task) => {
                self.volumes[position].flushes += 1;
                let token = self.files.insert(FileWork::Flush { group, position, task });
                self.submit(position, token, operation);
            }
            Step::Pending(pending) => {
                self.volumes[position].flushes += 1;
                let task = Task::from(&pending);
                self.register(pending, FileWork::Flush { group, position, task });
            }
            Step::Retry(request) => return Some(Waiting::Flush { group, position, request }),
        }
        None
    }

    fn record_flush(&mut self, position: usize, result: Outcome) -> Option<Status> {
        let error = result.err()?;
        let volume: &dyn Volume = &*self.shared.namespaces.at(position).volume;
        self.volume_log.record(position, volume, IoKind::Flush, &error, self.now);
        Some(nvme_status::status_for(&error, IoKind::Flush))
    }

    fn finish_part(&mut self, key: SlabKey, position: usize, failure: Option<Status>) {
        let Some(group) = self.flushes.get_mut(key) else { return };
        group.remaining.retain(|other| *other != position);
        group.failures += usize::from(failure.is_some());
        group.status = group.status.or(failure);
        self.finish_if_done(key);
    }

    fn finish_if_done(&mut self, key: SlabKey) {
        let is_done = |group: &FlushGroup| group.remaining.is_empty() && !group.starting;
        if self.flushes.get(key).is_some_and(is_done)
            && let Some(group) = self.flushes.remove(key)
        {
            self.flushed.push(group);
        }
    }

    /// Ends flushes at their deadline. The remaining volumes count as failures.
    pub(super) fn expire_flushes(&mut self) {
        for key in self.flushes.keys().collect::<Vec<_>>() {
            let now = self.now;
            let Some(group) = self.flushes.get_mut(key).filter(|group| now >= group.until) else { continue };
            for position in std::mem::take(&mut group.remaining) {
                group.failures += 1;
                group.status = group.status.or(Some(Status::NAMESPACE_NOT_READY));
                log::error!(
                    "{}: not flushed within {:?}; continuing without it",
                    self.shared.namespaces.at(position).volume.name(),
                    self.shared.stuck_after
                );
            }
            self.finish_if_done(key);
        }
    }
}

impl Driver {
    /// Starts the flushes that are due, and runs the continuations of completed ones.
    pub(super) fn poll_flushes(&mut self) {
        let core = &mut self.core;
        for at in (0..core.pending_flushes.len()).rev() {
            let (is_due, is_late) =
                (core.pending_flushes[at].is_due(), core.pending_flushes[at].is_late(core.now));
            if is_due || is_late {
                let PendingFlush { then, .. } = core.pending_flushes.swap_remove(at);
                match then {
                    then if is_due => core.start_flush(then, 0),
                    AfterFlush::Complete { .. } => {
                        log::error!("cannot disable a write cache: commands of its controller are stuck");
                        let status = Some(Status::NAMESPACE_NOT_READY);
                        let (remaining, until) = (Vec::new(), core.now);
                        let failed =
                            FlushGroup { remaining, starting: false, failures: 1, until, status, then };
                        core.flushed.push(failed);
                    }
                    then => {
                        log::error!(
                            "a controller shuts down while commands of it are stuck at their volumes"
                        );
                        core.start_flush(then, 1);
                    }
                }
            }
        }
        for flushed in std::mem::take(&mut self.core.flushed) {
            self.handle_flushed(flushed);
        }
    }

    fn handle_flushed(&mut self, FlushGroup { failures, status, then, .. }: FlushGroup) {
        match then {
            AfterFlush::ReportShutdown(id) => {
                self.core.shared.control(|port| port.handle_flushed(id, failures == 0));
                log::info!("controller {}: shut down by its host, {failures} failed flushes", id.cntlid);
            }
            AfterFlush::Shutdown => self.handle_final_flush(failures),
            AfterFlush::Complete { lane, permit, completion } => {
                let Some(lane) = self.lanes.get_mut(lane) else { return permit.forfeit() };
                let completion = status.map_or(completion, Completion::failed);
                self.core.end(lane, false);
                self.core.complete(lane, permit, completion);
            }
        }
    }
}

impl AfterFlush {
    /// Forfeits the command that waits for it.
    fn forfeit(self) {
        if let AfterFlush::Complete { permit, .. } = self {
            permit.forfeit();
        }
    }
}

impl Core {
    /// Forfeits all commands that wait for flushes.
    pub(super) fn forfeit_flushes(&mut self) {
        let groups: Vec<SlabKey> = self.flushes.keys().collect();
        let groups = groups.into_iter().filter_map(|key| self.flushes.remove(key)).map(|group| group.then);
        let pending_flushes = self.pending_flushes.drain(..).map(|pending_flushes| pending_flushes.then);
        let flushed = self.flushed.drain(..).map(|flushed| flushed.then);
        groups.chain(pending_flushes).chain(flushed).for_each(AfterFlush::forfeit);
    }
}

/// Maximum number of flushes at one volume, including expired ones, which stay there until they end.
const MAX_FLUSHES: usize = 64;

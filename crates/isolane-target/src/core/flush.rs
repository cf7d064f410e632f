//! Flushes of all volumes of a subsystem, for a controller shutdown or a disabled write cache, and of all volumes at
//! the end of the target.
//!
//! Invariant: a flush starts only after the writes that it must cover have completed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isolane_observe::stage::Operation;
use isolane_proto::subsystem::{AssociationId, SubsystemId};
use isolane_proto::target::Permit;
use isolane_proto::{Completion, Failure};
use isolane_reactor::file::FileCompletion;
use isolane_volume::{Request, Step, Task};
use isolane_wire::Status;

use super::{Core, Driver};
use crate::counters::InFlight;
use crate::namespace::Namespaces;
use crate::nvme_status;
use crate::release::Release;
use crate::shared::{Message, Shared};
use crate::slab::{Slab, SlabKey};
use crate::unflushed::HostChanges;
use crate::work::FileWork;

/// All flushes of all volumes.
#[derive(Default)]
pub(super) struct Flushes {
    groups: Slab<FlushGroup>,
    /// The next to poll first.
    turns: VecDeque<SlabKey>,
}

/// A flush of all volumes.
struct FlushGroup {
    /// Only those of this subsystem.
    subsystem: Option<SubsystemId>,
    /// Unflushed changes of the host whose controller shuts down.
    changes: Option<Arc<HostChanges>>,
    /// Commands that it waits for; `None` once it has started.
    pending: Option<Pending>,
    /// Volumes that have not completed.
    remaining: Vec<Part>,
    failures: usize,
    /// Deadline for the commands: a shutdown then continues without them, and a command fails. Then for the
    /// remaining volumes.
    until: Instant,
    /// Status of one of the failures.
    status: Option<Status>,
    then: AfterFlush,
}

/// The part of one volume in a flush.
struct Part {
    position: usize,
    /// Its number among the flushes of the host.
    number: u64,
    /// Request to start; `None` while it is at the volume.
    request: Option<Request>,
}

/// Continuation of a flush.
#[derive(Debug)]
pub(super) enum AfterFlush {
    /// Complete a command.
    Complete { lane: SlabKey, permit: Permit, completion: Completion },
    /// Notify the port that the controller can finish its shutdown.
    ReportShutdown(AssociationId),
    /// Finish the shutdown of this core.
    Shutdown,
    /// Continue the release of a removed namespace.
    Release(Release),
}

/// Commands at volumes that a flush waits for.
struct Pending {
    in_flight: Vec<Arc<InFlight>>,
    /// Shared with a message to every core. Once this is the only reference, every core has seen the change
    /// of the port, and has counted its earlier commands in `in_flight`.
    checkpoint: Arc<()>,
}

impl Pending {
    fn is_over(&mut self, then: &AfterFlush) -> bool {
        let is_seen = Arc::get_mut(&mut self.checkpoint).is_some();
        is_seen
            && self.in_flight.iter().all(|in_flight| match then {
                AfterFlush::Complete { .. } => in_flight.is_durable(),
                _ => in_flight.is_idle(),
            })
    }
}

impl Core {
    /// Flushes the volumes of a subsystem once `in_flight` allows it: for a controller shutdown those with unflushed
    /// `changes` when no command is at a volume, for a command when no earlier one can leave data in a volatile cache.
    pub(super) fn plan_flush(
        &mut self,
        subsystem: SubsystemId,
        in_flight: Vec<Arc<InFlight>>,
        changes: Option<Arc<HostChanges>>,
        then: AfterFlush,
    ) {
        let checkpoint = Arc::new(());
        self.shared.post_to_all(|| Message::Checkpoint(Arc::clone(&checkpoint)));
        let until = self.now + self.shared.stuck_after;
        let key = self.flushes.insert(Some(subsystem), Some(Pending { in_flight, checkpoint }), until, then);
        if let Some(group) = self.flushes.groups.get_mut(key) {
            group.changes = changes;
        }
    }

    /// Flushes all volumes now.
    pub(super) fn flush_now(&mut self, then: AfterFlush) {
        let key = self.flushes.insert(None, None, self.now, then);
        self.flushes.start(key, self.now, &self.namespaces, &self.shared);
    }
}

impl Flushes {
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Starts a flush of one volume, which ends at `until` at the latest.
    pub(super) fn insert_for(&mut self, position: usize, until: Instant, then: AfterFlush) {
        let key = self.insert(None, None, until, then);
        if let Some(group) = self.groups.get_mut(key) {
            group.remaining = vec![Part { position, number: 0, request: Some(Request::Flush) }];
        }
    }

    /// Returns the positions of the volumes that are being flushed.
    pub(super) fn positions(&self) -> impl Iterator<Item = usize> {
        self.groups.values().flat_map(|group| &group.remaining).map(|part| part.position)
    }

    fn insert(
        &mut self,
        subsystem: Option<SubsystemId>,
        pending: Option<Pending>,
        until: Instant,
        then: AfterFlush,
    ) -> SlabKey {
        let (changes, remaining, failures, status) = Default::default();
        let group = FlushGroup { subsystem, changes, pending, remaining, failures, until, status, then };
        let key = self.groups.insert(group);
        self.turns.push_back(key);
        key
    }

    /// Starts a pending flush if its commands have ended, or at the deadline.
    fn start_if_due(&mut self, key: SlabKey, now: Instant, namespaces: &Namespaces, shared: &Shared) {
        let Some(FlushGroup { pending: pending @ Some(_), changes, until, then, failures, status, .. }) =
            self.groups.get_mut(key)
        else {
            return;
        };
        if pending.as_mut().is_some_and(|pending| !pending.is_over(then)) {
            if now < *until {
                return;
            }
            *failures = 1;
            if let AfterFlush::Complete { .. } = then {
                log::limited!(Error, "cannot disable a write cache: commands of its controller are stuck");
                *status = Some(Failure::FlushTimeout.status());
                *pending = None;
                return;
            }
            log::limited!(Error, "a controller shuts down while commands of it are stuck at their volumes");
            // Those that are stuck are not recorded.
            *changes = None;
        }
        self.start(key, now, namespaces, shared);
    }

    fn start(&mut self, key: SlabKey, now: Instant, namespaces: &Namespaces, shared: &Shared) {
        let Some(group) = self.groups.get_mut(key) else { return };
        let is_needed = |position: &usize| {
            let namespace = namespaces.at(*position);
            if group.subsystem.is_some_and(|subsystem| namespace.subsystem != subsystem) {
                return false;
            }
            let volume = &namespace.volume;
            match group.then {
                // A command flushes only volumes with a volatile cache.
                AfterFlush::Complete { .. } => namespace.has_cache,
                // Hosts know of a failure, because their writes have failed. A fault on purpose is none: what was written
                // before it must become durable.
                AfterFlush::ReportShutdown(_) => {
                    volume.failure().is_none() && shared.unflushed.has(group.changes.as_deref(), *position)
                }
                AfterFlush::Shutdown | AfterFlush::Release(_) => true,
            }
        };
        let positions = namespaces.occupied().filter(is_needed);
        let part = |position| {
            let number = group.changes.as_ref().map_or(0, |changes| changes.start_flush(position));
            Part { position, number, request: Some(Request::Flush) }
        };
        group.remaining = positions.map(part).collect();
        group.pending = None;
        group.until = now + shared.stuck_after;
    }

    /// Records the end of the part of one volume.
    fn finish_part(&mut self, key: SlabKey, position: usize, failure: Option<Status>) {
        let Some(group) = self.groups.get_mut(key) else { return };
        if let (None, Some(changes)) = (failure, &group.changes) {
            let parts = group.remaining.iter().filter(|part| part.position == position);
            parts.for_each(|part| changes.end_flush(position, part.number));
        }
        group.remaining.retain(|part| part.position != position);
        group.failures += usize::from(failure.is_some());
        group.status = group.status.or(failure);
    }

    /// Queues a part that its volume could not start. The flush may have expired.
    fn retry_part(&mut self, key: SlabKey, position: usize, request: Request) {
        let mut parts = self.groups.get_mut(key).into_iter().flat_map(|group| &mut group.remaining);
        if let Some(part) = parts.find(|part| part.position == position) {
            part.request = Some(request);
        }
    }

    /// Whether one of the next flushes has a part that is not at its volume.
    pub(super) fn has_part_to_retry(&self) -> bool {
        let groups = self.turns.iter().take(POLLS_PER_TURN).filter_map(|key| self.groups.get(*key));
        groups.flat_map(|group| &group.remaining).any(|part| part.request.is_some())
    }

    /// Ends a flush at its deadline. The remaining volumes count as failures.
    fn expire(&mut self, key: SlabKey, now: Instant, namespaces: &Namespaces, stuck_after: Duration) {
        let Some(group) = self.groups.get_mut(key).filter(|group| now >= group.until) else { return };
        for Part { position, .. } in std::mem::take(&mut group.remaining) {
            group.failures += 1;
            group.status = group.status.or(Some(Failure::FlushTimeout.status()));
            log::error!(
                "{}: not flushed within {stuck_after:?}; continuing without it",
                namespaces.at(position).volume.name(),
            );
        }
    }

    /// Removes a flush that has ended; others get their next turn.
    fn take_ended(&mut self, key: SlabKey) -> Option<FlushGroup> {
        let is_done = |group: &FlushGroup| group.pending.is_none() && group.remaining.is_empty();
        if self.groups.get(key).is_some_and(is_done) {
            return self.groups.remove(key);
        }
        self.turns.push_back(key);
        None
    }

    /// Forfeits all commands that wait for flushes.
    pub(super) fn forfeit(&mut self) {
        self.turns.clear();
        for (_, group) in self.groups.drain() {
            if let AfterFlush::Complete { permit, .. } = group.then {
                permit.forfeit();
            }
        }
    }
}

impl Core {
    /// Starts the parts that are not at their volumes, unless earlier parts are stuck there.
    fn start_parts(&mut self, key: SlabKey) {
        let Some(group) = self.flushes.groups.get_mut(key) else { return };
        let volumes = &self.volumes;
        let can_start = |position: usize, request: &mut Request| {
            volumes[position].flushes < MAX_FLUSHES || matches!(request, Request::Continue(_))
        };
        let parts = group.remaining.iter_mut().filter_map(|part| {
            let position = part.position;
            Some((position, part.request.take_if(|request| can_start(position, request))?))
        });
        for (position, request) in parts.collect::<Vec<_>>() {
            let volume = &self.namespaces.at(position).volume;
            let step = volume.start(request, &mut self.memory.pool);
            self.advance_flush(key, position, step);
        }
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
        let volume = &self.namespaces.at(position).volume;
        self.volumes[position].flushes -= 1;
        let step = volume.resume(task, result, operation, &mut self.memory.pool);
        self.advance_flush(group, position, step);
    }

    fn advance_flush(&mut self, group: SlabKey, position: usize, step: Step) {
        match step {
            Step::Done(result) => {
                let failure = result.err().map(|error| {
                    self.log_failure(position, Operation::Flush, &error);
                    nvme_status::status_for(&error, Operation::Flush)
                });
                if failure.is_none() {
                    self.shared.unflushed.record_flush(position);
                }
                self.flushes.finish_part(group, position, failure);
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
            Step::Retry(request) => self.flushes.retry_part(group, position, request),
        }
    }
}

impl Driver {
    /// Starts the flushes that are due, and runs the continuations of completed ones: of a bounded number of flushes,
    /// in rotation.
    pub(super) fn poll_flushes(&mut self) {
        for _ in 0..self.core.flushes.turns.len().min(POLLS_PER_TURN) {
            let core = &mut self.core;
            let Some(key) = core.flushes.turns.pop_front() else { break };
            let stuck_after = core.shared.stuck_after;
            core.flushes.start_if_due(key, core.now, &core.namespaces, &core.shared);
            core.start_parts(key);
            core.flushes.expire(key, core.now, &core.namespaces, stuck_after);
            if let Some(group) = core.flushes.take_ended(key) {
                self.handle_flushed(group);
            }
        }
    }

    fn handle_flushed(&mut self, FlushGroup { failures, status, then, .. }: FlushGroup) {
        match then {
            AfterFlush::ReportShutdown(id) => {
                self.core.shared.control(|port| port.handle_flushed(id, failures == 0));
                log::debug!("controller {}: shut down by its host, {failures} failed flushes", id.cntlid);
            }
            AfterFlush::Shutdown => self.handle_final_flush(failures),
            AfterFlush::Release(release) => self.handle_removed_flushed(release),
            AfterFlush::Complete { lane, permit, completion } => {
                let Some(lane) = self.lanes.get_mut(lane) else { return permit.forfeit() };
                let completion = status.map_or(completion, Completion::failed);
                self.core.end(lane, false);
                self.core.complete(lane, permit, completion);
            }
        }
    }
}

/// Maximum number of flushes at one volume, including expired ones, which stay there until they end.
const MAX_FLUSHES: usize = 64;
/// Number of flushes of all volumes that one turn polls.
const POLLS_PER_TURN: usize = 64;

//! Flushes of all volumes together: for a controller that shuts down, a Flush of all namespaces, and the end
//! of the target.
//!
//! Invariant: a flush begins only when the writes it must cover have been completed.

use std::sync::Arc;

use isolane_proto::Completion;
use isolane_proto::subsystem::AssociationId;
use isolane_proto::target::Permit;
use isolane_reactor::file::Finished;
use isolane_volume::{Outcome, Request, Step, Task, Volume};
use isolane_wire::Status;

use super::job::FileWork;
use super::waiting::Waiting;
use super::{Core, Driver};
use crate::counters::Operation;
use crate::shared::{Busy, Message};
use crate::status;
use crate::table::Key;

/// One flush of all volumes that is under way.
pub(super) struct FlushGroup {
    /// Volumes that have not answered yet, and one while they are being asked.
    left: usize,
    failures: usize,
    /// One of the failures.
    status: Option<Status>,
    then: Then,
}

/// What follows a flush of all volumes.
#[derive(Debug)]
pub(super) enum Then {
    /// Answer a command.
    Answer { lane: Key, permit: Permit, completion: Completion },
    /// Tell the port that the association's controller may finish its shutdown.
    ShutDown(AssociationId),
    /// Stop this core.
    Stop,
}

/// A flush of all volumes that has ended.
pub(super) struct Flushed {
    failures: usize,
    status: Option<Status>,
    then: Then,
}

/// A flush of all volumes that has to wait for commands which are at volumes now.
pub(super) struct Planned {
    busy: Vec<Arc<Busy>>,
    /// Shared with a message to every core. When ours is the only reference, every core has seen what the
    /// port changed, and has counted among `busy` what it began before.
    unseen: Arc<()>,
    then: Then,
}

impl Planned {
    fn is_due(&mut self) -> bool {
        let is_seen = Arc::get_mut(&mut self.unseen).is_some();
        is_seen
            && self.busy.iter().all(|busy| match self.then {
                Then::ShutDown(_) | Then::Stop => busy.is_idle(),
                Then::Answer { .. } => busy.is_durable(),
            })
    }
}

impl Core {
    /// The controller shuts down: flushes as soon as no command of its association is at a volume.
    pub(super) fn plan_shutdown(&mut self, id: AssociationId, busy: Vec<Arc<Busy>>) {
        self.plan(busy, Then::ShutDown(id));
    }

    /// The volatile cache was disabled: flushes as soon as nothing that was started before can leave anything
    /// in it, then answers the command.
    pub(super) fn plan_answer(
        &mut self,
        id: AssociationId,
        lane: Key,
        permit: Permit,
        completion: Completion,
    ) {
        self.plan(self.shared.busy_of(id), Then::Answer { lane, permit, completion });
    }

    fn plan(&mut self, busy: Vec<Arc<Busy>>, then: Then) {
        let unseen = Arc::new(());
        self.shared.post_to_all(|| Message::See(Arc::clone(&unseen)));
        self.planned.push(Planned { busy, unseen, then });
    }

    /// Flushes every volume.
    pub(super) fn start_flush(&mut self, then: Then) {
        let volumes = self.shared.namespaces.len();
        let group = self.flushes.insert(FlushGroup { left: volumes + 1, failures: 0, status: None, then });
        for position in 0..volumes {
            if let Some(waiting) = self.attempt_flush(group, position, Request::Flush) {
                self.wait(waiting);
            }
        }
        self.finish_part(group, None);
    }

    /// Starts one volume's part.
    pub(super) fn attempt_flush(&mut self, group: Key, position: usize, request: Request) -> Option<Waiting> {
        let volume = &self.shared.namespaces.at(position).volume;
        let step = volume.start(request, &mut self.memory.pool);
        self.proceed_flush(group, position, step)
    }

    /// The reactor has carried out a part's operation.
    pub(super) fn resume_flush(&mut self, group: Key, position: usize, task: Task, finished: Finished) {
        let Finished { result, operation, .. } = finished;
        let volume = &self.shared.namespaces.at(position).volume;
        let step = volume.resume(task, result, operation, &mut self.memory.pool);
        if let Some(waiting) = self.proceed_flush(group, position, step) {
            self.wait(waiting);
        }
    }

    fn proceed_flush(&mut self, group: Key, position: usize, step: Step) -> Option<Waiting> {
        match step {
            Step::Done(outcome) => {
                let failure = self.note_flush(position, outcome);
                self.finish_part(group, failure);
            }
            Step::File(operation, task) => {
                let token = self.files.insert(FileWork::Flush { group, position, task });
                self.submit(position, token, operation);
            }
            Step::Later(request) => return Some(Waiting::Flush { group, position, request }),
        }
        None
    }

    fn note_flush(&mut self, position: usize, outcome: Outcome) -> Option<Status> {
        let error = outcome.err()?;
        let volume: &dyn Volume = &*self.shared.namespaces.at(position).volume;
        self.volume_log.note(position, volume, Operation::Flush, &error, self.now);
        Some(status::of_volume_error(&error, Operation::Flush))
    }

    fn finish_part(&mut self, key: Key, failure: Option<Status>) {
        let Some(group) = self.flushes.get_mut(key) else { return };
        group.left -= 1;
        group.failures += usize::from(failure.is_some());
        group.status = group.status.or(failure);
        if group.left == 0
            && let Some(FlushGroup { failures, status, then, .. }) = self.flushes.remove(key)
        {
            self.flushed.push(Flushed { failures, status, then });
        }
    }
}

impl Driver {
    /// Begins the flushes whose time has come, and does what follows those that have ended.
    pub(super) fn see_to_flushes(&mut self) {
        let core = &mut self.core;
        for at in (0..core.planned.len()).rev() {
            if core.planned[at].is_due() {
                let planned = core.planned.swap_remove(at);
                core.start_flush(planned.then);
            }
        }
        for flushed in std::mem::take(&mut self.core.flushed) {
            self.handle_flushed(flushed);
        }
    }

    fn handle_flushed(&mut self, Flushed { failures, status, then }: Flushed) {
        match then {
            Then::ShutDown(id) => {
                self.core.shared.control(|port| port.handle_flushed(id, failures == 0));
                log::info!("controller {}: shut down by its host, {failures} failed flushes", id.cntlid);
            }
            Then::Stop => self.handle_final_flush(failures),
            Then::Answer { lane, permit, completion } => {
                let Some(lane) = self.lanes.get_mut(lane) else { return permit.forfeit() };
                let completion = status.map_or(completion, Completion::failed);
                self.core.end(lane, false);
                self.core.complete(lane, permit, completion);
            }
        }
    }
}

impl Then {
    /// Gives up the command that waits for it.
    fn forfeit(self) {
        if let Then::Answer { permit, .. } = self {
            permit.forfeit();
        }
    }
}

impl Core {
    /// Gives up all commands that wait for flushes.
    pub(super) fn forfeit_flushes(&mut self) {
        let groups: Vec<Key> = self.flushes.keys().collect();
        let groups = groups.into_iter().filter_map(|key| self.flushes.remove(key)).map(|group| group.then);
        let planned = self.planned.drain(..).map(|planned| planned.then);
        let flushed = self.flushed.drain(..).map(|flushed| flushed.then);
        groups.chain(planned).chain(flushed).for_each(Then::forfeit);
    }
}

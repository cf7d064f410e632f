//! Executor of the nested requests of one core.
//!
//! Does no I/O: [`Executor::poll`] returns operations, which the driver submits, and whose results it passes to
//! [`Executor::resume`]. A request to a member follows the same steps as a request of a host.
//!
//! Invariant: every operation that `poll` returned is resumed exactly once.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use isolane_memory::{Payload, Pool};
use isolane_reactor::Reactor;
use isolane_reactor::file::FileOp;

use super::timer::{LastWrite, MemberEnd, MemberTimer, Run};
use super::{Command, IoQueue, Nested, Reply, ReplyState, Started};
use crate::request::{Outcome, Pending, Request, Step, Task};
use crate::volume::Volume;

/// Runs nested requests.
#[derive(Debug, Default)]
pub struct Executor {
    /// Present if the driver takes the times of members.
    timer: Option<MemberTimer>,
    requests: HashMap<u64, NestedRequest>,
    next_id: u64,
    /// Requests to poll.
    ready: Vec<u64>,
    /// Timers, and requests that their members could not start.
    waiting: Vec<Waiting>,
    operations: Vec<Operation>,
    /// When all requests are polled, so that they can abandon members that do not reply.
    sweep: Option<Instant>,
}

#[derive(Debug)]
struct NestedRequest {
    nested: Nested,
    /// Members and timers without a reply.
    running: usize,
    outcome: Option<Outcome>,
    /// Given by the driver; `None` for requests of nested members.
    tag: Option<u64>,
    writes: LastWrite,
}

#[derive(Debug)]
struct Waiting {
    until: Instant,
    nested: u64,
    reply: Reply,
    request: Option<(Arc<dyn Volume>, Request, Run)>,
}

/// An operation for a member, with the state to [resume](Executor::resume) it.
#[derive(Debug)]
pub enum Operation {
    /// Execute the operation on the member's file.
    File(FileOp, Member),
    /// Register the completion.
    Pending(Pending, Member),
}

impl Operation {
    /// Submits the operation to `reactor`, and returns the member to resume when `token` completes.
    ///
    /// # Panics
    /// If the volume has file operations but no file.
    pub fn submit(self, token: u64, reactor: &mut Reactor) -> Member {
        match self {
            Operation::File(operation, member) => {
                reactor.submit_file(token, member.file(), operation);
                member
            }
            Operation::Pending(pending, member) => {
                pending.register(reactor.register_external(token));
                member
            }
        }
    }
}

/// State of a request to a member.
#[derive(Debug)]
pub struct Member {
    volume: Arc<dyn Volume>,
    task: Task,
    nested: u64,
    reply: Reply,
    run: Run,
}

impl Member {
    /// Returns the volume that executes the request.
    pub fn volume(&self) -> &Arc<dyn Volume> {
        &self.volume
    }

    fn file(&self) -> &Arc<File> {
        self.volume.file().unwrap_or_else(|| panic!("{}: file operation without a file", self.volume.name()))
    }
}

impl Executor {
    /// Returns an executor that takes the times of all requests to members, for [`Executor::poll_ended`].
    pub fn timed() -> Executor {
        Executor { timer: Some(MemberTimer::default()), ..Executor::default() }
    }

    /// Returns a request to a member that has ended.
    pub fn poll_ended(&mut self) -> Option<MemberEnd> {
        self.timer.as_mut()?.ended.pop()
    }

    /// Starts a nested request; its [`Pending`] step completes it.
    pub fn start(&mut self, nested: Nested) {
        self.start_tagged(nested, None);
    }

    /// Starts a nested request with a number that becomes part of its [`MemberEnd::Last`].
    pub fn start_tagged(&mut self, nested: Nested, tag: Option<u64>) {
        let id = self.next_id;
        self.next_id += 1;
        let writes = LastWrite::default();
        self.requests.insert(id, NestedRequest { nested, running: 0, outcome: None, tag, writes });
        self.ready.push(id);
    }

    /// Returns the next operation to execute. Call it after each other call, and at the
    /// [deadline](Executor::deadline), until it returns `None`.
    pub fn poll(&mut self, now: Instant, pool: &mut Pool) -> Option<Operation> {
        if self.operations.is_empty() {
            self.resume_waiting(now, pool);
            self.sweep_if_due(now);
        }
        loop {
            if let Some(operation) = self.operations.pop() {
                return Some(operation);
            }
            let id = self.ready.pop()?;
            self.poll_request(id, now, pool);
        }
    }

    /// Continues a member after its operation: see [`Volume::resume`].
    pub fn resume(
        &mut self,
        member: Member,
        result: io::Result<usize>,
        operation: FileOp,
        now: Instant,
        pool: &mut Pool,
    ) {
        let Member { volume, task, nested, reply, run } = member;
        let step = volume.resume(task, result, operation, pool);
        self.handle_step((volume, run), nested, reply, step, now);
    }

    /// Returns when to poll again even if no operation completes.
    pub fn deadline(&self) -> Option<Instant> {
        self.waiting.iter().map(|waiting| waiting.until).chain(self.sweep()).min()
    }

    /// Whether timers or members wait for a later poll.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether a poll can have work that no completion reports.
    pub fn has_work(&self, now: Instant) -> bool {
        self.is_waiting() || self.sweep().is_some_and(|sweep| sweep <= now)
    }

    fn sweep(&self) -> Option<Instant> {
        self.sweep.filter(|_| !self.requests.is_empty())
    }

    /// Polls all requests if it is time, and schedules the next time while there are any.
    fn sweep_if_due(&mut self, now: Instant) {
        if self.sweep.is_some_and(|sweep| sweep <= now) {
            self.ready.extend(self.requests.keys().copied());
            self.sweep = None;
        }
        self.sweep = (!self.requests.is_empty()).then(|| self.sweep.unwrap_or(now + SWEEP));
    }

    fn poll_request(&mut self, id: u64, now: Instant, pool: &mut Pool) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        if request.outcome.is_none() {
            let mut context = Context::from_waker(Waker::noop());
            if let Poll::Ready(outcome) = request.nested.future.as_mut().poll(&mut context) {
                request.outcome = Some(outcome);
            }
        }
        let IoQueue { started, abandoned } = std::mem::take(&mut *request.nested.io.queue.lock());
        request.running += started.len();
        request.running -= abandoned;
        if request.running == 0
            && let Some(outcome) = request.outcome.take()
            && let Some(request) = self.requests.remove(&id)
        {
            self.timer.iter_mut().for_each(|timer| timer.end_request(request.tag, &request.writes));
            return request.nested.completer.complete(outcome);
        }
        for Started { reply, command } in started {
            let until = match command {
                Command::Request(volume, request) => {
                    let run = Run::new(&volume, &request, self.timer.is_some());
                    let step = volume.start(request, pool);
                    self.handle_step((volume, run), id, reply, step, now);
                    continue;
                }
                Command::SleepUntil(until) => until,
                Command::WaitForTurn => now + RETRY,
            };
            self.waiting.push(Waiting { until, nested: id, reply, request: None });
        }
    }

    fn handle_step(
        &mut self,
        (volume, run): (Arc<dyn Volume>, Run),
        nested: u64,
        reply: Reply,
        step: Step,
        now: Instant,
    ) {
        match step {
            Step::Done(outcome) => {
                if let Some(timer) = &mut self.timer {
                    let writes = self.requests.get_mut(&nested).map(|request| &mut request.writes);
                    timer.end(&run, outcome.is_ok(), writes);
                }
                self.reply(nested, &reply, outcome);
            }
            Step::File(operation, task) => {
                self.operations.push(Operation::File(operation, Member { volume, task, nested, reply, run }));
            }
            Step::Pending(mut pending) => {
                pending.take_nested().into_iter().for_each(|inner| self.start(inner));
                let task = Task::from(&pending);
                self.operations
                    .push(Operation::Pending(pending, Member { volume, task, nested, reply, run }));
            }
            Step::Retry(request) => {
                let request = Some((volume, request, run));
                self.waiting.push(Waiting { until: now + RETRY, nested, reply, request });
            }
        }
    }

    fn resume_waiting(&mut self, now: Instant, pool: &mut Pool) {
        for Waiting { nested, reply, request, .. } in
            self.waiting.extract_if(.., |waiting| waiting.until <= now).collect::<Vec<_>>()
        {
            match request {
                None => self.reply(nested, &reply, Ok(Payload::default())),
                Some((volume, request, run)) => {
                    let step = volume.start(request, pool);
                    self.handle_step((volume, run), nested, reply, step, now);
                }
            }
        }
    }

    fn reply(&mut self, nested: u64, reply: &Reply, outcome: Outcome) {
        let mut reply = reply.lock();
        if matches!(*reply, ReplyState::Abandoned) {
            return;
        }
        *reply = ReplyState::Ended(outcome);
        if let Some(request) = self.requests.get_mut(&nested) {
            request.running -= 1;
        }
        self.ready.push(nested);
    }
}

/// Interval at which requests are started again that a member could not start.
pub(super) const RETRY: Duration = Duration::from_micros(100);
/// Interval at which all requests are polled.
pub(super) const SWEEP: Duration = Duration::from_millis(250);

//! Jobs: commands at a volume, from their start to their completion.
//!
//! Invariant: a job is finished exactly once. Its permit is then completed, or abandoned if its lane has
//! ended.

use std::io;

use isolane_memory::Payload;
use isolane_observe::stage::{Operation, Stage};
use isolane_proto::Completion;
use isolane_proto::target::Permit;
use isolane_reactor::file::{FileCompletion, FileOp};
use isolane_volume::{Outcome, Request, Step, Task, VolumeError};
use slotmap::{Key, KeyData};

use super::{Core, Driver};
use crate::lane::{Association, Lane};
use crate::nvme_status;
use crate::observed::Phase;
use crate::slab::SlabKey;
use crate::timeline::{Kind, Mark};
use crate::work::{FileWork, Job, Waiting};

impl Core {
    /// Starts a request at its volume, or queues it behind a fence or for memory.
    pub(super) fn start(&mut self, lane: &mut Lane, mut job: Job, request: Request) {
        if !job.is_charged {
            return self.start_within_limits(lane, job, request);
        }
        let is_held = lane.is_held(&job);
        if is_held || self.has_orphans && self.is_behind_orphan(&job) {
            if !is_held && self.fails(&job) {
                return self.fail_on_purpose(lane, job, request);
            }
            self.count(lane, &mut job);
            job.there_since.get_or_insert(self.now);
            if !job.timeline.is_in(Stage::Blocks) {
                job.timeline.enter(Stage::Blocks, self.observer.now());
            }
            let row = if is_held { &mut self.waiting.fenced } else { &mut self.waiting.behind };
            return row.push_back(Waiting::Start { lane: lane.key, job, request });
        }
        job.reserved = job.bytes_to_take(&request);
        let is_limited = lane.memory.is_some() && job.operation == Operation::Read;
        if job.reserved > 0 || is_limited || self.is_long_read(&job) {
            self.count(lane, &mut job);
            return self.enter(lane, Waiting::Start { lane: lane.key, job, request });
        }
        if let Some(waiting) = self.try_start(lane, job, request) {
            self.wait(waiting);
        }
    }

    /// Starts a request at its volume. Returns the work to queue if it must wait.
    pub(super) fn try_start(&mut self, lane: &mut Lane, mut job: Job, request: Request) -> Option<Waiting> {
        // A blocked command is retried in each turn, mostly in vain.
        let is_retry = job.timeline.is_in(Stage::Blocks);
        let now = if is_retry { self.observer.turn_ns() } else { self.observer.now() };
        job.timeline.enter(Stage::Queue, now);
        job.there_since.get_or_insert(self.now);
        let is_new = lane.is_open() && !matches!(request, Request::Continue(_));
        if is_new && self.has_left_too_many(job.position) {
            return self.advance(lane, job, Step::Retry(request));
        }
        let volume = &self.namespaces.at(job.position).volume;
        let step = volume.start(request, &mut self.memory.pool);
        self.advance(lane, job, step)
    }

    /// Carries out the next step of a request.
    fn advance(&mut self, lane: &mut Lane, mut job: Job, step: Step) -> Option<Waiting> {
        match step {
            Step::Done(outcome) => {
                self.finish(lane, job, outcome);
                None
            }
            Step::File(operation, task) => {
                self.count(lane, &mut job);
                job.timeline.relabel(Stage::Queue);
                let position = job.position;
                let token = self.files.insert(FileWork::Command { lane: lane.key, job, task });
                self.submit(position, token, operation);
                self.submitted.push(token);
                None
            }
            Step::Pending(pending) => {
                self.count(lane, &mut job);
                job.timeline.relabel(Stage::Device);
                let task = Task::from(&pending);
                let work = FileWork::Command { lane: lane.key, job, task };
                self.register(pending, work);
                None
            }
            Step::Retry(request) => {
                self.count(lane, &mut job);
                job.timeline.relabel(Stage::Blocks);
                Some(Waiting::Start { lane: lane.key, job, request })
            }
        }
    }

    /// Counts the command among those at volumes.
    pub(super) fn count(&mut self, lane: &mut Lane, job: &mut Job) {
        if !job.counted {
            job.counted = true;
            lane.begin(job.volatile);
            self.volumes[job.position].hold(job.data_bytes);
            if lane.memory.is_some() {
                lane.count_job_memory(job, job.data_bytes);
            }
        }
    }

    /// Completes the command.
    pub(super) fn finish(&mut self, lane: &mut Lane, mut job: Job, outcome: Outcome) {
        if let (Ok(_), Some(next), true) = (&outcome, job.then.take(), lane.is_open() && job.permit.is_some())
        {
            return self.start(lane, job, next);
        }
        if job.is_orphan {
            self.end_orphan(lane, &mut job);
        }
        if job.volatile || job.operation == Operation::Flush {
            self.record_unflushed(lane, &job, outcome.is_ok());
        }
        let Job { permit, position, operation, len, counted, volatile, .. } = job;
        lane.unreserve(position, job.reserved);
        self.volumes[position].release(job.reserved);
        if lane.disconnected {
            self.record_left_ended(lane, position);
        }
        if counted {
            self.volumes[position].release(job.data_bytes);
            lane.job_bytes -= job.counted_bytes;
            self.end(lane, volatile);
        }
        let Some(permit) = permit else { return self.drop_result(position, operation, outcome) };
        let mut mark =
            Mark::new(Kind::new(self.namespaces.at(position).number, operation, len), job.id, job.timeline);
        mark.failed = outcome.is_err();
        self.add_mark(lane, mark);
        match outcome {
            Ok(payload) => self.complete_io(lane, permit, operation, len, payload),
            Err(error) => {
                self.log_failure(position, operation, &error);
                self.fail(lane, permit, nvme_status::status_for(&error, operation));
            }
        }
    }

    /// Records a change, or a flush, for the shutdown of the controller of its host.
    fn record_unflushed(&self, lane: &Lane, job: &Job, succeeded: bool) {
        if job.volatile {
            lane.changes().into_iter().for_each(|changes| changes.record_change(job.position));
        } else if succeeded {
            lane.changes().into_iter().for_each(|changes| changes.end_flush(job.position, job.flush_number));
            self.shared.unflushed.record_flush(job.position);
        }
    }

    /// Adds a command that completes now to those whose responses are sent. A closed lane sends none.
    pub(super) fn add_mark(&mut self, lane: &mut Lane, mut mark: Mark) {
        if !self.observer.is_on() {
            return;
        }
        if !mark.timeline.is_in(Stage::Answer) {
            mark.timeline.finish(self.observer.now());
        }
        let is_read = mark.kind.operation() == Operation::Read && !mark.failed;
        if !lane.is_open() {
            self.record(lane, &mark, self.observer.now());
        } else if is_read && lane.conn.is_long_response(mark.bytes as usize) {
            lane.marks.push_long(mark);
        } else {
            lane.marks.push(mark);
        }
    }

    /// The requests of this turn are handed to the kernel now.
    pub(super) fn hand_over_submitted(&mut self) {
        if self.submitted.is_empty() {
            return;
        }
        let now = self.observer.now();
        for token in self.submitted.drain(..) {
            if let Some(FileWork::Command { job, .. }) = self.files.get_mut(token) {
                job.timeline.enter(Stage::Device, now);
            }
        }
    }

    /// Completes an I/O command successfully; `len` bytes were transferred.
    #[inline(always)]
    pub(super) fn complete_io(
        &mut self,
        lane: &mut Lane,
        permit: Permit,
        operation: Operation,
        len: usize,
        payload: Payload,
    ) {
        let Some(Association { counters, .. }) = lane.association.as_ref().filter(|_| lane.is_open()) else {
            self.memory.pool.recycle_payload(payload);
            return self.complete(lane, permit, Completion::success());
        };
        match operation {
            Operation::Read => {
                counters.record_read(len as u64);
                lane.conn.complete_with_data(permit, payload, Completion::success());
                self.sends.add(lane);
            }
            Operation::Write => {
                counters.record_write(len as u64);
                self.complete(lane, permit, Completion::success());
            }
            _ => self.complete(lane, permit, Completion::success()),
        }
    }

    /// Logs a failed command, unless the host caused the failure; at most one per second and volume.
    pub(super) fn log_failure(&mut self, position: usize, operation: Operation, error: &VolumeError) {
        if matches!(error, VolumeError::OutOfRange { .. } | VolumeError::ReadOnly) {
            return;
        }
        let volume = &self.namespaces.at(position).volume;
        let (limit, operation) = (&self.volumes[position].log, operation.name());
        match *error {
            VolumeError::ReadFailed { raw_os_error } | VolumeError::WriteFailed { raw_os_error } => {
                let error = io::Error::from_raw_os_error(raw_os_error);
                let remedy = "look for its disk in the log of the kernel";
                log::limited!(by limit, Error, "{}: {operation} failed: {error}; {remedy}", volume.name());
            }
            _ => log::limited!(by limit, Error, "{}: {operation} failed: {error}", volume.name()),
        }
    }

    /// Counts the end of a command at a volume.
    pub(super) fn end(&mut self, lane: &mut Lane, volatile: bool) {
        lane.end(volatile);
        if lane.active == 0 && !lane.is_open() {
            self.ended.push(lane.key);
        }
    }

    /// Submits an operation on the file of a volume to the reactor; `token` identifies its completion.
    pub(super) fn submit(&mut self, position: usize, token: SlabKey, operation: FileOp) {
        let volume = &self.namespaces.at(position).volume;
        match volume.file() {
            Some(file) => self.reactor.submit_file(token.data().as_ffi(), file, operation),
            None => unreachable!("a volume without a file requested a file operation"),
        }
    }

    /// Continues a command of `lane` after its operation.
    fn resume_job(&mut self, lane: &mut Lane, mut job: Job, task: Task, finished: FileCompletion) {
        let FileCompletion { result, operation, thread, .. } = finished;
        let ended = match thread {
            Some((started, ended)) if self.observer.is_on() => {
                job.timeline.begin_at_thread(started);
                ended
            }
            _ => self.observer.turn_ns(),
        };
        job.timeline.enter(Stage::Answer, ended);
        let volume = &self.namespaces.at(job.position).volume;
        let step = volume.resume(task, result, operation, &mut self.memory.pool);
        if let Some(waiting) = self.advance(lane, job, step) {
            self.wait(waiting);
        }
    }
}

impl Driver {
    /// Handles the completion of a file operation.
    pub(super) fn handle_file(&mut self, finished: FileCompletion) {
        self.core.observer.enter(Phase::Volume);
        match self.core.files.remove(KeyData::from_ffi(finished.token).into()) {
            Some(FileWork::Command { lane: key, job, task }) => match self.lanes.get_mut(key) {
                Some(lane) => self.core.resume_job(lane, job, task, finished),
                None => unreachable!("a lane was removed before its last command"),
            },
            Some(FileWork::Flush { group, position, task }) => {
                self.core.resume_flush(group, position, task, finished);
            }
            Some(FileWork::Member(member)) => self.core.resume_member(member, finished),
            None => log::error!("the reactor completed an unknown file operation"),
        }
    }
}

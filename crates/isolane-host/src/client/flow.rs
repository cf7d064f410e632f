//! The way of a request: admitted, queued behind its lane, sent part by part, answered, finished.
//!
//! No bytes move here. Invariant: a part is in exactly one place: in a backlog, in flight, behind a fence,
//! waiting for its retry, or done.

use std::collections::VecDeque;
use std::sync::Arc;

use isolane_proto::host::{Completed, Data};
use isolane_wire::Status;

use super::lane::Recipient;
use super::link::Link;
use super::task::{Operation, Part, Task};
use super::tasks::Tasks;
use super::{Client, command};
use crate::classes::{Class, Classes};
use crate::error::RequestError;
use crate::fence::Hold;
use crate::request::{BlockRange, Completion, Request};
use crate::unflushed::Unflushed;

/// Parts of a task that follow each other, from `next` to before `end`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) task: u32,
    next: u32,
    end: u32,
}

impl Client {
    /// Whether a request can be taken: its lane's number, and the blocks that it is about.
    #[inline]
    pub(super) fn check(
        &self,
        class: Class,
        lane: usize,
        request: &Request,
    ) -> Result<(usize, BlockRange), RequestError> {
        self.check_room()?;
        let lane = self.place(class, lane, request.is_read())?;
        Ok((lane, self.shape.check(request)?))
    }

    #[cold]
    pub(super) fn refuse(&mut self, error: RequestError, request: Request, tag: u64) {
        self.finished.push(Completion { tag, result: Err(error), buffer: request.into_buffer() });
    }

    /// Takes in a request that has passed.
    #[inline(always)]
    pub(super) fn admit(&mut self, lane: usize, range: BlockRange, request: Request, tag: u64) {
        let is_alone = self.backlogs[lane].is_empty() && self.replay.is_clear();
        let is_one_part = self.shape.parts(&range) == 1;
        if let Link::Up(up) = &mut self.link
            && is_alone
            && is_one_part
            && let Ok(vacancy) = up.lanes[lane].vacancy()
        {
            // The usual case: nothing to wait for, so the command is made at once and takes the buffer with
            // it.
            let (tasks, nsid) = (&mut self.tasks, self.namespace.nsid);
            match request {
                Request::Read { buffer, .. } => {
                    let mark = tasks.insert_sent(tag, lane, Operation::Read, range);
                    vacancy.submit(command::read(&range, nsid), Data::Read(buffer), mark);
                    return;
                }
                Request::Write { buffer, fua, .. } => {
                    let mark = tasks.insert_sent(tag, lane, Operation::Write { fua }, range);
                    vacancy.submit(command::write(&range, fua, nsid), Data::Write(buffer), mark);
                    return;
                }
                _ => {}
            }
        }
        self.admit_to_wait(lane, range, request, tag);
    }

    /// Not inlined: it would take the registers that the usual case needs.
    #[inline(never)]
    fn admit_to_wait(&mut self, lane: usize, range: BlockRange, request: Request, tag: u64) {
        let (index, task) = self.tasks.insert(|| Task::new(tag, lane, request, range, &self.shape));
        if let Operation::Flush(mark) = &mut task.operation {
            *mark = self.unflushed.mark();
        }
        self.enqueue(index);
    }

    /// The number of a class's lane. One that there was when the client connected is always there: if its
    /// class has fewer lanes since, they take turns.
    fn place(&self, class: Class, lane: usize, is_read: bool) -> Result<usize, RequestError> {
        let serving = self.classes.serving(class, is_read);
        if let Some(place) = self.classes.place(serving, lane) {
            return Ok(place);
        }
        let first = &self.classes_first;
        let serving = first.serving(class, is_read);
        match first.place(serving, lane) {
            Some(place) => Ok(self.classes.moved(first, place, is_read)),
            None => Err(RequestError::Lane { lane, lanes: first.count(serving) }),
        }
    }

    fn check_room(&self) -> Result<(), RequestError> {
        if let Link::Closed(error) = &self.link {
            return Err(RequestError::Lost(Arc::clone(error)));
        }
        let outstanding = self.tasks.len();
        match outstanding < self.plan.options.requests_max {
            true => Ok(()),
            false => Err(RequestError::TooMany(outstanding)),
        }
    }

    /// Puts a task's parts into its lane's backlog, unless it has to wait for writes of unknown fate or fails
    /// because of them.
    pub(super) fn enqueue(&mut self, index: u32) {
        let Some(task) = self.tasks.get_mut(index) else { return };
        match self.replay.holds_back(task) {
            None => {}
            Some(Hold::Wait) => return self.replay.hold(index),
            Some(Hold::Fail) => {
                task.fail(RequestError::HeldBack);
                task.left = 0;
                return self.finish_if_done(index);
            }
        }
        let (lane, end) = (task.lane, task.parts);
        self.backlogs[lane].push_back(Run { task: index, next: 0, end });
        self.pump(lane);
    }

    /// The lanes are others than before: everything that waits goes on in the same class.
    pub(super) fn reclass(&mut self, classes: Classes) {
        if classes == self.classes {
            return;
        }
        for task in self.tasks.iter_mut() {
            task.lane = classes.moved(&self.classes, task.lane, task.operation == Operation::Read);
        }
        let waiting = std::mem::replace(&mut self.backlogs, vec![VecDeque::new(); classes.total()]);
        for run in waiting.into_iter().flatten() {
            let Some(task) = self.tasks.get(run.task) else { continue };
            self.backlogs[task.lane].push_back(run);
        }
        self.classes = classes;
    }

    /// Makes commands of waiting parts while the lane has room.
    pub(super) fn pump(&mut self, lane: usize) {
        while let Some(run) = self.backlogs[lane].front_mut()
            && let Link::Up(up) = &self.link
            && up.lanes[lane].room() > 0
        {
            let part = Part { task: run.task, part: run.next };
            run.next += 1;
            if run.next == run.end {
                self.backlogs[lane].pop_front();
            }
            self.issue(lane, part);
        }
    }

    fn issue(&mut self, lane: usize, part: Part) {
        let (Link::Up(up), Some(task)) = (&mut self.link, self.tasks.get_mut(part.task)) else { return };
        match self.replay.holds_back_part(task, part.part) {
            Some(Hold::Wait) if !task.has_failed() => return self.replay.hold_part(part),
            Some(Hold::Fail) => task.fail(RequestError::HeldBack),
            _ => {}
        }
        if task.has_failed() {
            task.left -= 1;
            return self.finish_if_done(part.task);
        }
        let Ok(vacancy) = up.lanes[lane].vacancy() else {
            return self.backlogs[lane].push_front(Run::one(part));
        };
        if let Operation::Flush(mark) = &mut task.operation {
            mark.covers = self.unflushed.mark().covers;
        }
        let (range, piece) = (task.part_range(part.part), task.take_piece(part.part));
        let (entry, data) = command::command_of(&task.operation, range, piece, self.namespace.nsid);
        vacancy.submit(entry, data, part.mark());
        task.in_flight += 1;
        task.seen_in_flight = None;
    }

    pub(super) fn on_answer(&mut self, answer: Completed) {
        let part = Part::of_mark(answer.tag);
        let Some(task) = self.tasks.get_mut(part.task) else { return };
        task.in_flight -= 1;
        task.seen_in_flight = None;
        task.return_piece(part.part, answer.buffer);
        match judge(answer.entry.status, answer.intact) {
            Judgement::Good => {
                task.left -= 1;
                match &task.operation {
                    Operation::Flush(mark) => {
                        let flushed = self.unflushed.on_flushed(*mark);
                        flushed.err().into_iter().for_each(|error| task.fail(error));
                    }
                    operation => self.unflushed.on_change(operation.change()),
                }
            }
            Judgement::Damaged if task.repeats < REPEATS_MAX && !task.has_failed() => {
                task.repeats += 1;
                self.backlogs[task.lane].push_front(Run::one(part));
            }
            Judgement::Damaged => {
                task.fail(RequestError::Damaged);
                task.left -= 1;
            }
            Judgement::Refused(status) => self.on_refused(part, status),
        }
        self.finish_if_done(part.task);
    }

    pub(super) fn finish_if_done(&mut self, index: u32) {
        if self.tasks.get(index).is_some_and(|task| task.left == 0 && task.in_flight == 0) {
            self.finished.extend(self.tasks.remove(index).map(Task::finish));
        }
    }
}

/// Where the commands go that end on a lane.
pub(super) struct Ends<'a> {
    pub tasks: &'a mut Tasks,
    pub finished: &'a mut Vec<Completion>,
    /// What needs a closer look: see [`Client::on_answer`].
    pub answers: &'a mut Vec<Completed>,
    pub unflushed: &'a mut Unflushed,
}

impl Recipient for Ends<'_> {
    #[inline(always)]
    fn take(&mut self, completed: Completed) {
        let is_good = completed.intact && completed.entry.status.is_success();
        let index = Part::of_mark(completed.tag).task;
        match if is_good { self.tasks.end_plain(index) } else { None } {
            // The usual case: what the command brought is the result.
            Some((tag, change)) => {
                self.unflushed.on_change(change);
                self.finished.push(Completion { tag, result: Ok(()), buffer: completed.buffer });
            }
            None => self.answers.push(completed),
        }
    }
}

impl Run {
    pub(super) fn one(part: Part) -> Run {
        Run { task: part.task, next: part.part, end: part.part + 1 }
    }
}

/// What an answer means for its part.
enum Judgement {
    Good,
    /// A read whose data was damaged on the way.
    Damaged,
    Refused(Status),
}

fn judge(status: Status, is_intact: bool) -> Judgement {
    match status {
        status if status.is_success() && is_intact => Judgement::Good,
        status if status.is_success() => Judgement::Damaged,
        status => Judgement::Refused(status),
    }
}

/// Times that a damaged part is repeated.
const REPEATS_MAX: u8 = 3;

//! A volume that an isolated engine is connected to: the same requests, through shared memory.
//!
//! ```text
//! submit ─ admit ─ Slots::put ─ ring of submissions (waits: Task ─ backlog ─ pump)
//! turn: doorbell if the engine looks no more ─ ring of outcomes ─ reap ─ finish
//! ```
//!
//! Payload is copied into a slot of the session's memory, and out of it; so the engine never sees a caller's
//! buffer, and nothing that the engine or the target does to a slot later is seen by a caller. A request that
//! one command cannot carry is split here as it is in process. If the engine is killed, what is outstanding is
//! submitted anew to the next one, which writes nothing before its predecessor's associations are known dead
//! ([`Predecessor`](crate::Predecessor)). Invariants: each request is answered with exactly one completion;
//! what the engine says is believed only where it can be.
//!
//! Files: `wire` is what both sides agree on, `slots` is payload and what is under way, `opening` asks the
//! engine for the volume, `link` does so anew after a restart, `waiting` spins and sleeps.

mod link;
mod opening;
mod slots;
mod waiting;
pub mod wire;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use isolane_attach::Session;
use isolane_memory::Buffer;
use isolane_reactor::Waker;
use isolane_reactor::spin::Spin;

use self::link::{Link, Signals};
use self::opening::Opening;
use self::slots::Slots;
use self::waiting::Bed;
use self::wire::{Operation, Outcome, Submission};
use crate::classes::{Class, Classes};
use crate::client::Wait;
use crate::client::shape::Shape;
use crate::client::task::{self, Part, Task};
use crate::client::tasks::Tasks;
use crate::error::{ConnectError, RequestError};
use crate::info::{Info, NamespaceInfo};
use crate::options::Options;
use crate::request::{BlockRange, Completion, Request};
use crate::unflushed::{Era, Unflushed};
use crate::uri::Uri;

/// One volume at an engine, driven by its caller.
pub(crate) struct Client {
    opening: Arc<Opening>,
    session: Session,
    link: Link,
    signals: Arc<Signals>,
    slots: Slots,
    info: Info,
    namespace: NamespaceInfo,
    shape: Shape,
    classes: Classes,
    tasks: Tasks,
    unflushed: Unflushed,
    /// Parts that wait for a slot.
    backlog: VecDeque<Run>,
    finished: Vec<Completion>,
    requests_max: usize,
    bed: Bed,
    spin: Spin,
    is_woken: bool,
    has_worked: bool,
    description: String,
}

/// Where a volume is that an engine is connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineStatus {
    /// The path on which the engine listens.
    pub path: PathBuf,
    /// The core of the engine that drives the volume's connections, which sessions share.
    pub core: usize,
}

/// Parts of a task that follow each other, from `next` to before `end`.
struct Run {
    task: u32,
    next: u32,
    end: u32,
}

impl Client {
    /// Has the engine that listens where `uri` or `options` say connect to the volume.
    pub(crate) fn connect(uri: &Uri, options: Options) -> Result<Client, ConnectError> {
        let opening = Arc::new(Opening::new(uri, options)?);
        let session = opening.attach()?;
        let slots = Slots::new(&session, &opening.options)?;
        let bed = Bed::new(&session)?;
        let (epoch, opened) = opening.open(&session, bed.place(), None)?;
        let signals = Signals::watch(&session, bed.waker(), epoch);
        let (info, namespace) = (opened.info.clone(), opened.info.choose(None)?.clone());
        let options = &opening.options;
        let EngineStatus { path, core } = opened.status(&opening.path, &session);
        let description = format!("an engine at {}, on its core {core}", path.display());
        Ok(Client {
            shape: Shape::of(&namespace, &info)?.within(slots.bytes()),
            classes: info.negotiated.lanes,
            info,
            namespace,
            link: Link::Up(opened),
            signals,
            slots,
            tasks: Tasks::default(),
            unflushed: Unflushed::new(),
            backlog: VecDeque::new(),
            finished: Vec::new(),
            requests_max: options.requests_max,
            spin: Spin::new(options.mode, options.spin, Instant::now()),
            bed,
            is_woken: false,
            has_worked: false,
            description,
            session,
            opening,
        })
    }

    pub(crate) fn info(&self) -> &Info {
        &self.info
    }

    pub(crate) fn namespace(&self) -> &NamespaceInfo {
        &self.namespace
    }

    pub(crate) fn io_description(&self) -> &str {
        &self.description
    }

    pub(crate) fn status(&self) -> Option<EngineStatus> {
        let Link::Up(opened) = &self.link else { return None };
        Some(opened.status(&self.opening.path, &self.session))
    }

    pub(crate) fn waker(&self) -> Waker {
        self.bed.waker()
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.tasks.len() + self.finished.len()
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.link, Link::Up(_))
    }

    pub(crate) fn is_over(&self) -> bool {
        self.end_reason().is_some()
    }

    pub(crate) fn end_reason(&self) -> Option<&ConnectError> {
        match &self.link {
            Link::Closed(error) => Some(error),
            _ => None,
        }
    }

    pub(crate) fn era(&self) -> Era {
        self.unflushed.era()
    }

    pub(crate) fn leave_losses_to_caller(&mut self) {
        self.unflushed.leave_to_caller();
    }

    pub(crate) fn lanes(&self) -> Classes {
        self.classes
    }

    #[inline]
    pub(crate) fn submit_to(&mut self, class: Class, lane: usize, request: Request, tag: u64) {
        match self.check(class, lane, &request) {
            Ok(range) => self.admit(way(class, lane), range, request, tag),
            Err(error) => {
                self.finished.push(Completion { tag, result: Err(error), buffer: request.into_buffer() });
            }
        }
    }

    /// One turn, as [`crate::Client::turn`].
    pub(crate) fn turn(&mut self, completions: &mut Vec<Completion>, wait: Wait) -> usize {
        let before = completions.len();
        self.is_woken = false;
        loop {
            self.look();
            completions.append(&mut self.finished);
            if completions.len() > before || self.is_woken || !self.idle(wait) {
                return completions.len() - before;
            }
        }
    }

    /// Shows the engine what was submitted.
    pub(crate) fn transmit(&mut self) {
        if let Link::Up(opened) = &mut self.link
            && self.slots.have_news()
            && let Err(error) = opened.show(&self.session)
        {
            self.give_up(error.into());
        }
    }

    /// Ends the volume in order, unless something is under way: that is left to the engine.
    pub(crate) fn close(self) {
        if let Link::Up(opened) = self.link
            && self.slots.are_free()
        {
            opened.into_old().end(&self.session);
        }
    }

    #[inline]
    fn check(&self, class: Class, lane: usize, request: &Request) -> Result<BlockRange, RequestError> {
        if let Link::Closed(error) = &self.link {
            return Err(RequestError::Lost(Arc::clone(error)));
        }
        let (outstanding, serving) = (self.tasks.len(), self.classes.serving(class, request.is_read()));
        let lanes = self.classes.count(serving);
        if outstanding >= self.requests_max {
            return Err(RequestError::TooMany(outstanding));
        }
        match lane < lanes {
            true => self.shape.check(request),
            false => Err(RequestError::Lane { lane, lanes }),
        }
    }

    #[inline]
    fn admit(&mut self, way: usize, range: BlockRange, request: Request, tag: u64) {
        if let Link::Up(opened) = &mut self.link
            && self.backlog.is_empty()
            && self.slots.has_room()
            && self.shape.parts(&range) == 1
        {
            // The usual case: nothing to wait for.
            let (operation, buffer) = match request {
                Request::Read { buffer, .. } => (task::Operation::Read, buffer),
                Request::Write { buffer, fua, .. } => (task::Operation::Write { fua }, buffer),
                other => return self.admit_to_wait(way, range, other, tag),
            };
            let asked = operation_of(&operation);
            let mark = self.tasks.insert_sent(tag, way, operation, range);
            self.slots.put(&mut opened.submissions, submission(way, asked, range), mark, Some(buffer));
            return;
        }
        self.admit_to_wait(way, range, request, tag);
    }

    fn admit_to_wait(&mut self, way: usize, range: BlockRange, request: Request, tag: u64) {
        let (index, task) = self.tasks.insert(|| Task::new(tag, way, request, range, &self.shape));
        if let task::Operation::Flush(mark) = &mut task.operation {
            *mark = self.unflushed.mark();
        }
        let end = task.parts;
        self.backlog.push_back(Run { task: index, next: 0, end });
        self.pump();
    }

    /// Submits what waits while there is room.
    fn pump(&mut self) {
        while let Some(run) = self.backlog.front_mut()
            && self.slots.has_room()
            && let Link::Up(opened) = &mut self.link
        {
            let part = Part { task: run.task, part: run.next };
            run.next += 1;
            if run.next == run.end {
                self.backlog.pop_front();
            }
            let Some(task) = self.tasks.get_mut(part.task) else { continue };
            if task.has_failed() {
                task.left -= 1;
                self.finish_if_done(part.task);
                continue;
            }
            if let task::Operation::Flush(mark) = &mut task.operation {
                mark.covers = self.unflushed.mark().covers;
            }
            let (range, piece) = (task.part_range(part.part), task.take_piece(part.part));
            task.in_flight += 1;
            let asked = submission(task.lane, operation_of(&task.operation), range);
            match &task.operation {
                task::Operation::Deallocate(ranges) => {
                    self.slots.put_ranges(&mut opened.submissions, asked, part.mark(), ranges);
                }
                _ => self.slots.put(&mut opened.submissions, asked, part.mark(), piece),
            }
        }
    }

    /// Does what there is to do.
    #[inline]
    fn look(&mut self) {
        self.is_woken |= self.bed.was_woken();
        if !self.is_up() || self.signals.have_come() {
            self.see_to_link();
        }
        self.transmit();
        if let Err(error) = self.reap() {
            self.give_up(error);
        }
        if !self.backlog.is_empty() {
            self.pump();
            self.transmit();
        }
    }

    /// Takes the outcomes that are there.
    #[inline]
    fn reap(&mut self) -> Result<(), ConnectError> {
        let Link::Up(opened) = &mut self.link else { return Ok(()) };
        if opened.outcomes.refresh().map_err(impossible)? == 0 {
            return Ok(());
        }
        self.has_worked = true;
        while let Some(entry) = opened.outcomes.pop() {
            let outcome = Outcome::decode(&entry).ok_or_else(nonsense)?;
            let is_good = outcome.result.is_ok();
            if is_good && let Some(error) = self.unflushed.enter(outcome.era) {
                log::error!("{}: the next flush fails: {error}", self.info.address);
            }
            let (mark, buffer) = self.slots.take(outcome.tag, is_good).ok_or_else(nonsense)?;
            let part = Part::of_mark(mark);
            match if is_good { self.tasks.end_plain(part.task) } else { None } {
                // The usual case: what the command brought is the result.
                Some((tag, change)) => {
                    self.unflushed.on_change(change);
                    self.finished.push(Completion { tag, result: Ok(()), buffer });
                }
                None => {
                    let Client { tasks, finished, unflushed, .. } = self;
                    end_part(tasks, finished, unflushed, part, outcome.result, buffer);
                }
            }
        }
        opened.outcomes.publish();
        Ok(())
    }

    fn finish_if_done(&mut self, index: u32) {
        finish_if_done(&mut self.tasks, &mut self.finished, index);
    }
}

#[cold]
fn end_part(
    tasks: &mut Tasks,
    finished: &mut Vec<Completion>,
    unflushed: &mut Unflushed,
    part: Part,
    result: Result<(), RequestError>,
    buffer: Option<Buffer>,
) {
    let Some(task) = tasks.get_mut(part.task) else { return };
    task.in_flight -= 1;
    task.left -= 1;
    task.return_piece(part.part, buffer);
    let result = result.and_then(|()| match &task.operation {
        task::Operation::Flush(mark) => unflushed.on_flushed(*mark),
        operation => {
            unflushed.on_change(operation.change());
            Ok(())
        }
    });
    result.err().into_iter().for_each(|error| task.fail(error));
    finish_if_done(tasks, finished, part.task);
}

fn finish_if_done(tasks: &mut Tasks, finished: &mut Vec<Completion>, index: u32) {
    if tasks.get(index).is_some_and(|task| task.left == 0 && task.in_flight == 0) {
        finished.extend(tasks.remove(index).map(Task::finish));
    }
}

/// Class and lane in the place of a task that is for its lane.
#[inline]
fn way(class: Class, lane: usize) -> usize {
    lane | match class {
        Class::Default => 0,
        Class::Read => 1 << 16,
        Class::Poll => 2 << 16,
    }
}

/// What is asked for, without a tag and a place.
#[inline]
fn submission(way: usize, operation: Operation, range: BlockRange) -> Submission {
    let class = match way >> 16 {
        0 => Class::Default,
        1 => Class::Read,
        _ => Class::Poll,
    };
    Submission { tag: 0, operation, class, lane: way as u16, range, offset: 0, len: 0 }
}

#[inline]
fn operation_of(operation: &task::Operation) -> Operation {
    match operation {
        task::Operation::Read => Operation::Read,
        task::Operation::Write { fua } => Operation::Write { fua: *fua },
        task::Operation::Flush(_) => Operation::Flush,
        task::Operation::WriteZeroes { fua, deallocate } => {
            Operation::WriteZeroes { fua: *fua, deallocate: *deallocate }
        }
        task::Operation::Deallocate(_) => Operation::Deallocate,
    }
}

fn impossible(error: isolane_ring::Impossible) -> ConnectError {
    ConnectError::Engine(error.to_string())
}

#[cold]
fn nonsense() -> ConnectError {
    ConnectError::Engine("it has answered what nobody asked".to_owned())
}

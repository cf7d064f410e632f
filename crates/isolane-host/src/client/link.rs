//! The association: up, down and being made anew, or given up.
//!
//! Losing one connection loses the association: all of its connections are reset. What was in flight goes to
//! `replay`, which says what is repeated. A new association is made on a thread of its own, with pauses that
//! grow. Invariant: a link that is down either has an attempt under way or a time for the next one.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isolane_memory::Buffer;
use isolane_proto::host::{Abandoned, Completed};

use super::Client;
use super::farewell;
use super::flow::Run;
use super::lane::{Lane, Loss};
use super::shape::Shape;
use super::task::{Part, Task};
use super::up::Up;
use crate::difference::Difference;
use crate::error::{ConnectError, RequestError};
use crate::expiry::{OldAssociation, Verdict};
use crate::fence::{FENCES_MAX, NewAssociation};
use crate::info::{Info, NamespaceInfo};
use crate::options::{Reconnect, WriteReplay};
use crate::predecessor::{Note, Predecessor};
use crate::setup::{self, Association, Connection};
use crate::unflushed::Era;

/// How long the target may take to shut its controller down.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(5);

/// The association's state.
pub(super) enum Link {
    Up(Box<Up>),
    Down(Outage),
    Closed(Arc<ConnectError>),
}

/// The time without an association, short-lived ones included.
#[derive(Clone, Copy)]
pub(super) struct Outage {
    since: Instant,
    /// Attempts made.
    attempt: u32,
    /// When the next attempt is due; none while one is under way.
    next: Option<Instant>,
}

/// What other threads tell the client.
pub(crate) enum Message {
    /// An attempt to connect ended.
    Connected(Result<Box<Association>, ConnectError>),
    /// What became of a lost association.
    Fenced { id: u64, verdict: Verdict },
}

impl Link {
    /// Before the first association.
    pub(super) fn starting() -> Link {
        Link::Down(Outage { since: Instant::now(), attempt: 0, next: None })
    }
}

impl Outage {
    /// The one that the loss of an association begins. If that lived for less than the longest pause, it goes
    /// on with the one before: a target that drops every association must not be stormed, nor tried for ever.
    fn after(lost: &Up, reconnect: &Reconnect, now: Instant) -> Outage {
        if now >= lost.raised + reconnect.delay_max {
            return Outage { since: now, attempt: 0, next: Some(now) };
        }
        Outage { next: Some(now + reconnect.pause(lost.before.attempt)), ..lost.before }
    }

    /// How long until the next attempt.
    pub(super) fn wait(&self, now: Instant) -> Duration {
        self.next.map_or(Duration::MAX, |next| next.saturating_duration_since(now))
    }
}

impl Client {
    /// Starts to use an association; a client that has given up lets it go.
    pub(super) fn raise(&mut self, association: Association) -> Result<(), ConnectError> {
        let Link::Down(before) = self.link else { return Ok(()) };
        self.check_volume(&association.info)?;
        self.check_quiesce(&association.info)?;
        let info = association.info.clone();
        let era = Era::of(&info, &self.namespace, self.plan.flush_after_loss());
        let cntlid = info.controller.cntlid;
        let new = NewAssociation { address: info.address, cntlid, begun: association.begun };
        let keep_alive = self.plan.options.keep_alive;
        self.retries.set_delays(association.retry_delays);
        let up = Up::adopt(association, self.namespace.nsid, keep_alive, before, &mut self.reactor)
            .map_err(|source| ConnectError::System { what: "a socket", source: Arc::new(source) })?;
        if let Some(error) = self.unflushed.enter(era) {
            log::error!("{}: the next flush fails: {error}", info.address);
        }
        self.replay.on_association(&new, self.plan.options.reconnect.writes);
        self.reclass(info.negotiated.lanes);
        self.link = Link::Up(Box::new(up));
        self.info = info;
        self.now = Instant::now();
        self.housekeeping = self.now;
        self.settle_replay();
        (0..self.backlogs.len()).for_each(|lane| self.pump(lane));
        Ok(())
    }

    /// Takes over what the target now tells of the volume, which must be the one that it was.
    fn check_volume(&mut self, info: &Info) -> Result<(), ConnectError> {
        let namespace = info.choose(Some(self.namespace.nsid))?;
        if let Some(difference) = Difference::of_volume((info, namespace), (&self.info, &self.namespace)) {
            return Err(ConnectError::VolumeChanged(difference));
        }
        self.shape = Shape::of(namespace, info)?;
        self.namespace = namespace.clone();
        Ok(())
    }

    /// Refuses an association whose writes, once lost, could never be known to have ended.
    fn check_quiesce(&self, info: &Info) -> Result<(), ConnectError> {
        let Reconnect { writes, .. } = &self.plan.options.reconnect;
        let quiesce = self.plan.options.reconnect.quiesce_time(info.controller.command_quiesce_time);
        match quiesce {
            None if *writes == WriteReplay::AfterTimeout => Err(ConnectError::NoQuiesceTime(info.address)),
            _ => Ok(()),
        }
    }

    pub(super) fn on_message(&mut self, message: Message) {
        match message {
            // A client that has given up takes none any more.
            Message::Connected(_) if !matches!(self.link, Link::Down(_)) => {}
            Message::Connected(Ok(association)) => {
                if let Err(error) = self.raise(*association) {
                    self.on_failed_attempt(error);
                } else {
                    log::info!("{}: connected again", self.info.address);
                }
            }
            Message::Connected(Err(error)) => self.on_failed_attempt(error),
            Message::Fenced { id, verdict } => {
                self.replay.on_verdict(id, verdict);
                self.settle_replay();
            }
        }
    }

    pub(super) fn on_admin_answer(&mut self, answer: Completed) -> Result<(), Loss> {
        let Link::Up(up) = &mut self.link else { return Ok(()) };
        let Some(identified) = up.keeper.on_answer(answer)? else { return Ok(()) };
        let (nsid, descriptors) = (self.namespace.nsid, identified.descriptors.as_ref());
        let data = identified.namespace.as_slice().unwrap_or_default();
        let Some(now) = setup::namespace(nsid, data, descriptors.and_then(Buffer::as_slice)) else {
            return Err(Loss::Misbehaved(format!("namespace {nsid} went away")));
        };
        if let Some(difference) = Difference::of(&now, &self.namespace) {
            return Err(Loss::VolumeChanged { nsid, difference });
        }
        if now.blocks != self.namespace.blocks {
            log::info!("namespace {nsid} has {} blocks now", now.blocks);
        }
        self.shape.capacity_blocks = now.blocks;
        self.namespace = NamespaceInfo { generation: self.namespace.generation, ..now };
        Ok(())
    }

    /// The association is lost: resets its connections, sorts what was in flight, and starts to make a new
    /// one.
    pub(super) fn lose(&mut self, loss: &Loss) {
        let Link::Up(up) = &self.link else { return };
        let outage = Outage::after(up, &self.plan.options.reconnect, self.now);
        let Link::Up(mut up) = std::mem::replace(&mut self.link, Link::Down(outage)) else { return };
        let in_flight: usize = up.lanes.iter().map(Lane::in_flight).sum();
        log::warn!("{}: {loss}; {in_flight} commands in flight", self.info.address);
        let note = up.note.take();
        up.dismiss(&mut self.reactor).into_iter().for_each(|abandoned| self.on_abandoned(abandoned));
        self.replay.raise_fence(self.old_association(), note, &self.plan);
        self.settle_replay();
        self.housekeeping = self.now;
        if let Loss::VolumeChanged { difference, .. } = loss {
            return self.fail_all(ConnectError::VolumeChanged(*difference));
        }
        if self.plan.options.reconnect.give_up_after.is_some_and(|after| self.now >= outage.since + after) {
            self.fail_all(self.misbehaved(loss));
        }
    }

    fn old_association(&self) -> OldAssociation {
        Predecessor::of(&self.info, &self.plan.options).old(Instant::now())
    }

    fn on_abandoned(&mut self, abandoned: Abandoned) {
        let part = Part::of_mark(abandoned.tag);
        let Some(task) = self.tasks.get_mut(part.task) else { return };
        task.in_flight -= 1;
        task.return_piece(part.part, abandoned.buffer);
        if abandoned.sent && task.operation.changes_blocks() {
            self.replay.note_uncertain(part, task);
        } else {
            self.backlogs[task.lane].push_front(Run::one(part));
        }
    }

    /// Starts an attempt to connect if one is due.
    pub(super) fn try_to_connect(&mut self) {
        let Link::Down(outage) = &mut self.link else { return };
        let is_due = outage.next.is_some_and(|next| self.now >= next);
        if !is_due {
            return;
        }
        if self.replay.fences() >= FENCES_MAX {
            let give_up_after = self.plan.options.reconnect.give_up_after;
            if give_up_after.is_some_and(|after| self.now >= outage.since + after) {
                let why = format!("{FENCES_MAX} controllers of lost associations may still be alive");
                self.fail_all(ConnectError::Lost { address: self.info.address, why });
            }
            return;
        }
        outage.next = None;
        outage.attempt += 1;
        let (plan, sender) = (Arc::clone(&self.plan), self.sender.clone());
        let attempt = move || {
            let outcome = setup::associate(&plan).map(Box::new);
            // A client that is gone needs no association: it is closed again.
            let _ = sender.send(Message::Connected(outcome));
        };
        let thread = std::thread::Builder::new().name("isolane-connect".to_owned()).spawn(attempt);
        if let Err(error) = thread {
            self.on_failed_attempt(ConnectError::System { what: "a thread", source: Arc::new(error) });
        }
    }

    fn on_failed_attempt(&mut self, error: ConnectError) {
        let Link::Down(outage) = &mut self.link else { return };
        let reconnect = &self.plan.options.reconnect;
        let is_over = reconnect.give_up_after.is_some_and(|after| self.now >= outage.since + after);
        if is_over || !error.is_transient() {
            log::error!("{}: no new connection: {error}", self.info.address);
            return self.fail_all(error);
        }
        let pause = reconnect.pause(outage.attempt);
        outage.next = Some(self.now + pause);
        self.housekeeping = self.now;
        log::info!(
            "{}: attempt {} to connect: {error}; next in {} ms",
            self.info.address,
            outage.attempt,
            pause.as_millis()
        );
    }

    /// There will be no association any more: every request fails.
    pub(super) fn fail_all(&mut self, error: ConnectError) {
        let error = Arc::new(error);
        self.replay.give_up(&mut self.tasks);
        self.retries.clear();
        self.backlogs.iter_mut().for_each(|backlog| backlog.clear());
        self.link = Link::Closed(Arc::clone(&error));
        self.finished
            .extend(self.tasks.drain().map(|task| abort(task, RequestError::Lost(Arc::clone(&error)))));
    }

    /// Ends the association in order: I/O connections first, then CC.SHN over the admin queue.
    pub(super) fn part(&mut self) {
        let closed = Link::Closed(Arc::new(ConnectError::Unsupported("the client was closed".to_owned())));
        let Link::Up(up) = std::mem::replace(&mut self.link, closed) else { return };
        let Up { keeper, lanes, note, .. } = *up;
        for (socket, _) in lanes.into_iter().filter_map(|lane| lane.into_parts(&mut self.reactor)) {
            farewell::close_in_order(&socket);
        }
        let Some((socket, queue)) = keeper.lane.into_parts(&mut self.reactor) else { return };
        farewell::close_in_order(&socket);
        let resumed = Connection::resume(TcpStream::from(socket), queue, SHUTDOWN_PATIENCE);
        let ended = resumed
            .map_err(|error| error.to_string())
            .and_then(|connection| setup::shutdown(connection).map_err(|error| error.to_string()));
        match ended {
            Ok(()) => note.into_iter().for_each(Note::on_dead),
            Err(error) => {
                log::info!("{}: the controller was not shut down in order: {error}", self.info.address);
            }
        }
    }

    fn misbehaved(&self, loss: &Loss) -> ConnectError {
        ConnectError::Lost { address: self.info.address, why: loss.to_string() }
    }
}

/// Ends a task whatever its parts are.
fn abort(mut task: Task, error: RequestError) -> crate::request::Completion {
    task.fail(error);
    (task.left, task.in_flight) = (0, 0);
    task.finish()
}

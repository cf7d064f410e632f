//! Event loop of a core.
//!
//! A turn handles messages of the control thread; kernel events, every few turns, or each turn if no object is
//! active; doorbells; and one poll of each active object. Then it publishes the entries pushed into notification
//! queues. After some time without active objects, the core arms the flags of all doorbells, polls them again,
//! and sleeps.
//!
//! Invariant: a turn is bounded: each active object is polled once, and up to 64 doorbells per session are
//! handled, so that a client can only keep its own objects active.

mod doorbells;
mod messages;
mod objects;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::time::Instant;

use isolane_reactor::Mode;
use isolane_reactor::mailbox::{Receiver, Sender};
use isolane_reactor::spin::AdaptiveSpin;

use crate::epoll::{Epoll, Event};
use crate::object::{
    BuildFn, BuiltObject, CloseReason, Dirty, Notifier, ObjectContext, PollStatus, ProtocolViolation, Turn,
};
use crate::observed::Observer;
use crate::watch::Part;

use doorbells::DoorbellTable;
pub(crate) use messages::{ControlMessage, CoreMessage, SessionEvent};
use objects::ObjectTable;

/// Core of the engine. All its state belongs to one thread.
pub(crate) struct Core {
    index: u32,
    epoll: Epoll,
    messages: Receiver<CoreMessage>,
    control: Sender<ControlMessage>,
    objects: ObjectTable,
    doorbells: DoorbellTable,
    queues: HashMap<(u32, u32), Rc<Notifier>>,
    dirty: Rc<Dirty>,
    spin: AdaptiveSpin,
    turns_since_epoll: u32,
    events: Vec<Event>,
    shutting_down: bool,
    watch: Part,
    observer: Rc<Observer>,
    /// This turn has had work.
    has_worked: bool,
}

impl Core {
    pub fn new(
        index: u32,
        epoll: Epoll,
        messages: Receiver<CoreMessage>,
        control: Sender<ControlMessage>,
        spin: AdaptiveSpin,
        watch: Part,
        observer: Rc<Observer>,
    ) -> Core {
        Core {
            index,
            epoll,
            messages,
            control,
            objects: ObjectTable::default(),
            doorbells: DoorbellTable::default(),
            queues: HashMap::new(),
            dirty: Rc::default(),
            spin,
            turns_since_epoll: 0,
            events: Vec::new(),
            shutting_down: false,
            watch,
            observer,
            has_worked: false,
        }
    }

    /// Runs until a message ends the thread.
    pub fn run(mut self) -> io::Result<()> {
        while self.turn()? {}
        Ok(())
    }

    /// Runs one turn. Returns `false` if it was the last.
    fn turn(&mut self) -> io::Result<bool> {
        let now = Instant::now();
        self.watch.turn();
        self.observer.begin_turn(std::mem::take(&mut self.has_worked));
        if !self.handle_messages(now) || (self.shutting_down && self.objects.is_empty()) {
            return Ok(false);
        }
        self.turns_since_epoll += 1;
        if !self.objects.has_active() || self.turns_since_epoll >= TURNS_PER_EPOLL {
            self.epoll.poll(&mut self.events)?;
            self.handle_events(now);
        }
        self.objects.fire_timers(now);
        self.poll_doorbells(now);
        match self.poll_objects(now) {
            PollStatus::Idle if !self.objects.has_active() && !self.spin.is_spinning(now) => {
                self.sleep(now)?
            }
            PollStatus::Idle => self.spin.yield_cpu(),
            PollStatus::Pending => {
                self.spin.on_work(now);
                self.spin.yield_cpu();
            }
            _ => {
                self.has_worked = true;
                self.spin.on_work(now);
            }
        }
        Ok(true)
    }

    /// Returns `false` if the thread must exit.
    fn handle_messages(&mut self, now: Instant) -> bool {
        if !self.epoll.sleeper().take_notification() {
            return true;
        }
        while let Some(message) = self.messages.poll() {
            match message {
                CoreMessage::Beat => {}
                CoreMessage::Doorbells { session, receiver, bell } => {
                    if let Err(reason) = self.doorbells.open(&self.epoll, session, receiver, bell) {
                        self.send(session, SessionEvent::Violation { reason });
                    }
                }
                CoreMessage::Queue { session, queue, sender, bell } => {
                    let notifier = Notifier::new(sender, bell, Rc::clone(&self.dirty));
                    self.queues.insert((session, queue), notifier);
                }
                CoreMessage::CloseQueue { session, queue } => {
                    self.queues.remove(&(session, queue)).iter().for_each(|notifier| notifier.close());
                    self.send(session, SessionEvent::QueueClosed { queue });
                }
                CoreMessage::Open { session, id, queue, memory, application, build } => {
                    let queue = queue.and_then(|queue| self.queues.get(&(session, queue)).cloned());
                    let (core, observer) = (self.index, Rc::clone(&self.observer));
                    let context = ObjectContext { core, session, id, memory, queue, application, observer };
                    self.open(context, build, now);
                }
                CoreMessage::Close { session, id, reason } => match self.objects.find(session, id) {
                    Some(index) => self.close(index, reason, now),
                    None => self.send(session, SessionEvent::Closed { id, result: Ok(()) }),
                },
                CoreMessage::Relieve { session } => self.objects.relieve(session, now),
                CoreMessage::EndSession { session } => self.end_session(session, now),
                CoreMessage::Shutdown => {
                    self.shutting_down = true;
                    let all = self.objects.all();
                    all.into_iter().for_each(|index| self.close(index, CloseReason::Shutdown, now));
                }
                CoreMessage::Exit => return false,
            }
        }
        true
    }

    fn open(&mut self, context: ObjectContext, build: BuildFn, now: Instant) {
        let (session, id) = (context.session, context.id);
        let refuse = |reason| SessionEvent::Opened { id, result: Err(reason) };
        self.watch.work_for(session);
        let built = build(context);
        self.watch.work_for_none();
        let BuiltObject { object, answer } = match built {
            Ok(built) => built,
            Err(reason) => return self.send(session, refuse(reason)),
        };
        let index = self.objects.insert((session, id), object, now);
        let slot = self.objects.at(index).expect("inserted above");
        slot.opening = answer.is_none();
        let error = slot.sources(index).find_map(|(key, source)| self.epoll.add(source, key).err());
        if let Some(error) = error {
            let reason = format!("the engine cannot watch its socket: {error}");
            if !slot.object.on_watch_failed(&reason) {
                self.remove(index);
                return self.send(session, refuse(reason));
            }
        }
        if let Some(answer) = answer {
            self.send(session, SessionEvent::Opened { id, result: Ok(answer) });
        }
    }

    fn close(&mut self, index: u32, reason: CloseReason, now: Instant) {
        if let Some(slot) = self.objects.at(index) {
            slot.object.on_close(reason);
            self.objects.activate(index, now);
        }
    }

    /// Drops an object, and stops watching its sources, whose descriptors other processes may hold.
    fn remove(&mut self, index: u32) {
        let slot = self.objects.remove(index);
        slot.iter().flat_map(|slot| slot.sources(index)).for_each(|(_, source)| self.epoll.remove(source));
    }

    fn end_session(&mut self, session: u32, now: Instant) {
        self.doorbells.close(&self.epoll, session);
        self.queues.retain(|(of, _), _| *of != session);
        let objects = self.objects.remove_session(session);
        objects.into_iter().for_each(|index| self.close(index, CloseReason::ClientGone, now));
    }

    fn handle_events(&mut self, now: Instant) {
        self.turns_since_epoll = 0;
        let mut events = std::mem::take(&mut self.events);
        for Event { key, ready } in events.drain(..) {
            if let Some(session) = doorbells::session(key) {
                if let Err(ProtocolViolation(reason)) = self.doorbells.on_ready(&self.epoll, session) {
                    self.send(session, SessionEvent::Violation { reason });
                }
            } else if let Some((index, source, slot)) = self.objects.by_key(key) {
                slot.object.on_ready(source, ready);
                self.objects.activate(index, now);
            }
        }
        self.events = events;
    }

    /// Activates the objects whose doorbells were rung. Returns whether there was a doorbell.
    fn poll_doorbells(&mut self, now: Instant) -> bool {
        let Core { doorbells, objects, control, .. } = self;
        doorbells.poll(
            |session, id, at| {
                if let Some(index) = objects.find(session, id) {
                    objects.activate(index, now);
                    objects.at(index).into_iter().for_each(|slot| slot.object.on_doorbell(at));
                }
            },
            |session, reason| {
                let event = SessionEvent::Violation { reason };
                drop(control.send(ControlMessage::Session { session, event }));
            },
        )
    }

    /// Polls each active object once. Returns `Busy` if one had work, else `Pending` if one expects work soon.
    fn poll_objects(&mut self, now: Instant) -> PollStatus {
        let turn = Turn { now };
        let lingers = self.spin.linger_time();
        let (mut at, mut all) = (0, PollStatus::Idle);
        while let Some((index, slot)) = self.objects.active(at) {
            self.watch.work_for(slot.session);
            let result = match slot.object.poll(&turn) {
                Ok(PollStatus::Idle) if now.saturating_duration_since(slot.worked) >= lingers => {
                    slot.object.prepare_idle(&turn)
                }
                Ok(PollStatus::Idle) => {
                    at += 1;
                    continue;
                }
                result => result,
            };
            match result {
                Ok(PollStatus::Idle) => self.objects.deactivate(at),
                Ok(PollStatus::Busy) => {
                    slot.worked = now;
                    all = PollStatus::Busy;
                    at += 1;
                }
                Ok(PollStatus::Pending) => {
                    slot.worked = now;
                    if all == PollStatus::Idle {
                        all = PollStatus::Pending;
                    }
                    at += 1;
                }
                result => {
                    slot.worked = now;
                    all = PollStatus::Busy;
                    // A removed object is replaced by another active one, which is polled next.
                    at += usize::from(self.on_change(index, result));
                }
            }
        }
        self.watch.work_for_none();
        self.publish();
        all
    }

    /// Publishes the entries in notification queues, and wakes their threads.
    fn publish(&self) {
        self.dirty.borrow_mut().drain(..).for_each(|notifier| notifier.publish());
    }

    /// Handles the rare results of a poll. Returns whether the object stays.
    #[cold]
    fn on_change(&mut self, index: u32, result: Result<PollStatus, ProtocolViolation>) -> bool {
        let slot = self.objects.at(index).expect("polled above");
        let (session, id) = (slot.session, slot.id);
        if let Ok(PollStatus::SetReadInterest { source, reads }) = result {
            let (key, source) = (slot.key(index, source), slot.object.source(source));
            source.into_iter().for_each(|it| self.epoll.set_read_interest(it, key, reads));
            return true;
        }
        let was_opening = std::mem::take(&mut slot.opening);
        if let Ok(PollStatus::Opened(answer)) = result {
            self.send(session, SessionEvent::Opened { id, result: Ok(answer) });
            return true;
        }
        self.remove(index);
        let result = match result {
            Ok(PollStatus::Closed(result)) => result,
            Err(ProtocolViolation(reason)) => {
                self.send(session, SessionEvent::Violation { reason: reason.clone() });
                Err(reason)
            }
            Ok(_) => Ok(()),
        };
        let event = match (was_opening, result) {
            (true, Err(reason)) => SessionEvent::Opened { id, result: Err(reason) },
            (_, result) => SessionEvent::Closed { id, result },
        };
        self.send(session, event);
        false
    }

    /// Sleeps, unless a doorbell was rung in the meantime.
    fn sleep(&mut self, now: Instant) -> io::Result<()> {
        if self.spin.mode() == Mode::Poll {
            return Ok(());
        }
        self.doorbells.arm();
        if !self.poll_doorbells(now) {
            let timers = [self.objects.next_timer(), self.observer.begin_sleep(now)];
            self.epoll.sleep(timers.into_iter().flatten().min(), &mut self.events)?;
        }
        self.doorbells.disarm();
        let woken = Instant::now();
        self.observer.end_sleep(woken);
        self.spin.on_slept(woken.saturating_duration_since(now));
        self.handle_events(woken);
        Ok(())
    }

    /// Sends an event to the control thread, which outlives the cores.
    fn send(&self, session: u32, event: SessionEvent) {
        let _ = self.control.send(ControlMessage::Session { session, event });
    }
}

/// Turns between two checks for kernel events while objects are active.
const TURNS_PER_EPOLL: u32 = 8;

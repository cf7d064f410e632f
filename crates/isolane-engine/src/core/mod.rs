//! The loop of a core.
//!
//! A turn: mail from the control thread; what the kernel says, now and then, and always when nothing is hot;
//! doorbells; a look at each hot object. Then what was pushed into notification queues is published. When
//! nothing is hot, and nothing has been for a while, the core arms the flags of all doorbells, looks once
//! more, and sleeps.
//!
//! Threads: all of it belongs to one. Invariant: a turn is bounded, for each hot object is looked at once and so
//! many doorbells of each session are answered, and a client can do no more than to keep its own objects hot.

mod mail;
mod objects;
mod ports;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::time::Instant;

use isolane_reactor::Mode;
use isolane_reactor::mailbox::{Receiver, Sender};
use isolane_reactor::spin::Spin;

use crate::epoll::{Epoll, Event};
use crate::service::{Build, Built, Dirty, Ending, Hostile, Looked, Notifier, Place, Turn};
use crate::watch::Part;

pub(crate) use mail::{Mail, Notice, Said};
use objects::Objects;
use ports::Ports;

/// One core of the engine.
pub(crate) struct Core {
    index: u32,
    epoll: Epoll,
    mail: Receiver<Mail>,
    control: Sender<Notice>,
    objects: Objects,
    ports: Ports,
    queues: HashMap<(u32, u32), Rc<Notifier>>,
    dirty: Rc<Dirty>,
    spin: Spin,
    /// Turns since the kernel was last asked.
    unasked: u32,
    events: Vec<Event>,
    is_stopping: bool,
    watch: Part,
}

impl Core {
    pub fn new(
        index: u32,
        epoll: Epoll,
        mail: Receiver<Mail>,
        control: Sender<Notice>,
        spin: Spin,
        watch: Part,
    ) -> Core {
        Core {
            index,
            epoll,
            mail,
            control,
            objects: Objects::default(),
            ports: Ports::default(),
            queues: HashMap::new(),
            dirty: Rc::default(),
            spin,
            unasked: 0,
            events: Vec::new(),
            is_stopping: false,
            watch,
        }
    }

    /// Turns until it is told to end.
    pub fn run(mut self) -> io::Result<()> {
        while self.turn()? {}
        Ok(())
    }

    /// One turn; false if it was the last.
    fn turn(&mut self) -> io::Result<bool> {
        let now = Instant::now();
        self.watch.turn();
        if !self.read_mail(now) || (self.is_stopping && self.objects.is_empty()) {
            return Ok(false);
        }
        self.unasked += 1;
        if !self.objects.has_hot() || self.unasked >= UNASKED_MAX {
            self.epoll.look(&mut self.events)?;
            self.hear(now);
        }
        self.objects.ring_alarms(now);
        self.answer_doorbells(now);
        match self.look(now) {
            Looked::Nothing if !self.objects.has_hot() && !self.spin.is_spinning(now) => self.rest(now)?,
            Looked::Nothing => self.spin.give_way(),
            Looked::Awaiting => {
                self.spin.on_work(now);
                self.spin.give_way();
            }
            _ => self.spin.on_work(now),
        }
        Ok(true)
    }

    /// False if the thread is to end at once.
    fn read_mail(&mut self, now: Instant) -> bool {
        if !self.epoll.sleeper().take_notification() {
            return true;
        }
        while let Some(mail) = self.mail.poll() {
            match mail {
                // It has woken the thread, which turns.
                Mail::Beat => {}
                Mail::Port { session, receiver, bell } => {
                    if let Err(why) = self.ports.open(&self.epoll, session, receiver, bell) {
                        self.say(session, Said::Hostile { why });
                    }
                }
                Mail::Queue { session, queue, sender, bell } => {
                    let notifier = Notifier::new(sender, bell, Rc::clone(&self.dirty));
                    self.queues.insert((session, queue), notifier);
                }
                Mail::CloseQueue { session, queue } => {
                    self.queues.remove(&(session, queue)).iter().for_each(|notifier| notifier.close());
                    self.say(session, Said::Closed { queue });
                }
                Mail::Open { session, id, queue, memory, build } => {
                    let queue = queue.and_then(|queue| self.queues.get(&(session, queue)).cloned());
                    self.open(Place { core: self.index, session, id, memory, queue }, build, now);
                }
                Mail::End { session, id, ending } => match self.objects.find(session, id) {
                    Some(index) => self.end(index, ending, now),
                    None => self.say(session, Said::Ended { id, outcome: Ok(()) }),
                },
                Mail::Relieve { session } => self.objects.relieve(session, now),
                Mail::EndSession { session } => self.end_session(session, now),
                Mail::Stop => {
                    self.is_stopping = true;
                    let all = self.objects.all();
                    all.into_iter().for_each(|index| self.end(index, Ending::Stopped, now));
                }
                Mail::Halt => return false,
            }
        }
        true
    }

    fn open(&mut self, place: Place, build: Build, now: Instant) {
        let (session, id) = (place.session, place.id);
        let refuse = |why| Said::Opened { id, outcome: Err(why) };
        self.watch.work_for(session);
        let built = build(place);
        self.watch.work_for_none();
        let Built { service, answer } = match built {
            Ok(built) => built,
            Err(why) => return self.say(session, refuse(why)),
        };
        let index = self.objects.insert((session, id), service, now);
        let key = self.objects.key(index);
        let slot = self.objects.at(index).expect("it was just put there");
        slot.is_opening = answer.is_none();
        if let Some(Err(why)) = slot.service.source().map(|source| self.epoll.add(source, key)) {
            let why = format!("the engine cannot watch its socket: {why}");
            if !slot.service.on_unwatched(&why) {
                self.objects.remove(index);
                return self.say(session, refuse(why));
            }
        }
        if let Some(answer) = answer {
            self.say(session, Said::Opened { id, outcome: Ok(answer) });
        }
    }

    fn end(&mut self, index: u32, ending: Ending, now: Instant) {
        if let Some(slot) = self.objects.at(index) {
            slot.service.on_end(ending);
            self.objects.heat(index, now);
        }
    }

    fn end_session(&mut self, session: u32, now: Instant) {
        self.ports.close(&self.epoll, session);
        self.queues.retain(|(of, _), _| *of != session);
        let objects = self.objects.forget_session(session);
        objects.into_iter().for_each(|index| self.end(index, Ending::Orphaned, now));
    }

    /// Acts on what the kernel said.
    fn hear(&mut self, now: Instant) {
        self.unasked = 0;
        let mut events = std::mem::take(&mut self.events);
        for Event { key, ready } in events.drain(..) {
            if let Some(session) = ports::session(key) {
                if let Err(Hostile(why)) = self.ports.on_ready(&self.epoll, session) {
                    self.say(session, Said::Hostile { why });
                }
            } else if let Some((index, slot)) = self.objects.by_key(key) {
                slot.service.on_ready(ready);
                self.objects.heat(index, now);
            }
        }
        self.events = events;
    }

    /// Heats the objects whose doorbells were rung; says whether there was one.
    fn answer_doorbells(&mut self, now: Instant) -> bool {
        let Core { ports, objects, control, .. } = self;
        ports.look(
            |session, id| {
                if let Some(index) = objects.find(session, id) {
                    objects.heat(index, now);
                }
            },
            |session, why| drop(control.send(Notice::Said { session, said: Said::Hostile { why } })),
        )
    }

    /// Looks at each hot object; says whether there was something to do for one of them, or may soon be.
    fn look(&mut self, now: Instant) -> Looked {
        let turn = Turn { now };
        let lingers = self.spin.lingers();
        let (mut at, mut all) = (0, Looked::Nothing);
        while let Some((index, slot)) = self.objects.hot(at) {
            self.watch.work_for(slot.session);
            let looked = match slot.service.look(&turn) {
                Ok(Looked::Nothing) if now.saturating_duration_since(slot.worked) >= lingers => {
                    slot.service.rest(&turn)
                }
                Ok(Looked::Nothing) => {
                    at += 1;
                    continue;
                }
                looked => looked,
            };
            match looked {
                Ok(Looked::Nothing) => self.objects.cool(at),
                Ok(Looked::Worked) => {
                    slot.worked = now;
                    all = Looked::Worked;
                    at += 1;
                }
                Ok(Looked::Awaiting) => {
                    slot.worked = now;
                    if all == Looked::Nothing {
                        all = Looked::Awaiting;
                    }
                    at += 1;
                }
                outcome => {
                    slot.worked = now;
                    all = Looked::Worked;
                    // Another is in the place of one that has ended. One that goes on has had its look.
                    at += usize::from(self.on_change(index, outcome));
                }
            }
        }
        self.watch.work_for_none();
        self.publish();
        all
    }

    fn hear_reads(&mut self, index: u32, reads: bool) {
        let key = self.objects.key(index);
        if let Some(source) = self.objects.at(index).and_then(|slot| slot.service.source()) {
            self.epoll.hear(source, key, reads);
        }
    }

    /// Shows what was pushed into notification queues, and wakes who waits for it.
    fn publish(&self) {
        self.dirty.borrow_mut().drain(..).for_each(|notifier| notifier.publish());
    }

    /// What is rare: an object hears of something else, is there at last, has ended, or its client is hostile.
    /// Returns whether it goes on.
    #[cold]
    fn on_change(&mut self, index: u32, outcome: Result<Looked, Hostile>) -> bool {
        if let Ok(Looked::Hears { reads }) = outcome {
            self.hear_reads(index, reads);
            return true;
        }
        let slot = self.objects.at(index).expect("it was just looked at");
        let (session, id) = (slot.session, slot.id);
        let is_opening = std::mem::take(&mut slot.is_opening);
        if let Ok(Looked::Opened(answer)) = outcome {
            self.say(session, Said::Opened { id, outcome: Ok(answer) });
            return true;
        }
        if let Some(slot) = self.objects.remove(index)
            && let Some(source) = slot.service.source()
        {
            self.epoll.remove(source);
        }
        let outcome = match outcome {
            Ok(Looked::Ended(outcome)) => outcome,
            Err(Hostile(why)) => {
                self.say(session, Said::Hostile { why: why.clone() });
                Err(why)
            }
            Ok(_) => Ok(()),
        };
        self.say(
            session,
            match (is_opening, outcome) {
                (true, Err(why)) => Said::Opened { id, outcome: Err(why) },
                (_, outcome) => Said::Ended { id, outcome },
            },
        );
        false
    }

    /// Sleeps, unless there is something to do after all.
    fn rest(&mut self, now: Instant) -> io::Result<()> {
        if self.spin.mode() == Mode::Poll {
            return Ok(());
        }
        self.ports.arm();
        if !self.answer_doorbells(now) {
            self.epoll.sleep(self.objects.next_alarm(), &mut self.events)?;
        }
        self.ports.disarm();
        let woken = Instant::now();
        self.spin.on_slept(woken.saturating_duration_since(now));
        self.hear(woken);
        Ok(())
    }

    /// The control thread reads its mailbox as long as there are cores.
    fn say(&self, session: u32, said: Said) {
        let _ = self.control.send(Notice::Said { session, said });
    }
}

/// Beside hot objects the kernel is asked every so many turns.
const UNASKED_MAX: u32 = 8;

//! Who attaches, what they ask for, and what they may have.
//!
//! One thread, which sleeps unless somebody asks for something. It takes a message of each client in turn, and
//! none of a client that waits for as many answers as it may, so that a flood keeps only its sender waiting.
//!
//! Invariant: whatever a client sends concerns that client alone. What no client of ours would send drops its
//! sender with one line in the log, which names it, or, after a few about the same user, a count; what exceeds a
//! limit is refused.

mod client;
mod complaints;
mod door;
mod overview;
mod plan;
mod request;
mod resume;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isolane_attach::control::{Reply, Wire, WireError, remedy};
use isolane_reactor::mailbox::{Receiver, Sender};
use isolane_ring::{Memory, Process};

use crate::Config;
use crate::closer;
use crate::core::{Mail, Notice, Said};
use crate::epoll::{Epoll, Event};
use crate::reserve::Reserve;
use crate::store::{Store, ToSupervisor};
use crate::volume::Volumes;
use crate::watch::Part;

use client::{Answers, Attached, Client, UNASKED};
use complaints::Complaints;
pub(crate) use door::Door;
use door::Peer;
pub use door::listen;
use request::{Due, NO_DESCRIPTORS};

/// The control thread.
pub(crate) struct Control {
    config: Config,
    epoch: u64,
    epoll: Epoll,
    door: Door,
    notices: Receiver<Notice>,
    pub(super) volumes: Volumes,
    cores: Vec<Sender<Mail>>,
    clients: BTreeMap<u32, Client>,
    /// Those who may have sent something.
    talkers: VecDeque<u32>,
    /// Those for whom something is held back until the supervisor's link has taken what was told before.
    held_back: BTreeSet<u32>,
    /// Those who have not said hello, and until when they may.
    strangers: VecDeque<(Instant, u32)>,
    /// Somebody may have knocked.
    is_knocked: bool,
    /// When to look at the door again, if the system had no descriptor for who knocked, or many are being closed.
    reopening: Option<Instant>,
    /// How long descriptors that are being closed may delay the next client.
    crowded_until: Option<Instant>,
    last_session: u32,
    last_core: u32,
    store: Arc<Store>,
    reserve: Reserve,
    complaints: Complaints,
    /// Memory of sessions that are over. It stays until cores and objects refer to it no more: unmapping a large one
    /// takes long, and is not to hold up a core.
    leftovers: Vec<Memory>,
    /// What is granted once the supervisor keeps it, by the keys of its records.
    deposits: BTreeMap<u64, Due>,
    /// Since when nobody has been attached.
    idle: Option<Instant>,
    watch: Part,
}

/// What it works with.
pub(crate) struct Outfit {
    pub notices: Receiver<Notice>,
    pub cores: Vec<Sender<Mail>>,
    pub volumes: Volumes,
    pub store: Arc<Store>,
    pub watch: Part,
}

/// What a message leads to, if not to what it asks for.
enum Denied {
    /// It cannot be had; the client goes on.
    Refused(String),
    /// Nor can it, because the system or the engine has no more: whoever runs the engine has to know.
    Short(String),
    /// No client of ours sends it.
    Hostile(String),
}

impl Control {
    pub fn new(config: Config, epoch: u64, epoll: Epoll, door: Door, outfit: Outfit) -> io::Result<Control> {
        epoll.add(&door, DOOR)?;
        let reserve = Reserve::of_engine(config.cores.len());
        let Outfit { notices, cores, volumes, store, watch } = outfit;
        Ok(Control {
            config,
            epoch,
            epoll,
            door,
            notices,
            volumes,
            cores,
            clients: BTreeMap::new(),
            talkers: VecDeque::new(),
            held_back: BTreeSet::new(),
            strangers: VecDeque::new(),
            is_knocked: false,
            reopening: None,
            crowded_until: None,
            last_session: 0,
            last_core: 0,
            store,
            reserve,
            complaints: Complaints::default(),
            leftovers: Vec::new(),
            deposits: BTreeMap::new(),
            idle: None,
            watch,
        })
    }

    /// Serves until it is told to end.
    pub fn run(mut self) -> io::Result<()> {
        let mut events = Vec::new();
        while self.read_notices() {
            match self.talkers.is_empty() && !self.may_admit() {
                true => self.epoll.sleep(self.next_moment(), &mut events)?,
                false => self.epoll.look(&mut events)?,
            }
            events.drain(..).for_each(|event| self.on_event(event));
            let now = Instant::now();
            self.on_time(now);
            for _ in 0..ADMITTED_MAX {
                self.admit(now);
            }
            for _ in 0..self.talkers.len() {
                self.listen_to_next();
            }
        }
        Ok(())
    }

    fn on_event(&mut self, event: Event) {
        if event.key == DOOR {
            self.is_knocked = true;
            return;
        }
        let session = event.key as u32;
        if event.key & PROCESS != 0 {
            if self.clients.get(&session).is_some_and(Client::is_here) {
                log::info!("session {session}: its process has ended");
                self.dismiss(session);
            }
            return;
        }
        let Some(client) = self.clients.get_mut(&session) else { return };
        if event.ready.readable {
            client.is_talking = true;
            self.line_up(session);
        }
        if event.ready.writable {
            self.flush(session);
        }
        // What it has sent before is of no use any more: nobody reads the answers.
        if event.ready.hung_up {
            self.dismiss(session);
        }
    }

    fn may_admit(&self) -> bool {
        self.is_knocked && self.reopening.is_none()
    }

    /// Lets in the next who knocks.
    fn admit(&mut self, now: Instant) {
        if !self.may_admit() || self.waits_for_closes(now) {
            return;
        }
        match self.door.accept() {
            Ok(Some((wire, peer))) if !peer.may_attach(&self.config) => {
                self.turn_away(wire, peer, &peer.why_not());
            }
            Ok(Some((wire, peer))) => {
                self.last_session = self.next_session();
                let session = self.last_session;
                if let Err(why) = self.epoll.add(&wire, session.into()) {
                    let why = format!("the engine cannot watch its connection: {why}");
                    self.turn_away(wire, peer, &why);
                    return;
                }
                self.clients.insert(session, Client::new(session, wire, peer));
                self.strangers.push_back((now + self.config.greeting, session));
                self.make_room_for_strangers();
            }
            Ok(None) => self.is_knocked = false,
            Err(error) if !remedy(&error).is_empty() && self.turn_next_away() => {}
            Err(why) => {
                let line = format!("cannot admit a client, and tries again: {why}{}", remedy(&why));
                self.complain(Peer::UNKNOWN, &line);
                self.reopening = Some(now + PATIENCE);
            }
        }
    }

    /// Whether the next client waits until descriptors of others are closed: whoever connects faster than that takes all
    /// descriptors of the engine. A client that has its own closed slowly delays others only for a moment.
    fn waits_for_closes(&mut self, now: Instant) -> bool {
        let waits = closer::is_crowded() && now < *self.crowded_until.get_or_insert(now + PATIENCE);
        match waits {
            true => self.reopening = Some(now + CROWD_PAUSE),
            false => self.crowded_until = None,
        }
        waits
    }

    /// Tells one who knocks why it does not come in: else it would knock again and again.
    fn turn_away(&mut self, wire: Wire, peer: Peer, why: &str) {
        self.complain(peer, &format!("{peer} is turned away: {why}"));
        // Who does not listen does not hear it.
        let _ = wire.send(&Reply::Refused(why.to_owned()).encode(UNASKED), &[], false);
        closer::close(wire.into());
    }

    /// Tells the next who knocks that there is no descriptor for it; false if there is not even one for that.
    fn turn_next_away(&mut self) -> bool {
        self.reserve.release();
        let accepted = self.door.accept();
        let is_done = accepted.is_ok();
        // Without a descriptor the kernel does not say that nobody is there.
        self.is_knocked = !matches!(accepted, Ok(None));
        if let Ok(Some((wire, peer))) = accepted {
            let why = format!("the engine has no descriptor left for another client{NO_DESCRIPTORS}");
            self.turn_away(wire, peer, &why);
        }
        self.reserve.refill();
        is_done
    }

    /// Of those who have not said hello there are only so many: a client of ours says it at once.
    fn make_room_for_strangers(&mut self) {
        let clients = &self.clients;
        self.strangers.retain(|(_, session)| clients.get(session).is_some_and(Client::is_stranger));
        if self.strangers.len() > STRANGERS_MAX
            && let Some((_, session)) = self.strangers.pop_front()
        {
            self.expel(session, "it has not said hello, and others wait to be let in");
        }
    }

    fn next_session(&self) -> u32 {
        let after = |last: u32| last.checked_add(1).unwrap_or(1);
        let mut session = after(self.last_session);
        while self.clients.contains_key(&session) {
            session = after(session);
        }
        session
    }

    fn next_moment(&self) -> Option<Instant> {
        let greeting = self.strangers.front().map(|(until, _)| *until);
        let deposit = self.deposits.values().next().map(|due| due.until);
        let idle = self.idle.zip(self.config.idle_max).map(|(since, longest)| since + longest);
        let now = Instant::now();
        let notes = self.volumes.next_look(now);
        let leftovers = (!self.leftovers.is_empty()).then(|| now + LEFTOVERS_LOOK);
        let held_back = (!self.held_back.is_empty()).then(|| now + HELD_BACK_PAUSE);
        greeting
            .into_iter()
            .chain(deposit)
            .chain(notes)
            .chain(leftovers)
            .chain(held_back)
            .chain(self.reopening)
            .chain(idle)
            .chain(self.complaints.due())
            .min()
    }

    fn on_time(&mut self, now: Instant) {
        if self.reopening.is_some_and(|at| at <= now) {
            self.reopening = None;
        }
        self.complaints.poll_counts(now).iter().for_each(|line| log::warn!("{line}"));
        self.volumes.expire(now);
        self.leftovers.retain(Memory::is_shared);
        self.expire_deposits(now);
        self.release_held_back();
        self.on_idle(now);
        while let Some((until, session)) = self.strangers.front().copied()
            && until <= now
        {
            self.strangers.pop_front();
            if self.clients.get(&session).is_some_and(Client::is_stranger) {
                self.expel(session, &format!("it has not said hello within {:?}", self.config.greeting));
            }
        }
    }

    /// Says that nobody is attached, if that has been so for long enough, and again after as long.
    fn on_idle(&mut self, now: Instant) {
        if !self.clients.is_empty() {
            self.idle = None;
        } else if let Some(longest) = self.config.idle_max
            && now.saturating_duration_since(*self.idle.get_or_insert(now)) >= longest
        {
            self.idle = Some(now);
            self.store.tell(&ToSupervisor::Idle);
        }
    }

    /// Has a client listened to, once.
    fn line_up(&mut self, session: u32) {
        let Some(client) = self.clients.get_mut(&session) else { return };
        if !std::mem::replace(&mut client.is_in_line, true) {
            self.talkers.push_back(session);
        }
    }

    /// Takes one message of the next client who may have sent one.
    fn listen_to_next(&mut self) {
        let Some(session) = self.talkers.pop_front() else { return };
        let Some(client) = self.clients.get_mut(&session) else { return };
        client.is_in_line = false;
        if !client.is_talking || client.is_waiting() {
            return;
        }
        match client.receive() {
            Ok(Some(packet)) => {
                self.line_up(session);
                // Each message may wait for a supervisor that does not read.
                self.watch.turn();
                self.watch.work_for(session);
                self.on_packet(session, packet);
                self.watch.work_for_none();
            }
            Ok(None) => client.is_talking = false,
            Err(WireError::Closed) => self.dismiss(session),
            Err(WireError::NoDescriptors(packet)) => {
                self.line_up(session);
                self.on_packet_cut(session, packet);
            }
            Err(error) => {
                self.expel(session, &error.to_string());
                error.into_descriptors().into_iter().for_each(closer::close);
            }
        }
    }

    /// Answers what a client waits for. An engine that ends refuses nothing, for its reasons are none: who has a
    /// session asks the next engine, or hears that the session is over; who has none may knock again.
    fn answer(&mut self, session: u32, serial: u32, reply: &Reply) {
        if matches!(reply, Reply::Refused(_)) && self.store.is_over() {
            match self.clients.get_mut(&session) {
                Some(client) if !client.is_stranger() => client.wait(serial),
                _ => self.dismiss(session),
            }
            return;
        }
        let Some(client) = self.clients.get_mut(&session) else { return };
        let outcome = client.answer(serial, reply, self.store.told());
        self.on_said_to(session, outcome);
    }

    /// Says something that a client does not wait for.
    fn say(&mut self, session: u32, serial: u32, reply: &Reply) {
        let Some(client) = self.clients.get_mut(&session) else { return };
        let outcome = client.say(serial, reply, self.store.told());
        self.on_said_to(session, outcome);
    }

    /// A client takes again what is said to it.
    fn flush(&mut self, session: u32) {
        let Some(client) = self.clients.get_mut(&session) else { return };
        let outcome = client.flush(self.store.told());
        self.on_said_to(session, outcome);
    }

    /// Says what was held back, as far as the supervisor's link has taken what was told before.
    fn release_held_back(&mut self) {
        if !self.held_back.is_empty() {
            self.store.flush();
            std::mem::take(&mut self.held_back).into_iter().for_each(|session| self.flush(session));
        }
    }

    fn on_said_to(&mut self, session: u32, outcome: Result<(), WireError>) {
        let told = self.store.told();
        if self.clients.get(&session).is_some_and(|client| client.is_held_back(told)) {
            self.held_back.insert(session);
        }
        match outcome {
            // It may have been asked meanwhile.
            Ok(()) => self.line_up(session),
            Err(WireError::Closed) => self.dismiss(session),
            Err(error) => self.expel(session, &error.to_string()),
        }
    }

    /// False if the thread is to end.
    fn read_notices(&mut self) -> bool {
        self.watch.turn();
        self.epoll.sleeper().take_notification();
        while let Some(notice) = self.notices.poll() {
            match notice {
                Notice::Said { session, said } => self.on_said(session, said),
                Notice::Deposited { key, is_kept } => self.on_deposited(key, is_kept),
                // Asked for: whatever the level of the log is.
                Notice::Show => eprint!("{}", self.overview()),
                // It has woken the thread, which turns.
                Notice::Beat => {}
                Notice::Halt => return false,
            }
        }
        true
    }

    fn on_said(&mut self, session: u32, said: Said) {
        let Some(client) = self.clients.get_mut(&session) else { return };
        match said {
            Said::Opened { id, outcome: Ok(answer) } => {
                let answers = client.on_opened(id, answer);
                self.pass_on(session, answers);
            }
            Said::Opened { id, outcome: Err(why) } => self.on_refused(session, id, why),
            Said::Ended { id, outcome } => {
                if let Some(held) = client.take(id) {
                    held.key.into_iter().for_each(|key| self.store.withdraw(key));
                    self.pass_on(session, held.ended(outcome));
                }
            }
            Said::Closed { queue } => {
                if let Some(serial) = client.attached().and_then(|attached| attached.on_closed(queue)) {
                    self.say(session, UNASKED, &Reply::Ended { id: queue });
                    self.answer(session, serial, &Reply::Done);
                }
            }
            Said::Hostile { why } => self.expel(session, &why),
        }
        self.forget_if_empty(session);
    }

    /// An object cannot be had. If nobody waits for that, an engine before this one had it.
    fn on_refused(&mut self, session: u32, id: u32, why: String) {
        let Some(held) = self.clients.get_mut(&session).and_then(|client| client.take(id)) else { return };
        held.key.into_iter().for_each(|key| self.store.withdraw(key));
        match held.refused(why.clone()) {
            answers if answers.is_empty() => {
                self.expel(session, &format!("its object {id} cannot be taken up: {why}"));
            }
            answers => self.pass_on(session, answers),
        }
    }

    fn pass_on(&mut self, session: u32, answers: Answers) {
        for (serial, reply) in answers {
            match serial {
                UNASKED => self.say(session, serial, &reply),
                serial => self.answer(session, serial, &reply),
            }
        }
    }

    /// Drops a client that did what none of ours does.
    fn expel(&mut self, session: u32, why: &str) {
        let Some(client) = self.clients.get_mut(&session).filter(|client| client.is_here()) else { return };
        let (peer, line) = (client.peer(), format!("{client} is dropped: {why}"));
        client.say_why(why);
        self.complain(peer, &line);
        self.dismiss(session);
    }

    /// Writes a line about a client, unless there were too many.
    fn complain(&mut self, of: Peer, line: &str) {
        if self.complaints.may_write(of.uid, Instant::now()) {
            log::warn!("{line}");
        }
    }

    /// Lets go of a client: what it has open ends by itself.
    fn dismiss(&mut self, session: u32) {
        let Some(client) = self.clients.get_mut(&session) else { return };
        if let Some(wire) = client.leave() {
            self.epoll.remove(&wire);
            closer::close(wire.into());
            match client.stage {
                client::Stage::Attached(_) => log::info!("{client} has left"),
                client::Stage::Stranger => log::debug!("{client} has left"),
            }
            let records = client.attached().map(Attached::leave).unwrap_or_default();
            records.into_iter().for_each(|key| self.store.withdraw(key));
            for core in &self.cores {
                // A core that is gone has nothing of it.
                let _ = core.send(Mail::EndSession { session });
            }
        }
        self.forget_if_empty(session);
    }

    fn forget_if_empty(&mut self, session: u32) {
        if self.clients.get(&session).is_some_and(Client::is_empty)
            && let Some(mut client) = self.clients.remove(&session)
            && let Some(attached) = client.attached()
        {
            self.store.withdraw(attached.key);
            self.leftovers.extend(attached.left.take());
        }
    }
}

/// Watches for the end of a client's process: its connection may stay open in a process that it has forked.
fn watch_process(epoll: &Epoll, session: u32, wire: &Wire) -> io::Result<Process> {
    let process = Process::of(wire.as_fd())?;
    if let Process::Alive(process) = &process {
        epoll.add(process, PROCESS | u64::from(session))?;
    }
    Ok(process)
}

/// What the kernel is to call the door; clients are called by their sessions.
const DOOR: u64 = 1 << 32;
/// What the kernel is to call their processes, with the session.
const PROCESS: u64 = 1 << 33;
/// Clients that are let in between two looks at what the others say.
const ADMITTED_MAX: usize = 16;
/// Clients that have not said hello.
const STRANGERS_MAX: usize = 64;
/// How often to look whether memory of a session that is over can be unmapped.
const LEFTOVERS_LOOK: Duration = Duration::from_millis(10);
/// How long to wait for a supervisor that does not read.
const HELD_BACK_PAUSE: Duration = Duration::from_millis(2);
/// How long to wait where many descriptors are being closed.
const CROWD_PAUSE: Duration = Duration::from_millis(1);
/// How long to wait where the system has no descriptors.
const PATIENCE: Duration = Duration::from_millis(100);

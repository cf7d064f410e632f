//! What clients ask for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use isolane_attach::control::{
    End, Hello, Object, Open, OpenPort, OpenQueue, Packet, Reply, Request, VERSION, Welcome, remedy,
};
use isolane_ring::entries::{Receiver, Sender};
use isolane_ring::{Bell, Memory, MemoryError, Process, refuse_gifts};

use super::client::{Attached, Client, ClosingQueue, Held, Stage, UNASKED};
use super::door::Peer;
use super::{Control, Denied, plan, watch_process};
use crate::closer::{self, Socket};
use crate::core::Mail;
use crate::service::{Ending, Left, Plan};
use crate::store::{Record, Unkept};

/// What becomes of a request.
enum Progress {
    /// It is answered at once.
    Answer(Reply),
    /// The answer comes from a core.
    Later,
}

/// An object that is made once the supervisor keeps its record.
pub(super) struct Due {
    session: u32,
    id: u32,
    plan: Plan,
    /// When it has taken too long.
    pub until: Instant,
}

impl Control {
    /// A client has sent something.
    pub(super) fn on_packet(&mut self, session: u32, packet: Packet) {
        // Whatever becomes of what came with it, this thread does not close the last of it.
        let spares = packet.descriptors.iter().map(OwnedFd::try_clone).collect::<Result<Vec<_>, _>>();
        match spares {
            Ok(spares) => {
                self.obey(session, packet);
                spares.into_iter().for_each(closer::close);
            }
            Err(_) => self.on_packet_cut(session, packet),
        }
    }

    /// A client has sent something with more than there are descriptors for.
    pub(super) fn on_packet_cut(&mut self, session: u32, packet: Packet) {
        packet.descriptors.into_iter().for_each(closer::close);
        let why = || Denied::Short(format!("the engine has no descriptor left for it{NO_DESCRIPTORS}"));
        let asked = Request::decode(&packet.bytes).map_err(hostile);
        let serial = asked.as_ref().map_or(0, |asked| asked.serial);
        self.conclude(session, serial, asked.and_then(|_| Err(why())));
    }

    fn obey(&mut self, session: u32, packet: Packet) {
        let (serial, outcome) = match Request::decode(&packet.bytes) {
            Ok(asked) => {
                (asked.serial, self.on_request(session, asked.serial, asked.request, packet.descriptors))
            }
            Err(malformed) => (0, Err(hostile(malformed))),
        };
        self.conclude(session, serial, outcome);
    }

    fn conclude(&mut self, session: u32, serial: u32, outcome: Result<Progress, Denied>) {
        match outcome {
            Ok(Progress::Answer(reply)) => self.answer(session, serial, &reply),
            Ok(Progress::Later) => {
                self.clients.get_mut(&session).into_iter().for_each(|client| client.wait(serial))
            }
            Err(Denied::Refused(why)) => self.answer(session, serial, &Reply::Refused(why)),
            Err(Denied::Short(why)) => {
                if let Some(client) = self.clients.get(&session) {
                    let line = format!("{client} is refused what it asks for: {why}");
                    self.complain(client.peer(), &line);
                }
                self.answer(session, serial, &Reply::Refused(why));
            }
            Err(Denied::Hostile(why)) => self.expel(session, &why),
        }
    }

    fn on_request(
        &mut self,
        session: u32,
        serial: u32,
        request: Request,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Progress, Denied> {
        if let Request::Hello(Hello { version }) = request
            && version != VERSION
        {
            let why = format!("it speaks version {version}, the engine {VERSION}; use the same");
            return Err(Denied::Hostile(why));
        }
        if descriptors.len() != request.descriptors() {
            let (came, due) = (descriptors.len(), request.descriptors());
            return Err(Denied::Hostile(format!("{came} descriptors came with a message that has {due}")));
        }
        let mut descriptors = descriptors.into_iter();
        match (request, descriptors.next()) {
            (Request::Hello(_), Some(memfd)) => self.greet(session, memfd, descriptors.next()),
            (Request::OpenPort(port), Some(end)) => self.open_port(session, port, end),
            (Request::OpenQueue(queue), Some(end)) => self.open_queue(session, queue, end),
            (Request::Open(open), descriptor) => self.open(session, serial, open, descriptor),
            (Request::End { id, how }, _) => self.end(session, serial, id, how),
            (Request::Relieve, _) => self.make_room(session),
            (_, None) => Err(Denied::Hostile("a descriptor is missing".into())),
        }
    }

    fn greet(&mut self, session: u32, memfd: OwnedFd, life: Option<OwnedFd>) -> Result<Progress, Denied> {
        let Some(client) = self.clients.get_mut(&session) else { return Err(Denied::gone()) };
        if client.attached().is_some() {
            // Asked again after a restart.
            return Ok(Progress::Answer(self.welcome(session)));
        }
        self.may_attach()?;
        let Some(client) = self.clients.get_mut(&session) else { return Err(Denied::gone()) };
        let limits = self.config.limits;
        let bytes_max = usize::try_from(limits.memory_bytes).unwrap_or(usize::MAX);
        let memory = Memory::open(memfd, bytes_max).map_err(|error| match error {
            MemoryError::Size { bytes, .. } if bytes > limits.memory_bytes => Denied::Refused(format!(
                "it has {bytes} bytes of memory, and may have at most {bytes_max} bytes; attach with less, or start the \
                 engine with a higher limit (`--memory-max`)"
            )),
            error => hostile(error),
        })?;
        let Some(wire) = client.wire() else { return Err(Denied::gone()) };
        let Peer { pid, uid } = client.peer();
        let life = life.ok_or(Denied::Hostile("a descriptor is missing".into()))?;
        let cannot =
            |error| Denied::Short(format!("the engine cannot watch its process: {error}{}", remedy(&error)));
        let process = match watch_process(&self.epoll, session, wire).map_err(cannot)? {
            Process::Alive(process) => Some(process),
            Process::Ended => return Err(Denied::Refused("its process has ended".into())),
            Process::Unknown => None,
        };
        let descriptors = [wire.as_fd(), memory.memfd(), life.as_fd()];
        let key = self.store.deposit(&Record::Session { session, pid, uid }, &descriptors)?;
        client.stage = Stage::Attached(Attached::new(memory, life, process, key));
        log::info!("{client} has attached");
        Ok(Progress::Answer(self.welcome(session)))
    }

    /// Whether there is room for one more client. Those that have left keep nobody out, but what they have left is
    /// not to add up without bound.
    fn may_attach(&mut self) -> Result<(), Denied> {
        let clients_max = self.config.clients_max;
        let attached =
            self.clients.values().filter(|client| client.is_here() && !client.is_stranger()).count();
        if attached >= clients_max {
            let why = format!("{attached} clients are attached, which is the limit (`--clients-max`)");
            return Err(Denied::Short(why));
        }
        let left = self.clients.values().filter(|client| !client.is_here()).count();
        if attached + left >= clients_max.saturating_mul(2) {
            let now = Instant::now();
            let may_relieve = |client: &mut Client| {
                !client.is_here() && client.attached().is_some_and(|attached| attached.may_relieve(now))
            };
            let sessions = self.clients.iter_mut();
            let sessions: Vec<u32> =
                sessions.filter_map(|(session, client)| may_relieve(client).then_some(*session)).collect();
            sessions.into_iter().for_each(|session| self.relieve(session));
            let why =
                format!("{left} clients have left streams or volumes that are not done; try again later");
            return Err(Denied::Short(why));
        }
        Ok(())
    }

    fn welcome(&self, session: u32) -> Reply {
        let cores = self.config.cores.iter().map(|core| *core as u32).collect();
        let (epoch, limits) = (self.epoch, self.config.limits);
        Reply::Welcome(Welcome { version: VERSION, session, epoch, cores, limits })
    }

    fn open_port(&mut self, session: u32, port: OpenPort, end: OwnedFd) -> Result<Progress, Denied> {
        refuse_gifts(end.as_fd()).map_err(hostile)?;
        let key = self.deposit(session, 0, Request::OpenPort(port), Vec::new(), &[end.as_fd()])?;
        self.have_port(session, port, end).inspect_err(|_| self.store.withdraw(key))?;
        if let Some(before) = self.memory(session)?.1.ports.insert(port.core, key) {
            self.store.withdraw(before);
        }
        Ok(Progress::Answer(Reply::Done))
    }

    /// Gives a core a port, which an engine before this one may have had.
    pub(super) fn have_port(&mut self, session: u32, port: OpenPort, end: OwnedFd) -> Result<(), Denied> {
        let (memory, _) = self.memory(session)?;
        let core = self.core(port.core)?;
        let ring = port.place.ring().ok_or(Denied::nowhere("a port"))?;
        let receiver = Receiver::resume(&memory, ring).map_err(hostile)?;
        let flag = memory.flag(port.place.flag()).map_err(hostile)?;
        let bell = Bell::with(flag, Socket::new(end)).map_err(hostile)?;
        self.mail(core, Mail::Port { session, receiver, bell });
        Ok(())
    }

    fn open_queue(&mut self, session: u32, wanted: OpenQueue, end: OwnedFd) -> Result<Progress, Denied> {
        let queues_max = self.config.limits.queues;
        let (_, attached) = self.memory(session)?;
        if attached.queues.len() >= queues_max as usize && !attached.queues.contains_key(&wanted.queue) {
            return Err(Denied::limit("notification queues", queues_max));
        }
        refuse_gifts(end.as_fd()).map_err(hostile)?;
        let key = self.deposit(session, 0, Request::OpenQueue(wanted), Vec::new(), &[end.as_fd()])?;
        self.have_queue(session, wanted, end).inspect_err(|_| self.store.withdraw(key))?;
        if let Some(before) = self.memory(session)?.1.queues.insert(wanted.queue, key) {
            self.store.withdraw(before);
        }
        Ok(Progress::Answer(Reply::Done))
    }

    /// Gives the cores a queue, which an engine before this one may have had.
    pub(super) fn have_queue(&mut self, session: u32, wanted: OpenQueue, end: OwnedFd) -> Result<(), Denied> {
        let OpenQueue { queue, place } = wanted;
        let cores = self.cores.len() as u32;
        let (memory, _) = self.memory(session)?;
        if place.cores != cores {
            return Err(Denied::Hostile(format!("a queue for {} cores of {cores}", place.cores)));
        }
        let mut mails = Vec::new();
        for core in 0..cores {
            let ring = place.ring(core).ok_or(Denied::nowhere("a queue"))?;
            let sender = Sender::resume(&memory, ring).map_err(hostile)?;
            let flag = memory.flag(place.flag()).map_err(hostile)?;
            let end = end.try_clone().map_err(short)?;
            let bell = Bell::with(flag, Socket::new(end)).map_err(hostile)?;
            mails.push(Mail::Queue { session, queue, sender, bell });
        }
        mails.into_iter().zip(0..).for_each(|(mail, core)| self.mail(core, mail));
        Ok(())
    }

    /// Closes a queue, whatever objects still name it; its end is told once no core writes to it any more. Until
    /// then its client is not listened to: so it does not have many that are being closed.
    fn close_queue(&mut self, session: u32, serial: u32, queue: u32) -> Result<Progress, Denied> {
        let cores = self.cores.len();
        let (_, attached) = self.memory(session)?;
        let Some(key) = attached.queues.remove(&queue) else {
            self.say(session, UNASKED, &Reply::Ended { id: queue });
            return Ok(Progress::Answer(Reply::Done));
        };
        attached.closing = Some(ClosingQueue { queue, serial, cores });
        // An engine that comes after this one has nothing to write there.
        self.store.withdraw(key);
        (0..cores as u32).for_each(|core| self.mail(core, Mail::CloseQueue { session, queue }));
        Ok(Progress::Later)
    }

    fn open(
        &mut self,
        session: u32,
        serial: u32,
        open: Open,
        descriptor: Option<OwnedFd>,
    ) -> Result<Progress, Denied> {
        let limits = self.config.limits;
        open.core.map_or(Ok(0), |core| self.core(core))?;
        let (_, attached) = self.memory(session)?;
        if let Some(held) = attached.objects.get_mut(&open.id) {
            // Asked again after a restart, and either there already or about to be.
            if held.open != open || held.ending.is_some() {
                return Err(Denied::Hostile(format!("object {} is opened twice", open.id)));
            }
            if held.answer.is_some() {
                return Ok(Progress::Answer(held.reply()));
            }
            held.opening = Some(serial);
            return Ok(Progress::Later);
        }
        if open.queue.is_some_and(|queue| !attached.queues.contains_key(&queue)) {
            return Err(Denied::Hostile("an object names a queue that is not there".into()));
        }
        let (what, count_max) = match &open.object {
            Object::Stream(_) => ("streams", limits.streams),
            Object::Volume { .. } => ("volumes", limits.volumes),
        };
        if attached.count(&open.object) >= count_max as usize {
            if attached.may_relieve(Instant::now()) {
                self.relieve(session);
            }
            return Err(Denied::limit(what, count_max));
        }
        let mut plan = plan::plan(&open, descriptor, &self.volumes, &self.config)?;
        let core = open.core.or(plan.core).unwrap_or_else(|| self.next_core());
        let mut held = Held { open, core, key: None, answer: None, opening: Some(serial), ending: None };
        match std::mem::take(&mut plan.left) {
            left if left.is_nothing() => self.have(session, held, plan)?,
            Left { note, descriptors } => {
                let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
                let request = Request::Open(held.open.clone());
                let record = Record::Granted { session, core, request, note };
                let key = self.store.deposit_later(&record, &descriptors)?;
                let id = held.open.id;
                held.key = Some(key);
                self.memory(session)?.1.hold(held);
                let until = Instant::now() + self.store.patience();
                self.deposits.insert(key, Due { session, id, plan, until });
            }
        }
        Ok(Progress::Later)
    }

    /// The supervisor keeps what a client has asked for, or does not: now it may be had, or is refused.
    pub(super) fn on_deposited(&mut self, key: u64, is_kept: bool) {
        self.conclude_deposit(key, if is_kept { Ok(()) } else { Err(Unkept::NoDescriptors) });
    }

    /// Refuses what the supervisor has not answered in time. The oldest first: the keys of records grow.
    pub(super) fn expire_deposits(&mut self, now: Instant) {
        while let Some((key, due)) = self.deposits.first_key_value()
            && due.until <= now
        {
            let key = *key;
            let why = self.store.give_up(key);
            self.conclude_deposit(key, Err(why));
        }
    }

    fn conclude_deposit(&mut self, key: u64, outcome: Result<(), Unkept>) {
        let Some(Due { session, id, plan, .. }) = self.deposits.remove(&key) else { return };
        let Some(client) = self.clients.get_mut(&session) else { return };
        let (is_here, peer, name) = (client.is_here(), client.peer(), client.to_string());
        let Some(attached) = client.attached() else { return };
        // It may have been asked to end meanwhile, and then has.
        let Some(held) = attached.objects.get(&id).filter(|held| held.key == Some(key)) else { return };
        let (core, is_ending) = (held.core, held.ending.is_some());
        if !is_here {
            // Its core has never had it.
            drop(client.take(id));
            self.store.withdraw(key);
            self.forget_if_empty(session);
        } else if let Err(why) = outcome {
            let why = why.to_string();
            self.complain(peer, &format!("{name} is refused what it asks for: {why}"));
            self.on_refused(session, id, why);
        } else if !is_ending {
            self.mail_open(session, core, id, plan);
        }
        // Else its core has been asked to end what it has never had, and says that it is no more.
    }

    /// Has a core make an object.
    pub(super) fn have(&mut self, session: u32, held: Held, plan: Plan) -> Result<(), Denied> {
        let (core, id) = (held.core, held.open.id);
        self.memory(session)?.1.hold(held);
        self.mail_open(session, core, id, plan);
        Ok(())
    }

    fn mail_open(&mut self, session: u32, core: u32, id: u32, plan: Plan) {
        let Ok((memory, attached)) = self.memory(session) else { return };
        let queue = attached.objects.get(&id).and_then(|held| held.open.queue);
        self.mail(core, Mail::Open { session, id, queue, memory, build: plan.build });
    }

    /// A session has no memory left.
    fn make_room(&mut self, session: u32) -> Result<Progress, Denied> {
        let (_, attached) = self.memory(session)?;
        if attached.may_relieve(Instant::now()) {
            self.relieve(session);
        }
        Ok(Progress::Answer(Reply::Done))
    }

    /// Ends what a session has closed and what has not moved for long.
    fn relieve(&self, session: u32) {
        (0..self.cores.len() as u32).for_each(|core| self.mail(core, Mail::Relieve { session }));
    }

    /// Has the supervisor keep what is granted.
    fn deposit(
        &self,
        session: u32,
        core: u32,
        request: Request,
        note: Vec<u8>,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<u64, Denied> {
        Ok(self.store.deposit(&Record::Granted { session, core, request, note }, descriptors)?)
    }

    fn end(&mut self, session: u32, serial: u32, id: u32, how: End) -> Result<Progress, Denied> {
        let (_, attached) = self.memory(session)?;
        let Some(held) = attached.objects.get_mut(&id) else {
            return match how {
                End::Close => self.close_queue(session, serial, id),
                End::Release => Ok(Progress::Answer(Reply::Done)),
            };
        };
        held.ending = Some((how, serial));
        let core = held.core;
        self.mail(core, Mail::End { session, id, ending: Ending::Asked(how) });
        match how {
            End::Release => Ok(Progress::Later),
            End::Close => Ok(Progress::Answer(Reply::Done)),
        }
    }

    /// The memory of a session, and what else it has.
    pub(super) fn memory(&mut self, session: u32) -> Result<(Memory, &mut Attached), Denied> {
        let attached = self.clients.get_mut(&session).and_then(|client| client.attached());
        let attached = attached.ok_or(Denied::Hostile("it has not said hello".into()))?;
        let memory = attached.memory.clone().ok_or(Denied::gone())?;
        Ok((memory, attached))
    }

    pub(super) fn core(&self, core: u32) -> Result<u32, Denied> {
        let is_there = (core as usize) < self.cores.len();
        is_there.then_some(core).ok_or_else(|| Denied::Hostile(format!("the engine has no core {core}")))
    }

    fn next_core(&mut self) -> u32 {
        self.last_core = (self.last_core + 1) % self.cores.len() as u32;
        self.last_core
    }

    fn mail(&self, core: u32, mail: Mail) {
        // A core that is gone ends the engine; until then nobody is answered.
        let _ = self.cores[core as usize].send(mail);
    }
}

impl Denied {
    fn gone() -> Denied {
        Denied::Refused("the session is over".into())
    }

    fn nowhere(what: &str) -> Denied {
        Denied::Hostile(format!("the place of {what} can be nowhere"))
    }

    fn limit(what: &str, count_max: u32) -> Denied {
        Denied::Refused(format!("the session has {count_max} {what}, which is the limit; close some"))
    }
}

impl From<Unkept> for Denied {
    fn from(error: Unkept) -> Denied {
        Denied::Short(error.to_string())
    }
}

/// The system refuses.
pub(super) fn short(error: io::Error) -> Denied {
    Denied::Short(format!("the engine: {error}{}", remedy(&error)))
}

pub(super) fn hostile(error: impl ToString) -> Denied {
    Denied::Hostile(error.to_string())
}

/// What an engine without descriptors says to do.
pub(super) const NO_DESCRIPTORS: &str =
    "; close others, or start the engine with a higher limit of descriptors (`ulimit -n`)";

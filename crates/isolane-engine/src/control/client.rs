//! A client: its connection, and what it has.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use isolane_attach::control::{ASKED_MAX, End, Object, Open, Packet, Reply, Wire, WireError};
use isolane_ring::Memory;

use rustix::net::{Shutdown, shutdown};

use super::door::Peer;
use crate::closer::Socket;
use crate::store::Told;

/// A client, as the control thread sees it.
pub(super) struct Client {
    session: u32,
    peer: Peer,
    /// Its connection, until it leaves.
    wire: Option<Wire>,
    /// It may have sent something.
    pub is_talking: bool,
    /// It is among the talkers, once.
    pub is_in_line: bool,
    /// Requests that are not answered yet.
    waiting: Vec<u32>,
    /// What it has not taken yet: at most an answer to each of these, and a notice for each of its objects and queues.
    /// With each, how much the supervisor's link is to take before.
    outbox: VecDeque<(u64, Vec<u8>)>,
    pub stage: Stage,
}

/// How far it has come.
pub(super) enum Stage {
    /// It has not said hello.
    Stranger,
    /// It has a session.
    Attached(Attached),
}

/// What a session has.
pub(super) struct Attached {
    /// Until it leaves.
    pub memory: Option<Memory>,
    /// The same from then on, so that no core drops the last reference to it.
    pub left: Option<Memory>,
    /// Closed with the last that is done for it: then its application may go on without an engine.
    _life: Socket,
    /// Becomes readable when its process ends: another that was forked from it may have its connection.
    process: Option<OwnedFd>,
    /// Its record in the store.
    pub key: u64,
    /// Records of its ports, by core.
    pub ports: BTreeMap<u32, u64>,
    /// Records of its queues.
    pub queues: BTreeMap<u32, u64>,
    /// A queue that is being closed.
    pub closing: Option<ClosingQueue>,
    pub objects: BTreeMap<u32, Held>,
    /// Of the objects, those that are streams.
    streams: usize,
    /// When what only waits for others was last ended to make room.
    relieved: Option<Instant>,
}

/// A queue that is being closed.
pub(super) struct ClosingQueue {
    pub queue: u32,
    /// The request that waits for it.
    pub serial: u32,
    /// How many cores may still write to it.
    pub cores: usize,
}

/// An object of a session.
pub(super) struct Held {
    /// What was asked for.
    pub open: Open,
    /// Where it is.
    pub core: u32,
    /// Its record in the store, if there is something to be kept.
    pub key: Option<u64>,
    /// What its application was told, once it is there.
    pub answer: Option<Vec<u8>>,
    /// Who waits for it to be there.
    pub opening: Option<u32>,
    /// How its application wants it to end, if it does, and who waits for that.
    pub ending: Option<(End, u32)>,
}

/// Answers that have become possible.
pub(super) type Answers = Vec<(u32, Reply)>;

impl Client {
    pub fn new(session: u32, wire: Wire, peer: Peer) -> Client {
        Client {
            session,
            peer,
            wire: Some(wire),
            is_talking: false,
            is_in_line: false,
            waiting: Vec::new(),
            outbox: VecDeque::new(),
            stage: Stage::Stranger,
        }
    }

    /// Whether it has not left.
    pub fn is_here(&self) -> bool {
        self.wire.is_some()
    }

    /// Whether it has left and nothing of it is there any more.
    pub fn is_empty(&self) -> bool {
        let has_objects = matches!(&self.stage, Stage::Attached(attached) if !attached.objects.is_empty());
        !self.is_here() && !has_objects
    }

    /// Whether it is here, but has not said hello.
    pub fn is_stranger(&self) -> bool {
        self.is_here() && matches!(self.stage, Stage::Stranger)
    }

    /// Whether it is not to be listened to: it is to be answered first, or takes no answers.
    pub fn is_waiting(&self) -> bool {
        let closes = matches!(&self.stage, Stage::Attached(attached) if attached.closing.is_some());
        closes || self.waiting.len() >= ASKED_MAX || !self.outbox.is_empty()
    }

    /// It waits for the answer to this request.
    pub fn wait(&mut self, serial: u32) {
        self.waiting.push(serial);
    }

    pub fn receive(&self) -> Result<Option<Packet>, WireError> {
        self.wire.as_ref().map_or(Ok(None), |wire| wire.receive(false))
    }

    /// Answers what it waits for.
    pub fn answer(&mut self, serial: u32, reply: &Reply, told: Told) -> Result<(), WireError> {
        self.waiting.retain(|waiting| *waiting != serial);
        self.say(serial, reply, told)
    }

    /// Says something, as soon as it listens and the supervisor's link has taken all that was told.
    pub fn say(&mut self, serial: u32, reply: &Reply, told: Told) -> Result<(), WireError> {
        self.outbox.push_back((told.all, reply.encode(serial)));
        self.flush(told)
    }

    /// Whether what it is to hear next waits for the supervisor's link.
    pub fn is_held_back(&self, told: Told) -> bool {
        self.outbox.front().is_some_and(|(after, _)| *after > told.taken)
    }

    /// Says what it was not ready to hear before.
    pub fn flush(&mut self, told: Told) -> Result<(), WireError> {
        let Some(wire) = &self.wire else { return Ok(()) };
        while let Some((after, bytes)) = self.outbox.front()
            && *after <= told.taken
        {
            match wire.send(bytes, &[], false) {
                Ok(()) => drop(self.outbox.pop_front()),
                Err(WireError::Full) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Tells it why it is dropped, if it listens.
    pub fn say_why(&mut self, why: &str) {
        let serial = self.waiting.first().copied().unwrap_or(1);
        // Its session is over with this: it is not held back.
        let now = Told { all: 0, taken: 0 };
        let _ = self.answer(serial, &Reply::Refused(why.to_owned()), now);
    }

    /// Its connection, if it has not left before. It is over, also for others who have it.
    pub fn leave(&mut self) -> Option<Wire> {
        self.is_talking = false;
        self.outbox.clear();
        let wire = self.wire.take()?;
        // It fails only if the client has ended it before.
        let _ = shutdown(&wire, Shutdown::Both);
        Some(wire)
    }

    pub fn attached(&mut self) -> Option<&mut Attached> {
        match &mut self.stage {
            Stage::Attached(attached) => Some(attached),
            Stage::Stranger => None,
        }
    }

    /// Its connection, to be kept.
    pub fn wire(&self) -> Option<&Wire> {
        self.wire.as_ref()
    }

    /// Who it is.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// A core says that an object is there.
    pub fn on_opened(&mut self, id: u32, answer: Vec<u8>) -> Answers {
        let Some(held) = self.attached().and_then(|attached| attached.objects.get_mut(&id)) else {
            return Vec::new();
        };
        held.answer = Some(answer);
        held.opening.take().map(|serial| (serial, held.reply())).into_iter().collect()
    }

    /// An object that its core says is no more, or never was.
    pub fn take(&mut self, id: u32) -> Option<Held> {
        let attached = self.attached()?;
        let held = attached.objects.remove(&id)?;
        attached.streams -= usize::from(is_stream(&held.open.object));
        Some(held)
    }
}

impl Attached {
    pub fn new(memory: Memory, life: OwnedFd, process: Option<OwnedFd>, key: u64) -> Attached {
        Attached {
            memory: Some(memory),
            left: None,
            _life: Socket::new(life),
            process,
            key,
            ports: BTreeMap::new(),
            queues: BTreeMap::new(),
            closing: None,
            objects: BTreeMap::new(),
            streams: 0,
            relieved: None,
        }
    }

    /// Has nothing of it any more but its objects. Returns the records of what it had.
    pub fn leave(&mut self) -> Vec<u64> {
        self.left = self.memory.take();
        self.process = None;
        let (ports, queues) = (std::mem::take(&mut self.ports), std::mem::take(&mut self.queues));
        ports.into_values().chain(queues.into_values()).collect()
    }

    /// A core does not write to a queue any more that is being closed. Returns who waits for that, if no core does.
    pub fn on_closed(&mut self, queue: u32) -> Option<u32> {
        let closing = self.closing.as_mut().filter(|closing| closing.queue == queue)?;
        closing.cores -= 1;
        self.closing.take_if(|closing| closing.cores == 0).map(|closing| closing.serial)
    }

    /// How many objects it has of the same kind.
    pub fn count(&self, like: &Object) -> usize {
        if is_stream(like) { self.streams } else { self.objects.len() - self.streams }
    }

    /// One more object.
    pub fn hold(&mut self, held: Held) {
        self.streams += usize::from(is_stream(&held.open.object));
        self.objects.insert(held.open.id, held);
    }

    /// Whether it is time to end again what only waits for others: that looks at all objects.
    pub fn may_relieve(&mut self, now: Instant) -> bool {
        let is_due = self.relieved.is_none_or(|at| now.saturating_duration_since(at) >= RELIEF_PAUSE);
        if is_due {
            self.relieved = Some(now);
        }
        is_due
    }
}

impl Held {
    /// What is said of an object that is there.
    pub fn reply(&self) -> Reply {
        Reply::Opened { core: self.core, answer: self.answer.clone().unwrap_or_default() }
    }
}

impl Held {
    /// What is to be said when it could not be had.
    pub fn refused(&self, why: String) -> Answers {
        let refused = self.opening.map(|serial| (serial, Reply::Refused(why)));
        refused.into_iter().chain(self.ending_answer(Ok(()))).collect()
    }

    /// What is to be said when it has ended.
    pub fn ended(&self, outcome: Result<(), String>) -> Answers {
        let over = || Reply::Refused("it has ended before it was there".into());
        let opening = self.opening.map(|serial| (serial, over()));
        opening.into_iter().chain(self.ending_answer(outcome)).collect()
    }

    fn ending_answer(&self, outcome: Result<(), String>) -> Option<(u32, Reply)> {
        let id = self.open.id;
        self.ending.map(|(how, serial)| match (how, outcome) {
            (End::Close, _) => (UNASKED, Reply::Ended { id }),
            (End::Release, Ok(())) => (serial, Reply::Done),
            (End::Release, Err(why)) => (serial, Reply::Refused(why)),
        })
    }
}

fn is_stream(object: &Object) -> bool {
    matches!(object, Object::Stream(_))
}

/// Between two times that room is made in a session.
const RELIEF_PAUSE: Duration = Duration::from_secs(1);
/// The serial number of what no request waits for.
pub(super) const UNASKED: u32 = 0;

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "session {}, {}", self.session, self.peer)
    }
}

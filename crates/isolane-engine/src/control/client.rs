//! State of a client: its connection, and its session.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use isolane_engine_api::{
    CloseMode, MAX_REQUESTS_IN_FLIGHT, OpenObject, Packet, PacketError, PacketSocket, Reply,
};
use isolane_shm::SharedMemory;
use rustix::net::{Shutdown, shutdown};

use super::listener::ClientCred;
use crate::close_threads::Socket;

/// Client of the control thread.
pub(super) struct Client {
    session: u32,
    pub cred: ClientCred,
    /// Connection; `None` after a disconnect.
    pub wire: Option<PacketSocket>,
    /// The connection may have a message.
    pub readable: bool,
    /// The client is in the queue of readable clients.
    pub queued: bool,
    /// Serial numbers of requests without reply.
    waiting: Vec<u32>,
    /// Messages that were not sent yet. At most a reply to each waiting request, and a notice for each object and
    /// queue.
    outbox: VecDeque<Vec<u8>>,
    /// Session; `None` before the hello message.
    pub attached: Option<Attached>,
}

/// Session of a client.
pub(super) struct Attached {
    /// Kept after a disconnect, so that no core drops the last reference.
    pub memory: SharedMemory,
    /// Name of the application, for people.
    pub application: Arc<str>,
    /// Closed with the last state of the session; then its application may continue without an engine.
    _life: Socket,
    /// Becomes readable when the process ends; a forked process may keep the connection open.
    process: Option<OwnedFd>,
    /// Record in the store.
    pub key: u64,
    /// Records of doorbells, by core.
    pub doorbells: BTreeMap<u32, u64>,
    /// Records of notification queues.
    pub queues: BTreeMap<u32, u64>,
    pub closing: Option<ClosingQueue>,
    pub objects: BTreeMap<u32, ObjectRecord>,
    /// Numbers of objects, by kind.
    counts: BTreeMap<usize, usize>,
    /// Last time when stalled objects were abandoned.
    pub relieved: Option<Instant>,
}

/// Notification queue that is being closed.
pub(super) struct ClosingQueue {
    pub queue: u32,
    /// Serial number of the request.
    pub serial: u32,
    /// Number of cores that may still write to it.
    pub cores: usize,
}

/// Object of a session.
pub(super) struct ObjectRecord {
    /// Index of the kind.
    pub kind: usize,
    /// Request that opened the object.
    pub open: OpenObject,
    /// Core, by index.
    pub core: u32,
    /// Record in the store, if the object has state to store.
    pub key: Option<u64>,
    /// Answer for the application, once the object is open.
    pub answer: Option<Vec<u8>>,
    /// Serial number of the request that waits until the object is open.
    pub opening: Option<u32>,
    /// Requested close, with the serial number of its request.
    pub closing: Option<(CloseMode, u32)>,
}

/// Replies that are due, with the serial numbers of their requests.
pub(super) type Replies = Vec<(u32, Reply)>;

impl Client {
    pub fn new(session: u32, wire: PacketSocket, cred: ClientCred) -> Client {
        Client {
            session,
            cred,
            wire: Some(wire),
            readable: false,
            queued: false,
            waiting: Vec::new(),
            outbox: VecDeque::new(),
            attached: None,
        }
    }

    pub fn is_connected(&self) -> bool {
        self.wire.is_some()
    }

    /// Whether the client has disconnected, and all its objects are closed.
    pub fn is_empty(&self) -> bool {
        !self.is_connected() && self.attached.as_ref().is_none_or(|attached| attached.objects.is_empty())
    }

    /// Whether the client is connected, without hello message.
    pub fn is_handshaking(&self) -> bool {
        self.is_connected() && self.attached.is_none()
    }

    /// Whether messages of the client must wait: for replies, or for space on its connection.
    pub fn is_blocked(&self) -> bool {
        let closes = self.attached.as_ref().is_some_and(|attached| attached.closing.is_some());
        closes || self.waiting.len() >= MAX_REQUESTS_IN_FLIGHT || !self.outbox.is_empty()
    }

    /// Records a request whose reply is deferred.
    pub fn wait(&mut self, serial: u32) {
        self.waiting.push(serial);
    }

    pub fn receive(&self) -> Result<Option<Packet>, PacketError> {
        self.wire.as_ref().map_or(Ok(None), |wire| wire.receive(false))
    }

    /// Queues a message. A reply ends the wait of its request.
    pub fn push(&mut self, serial: u32, reply: &Reply) {
        self.waiting.retain(|waiting| *waiting != serial);
        self.outbox.push_back(reply.encode(serial));
    }

    /// Sends queued messages as far as the connection permits.
    pub fn flush(&mut self) -> Result<(), PacketError> {
        let Some(wire) = &self.wire else { return Ok(()) };
        while let Some(bytes) = self.outbox.front() {
            match wire.send(bytes, &[], false) {
                Ok(()) => drop(self.outbox.pop_front()),
                Err(PacketError::WouldBlock) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends the reason of a disconnect, if the connection has space. Drops queued messages: the link to the supervisor
    /// may not have confirmed yet what they report.
    pub fn send_reason(&mut self, reason: &str) {
        self.outbox.clear();
        let serial = self.waiting.first().copied().unwrap_or(1);
        self.push(serial, &Reply::Refused(reason.to_owned()));
        // Ends the session, so it need not wait for the link to the supervisor.
        let _ = self.flush();
    }

    /// Returns the connection, shut down also for other processes, unless the client has disconnected before.
    pub fn disconnect(&mut self) -> Option<PacketSocket> {
        self.readable = false;
        self.outbox.clear();
        let wire = self.wire.take()?;
        // Fails only if the client has closed it.
        let _ = shutdown(&wire, Shutdown::Both);
        Some(wire)
    }

    /// Called when a core has opened an object.
    pub fn on_opened(&mut self, id: u32, answer: Vec<u8>) -> Replies {
        let Some(object) = self.attached.as_mut().and_then(|attached| attached.objects.get_mut(&id)) else {
            return Vec::new();
        };
        object.answer = Some(answer);
        object.opening.take().map(|serial| (serial, object.opened())).into_iter().collect()
    }

    /// Removes an object.
    pub fn remove(&mut self, id: u32) -> Option<ObjectRecord> {
        let attached = self.attached.as_mut()?;
        let object = attached.objects.remove(&id)?;
        *attached.counts.entry(object.kind).or_default() -= 1;
        Some(object)
    }
}

impl Attached {
    pub fn new(
        memory: SharedMemory,
        life: OwnedFd,
        process: Option<OwnedFd>,
        cred: ClientCred,
        key: u64,
    ) -> Attached {
        Attached {
            memory,
            application: cred.application().into(),
            _life: Socket::new(life),
            process,
            key,
            doorbells: BTreeMap::new(),
            queues: BTreeMap::new(),
            closing: None,
            objects: BTreeMap::new(),
            counts: BTreeMap::new(),
            relieved: None,
        }
    }

    /// Drops everything but the objects and the memory. Returns the records of the dropped state.
    pub fn disconnect(&mut self) -> Vec<u64> {
        self.process = None;
        let (doorbells, queues) = (std::mem::take(&mut self.doorbells), std::mem::take(&mut self.queues));
        doorbells.into_values().chain(queues.into_values()).collect()
    }

    /// Called when a core has closed its end of a queue. Returns the serial number of the request after the
    /// last core.
    pub fn on_queue_closed(&mut self, queue: u32) -> Option<u32> {
        let closing = self.closing.as_mut().filter(|closing| closing.queue == queue)?;
        closing.cores -= 1;
        self.closing.take_if(|closing| closing.cores == 0).map(|closing| closing.serial)
    }

    /// Number of objects of a kind.
    pub fn count(&self, kind: usize) -> usize {
        self.counts.get(&kind).copied().unwrap_or_default()
    }

    pub fn insert(&mut self, object: ObjectRecord) {
        *self.counts.entry(object.kind).or_default() += 1;
        self.objects.insert(object.open.id, object);
    }
}

impl ObjectRecord {
    /// Reply for an open object.
    pub fn opened(&self) -> Reply {
        Reply::Opened { core: self.core, answer: self.answer.clone().unwrap_or_default() }
    }

    /// Replies for an object that cannot be opened.
    pub fn refused(&self, reason: String) -> Replies {
        self.last_replies(reason, Ok(()))
    }

    /// Replies for a closed object.
    pub fn closed(&self, result: Result<(), String>) -> Replies {
        self.last_replies("closed before it was open".into(), result)
    }

    /// Replies to a pending open, which is refused with `reason`, and to a pending close.
    fn last_replies(&self, reason: String, result: Result<(), String>) -> Replies {
        let id = self.open.id;
        let opening = self.opening.map(|serial| (serial, Reply::Refused(reason)));
        let closing = self.closing.map(|(mode, serial)| match (mode, result) {
            (CloseMode::Close, _) => (UNSOLICITED, Reply::ObjectClosed { id }),
            (CloseMode::Release, Ok(())) => (serial, Reply::Ack),
            (CloseMode::Release, Err(reason)) => (serial, Reply::Refused(reason)),
        });
        opening.into_iter().chain(closing).collect()
    }
}

/// Serial number of messages that no request waits for.
pub(super) const UNSOLICITED: u32 = 0;

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "session {}, {}", self.session, self.cred)
    }
}

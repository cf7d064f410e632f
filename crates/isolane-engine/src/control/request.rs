//! Requests of clients.

use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use isolane_engine_api::{
    CloseMode, Hello, OpenDoorbells, OpenNotificationQueue, OpenObject, Packet, Reply, Request, VERSION,
    Welcome, hint,
};
use isolane_shm::entries::{Receiver, Sender};
use isolane_shm::{Bell, MemoryError, PeerProcess, SharedMemory, forbid_fd_passing};

use super::client::{Attached, ClosingQueue, ObjectRecord, UNSOLICITED};
use super::listener::ClientCred;
use super::{Control, watch_process};
use crate::close_threads::{self, Socket};
use crate::core::CoreMessage;
use crate::object::{ClientBell, CloseReason, NO_DESCRIPTORS, ObjectBuilder, RecoveryState, Rejection};
use crate::store::{Record, StoreError};

/// Object that is built once the supervisor has stored its record.
pub(super) struct PendingOpen {
    session: u32,
    id: u32,
    builder: ObjectBuilder,
    pub deadline: Instant,
}

impl Control {
    /// Called when a client has sent a packet.
    pub(super) fn on_packet(&mut self, session: u32, packet: Packet) {
        // Duplicates, so that this thread never closes the last descriptor of a file.
        let duplicates = packet.descriptors.iter().map(OwnedFd::try_clone).collect::<Result<Vec<_>, _>>();
        let Ok(duplicates) = duplicates else { return self.on_truncated_packet(session, packet) };
        let (serial, result) = match Request::decode(&packet.bytes) {
            Ok((serial, request)) => (serial, self.on_request(session, serial, request, packet.descriptors)),
            Err(malformed) => (0, Err(Rejection::violation(malformed))),
        };
        self.finish_request(session, serial, result);
        duplicates.into_iter().for_each(close_threads::close);
    }

    /// Called when the engine has too few descriptors to receive a packet completely.
    pub(super) fn on_truncated_packet(&mut self, session: u32, packet: Packet) {
        packet.descriptors.into_iter().for_each(close_threads::close);
        let (serial, rejection) = match Request::decode(&packet.bytes) {
            Ok((serial, _)) => {
                let reason = format!("the engine has no descriptor left for it{NO_DESCRIPTORS}");
                (serial, Rejection::Exhausted(reason))
            }
            Err(malformed) => (0, Rejection::violation(malformed)),
        };
        self.finish_request(session, serial, Err(rejection));
    }

    fn finish_request(&mut self, session: u32, serial: u32, result: Result<Option<Reply>, Rejection>) {
        match result {
            Ok(Some(reply)) => self.reply(session, serial, &reply),
            Ok(None) => self.clients.get_mut(&session).into_iter().for_each(|client| client.wait(serial)),
            Err(Rejection::Refused(reason)) => self.reply(session, serial, &Reply::Refused(reason)),
            Err(Rejection::Exhausted(reason)) => {
                self.warn_refused(session, &reason);
                self.reply(session, serial, &Reply::Refused(reason));
            }
            Err(Rejection::Violation(reason)) => self.disconnect_violator(session, &reason),
        }
    }

    fn warn_refused(&mut self, session: u32, reason: &str) {
        if let Some(client) = self.clients.get(&session) {
            let line = format!("{client}: request refused: {reason}");
            self.warn_limited(client.cred, &line);
        }
    }

    /// Returns the reply, or `None` if it follows later.
    fn on_request(
        &mut self,
        session: u32,
        serial: u32,
        request: Request,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Option<Reply>, Rejection> {
        if let Request::Hello(Hello { version }) = request
            && version != VERSION
        {
            let reason = format!("it speaks version {version}, the engine {VERSION}; use the same");
            return Err(Rejection::Violation(reason));
        }
        if let Some(expected) = request.descriptors() {
            check_descriptors(&descriptors, expected..=expected)?;
        }
        if let Request::OpenObject(open) = request {
            return self.open(session, serial, open, descriptors);
        }
        let mut descriptors = descriptors.into_iter();
        match (request, descriptors.next()) {
            (Request::Hello(_), Some(memfd)) => self.attach(session, memfd, descriptors.next()),
            (request @ (Request::OpenDoorbells(_) | Request::OpenNotificationQueue(_)), Some(end)) => {
                self.grant(session, request, end)
            }
            (Request::CloseObject { id, how }, _) => self.close(session, serial, id, how),
            (Request::Relieve, _) => {
                self.attached(session)?;
                self.relieve(session);
                Ok(Some(Reply::Ack))
            }
            _ => Err(Rejection::violation("a descriptor is missing")),
        }
    }

    fn attach(
        &mut self,
        session: u32,
        memfd: OwnedFd,
        life: Option<OwnedFd>,
    ) -> Result<Option<Reply>, Rejection> {
        if self.attached(session).is_ok() {
            // Repeated after a restart.
            return Ok(Some(self.welcome(session)));
        }
        self.check_capacity()?;
        let Some(client) = self.clients.get_mut(&session) else { return Err(session_ended()) };
        let limits = self.config.limits;
        let max_bytes = usize::try_from(limits.memory_bytes).unwrap_or(usize::MAX);
        let memory = SharedMemory::open(memfd, max_bytes).map_err(|error| match error {
            MemoryError::Size { bytes, .. } if bytes > limits.memory_bytes => Rejection::Refused(format!(
                "it has {bytes} bytes of memory, and may have at most {max_bytes} bytes; attach with less, or start \
                 the engine with a higher limit (`--max-memory`)"
            )),
            error => Rejection::violation(error),
        })?;
        let Some(wire) = &client.wire else { return Err(session_ended()) };
        let ClientCred { pid, uid } = client.cred;
        let life = life.ok_or_else(|| Rejection::violation("a descriptor is missing"))?;
        let process = match watch_process(&self.epoll, session, wire) {
            Ok(PeerProcess::Alive(process)) => Some(process),
            Ok(PeerProcess::Ended) => return Err(Rejection::Refused("its process has ended".into())),
            Ok(PeerProcess::Unknown) => None,
            Err(error) => {
                let reason = format!("the engine cannot watch its process: {error}{}", hint(&error));
                return Err(Rejection::Exhausted(reason));
            }
        };
        let descriptors = [wire.as_fd(), memory.memfd(), life.as_fd()];
        let key = self.store.put(&Record::Session { session, pid, uid }, &descriptors)?;
        client.attached = Some(Attached::new(memory, life, process, client.cred, key));
        log::limited!(Info, "{client} has attached");
        Ok(Some(self.welcome(session)))
    }

    /// Checks the number of clients. Disconnected ones count only towards twice the limit.
    fn check_capacity(&mut self) -> Result<(), Rejection> {
        let max_clients = self.config.max_clients;
        let (connected, left): (Vec<_>, Vec<_>) =
            self.clients.iter().partition(|(_, client)| client.is_connected());
        let attached = connected.iter().filter(|(_, client)| !client.is_handshaking()).count();
        if attached >= max_clients {
            let reason = format!("{attached} clients are attached, which is the limit (`--max-clients`)");
            return Err(Rejection::Exhausted(reason));
        }
        if attached + left.len() >= max_clients.saturating_mul(2) {
            let left: Vec<u32> = left.into_iter().map(|(session, _)| *session).collect();
            left.iter().for_each(|session| self.relieve(*session));
            let count = left.len();
            let reason = format!("{count} clients have left objects that are closing; try again later");
            return Err(Rejection::Exhausted(reason));
        }
        Ok(())
    }

    fn welcome(&self, session: u32) -> Reply {
        let cores = self.config.cores.iter().map(|core| *core as u32).collect();
        let (epoch, limits) = (self.epoch, self.config.limits);
        Reply::Welcome(Welcome { version: VERSION, session, epoch, cores, limits })
    }

    /// Opens doorbells or a notification queue, with the engine's end of a bell.
    fn grant(&mut self, session: u32, request: Request, end: OwnedFd) -> Result<Option<Reply>, Rejection> {
        let max_queues = self.config.limits.queues;
        if let Request::OpenNotificationQueue(open) = &request
            && let queues = &self.attached(session)?.queues
            && queues.len() >= max_queues as usize
            && !queues.contains_key(&open.queue)
        {
            return Err(limit("notification queues", max_queues));
        }
        forbid_fd_passing(end.as_fd()).map_err(Rejection::violation)?;
        let record = Record::Granted { session, core: 0, request: request.clone(), note: Vec::new() };
        let key = self.store.put(&record, &[end.as_fd()])?;
        self.install(session, key, &request, end).inspect_err(|_| self.store.remove(key))?;
        Ok(Some(Reply::Ack))
    }

    /// Passes doorbells or a notification queue to the cores, instead of earlier ones with the same ID.
    pub(super) fn install(
        &mut self,
        session: u32,
        key: u64,
        request: &Request,
        end: OwnedFd,
    ) -> Result<(), Rejection> {
        let memory = self.attached(session)?.memory.clone();
        let previous = match request {
            Request::OpenDoorbells(OpenDoorbells { core, layout }) => {
                let core = self.check_core(*core)?;
                let ring = layout.ring().ok_or_else(|| invalid_layout("doorbells"))?;
                let receiver = Receiver::open(&memory, ring).map_err(Rejection::violation)?;
                let bell = bell(&memory, layout.flag(), end)?;
                self.send_to_core(core, CoreMessage::Doorbells { session, receiver, bell });
                self.attached(session)?.doorbells.insert(core, key)
            }
            Request::OpenNotificationQueue(OpenNotificationQueue { queue, layout }) => {
                let (queue, cores) = (*queue, self.cores.len() as u32);
                if layout.cores != cores {
                    let reason = format!("a queue for {} cores of {cores}", layout.cores);
                    return Err(Rejection::Violation(reason));
                }
                let mut messages = Vec::new();
                for core in 0..cores {
                    let ring = layout.ring(core).ok_or_else(|| invalid_layout("a queue"))?;
                    let sender = Sender::open(&memory, ring).map_err(Rejection::violation)?;
                    let end = end.try_clone().map_err(|error| Rejection::system(&error))?;
                    let bell = bell(&memory, layout.flag(), end)?;
                    messages.push(CoreMessage::Queue { session, queue, sender, bell });
                }
                messages.into_iter().zip(0..).for_each(|(message, core)| self.send_to_core(core, message));
                self.attached(session)?.queues.insert(queue, key)
            }
            _ => return Err(Rejection::violation("a record of a request that is not stored")),
        };
        previous.into_iter().for_each(|key| self.store.remove(key));
        Ok(())
    }

    /// Closes a queue, even if objects use it. The reply follows once no core writes to it any longer. Until then
    /// the client's messages wait, so that it closes one queue at a time.
    fn close_queue(&mut self, session: u32, serial: u32, queue: u32) -> Result<Option<Reply>, Rejection> {
        let cores = self.cores.len();
        let attached = self.attached(session)?;
        let Some(key) = attached.queues.remove(&queue) else {
            self.reply(session, UNSOLICITED, &Reply::ObjectClosed { id: queue });
            return Ok(Some(Reply::Ack));
        };
        attached.closing = Some(ClosingQueue { queue, serial, cores });
        // The next engine must not write to the queue.
        self.store.remove(key);
        self.send_to_all(|| CoreMessage::CloseQueue { session, queue });
        Ok(None)
    }

    fn open(
        &mut self,
        session: u32,
        serial: u32,
        open: OpenObject,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Option<Reply>, Rejection> {
        open.core.map_or(Ok(0), |core| self.check_core(core))?;
        let kind = self.kind(&open)?;
        check_descriptors(&descriptors, self.kinds[kind].descriptors())?;
        let attached = self.attached(session)?;
        if let Some(object) = attached.objects.get_mut(&open.id) {
            // Repeated after a restart.
            if object.open != open || object.closing.is_some() {
                return Err(Rejection::Violation(format!("object {} is opened twice", open.id)));
            }
            if object.answer.is_some() {
                return Ok(Some(object.opened()));
            }
            object.opening = Some(serial);
            return Ok(None);
        }
        if open.queue.is_some_and(|queue| !attached.queues.contains_key(&queue)) {
            return Err(Rejection::violation("an object names a queue that does not exist"));
        }
        let (name, max) = (self.kinds[kind].name(), self.kinds[kind].max_objects(&self.config.limits));
        if self.attached(session)?.count(kind) >= max as usize {
            self.relieve(session);
            return Err(limit(name, max));
        }
        let mut builder = self.kinds[kind].open(&open.object.params, descriptors)?;
        let core = open.core.or(builder.core).unwrap_or_else(|| self.next_core());
        let (id, recovery) = (open.id, std::mem::take(&mut builder.recovery));
        let opening = Some(serial);
        let mut object = ObjectRecord { kind, open, core, key: None, answer: None, opening, closing: None };
        if recovery.is_empty() {
            self.attached(session)?.insert(object);
            self.build(session, id, builder);
            return Ok(None);
        }
        let RecoveryState { note, descriptors } = recovery;
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let record =
            Record::Granted { session, core, request: Request::OpenObject(object.open.clone()), note };
        let key = self.store.put_deferred(&record, &descriptors)?;
        object.key = Some(key);
        self.attached(session)?.insert(object);
        let deadline = Instant::now() + self.store.timeout();
        self.pending_opens.insert(key, PendingOpen { session, id, builder, deadline });
        Ok(None)
    }

    /// Refuses objects whose records were not stored in time. Keys increase, so the first is the oldest.
    pub(super) fn expire_pending_opens(&mut self, now: Instant) {
        while let Some((key, pending)) = self.pending_opens.first_key_value()
            && pending.deadline <= now
        {
            let key = *key;
            let error = self.store.abandon(key);
            self.on_stored(key, Err(error));
        }
    }

    /// Called when the supervisor has stored the record of an object, or could not.
    pub(super) fn on_stored(&mut self, key: u64, result: Result<(), StoreError>) {
        let Some(PendingOpen { session, id, builder, .. }) = self.pending_opens.remove(&key) else { return };
        let Some(client) = self.clients.get_mut(&session) else { return };
        let is_connected = client.is_connected();
        let Some(attached) = &mut client.attached else { return };
        // The object may have been closed in the meantime.
        let Some(object) = attached.objects.get(&id).filter(|object| object.key == Some(key)) else { return };
        let is_closing = object.closing.is_some();
        if !is_connected {
            // No core has the object.
            drop(client.remove(id));
            self.store.remove(key);
            self.remove_if_empty(session);
        } else if let Err(error) = result {
            let reason = error.to_string();
            self.warn_refused(session, &reason);
            self.on_refused(session, id, reason);
        } else if !is_closing {
            self.build(session, id, builder);
        }
        // Otherwise the core reports the unknown object as closed.
    }

    /// Builds an object on its core.
    pub(super) fn build(&mut self, session: u32, id: u32, builder: ObjectBuilder) {
        let Ok(attached) = self.attached(session) else { return };
        let Some(object) = attached.objects.get(&id) else { return };
        let (core, queue, memory) = (object.core, object.open.queue, attached.memory.clone());
        let (application, build) = (Arc::clone(&attached.application), builder.build);
        self.send_to_core(core, CoreMessage::Open { session, id, queue, memory, application, build });
    }

    /// Abandons stalled closed objects of a session, unless that was done a moment ago.
    fn relieve(&mut self, session: u32) {
        let attached = self.clients.get_mut(&session).and_then(|client| client.attached.as_mut());
        let Some(attached) = attached else { return };
        if attached.relieved.is_none_or(|at| at.elapsed() >= RELIEF_INTERVAL) {
            attached.relieved = Some(Instant::now());
            self.send_to_all(|| CoreMessage::Relieve { session });
        }
    }

    fn close(
        &mut self,
        session: u32,
        serial: u32,
        id: u32,
        mode: CloseMode,
    ) -> Result<Option<Reply>, Rejection> {
        let Some(object) = self.attached(session)?.objects.get_mut(&id) else {
            return match mode {
                CloseMode::Close => self.close_queue(session, serial, id),
                CloseMode::Release => Ok(Some(Reply::Ack)),
            };
        };
        object.closing = Some((mode, serial));
        let core = object.core;
        let reason = CloseReason::Requested(mode);
        self.send_to_core(core, CoreMessage::Close { session, id, reason });
        match mode {
            CloseMode::Release => Ok(None),
            CloseMode::Close => Ok(Some(Reply::Ack)),
        }
    }

    /// Returns the session of a connected client.
    pub(super) fn attached(&mut self, session: u32) -> Result<&mut Attached, Rejection> {
        let client = self.clients.get_mut(&session).ok_or_else(session_ended)?;
        let is_connected = client.is_connected();
        let attached = client.attached.as_mut();
        let attached = attached.ok_or_else(|| Rejection::violation("it has not sent hello"))?;
        if is_connected { Ok(attached) } else { Err(session_ended()) }
    }

    /// Returns the index of the kind of an object.
    pub(super) fn kind(&self, open: &OpenObject) -> Result<usize, Rejection> {
        let kind = self.kinds.iter().position(|kind| kind.id() == open.object.kind);
        kind.ok_or_else(|| Rejection::violation("an object of an unknown kind"))
    }

    pub(super) fn check_core(&self, core: u32) -> Result<u32, Rejection> {
        let exists = (core as usize) < self.cores.len();
        exists.then_some(core).ok_or_else(|| Rejection::Violation(format!("the engine has no core {core}")))
    }

    fn next_core(&mut self) -> u32 {
        self.last_core = (self.last_core + 1) % self.cores.len() as u32;
        self.last_core
    }

    fn send_to_core(&self, core: u32, message: CoreMessage) {
        // The end of a core ends the engine, so nothing waits for the answer.
        let _ = self.cores[core as usize].send(message);
    }

    pub(super) fn send_to_all(&self, message: impl Fn() -> CoreMessage) {
        (0..self.cores.len() as u32).for_each(|core| self.send_to_core(core, message()));
    }
}

fn check_descriptors(received: &[OwnedFd], expected: RangeInclusive<usize>) -> Result<(), Rejection> {
    let (received, min, max) = (received.len(), *expected.start(), *expected.end());
    match (expected.contains(&received), min == max) {
        (true, _) => Ok(()),
        (false, true) => {
            Err(Rejection::Violation(format!("{received} descriptors came with a message that has {min}")))
        }
        (false, false) => Err(Rejection::Violation(format!(
            "{received} descriptors came with a message that has {min} to {max}"
        ))),
    }
}

/// Bell of a client, with the engine's end.
fn bell(memory: &SharedMemory, flag: u64, end: OwnedFd) -> Result<ClientBell, Rejection> {
    let flag = memory.flag(flag).map_err(Rejection::violation)?;
    Bell::from_end(flag, Socket::new(end)).map_err(Rejection::violation)
}

fn session_ended() -> Rejection {
    Rejection::Refused("the session has ended".into())
}

fn invalid_layout(name: &str) -> Rejection {
    Rejection::Violation(format!("the layout of {name} is invalid"))
}

fn limit(name: &str, max: u32) -> Rejection {
    Rejection::Refused(format!("the session has {max} {name}, which is the limit; close some"))
}

/// Minimum time between two reliefs of a session, which poll all its objects.
const RELIEF_INTERVAL: Duration = Duration::from_secs(1);

impl From<StoreError> for Rejection {
    fn from(error: StoreError) -> Rejection {
        Rejection::Exhausted(error.to_string())
    }
}

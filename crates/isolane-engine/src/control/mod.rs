//! Control thread: clients, their requests, and their limits.
//!
//! It sleeps unless there is something to do. It handles one message of each client in turn, and none of a client
//! with the maximum number of pending replies, so that a flood delays only its sender.
//!
//! Invariant: a message affects only its sender. A protocol violation disconnects the sender with one log line,
//! or a count after a few lines about the same user; a request beyond a limit is refused.

mod client;
mod listener;
mod log_limiter;
mod request;
mod resume;
mod status;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use isolane_engine_api::{PacketError, PacketSocket, Reply, hint};
use isolane_reactor::mailbox::{Receiver, Sender};
use isolane_shm::{PeerProcess, SharedMemory};

use crate::EngineConfig;
use crate::close_threads;
use crate::core::{ControlMessage, CoreMessage, SessionEvent};
use crate::epoll::{Epoll, Event};
use crate::fd_reserve::FdReserve;
use crate::object::{NO_DESCRIPTORS, ObjectKind};
use crate::store::{StoreClient, StoreError, ToSupervisor};
use crate::watch::Part;

use client::{Attached, Client, Replies, UNSOLICITED};
pub use listener::listen;
use listener::{ClientCred, accept};
use log_limiter::LogLimiter;
use request::PendingOpen;

/// State of the control thread.
pub(crate) struct Control {
    config: EngineConfig,
    epoch: u64,
    epoll: Epoll,
    listener: OwnedFd,
    messages: Receiver<ControlMessage>,
    kinds: Vec<Box<dyn ObjectKind>>,
    cores: Vec<Sender<CoreMessage>>,
    clients: BTreeMap<u32, Client>,
    /// Clients that may have sent a message.
    readable: VecDeque<u32>,
    /// Messages to clients wait for the supervisor's link.
    delayed: bool,
    /// Clients without hello message, with their deadlines.
    handshaking: VecDeque<(Instant, u32)>,
    /// A connection may be pending.
    accept_ready: bool,
    /// Time of the next accept, after a failure or while closes are pending.
    accept_retry_at: Option<Instant>,
    /// End of the delay of accepts by pending closes.
    congested_until: Option<Instant>,
    last_session: u32,
    last_core: u32,
    store: Arc<StoreClient>,
    reserve: FdReserve,
    log_limiter: LogLimiter,
    /// Memory of ended sessions, until cores and objects have dropped it: unmapping is slow, and must not delay
    /// a core.
    orphaned_memory: Vec<SharedMemory>,
    /// Objects to build once their records are stored, by the keys of the records.
    pending_opens: BTreeMap<u64, PendingOpen>,
    /// Time since when no client is attached.
    idle_since: Option<Instant>,
    watch: Part,
}

/// Dependencies of the control thread.
pub(crate) struct ControlDeps {
    pub messages: Receiver<ControlMessage>,
    pub cores: Vec<Sender<CoreMessage>>,
    pub kinds: Vec<Box<dyn ObjectKind>>,
    pub store: Arc<StoreClient>,
    pub watch: Part,
}

impl Control {
    pub fn new(
        config: EngineConfig,
        epoch: u64,
        epoll: Epoll,
        listener: OwnedFd,
        deps: ControlDeps,
    ) -> io::Result<Control> {
        epoll.add(&listener, LISTENER)?;
        let reserve = FdReserve::for_engine(config.cores.len());
        let ControlDeps { messages, cores, kinds, store, watch } = deps;
        Ok(Control {
            config,
            epoch,
            epoll,
            listener,
            messages,
            kinds,
            cores,
            clients: BTreeMap::new(),
            readable: VecDeque::new(),
            delayed: false,
            handshaking: VecDeque::new(),
            accept_ready: false,
            accept_retry_at: None,
            congested_until: None,
            last_session: 0,
            last_core: 0,
            store,
            reserve,
            log_limiter: LogLimiter::default(),
            orphaned_memory: Vec::new(),
            pending_opens: BTreeMap::new(),
            idle_since: None,
            watch,
        })
    }

    /// Runs until a message ends the thread.
    pub fn run(mut self) -> io::Result<()> {
        let mut events = Vec::new();
        while self.drain_messages() {
            if self.readable.is_empty() && !self.can_accept() {
                self.epoll.sleep(self.next_deadline(), &mut events)?
            } else {
                self.epoll.poll(&mut events)?
            }
            events.drain(..).for_each(|event| self.on_event(event));
            let now = Instant::now();
            self.on_timer(now);
            for _ in 0..MAX_ACCEPTS {
                self.accept_one(now);
            }
            for _ in 0..self.readable.len() {
                self.serve_next();
            }
        }
        Ok(())
    }

    fn on_event(&mut self, event: Event) {
        if event.key == LISTENER {
            self.accept_ready = true;
            return;
        }
        let session = event.key as u32;
        if event.key & PROCESS != 0 {
            if self.clients.get(&session).is_some_and(Client::is_connected) {
                log::limited!(Info, "session {session}: its process has ended");
                self.detach(session);
            }
            return;
        }
        let Some(client) = self.clients.get_mut(&session) else { return };
        if event.ready.readable {
            client.readable = true;
            self.enqueue_readable(session);
        }
        if event.ready.writable {
            self.flush(session);
        }
        // Pending requests are dropped, because the client cannot receive the replies.
        if event.ready.hung_up {
            self.detach(session);
        }
    }

    fn can_accept(&self) -> bool {
        self.accept_ready && self.accept_retry_at.is_none()
    }

    /// Accepts the next client.
    fn accept_one(&mut self, now: Instant) {
        if !self.can_accept() || self.must_wait_for_closes(now) {
            return;
        }
        match accept(&self.listener) {
            Ok(Some((wire, cred))) => {
                if let Err(reason) = cred.check(&self.config) {
                    return self.reject(wire, cred, &reason);
                }
                self.last_session = self.next_session();
                let session = self.last_session;
                if let Err(error) = self.epoll.add(&wire, session.into()) {
                    let reason = format!("the engine cannot watch its connection: {error}");
                    return self.reject(wire, cred, &reason);
                }
                self.clients.insert(session, Client::new(session, wire, cred));
                self.handshaking.push_back((now + self.config.hello_timeout, session));
                self.evict_handshaking();
            }
            Ok(None) => self.accept_ready = false,
            Err(error) if !hint(&error).is_empty() && self.reject_next() => {}
            Err(error) => {
                let line = format!("cannot accept a client, trying again: {error}{}", hint(&error));
                self.warn_limited(ClientCred::UNKNOWN, &line);
                self.accept_retry_at = Some(now + ACCEPT_RETRY_DELAY);
            }
        }
    }

    /// Whether new clients must wait for pending closes; otherwise clients that connect faster than that would
    /// use all descriptors. A client whose descriptors close slowly delays others only briefly.
    fn must_wait_for_closes(&mut self, now: Instant) -> bool {
        let deadline = || now + ACCEPT_RETRY_DELAY;
        let waits = close_threads::is_congested() && now < *self.congested_until.get_or_insert_with(deadline);
        if waits {
            self.accept_retry_at = Some(now + CONGESTION_DELAY)
        } else {
            self.congested_until = None
        }
        waits
    }

    /// Rejects a connection with the reason, so that its client does not try again.
    fn reject(&mut self, wire: PacketSocket, cred: ClientCred, reason: &str) {
        self.warn_limited(cred, &format!("{cred} rejected: {reason}"));
        // Fails only if the client does not read.
        let _ = wire.send(&Reply::Refused(reason.to_owned()).encode(UNSOLICITED), &[], false);
        close_threads::close(wire.into());
    }

    /// Rejects the next connection when no descriptor is left. Returns `false` if even that fails.
    fn reject_next(&mut self) -> bool {
        self.reserve.release();
        let accepted = accept(&self.listener);
        let is_ok = accepted.is_ok();
        // Without descriptors, the kernel does not report an empty backlog.
        self.accept_ready = !matches!(accepted, Ok(None));
        if let Ok(Some((wire, cred))) = accepted {
            let reason = format!("the engine has no descriptor left for another client{NO_DESCRIPTORS}");
            self.reject(wire, cred, &reason);
        }
        self.reserve.refill();
        is_ok
    }

    /// Disconnects the oldest client without hello message if there are too many.
    fn evict_handshaking(&mut self) {
        let clients = &self.clients;
        self.handshaking.retain(|(_, session)| clients.get(session).is_some_and(Client::is_handshaking));
        if self.handshaking.len() > MAX_HANDSHAKING
            && let Some((_, session)) = self.handshaking.pop_front()
        {
            self.disconnect_violator(session, "it has not sent hello, and others wait");
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

    fn next_deadline(&self) -> Option<Instant> {
        let now = Instant::now();
        let kinds = self.kinds.iter().filter_map(|kind| kind.deadline(now));
        let others = [
            self.handshaking.front().map(|(deadline, _)| *deadline),
            self.pending_opens.values().next().map(|pending| pending.deadline),
            (!self.orphaned_memory.is_empty()).then(|| now + UNMAP_INTERVAL),
            self.delayed.then(|| now + LINK_INTERVAL),
            self.accept_retry_at,
            self.idle_since.zip(self.config.max_idle).map(|(since, max)| since + max),
            self.log_limiter.due(),
        ];
        others.into_iter().flatten().chain(kinds).min()
    }

    fn on_timer(&mut self, now: Instant) {
        self.accept_retry_at.take_if(|at| *at <= now);
        self.log_limiter.poll_counts(now).iter().for_each(|line| log::warn!("{line}"));
        self.kinds.iter().for_each(|kind| kind.on_timer(now));
        self.orphaned_memory.retain(SharedMemory::is_shared);
        self.expire_pending_opens(now);
        if std::mem::take(&mut self.delayed) {
            self.store.flush();
            let sessions: Vec<u32> = self.clients.keys().copied().collect();
            sessions.into_iter().for_each(|session| self.flush(session));
        }
        self.check_idle(now);
        while let Some((deadline, session)) = self.handshaking.front().copied()
            && deadline <= now
        {
            self.handshaking.pop_front();
            if self.clients.get(&session).is_some_and(Client::is_handshaking) {
                let reason = format!("it has not sent hello within {:?}", self.config.hello_timeout);
                self.disconnect_violator(session, &reason);
            }
        }
    }

    /// Notifies the supervisor each time that no client was attached for the idle time.
    fn check_idle(&mut self, now: Instant) {
        if !self.clients.is_empty() {
            self.idle_since = None;
        } else if let Some(max) = self.config.max_idle
            && now.saturating_duration_since(*self.idle_since.get_or_insert(now)) >= max
        {
            self.idle_since = Some(now);
            self.store.notify(&ToSupervisor::Idle);
        }
    }

    /// Queues a client, so that its next message is handled.
    fn enqueue_readable(&mut self, session: u32) {
        let Some(client) = self.clients.get_mut(&session) else { return };
        if !std::mem::replace(&mut client.queued, true) {
            self.readable.push_back(session);
        }
    }

    /// Handles one message of the next readable client.
    fn serve_next(&mut self) {
        let Some(session) = self.readable.pop_front() else { return };
        let Some(client) = self.clients.get_mut(&session) else { return };
        client.queued = false;
        if !client.readable || client.is_blocked() {
            return;
        }
        match client.receive() {
            Ok(Some(packet)) => {
                self.enqueue_readable(session);
                // Counted as a turn, because each message may wait for a supervisor that does not read.
                self.watch.turn();
                self.watch.work_for(session);
                self.on_packet(session, packet);
                self.watch.work_for_none();
            }
            Ok(None) => client.readable = false,
            Err(PacketError::Closed) => self.detach(session),
            Err(PacketError::NoDescriptors(packet)) => {
                self.enqueue_readable(session);
                self.on_truncated_packet(session, packet);
            }
            Err(error) => {
                self.disconnect_violator(session, &error.to_string());
                error.into_descriptors().into_iter().for_each(close_threads::close);
            }
        }
    }

    /// Sends a reply or an unsolicited message. An engine that ends sends no refusals, because their reasons are void: a
    /// client with a session repeats the request to the next engine, or finds its session ended; a client without
    /// one may connect again.
    fn reply(&mut self, session: u32, serial: u32, reply: &Reply) {
        if matches!(reply, Reply::Refused(_)) && self.store.is_closed() {
            match self.clients.get_mut(&session) {
                Some(client) if !client.is_handshaking() => client.wait(serial),
                _ => self.detach(session),
            }
            return;
        }
        if let Some(client) = self.clients.get_mut(&session) {
            client.push(serial, reply);
            self.flush(session);
        }
    }

    /// Sends the messages to a client, unless the supervisor's link has not accepted what must precede them.
    fn flush(&mut self, session: u32) {
        let Some(client) = self.clients.get_mut(&session) else { return };
        if !self.store.is_flushed() {
            self.delayed = true;
            return;
        }
        match client.flush() {
            // The client may have been blocked until now.
            Ok(()) => self.enqueue_readable(session),
            Err(PacketError::Closed) => self.detach(session),
            Err(error) => self.disconnect_violator(session, &error.to_string()),
        }
    }

    /// Returns `false` if the thread must exit.
    fn drain_messages(&mut self) -> bool {
        self.watch.turn();
        self.epoll.sleeper().take_notification();
        while let Some(message) = self.messages.poll() {
            match message {
                ControlMessage::Session { session, event } => self.on_session_event(session, event),
                ControlMessage::Stored { key, stored } => {
                    self.on_stored(key, stored.then_some(()).ok_or(StoreError::NoDescriptors));
                }
                // Requested, thus independent of the log level.
                ControlMessage::PrintStatus => log::write_stderr(self.status()),
                ControlMessage::Beat => {}
                ControlMessage::Exit => return false,
            }
        }
        true
    }

    fn on_session_event(&mut self, session: u32, event: SessionEvent) {
        let Some(client) = self.clients.get_mut(&session) else { return };
        match event {
            SessionEvent::Opened { id, result: Ok(answer) } => {
                let replies = client.on_opened(id, answer);
                self.deliver(session, replies);
            }
            SessionEvent::Opened { id, result: Err(reason) } => self.on_refused(session, id, reason),
            SessionEvent::Closed { id, result } => {
                if let Some(object) = client.remove(id) {
                    object.key.into_iter().for_each(|key| self.store.remove(key));
                    self.deliver(session, object.closed(result));
                }
            }
            SessionEvent::QueueClosed { queue } => {
                if let Some(serial) =
                    client.attached.as_mut().and_then(|attached| attached.on_queue_closed(queue))
                {
                    self.reply(session, UNSOLICITED, &Reply::ObjectClosed { id: queue });
                    self.reply(session, serial, &Reply::Ack);
                }
            }
            SessionEvent::Violation { reason } => self.disconnect_violator(session, &reason),
        }
        self.remove_if_empty(session);
    }

    /// Called when an object cannot be opened. If no request waits for it, it is an object of a previous engine.
    fn on_refused(&mut self, session: u32, id: u32, reason: String) {
        let Some(object) = self.clients.get_mut(&session).and_then(|client| client.remove(id)) else {
            return;
        };
        object.key.into_iter().for_each(|key| self.store.remove(key));
        match object.refused(reason.clone()) {
            replies if replies.is_empty() => {
                self.disconnect_violator(session, &format!("its object {id} cannot be resumed: {reason}"));
            }
            replies => self.deliver(session, replies),
        }
    }

    fn deliver(&mut self, session: u32, replies: Replies) {
        replies.iter().for_each(|(serial, reply)| self.reply(session, *serial, reply));
    }

    /// Disconnects a client that has violated the protocol.
    fn disconnect_violator(&mut self, session: u32, reason: &str) {
        let Some(client) = self.clients.get_mut(&session).filter(|client| client.is_connected()) else {
            return;
        };
        let (cred, line) = (client.cred, format!("{client} is dropped: {reason}"));
        client.send_reason(reason);
        self.warn_limited(cred, &line);
        self.detach(session);
    }

    /// Logs a line about a client, up to a limit per user.
    fn warn_limited(&mut self, cred: ClientCred, line: &str) {
        if self.log_limiter.admit(cred.uid, Instant::now()) {
            log::warn!("{line}");
        }
    }

    /// Disconnects a client; its objects close on their own.
    fn detach(&mut self, session: u32) {
        let Some(client) = self.clients.get_mut(&session) else { return };
        if let Some(wire) = client.disconnect() {
            self.epoll.remove(&wire);
            close_threads::close(wire.into());
            match client.attached {
                Some(_) => log::limited!(Info, "{client} has left"),
                None => log::debug!("{client} has left"),
            }
            let records = client.attached.as_mut().map(Attached::disconnect).unwrap_or_default();
            records.into_iter().for_each(|key| self.store.remove(key));
            self.send_to_all(|| CoreMessage::EndSession { session });
        }
        self.remove_if_empty(session);
    }

    fn remove_if_empty(&mut self, session: u32) {
        if self.clients.get(&session).is_some_and(Client::is_empty)
            && let Some(Client { attached: Some(attached), .. }) = self.clients.remove(&session)
        {
            self.store.remove(attached.key);
            self.orphaned_memory.push(attached.memory);
        }
    }
}

/// Watches for the end of a client's process; a forked process may keep the connection open.
fn watch_process(epoll: &Epoll, session: u32, wire: &PacketSocket) -> io::Result<PeerProcess> {
    let process = PeerProcess::from_socket(wire.as_fd())?;
    if let PeerProcess::Alive(process) = &process {
        epoll.add(process, PROCESS | u64::from(session))?;
    }
    Ok(process)
}

/// Epoll key of the listener; connections have the number of their session.
const LISTENER: u64 = 1 << 32;
/// Epoll key of a process, with the number of its session.
const PROCESS: u64 = 1 << 33;
/// Maximum number of accepts between two rounds of messages.
const MAX_ACCEPTS: usize = 16;
/// Maximum number of clients without hello message.
const MAX_HANDSHAKING: usize = 64;
/// Interval of checks whether memory of an ended session can be unmapped.
const UNMAP_INTERVAL: Duration = Duration::from_millis(10);
/// Interval of sends to a supervisor that does not read.
const LINK_INTERVAL: Duration = Duration::from_millis(2);
/// Delay of accepts while many closes are pending.
const CONGESTION_DELAY: Duration = Duration::from_millis(1);
/// Delay of accepts when the system has no descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

//! Control connection to the engine: any thread sends requests, one receiver thread reads the replies.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use isolane_shm::{SharedMemory, process_id};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};

use super::pending_closes::{PendingCloses, UNSOLICITED};
use super::{Allocation, Watcher};
use crate::AttachError;
use isolane_engine_api::{
    Hello, MAX_REQUESTS_IN_FLIGHT, PacketError, PacketSocket, Reply, Request, VERSION, Welcome, kind,
};

pub(super) struct ControlChannel {
    socket: PacketSocket,
    state: Mutex<State>,
    changed: Condvar,
    epoch: AtomicU64,
    /// Reason why the channel is closed. Set under the lock of `state`, so that no wait misses it.
    closed: OnceLock<String>,
    watchers: Mutex<Vec<Weak<dyn Watcher>>>,
    closing: Mutex<PendingCloses>,
    object_closed: Condvar,
    /// Limit on the time until a reply.
    timeout: Duration,
    /// Process that opened the session: its identity, and its PID for error texts.
    process: (u64, u32),
}

#[derive(Default)]
struct State {
    serial: u32,
    /// Requests without a reply, by serial number.
    requests: BTreeMap<u32, SentRequest>,
    replies: HashMap<u32, Reply>,
}

/// Wait for a reply, in two halves: a process that was itself stopped receives pending replies in the second.
struct Waiting {
    halves: u32,
    /// Engine that the wait depends on.
    epoch: u64,
}

/// Request to repeat if the engine dies before it replies.
struct SentRequest {
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    timeout: Duration,
}

/// Sends [`Hello`] and waits for the reply.
pub(super) fn handshake(
    socket: &PacketSocket,
    memory: &SharedMemory,
    life: BorrowedFd<'_>,
    path: &Path,
    timeout: Duration,
) -> Result<Welcome, AttachError> {
    let not_an_engine = |reason: String| AttachError::NotAnEngine { path: path.to_owned(), reason };
    let deadline = Instant::now() + timeout;
    send_hello(socket, memory, life)?;
    loop {
        let remaining =
            Timespec::try_from(deadline.saturating_duration_since(Instant::now())).expect("short enough");
        let count = poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&remaining));
        if count.map_err(AttachError::system("cannot wait for the engine"))? == 0 {
            return Err(AttachError::Timeout { path: path.to_owned(), timeout });
        }
        let packet = match socket.receive(false) {
            Ok(Some(packet)) => packet,
            Ok(None) => continue,
            Err(PacketError::Closed) => return Err(PacketError::Closed.into()),
            Err(error) => return Err(not_an_engine(error.to_string())),
        };
        match Reply::decode(&packet.bytes).map_err(|error| not_an_engine(error.to_string()))?.1 {
            Reply::Welcome(welcome) if welcome.version == VERSION => return Ok(welcome),
            Reply::Welcome(welcome) => {
                return Err(not_an_engine(format!("version {} instead of {VERSION}", welcome.version)));
            }
            Reply::Refused(reason) => return Err(AttachError::Refused { what: "the session", reason }),
            // The engine was killed before it could reply.
            Reply::EngineRestarted { .. } => send_hello(socket, memory, life)?,
            _ => return Err(not_an_engine("unexpected reply to the handshake".into())),
        }
    }
}

fn send_hello(socket: &PacketSocket, memory: &SharedMemory, life: BorrowedFd<'_>) -> Result<(), AttachError> {
    let hello = Request::Hello(Hello { version: VERSION });
    match socket.send(&hello.encode(FIRST), &[memory.memfd(), life], true) {
        // An engine that rejects all clients sends the reason without reading.
        Ok(()) | Err(PacketError::Closed) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl ControlChannel {
    /// Starts the receiver thread on a connection whose handshake is complete. `timeout` limits the time until a reply.
    pub fn start(
        socket: PacketSocket,
        epoch: u64,
        timeout: Duration,
    ) -> Result<Arc<ControlChannel>, AttachError> {
        let channel = Arc::new(ControlChannel {
            socket,
            state: Mutex::new(State { serial: FIRST, ..State::default() }),
            changed: Condvar::new(),
            epoch: AtomicU64::new(epoch),
            closed: OnceLock::new(),
            watchers: Mutex::default(),
            closing: Mutex::default(),
            object_closed: Condvar::new(),
            timeout,
            process: (process_id(), std::process::id()),
        });
        let receiver = Arc::clone(&channel);
        let thread = std::thread::Builder::new().name("isolane-attach".into());
        let thread = thread.spawn(move || receiver.receive());
        thread.map_err(AttachError::system("cannot start a thread"))?;
        Ok(channel)
    }

    /// See [`Session::request`](super::Session::request).
    pub fn request(
        &self,
        what: &'static str,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Reply, AttachError> {
        let serial = self.start_request(request, descriptors)?;
        self.finish_request(what, serial)
    }

    /// See [`Session::finish_request`](super::Session::finish_request).
    pub fn finish_request(&self, what: &'static str, serial: u32) -> Result<Reply, AttachError> {
        match self.wait_reply(serial)? {
            Reply::Refused(reason) => Err(AttachError::Refused { what, reason }),
            reply => Ok(reply),
        }
    }

    /// Sends a request without waiting for the reply, unless too many are in flight. Returns the serial number for
    /// [`ControlChannel::finish_request`].
    pub fn start_request(
        &self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<u32, AttachError> {
        self.check_process()?;
        let clones = descriptors.iter().map(|descriptor| descriptor.try_clone_to_owned());
        let clones = clones.collect::<Result<_, _>>();
        let clones = clones.map_err(AttachError::system("cannot duplicate a descriptor"))?;
        let mut state = self.state.lock();
        let timeout = self.timeout(request);
        let mut waiting = Waiting { halves: 0, epoch: self.epoch() };
        // Bounded so that a send never blocks: it holds the lock that the receiver needs.
        while state.requests.len() >= MAX_REQUESTS_IN_FLIGHT {
            // The longest of their timeouts, because this waits for any of their replies.
            let longest = state.requests.values().map(|sent| sent.timeout).max().unwrap_or(timeout);
            self.wait(&mut state, longest, &mut waiting)?;
        }
        let serial = state.serial.checked_add(1).unwrap_or(FIRST);
        state.serial = serial;
        let bytes = request.encode(serial);
        // Under the lock, so that no repetition after a restart overtakes it.
        self.socket.send(&bytes, descriptors, true).map_err(|error| match error {
            PacketError::Closed => self.closed_error(),
            error => error.into(),
        })?;
        state.requests.insert(serial, SentRequest { bytes, descriptors: clones, timeout });
        Ok(serial)
    }

    /// See [`Session::close`](super::Session::close).
    pub fn close_object(&self, id: u32, allocation: Allocation) -> Result<(), AttachError> {
        self.check_process()?;
        let mut closing = self.closing.lock();
        closing.insert(id, allocation);
        closing.send_due(&self.socket);
        drop(closing);
        let result = self.check();
        if result.is_err() {
            // The entry may have been added after the channel closed.
            drop(self.remove_closed(id));
        }
        result
    }

    /// Asks the engine to free memory of closed streams.
    pub fn relieve(&self) {
        if self.check_process().is_ok() {
            self.closing.lock().relieve(&self.socket, Instant::now());
        }
    }

    fn remove_closed(&self, id: u32) -> Option<Allocation> {
        let allocation = self.closing.lock().remove(id);
        self.object_closed.notify_all();
        allocation
    }

    /// Waits until the engine has closed an object, or until `deadline`.
    pub fn wait_closed(&self, id: u32, deadline: Instant) {
        let mut closing = self.closing.lock();
        while closing.contains(id) && !self.object_closed.wait_until(&mut closing, deadline).timed_out() {}
    }

    /// Waits for the reply to a started request.
    fn wait_reply(&self, serial: u32) -> Result<Reply, AttachError> {
        let mut state = self.state.lock();
        let timeout = state.requests.get(&serial).map_or(self.timeout, |sent| sent.timeout);
        let mut waiting = Waiting { halves: 0, epoch: self.epoch() };
        loop {
            if let Some(reply) = state.replies.remove(&serial) {
                return Ok(reply);
            }
            self.wait(&mut state, timeout, &mut waiting)?;
        }
    }

    /// Waits for any reply. The supervisor replaces an engine that hangs, and the requests are repeated. If no engine
    /// replies, the session closes, because it is unknown whether the request was executed.
    fn wait(
        &self,
        state: &mut MutexGuard<'_, State>,
        timeout: Duration,
        waiting: &mut Waiting,
    ) -> Result<(), AttachError> {
        self.check()?;
        if !self.changed.wait_for(state, timeout / 2).timed_out() {
            return Ok(());
        }
        if waiting.epoch != self.epoch() {
            *waiting = Waiting { halves: 0, epoch: self.epoch() };
            return Ok(());
        }
        waiting.halves += 1;
        if waiting.halves < 2 {
            return Ok(());
        }
        state.requests.clear();
        let reason = format!("no reply within {timeout:?}; check whether the engine's processes are stopped");
        MutexGuard::unlocked(state, || self.on_closed(reason));
        Err(self.closed_error())
    }

    /// Returns the limit on the time until a reply, including a restart of the engine.
    fn timeout(&self, request: &Request) -> Duration {
        match request {
            // Only a stream is connected before; a target may be slow, and the engine abandons it earlier.
            Request::OpenObject(open) if open.object.kind != kind::STREAM => self.timeout + CONNECT_TIMEOUT,
            _ => self.timeout,
        }
    }

    fn closed_error(&self) -> AttachError {
        AttachError::SessionClosed(self.closed.get().map_or_else(|| CLOSED.into(), String::clone))
    }

    /// Main loop of the receiver thread.
    fn receive(&self) {
        let reason = loop {
            match self.socket.receive(true) {
                Ok(Some(packet)) => {
                    if let Err(reason) = self.on_packet(&packet.bytes) {
                        break reason;
                    }
                }
                // Not returned by a blocking receive.
                Ok(None) => {}
                Err(PacketError::Closed) => break CLOSED.into(),
                Err(error) => break error.to_string(),
            }
        };
        self.on_closed(reason);
    }

    fn on_packet(&self, bytes: &[u8]) -> Result<(), String> {
        let (serial, reply) = Reply::decode(bytes).map_err(|error| error.to_string())?;
        match reply {
            Reply::EngineRestarted { epoch } => return self.on_restart(epoch),
            Reply::ObjectClosed { id } => {
                drop(self.remove_closed(id));
                return Ok(());
            }
            _ if serial == UNSOLICITED => {
                let mut closing = self.closing.lock();
                closing.on_reply();
                closing.send_due(&self.socket);
                return Ok(());
            }
            _ => {}
        }
        let mut state = self.state.lock();
        // A request that was repeated can have two replies.
        if state.requests.remove(&serial).is_some() {
            state.replies.insert(serial, reply);
            self.changed.notify_all();
        }
        Ok(())
    }

    fn on_restart(&self, epoch: u64) -> Result<(), String> {
        self.epoch.store(epoch, Ordering::Release);
        let state = self.state.lock();
        for sent in state.requests.values() {
            let descriptors: Vec<_> = sent.descriptors.iter().map(AsFd::as_fd).collect();
            self.socket.send(&sent.bytes, &descriptors, true).map_err(|error| error.to_string())?;
        }
        drop(state);
        let mut closing = self.closing.lock();
        closing.on_restart();
        closing.send_due(&self.socket);
        drop(closing);
        self.watchers().iter().for_each(|watcher| watcher.on_restart(epoch));
        Ok(())
    }

    fn on_closed(&self, reason: String) {
        let state = self.state.lock();
        // Before the receiver thread finds the connection closed, for which it has no better reason.
        let _ = self.closed.set(reason);
        drop(state);
        self.close();
        self.changed.notify_all();
        let closing = self.closing.lock().take_all();
        self.object_closed.notify_all();
        drop(closing);
        self.watchers().iter().for_each(|watcher| watcher.on_close());
    }

    /// Returns the live watchers, to be notified without the lock: they may register others.
    fn watchers(&self) -> Vec<Arc<dyn Watcher>> {
        let mut watchers = self.watchers.lock();
        watchers.retain(|watcher| watcher.strong_count() > 0);
        watchers.iter().filter_map(Weak::upgrade).collect()
    }

    pub fn watch(&self, watcher: Weak<dyn Watcher>) {
        if self.check_process().is_err() {
            return;
        }
        let mut watchers = self.watchers.lock();
        if watchers.len() == watchers.capacity() {
            watchers.retain(|watcher| watcher.strong_count() > 0);
        }
        watchers.push(watcher.clone());
        drop(watchers);
        if self.closed.get().is_some()
            && let Some(watcher) = watcher.upgrade()
        {
            watcher.on_close();
        }
    }

    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Checks that this process opened the session. In a forked child, threads that do not exist may hold locks, and
    /// the shared memory is not mapped.
    #[inline]
    pub fn check_process(&self) -> Result<(), AttachError> {
        if process_id() == self.process.0 { Ok(()) } else { Err(AttachError::Forked { pid: self.process.1 }) }
    }

    #[inline]
    pub fn check(&self) -> Result<(), AttachError> {
        self.check_process()?;
        match self.closed.get() {
            None => Ok(()),
            Some(_) => Err(self.closed_error()),
        }
    }

    /// Closes the session: the engine and the receiver thread see the connection hang up.
    pub fn close(&self) {
        // A forked child leaves the connection to its parent.
        if self.check_process().is_err() {
            return;
        }
        // Fails only if the connection is closed already.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

impl AsFd for ControlChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl fmt::Debug for ControlChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlChannel")
            .field("socket", &self.socket)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

/// Serial number of the handshake.
const FIRST: u32 = 1;
const CLOSED: &str = "the engine closed the connection, or exited with its supervisor";
/// The engine detects a hanging thread after 20 s.
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_secs(60);
/// The engine retries for five minutes to connect to a target.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5 * 60);

//! The agent: one thread with the sockets of all connection managers of the process.
//!
//! Invariant: a peer that does not complete its greeting and its request within [`TIMEOUT`] is closed.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::message::{GREETING, LEN, Message};

/// Receives what arrives for an identifier. It is called without locks held.
pub(super) trait Handler: Send + Sync {
    /// A peer asks a listener for a connection.
    fn requested(&self, connection: u64, local: SocketAddr, peer: SocketAddr, request: Message);

    /// A message has arrived.
    fn received(&self, message: Message);

    /// The connection could not be made. `is_refused` if no agent listens there.
    fn failed(&self, is_refused: bool);

    /// The connection has ended.
    fn closed(&self);
}

type HandlerRef = Weak<dyn Handler>;

/// The agent of the process.
pub(super) struct Agent {
    state: Mutex<State>,
    /// Watches all sockets; a closed one leaves it.
    epoll: OwnedFd,
    wake: OwnedFd,
}

#[derive(Default)]
struct State {
    next: u64,
    listeners: HashMap<u64, (TcpListener, HandlerRef)>,
    attempts: HashMap<u64, Attempt>,
    peers: HashMap<u64, Peer>,
}

/// Connections to the ports at which an agent can listen.
struct Attempt {
    source: SocketAddr,
    destinations: Vec<SocketAddr>,
    sockets: Vec<Greeted>,
    /// When refused connections are tried again, and until when.
    retry_at: Instant,
    refused_at: Instant,
    request: Message,
    handler: HandlerRef,
    deadline: Instant,
}

/// A connection whose greeting is arriving.
struct Greeted {
    stream: TcpStream,
    greeting: [u8; GREETING.len()],
    len: usize,
}

struct Peer {
    stream: TcpStream,
    input: Vec<u8>,
    handler: HandlerRef,
    /// The request is missing until this time.
    deadline: Option<Instant>,
}

/// A call of a handler.
type Call = Box<dyn FnOnce() + Send>;

/// Returns the agent, whose thread starts with the first call.
pub(super) fn agent() -> io::Result<&'static Arc<Agent>> {
    static AGENT: OnceLock<Arc<Agent>> = OnceLock::new();
    static STARTING: Mutex<()> = Mutex::new(());
    let _guard = STARTING.lock();
    if let Some(agent) = AGENT.get() {
        return Ok(agent);
    }
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let agent = Arc::new(Agent { state: Mutex::default(), epoll, wake });
    agent.watch(&agent.wake)?;
    let thread = Arc::clone(&agent);
    crate::ffi::without_signals(|| {
        std::thread::Builder::new().name("isolane-cm".into()).spawn(move || thread.run())
    })?;
    Ok(AGENT.get_or_init(|| agent))
}

impl Agent {
    /// Listens with a socket. Returns the number of the listener.
    pub(super) fn listen(&self, listener: TcpListener, handler: HandlerRef) -> io::Result<u64> {
        listener.set_nonblocking(true)?;
        self.watch(&listener)?;
        let mut state = self.state.lock();
        let number = state.number();
        state.listeners.insert(number, (listener, handler));
        drop(state);
        self.wake();
        Ok(number)
    }

    /// Connects from an address to the agent at one of several addresses. Returns the number of the connection.
    pub(super) fn connect(
        &self,
        source: SocketAddr,
        destinations: &[SocketAddr],
        request: Message,
        handler: HandlerRef,
    ) -> io::Result<u64> {
        let now = Instant::now();
        let attempt = Attempt {
            source,
            destinations: destinations.to_vec(),
            sockets: Vec::new(),
            retry_at: now,
            refused_at: now + REFUSAL,
            request,
            handler,
            deadline: now + TIMEOUT,
        };
        let mut state = self.state.lock();
        let number = state.number();
        state.attempts.insert(number, attempt);
        drop(state);
        self.wake();
        Ok(number)
    }

    /// Passes what arrives for a connection to a handler from now on.
    pub(super) fn adopt(&self, number: u64, handler: HandlerRef) {
        if let Some(peer) = self.state.lock().peers.get_mut(&number) {
            peer.handler = handler;
        }
    }

    /// Sends a message. It fits into the buffer of the socket.
    pub(super) fn send(&self, number: u64, message: &Message) -> io::Result<()> {
        let mut state = self.state.lock();
        let peer = state.peers.get_mut(&number).ok_or(ErrorKind::NotConnected)?;
        peer.stream.write_all(&message.encode())
    }

    /// Ends a listener, an attempt, or a connection.
    pub(super) fn close(&self, number: u64) {
        let mut state = self.state.lock();
        state.listeners.remove(&number);
        state.attempts.remove(&number);
        state.peers.remove(&number);
        drop(state);
        self.wake();
    }

    fn watch(&self, socket: impl AsFd) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?)
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn run(&self) {
        loop {
            let (calls, deadline) = {
                let mut state = self.state.lock();
                (state.advance(self), state.deadline())
            };
            let is_idle = calls.is_empty();
            calls.into_iter().for_each(|call| call());
            if !is_idle {
                continue;
            }
            let timeout = deadline.map(|deadline| {
                let left = deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
            });
            let mut events =
                [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }];
            let _ = epoll::wait(&self.epoll, &mut events[..], timeout.as_ref());
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
    }
}

/// Starts a connection.
fn start(source: SocketAddr, destination: SocketAddr) -> io::Result<Greeted> {
    let family = if destination.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&socket, &SocketAddr::new(source.ip(), 0))?;
    match rustix::net::connect(&socket, &destination) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    Ok(Greeted { stream, greeting: [0; GREETING.len()], len: 0 })
}

impl Greeted {
    /// Receives the greeting. Returns whether it is complete.
    ///
    /// # Errors
    /// If this is not an agent.
    fn receive(&mut self) -> io::Result<bool> {
        while self.len < GREETING.len() {
            match self.stream.read(&mut self.greeting[self.len..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.len += count,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => {
                    return Ok(false);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.greeting == GREETING { Ok(true) } else { Err(ErrorKind::InvalidData.into()) }
    }
}

impl Attempt {
    fn start(&mut self, agent: &Agent) {
        let started =
            self.destinations.iter().filter_map(|destination| start(self.source, *destination).ok());
        self.sockets = started.filter(|socket| agent.watch(&socket.stream).is_ok()).collect();
        self.retry_at = Instant::now() + RETRY_DELAY;
    }

    fn deadline(&self) -> Instant {
        if self.sockets.is_empty() { self.retry_at } else { self.deadline }
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Processes everything that has arrived. Returns calls of handlers.
    fn advance(&mut self, agent: &Agent) -> Vec<Call> {
        let mut calls = Vec::new();
        self.accept(agent);
        self.connect(agent, &mut calls);
        let numbers: Vec<u64> = self.peers.keys().copied().collect();
        for number in numbers {
            self.receive(number, &mut calls);
        }
        calls
    }

    fn accept(&mut self, agent: &Agent) {
        let mut accepted = Vec::new();
        for (listener, handler) in self.listeners.values() {
            while let Ok((mut stream, _)) = listener.accept() {
                let is_prepared = stream.set_nonblocking(true).is_ok() && stream.set_nodelay(true).is_ok();
                // The greeting fits into the buffer of a new socket.
                if is_prepared && stream.write_all(&GREETING).is_ok() && agent.watch(&stream).is_ok() {
                    accepted.push((stream, handler.clone()));
                }
            }
        }
        for (stream, handler) in accepted {
            let number = self.number();
            let deadline = Some(Instant::now() + TIMEOUT);
            self.peers.insert(number, Peer { stream, input: Vec::new(), handler, deadline });
        }
        while self.peers.values().filter(|peer| peer.deadline.is_some()).count() > MAX_WAITING {
            let oldest = self
                .peers
                .iter()
                .filter(|(_, peer)| peer.deadline.is_some())
                .min_by_key(|(number, _)| **number);
            let Some(oldest) = oldest.map(|(number, _)| *number) else { break };
            self.peers.remove(&oldest);
        }
    }

    fn connect(&mut self, agent: &Agent, calls: &mut Vec<Call>) {
        let now = Instant::now();
        let numbers: Vec<u64> = self.attempts.keys().copied().collect();
        for number in numbers {
            let Some(attempt) = self.attempts.get_mut(&number) else { continue };
            if attempt.sockets.is_empty() && attempt.retry_at <= now {
                attempt.start(agent);
            }
            let mut found = None;
            let mut index = 0;
            while index < attempt.sockets.len() {
                match attempt.sockets[index].receive() {
                    Ok(false) => index += 1,
                    Ok(true) => {
                        found = Some(attempt.sockets.swap_remove(index));
                        break;
                    }
                    Err(_) => drop(attempt.sockets.swap_remove(index)),
                }
            }
            let is_refused = attempt.sockets.is_empty() && attempt.refused_at <= now;
            let is_over = found.is_some() || is_refused || attempt.deadline <= now;
            if !is_over {
                continue;
            }
            let Some(attempt) = self.attempts.remove(&number) else { continue };
            let sent = found.and_then(|mut greeted| {
                greeted.stream.write_all(&attempt.request.encode()).ok()?;
                Some(greeted.stream)
            });
            match sent {
                Some(stream) => {
                    let (input, handler) = (Vec::new(), attempt.handler);
                    self.peers.insert(number, Peer { stream, input, handler, deadline: None });
                }
                None => calls.push(Box::new(move || {
                    if let Some(handler) = attempt.handler.upgrade() {
                        handler.failed(is_refused);
                    }
                })),
            }
        }
    }

    /// Receives from a peer.
    fn receive(&mut self, number: u64, calls: &mut Vec<Call>) {
        let Some(peer) = self.peers.get_mut(&number) else { return };
        let mut has_ended = peer.deadline.is_some_and(|deadline| deadline <= Instant::now());
        let mut bytes = [0; 4096];
        while !has_ended && peer.input.len() < MAX_INPUT_BYTES {
            match peer.stream.read(&mut bytes) {
                Ok(0) => has_ended = true,
                Ok(count) => peer.input.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => has_ended = true,
            }
        }
        loop {
            let (message, len) = match Message::decode(&peer.input) {
                Ok(Some(found)) => found,
                Ok(None) => break,
                Err(()) => {
                    has_ended = true;
                    break;
                }
            };
            peer.input.drain(..len);
            let handler = peer.handler.clone();
            if peer.deadline.take().is_some() {
                let (Ok(local), Ok(source)) = (peer.stream.local_addr(), peer.stream.peer_addr()) else {
                    break;
                };
                // Further messages are for the identifier that the listener makes.
                calls.push(Box::new(move || {
                    if let Some(handler) = handler.upgrade() {
                        handler.requested(number, local, source, message);
                    }
                }));
                return;
            }
            calls.push(Box::new(move || {
                if let Some(handler) = handler.upgrade() {
                    handler.received(message);
                }
            }));
        }
        if has_ended && let Some(peer) = self.peers.remove(&number) {
            calls.push(Box::new(move || {
                if let Some(handler) = peer.handler.upgrade() {
                    handler.closed();
                }
            }));
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let deadlines = self.attempts.values().map(Attempt::deadline);
        deadlines.chain(self.peers.values().filter_map(|peer| peer.deadline)).min()
    }
}

/// Time in which a connection is made, and a peer sends its request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which refused connections are tried again: a program can listen again between two connections.
const REFUSAL: Duration = Duration::from_millis(300);
const RETRY_DELAY: Duration = Duration::from_millis(5);
/// Number of peers whose request is missing; the oldest ends for a further one.
const MAX_WAITING: usize = 256;
/// Maximum length of the unread messages of a peer.
const MAX_INPUT_BYTES: usize = 8 * (LEN + 255);

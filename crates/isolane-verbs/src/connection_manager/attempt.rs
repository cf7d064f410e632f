//! Attempts to connect to a listener, until it has a request and answers it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::handler::HandlerRef;
use super::watch::Watch;
use crate::ConnectError;
use crate::SharedKey;
use crate::message_proof::{KEYED_GREETING_LEN, MessageProofs};
use crate::wire::connection_manager::{GREETING_LEN, Kind, MAGIC, Message, greeting};

/// Connections to the ports at which an agent can listen.
pub struct Attempt {
    source: SocketAddr,
    destinations: Vec<SocketAddr>,
    sockets: Vec<Greeted>,
    /// When connections are made again, and until when refused ones are.
    retry_at: Instant,
    refused_at: Instant,
    /// Time that connections have for their greeting. It doubles each time, because only a busy listener needs longer.
    greeting_timeout: Duration,
    /// The listener of another port has the first destination, so that the wait for a silent program at the other one is
    /// short. A greeting from the other one proves nothing: the listener at the first one can be busy.
    is_elsewhere: bool,
    request: Message,
    key: Option<Arc<SharedKey>>,
    pub(super) handler: HandlerRef,
    deadline: Instant,
    /// Time in which the program of the listener answers.
    pub(super) answer_timeout: Duration,
}

/// A connection whose greeting is arriving.
struct Greeted {
    destination: SocketAddr,
    stream: TcpStream,
    greeting: [u8; KEYED_GREETING_LEN],
    len: usize,
}

/// Result of an attempt.
pub(super) enum Outcome {
    /// A listener has the request.
    Sent(TcpStream, Option<MessageProofs>),
    /// No listener has that port, or only one of both ends has a key.
    Refused,
    TimedOut,
}

impl Attempt {
    /// Prepares connections from an address to the first of several addresses at which the listener of the request
    /// greets.
    pub fn new(
        source: SocketAddr,
        destinations: &[SocketAddr],
        request: Message,
        key: Option<Arc<SharedKey>>,
        handler: HandlerRef,
    ) -> Attempt {
        let now = Instant::now();
        Attempt {
            source,
            destinations: destinations.to_vec(),
            sockets: Vec::new(),
            retry_at: now,
            refused_at: now + REFUSAL,
            greeting_timeout: MIN_GREETING_TIMEOUT,
            is_elsewhere: false,
            request,
            key,
            handler,
            deadline: now + TIMEOUT,
            answer_timeout: ANSWER_TIMEOUT,
        }
    }

    /// Changes the time in which the program of the listener answers, which is 60 s.
    pub fn with_answer_timeout(self, answer_timeout: Duration) -> Attempt {
        Attempt { answer_timeout, ..self }
    }

    /// Makes the connections again, because a busy listener has closed the last one. Returns `None` if it is too late.
    pub(super) fn restart(self) -> Option<Attempt> {
        let now = Instant::now();
        let (retry_at, refused_at) = (now + RETRY_DELAY, now + REFUSAL);
        (now < self.deadline).then_some(Attempt { retry_at, refused_at, ..self })
    }

    /// Returns the time at which it must advance without an event.
    pub(super) fn deadline(&self) -> Instant {
        match (self.sockets.is_empty(), self.is_elsewhere) {
            (true, _) => self.retry_at,
            (false, true) => self.refused_at,
            (false, false) => self.retry_at.min(self.deadline),
        }
    }

    /// Makes connections, and receives greetings. Returns the result, if there is one.
    pub(super) fn advance(&mut self, watch: &Watch, number: u64) -> Option<Outcome> {
        let now = Instant::now();
        if self.retry_at <= now {
            // The kernel of a busy listener can have forgotten a connection that this end considers established.
            self.start(watch, number);
        }
        let expected = greeting(self.request.port, self.request.is_datagram);
        let mut index = 0;
        while index < self.sockets.len() {
            match self.sockets[index].receive(expected) {
                Ok(false) => index += 1,
                Ok(true) => {
                    let Greeted { mut stream, greeting, destination, .. } = self.sockets.swap_remove(index);
                    let is_first = self.destinations.first() == Some(&destination);
                    let mut request = self.request.encode();
                    let proofs = match self.proofs(greeting) {
                        Ok(proofs) => proofs,
                        Err(error) => {
                            let reject = Message { reason: KEY_MISMATCH, ..Message::new(Kind::Reject) };
                            // The listener reports it too.
                            let _ = stream.write_all(&reject.encode());
                            log::limited!(Warn, "{destination}: {error}");
                            // The listener at the other port can be the right one.
                            self.set_aside(is_first, now);
                            continue;
                        }
                    };
                    let proofs = proofs.map(|mut proofs| {
                        proofs.seal(&mut request);
                        proofs
                    });
                    if stream.write_all(&request).is_ok() {
                        self.sockets.clear();
                        return Some(Outcome::Sent(stream, proofs));
                    }
                    // The listener is busy.
                    self.refused_at = now + REFUSAL;
                }
                Err(error) => {
                    let ended = self.sockets.swap_remove(index);
                    let is_first = self.destinations.first() == Some(&ended.destination);
                    self.set_aside(is_first && error.kind() == ErrorKind::AddrNotAvailable, now);
                }
            }
        }
        if (self.sockets.is_empty() || self.is_elsewhere) && self.refused_at <= now {
            Some(Outcome::Refused)
        } else {
            (self.deadline <= now).then_some(Outcome::TimedOut)
        }
    }

    /// A connection has ended without the right greeting. `is_elsewhere`: the first address has another listener.
    fn set_aside(&mut self, is_elsewhere: bool, now: Instant) {
        self.is_elsewhere |= is_elsewhere;
        if self.sockets.is_empty() {
            (self.retry_at, self.greeting_timeout) = (now + RETRY_DELAY, MIN_GREETING_TIMEOUT);
        }
    }

    /// Starts the proofs of the key, if both ends have one.
    fn proofs(&self, greeting: [u8; KEYED_GREETING_LEN]) -> Result<Option<MessageProofs>, ConnectError> {
        let is_required = greeting.first_chunk().is_some_and(MessageProofs::are_required);
        match (&self.key, is_required) {
            (None, false) => Ok(None),
            (None, true) => Err(ConnectError::KeyRequired),
            (Some(_), false) => Err(ConnectError::PeerLacksKey),
            (Some(key), true) => Ok(Some(MessageProofs::connect(Arc::clone(key), greeting)?)),
        }
    }

    fn start(&mut self, watch: &Watch, number: u64) {
        let started =
            self.destinations.iter().filter_map(|destination| start(self.source, *destination).ok());
        self.is_elsewhere = false;
        self.sockets = started.filter(|socket| watch.add(&socket.stream, number).is_ok()).collect();
        let delay = if self.sockets.is_empty() { RETRY_DELAY } else { self.greeting_timeout };
        self.retry_at = Instant::now() + delay;
        self.greeting_timeout = self.greeting_timeout.saturating_mul(2).min(TIMEOUT);
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
    Ok(Greeted { destination, stream, greeting: [0; KEYED_GREETING_LEN], len: 0 })
}

impl Greeted {
    /// Receives the greeting. Returns whether it is complete.
    ///
    /// # Errors
    /// `AddrNotAvailable` if this is the listener of another port, or another error if it is no listener.
    fn receive(&mut self, expected: [u8; GREETING_LEN]) -> io::Result<bool> {
        loop {
            let start = self.greeting.first_chunk().filter(|_| self.len >= GREETING_LEN);
            // Further bytes follow if the listener requires a key.
            let expected_len = match start {
                Some(start) if MessageProofs::without_key(*start) != expected => {
                    let is_other = start.starts_with(&MAGIC);
                    return Err(
                        if is_other { ErrorKind::AddrNotAvailable } else { ErrorKind::InvalidData }.into()
                    );
                }
                Some(start) if MessageProofs::are_required(start) => KEYED_GREETING_LEN,
                _ => GREETING_LEN,
            };
            if self.len >= expected_len {
                return Ok(true);
            }
            match self.stream.read(&mut self.greeting[self.len..expected_len]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.len += count,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => {
                    return Ok(false);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Reason of a rejection of a client that proves no key, or to which the listener does not.
pub(super) const KEY_MISMATCH: u32 = 0x8000_0001;
/// Time in which a connection is made, and a peer sends its request.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
/// Time in which a program answers a request, about as long as on InfiniBand with all retries.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for which refused connections are tried again: a program can listen again between two connections.
const REFUSAL: Duration = Duration::from_millis(300);
/// First time that connections have for their greeting.
const MIN_GREETING_TIMEOUT: Duration = Duration::from_secs(1);
const RETRY_DELAY: Duration = Duration::from_millis(5);

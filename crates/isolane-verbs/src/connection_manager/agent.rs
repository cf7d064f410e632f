//! The agent: one thread with the sockets of all connection managers of the process.
//!
//! Invariant: a peer that does not complete its greeting and its request within [`TIMEOUT`] is closed, and its listener
//! is not notified of it.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::attempt::{Attempt, KEY_MISMATCH, Outcome, TIMEOUT};
use super::handler::{Answer, HandlerRef};
use super::listener::Listener;
use super::watch::Watch;
use crate::ConnectError;
use crate::message_proof::{MESSAGE_PROOF_LEN, MessageProofs};
use crate::wire::connection_manager::{INVALID_SERVICE, Kind, LEN, Message};

/// The agent of the process.
pub struct Agent {
    state: Mutex<State>,
    /// Number of the last listener, attempt, or connection.
    last: AtomicU64,
    watch: Watch,
}

#[derive(Default)]
struct State {
    listeners: HashMap<u64, Listener>,
    attempts: HashMap<u64, Attempt>,
    peers: HashMap<u64, Peer>,
    /// Numbers that advance without an event of their socket.
    due: Vec<u64>,
}

struct Peer {
    stream: TcpStream,
    input: Vec<u8>,
    /// Proofs of the key that both ends have.
    proofs: Option<MessageProofs>,
    handler: HandlerRef,
    stage: Stage,
}

/// Progress of a peer.
enum Stage {
    /// The request is missing until a time.
    Accepted {
        listener: u64,
        deadline: Instant,
    },
    /// The listener makes an identifier for the request, which further messages are for.
    Passed,
    /// The listener has the request and has not answered it until a time.
    Requested {
        attempt: Box<Attempt>,
        deadline: Instant,
    },
    Open,
}

/// A call of a handler.
type Call = Box<dyn FnOnce() + Send>;

/// Returns the agent, whose thread starts with the first call. It blocks the signals that the caller blocks.
///
/// # Errors
/// If the system refuses a descriptor or the thread.
pub fn agent() -> io::Result<&'static Arc<Agent>> {
    static AGENT: OnceLock<Arc<Agent>> = OnceLock::new();
    static STARTING: Mutex<()> = Mutex::new(());
    let _guard = STARTING.lock();
    if let Some(agent) = AGENT.get() {
        return Ok(agent);
    }
    let agent = Arc::new(Agent { state: Mutex::default(), last: AtomicU64::new(0), watch: Watch::new()? });
    let thread = Arc::clone(&agent);
    std::thread::Builder::new().name("isolane-cm".into()).spawn(move || thread.run())?;
    Ok(AGENT.get_or_init(|| agent))
}

impl Agent {
    /// Returns a number for a listener or a connection. The caller stores it before the agent can call its handler.
    pub fn number(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Starts a listener.
    ///
    /// # Errors
    /// The error of the system.
    pub fn listen(&self, number: u64, listener: Listener) -> io::Result<()> {
        self.watch.add(&listener.socket, number)?;
        self.state.lock().listeners.insert(number, listener);
        self.watch.wake();
        Ok(())
    }

    /// Connects from an address to the agent at one of several addresses.
    pub fn connect(&self, number: u64, attempt: Attempt) {
        let mut state = self.state.lock();
        state.attempts.insert(number, attempt);
        state.due.push(number);
        drop(state);
        self.watch.wake();
    }

    /// Passes what arrives for a connection to a handler from now on.
    pub fn adopt(&self, number: u64, handler: HandlerRef) {
        let mut state = self.state.lock();
        if let Some(peer) = state.peers.get_mut(&number) {
            (peer.handler, peer.stage) = (handler, Stage::Open);
            // Messages after the request can have arrived.
            state.due.push(number);
            self.watch.wake();
        }
    }

    /// Sends a message. It fits into the buffer of the socket.
    ///
    /// # Errors
    /// If the connection has ended.
    pub fn send(&self, number: u64, message: &Message) -> io::Result<()> {
        let mut state = self.state.lock();
        let peer = state.peers.get_mut(&number).ok_or(ErrorKind::NotConnected)?;
        let mut bytes = message.encode();
        if let Some(proofs) = &mut peer.proofs {
            proofs.seal(&mut bytes);
        }
        peer.stream.write_all(&bytes)?;
        Ok(())
    }

    /// Rejects a request because there is no listener for it, and closes the connection.
    pub(super) fn refuse(&self, number: u64) {
        let _ = self.send(number, &Message { reason: INVALID_SERVICE, ..Message::new(Kind::Reject) });
        self.close(number);
    }

    /// Ends a listener, an attempt, or a connection.
    pub fn close(&self, number: u64) {
        let mut state = self.state.lock();
        state.attempts.remove(&number);
        state.peers.remove(&number);
        if state.listeners.remove(&number).is_some() {
            state.peers.retain(|_, peer| peer.listener() != Some(number));
        }
    }

    fn run(&self) {
        let mut ready = Vec::new();
        loop {
            let (calls, deadline) = {
                let mut state = self.state.lock();
                (state.advance(self, ready), state.deadline())
            };
            calls.into_iter().for_each(|call| call());
            ready = self.watch.wait(deadline);
        }
    }
}

impl Peer {
    /// Removes the message of `len` bytes at the start of the input, with its proof. Returns whether that is right, or
    /// `None` if it is incomplete.
    fn has_proof(&mut self, message: &Message, len: usize) -> Option<bool> {
        // Such a rejection proves nothing, because it is for a peer with another key or none.
        if message.kind == Kind::Reject && message.reason == KEY_MISMATCH {
            self.report(&match (&self.stage, &self.proofs) {
                (Stage::Accepted { .. }, Some(_)) => ConnectError::PeerLacksKey,
                (Stage::Accepted { .. }, None) => ConnectError::KeyRequired,
                _ => ConnectError::WrongKey,
            });
            if matches!(self.stage, Stage::Requested { .. }) {
                // Another attempt would be rejected too.
                self.stage = Stage::Open;
            }
            return Some(false);
        }
        let Some(proofs) = &mut self.proofs else {
            self.input.drain(..len);
            return Some(true);
        };
        let proof = self.input.get(len..)?.first_chunk::<MESSAGE_PROOF_LEN>()?;
        let is_right = proofs.verifies(&self.input[..len], proof);
        self.input.drain(..len + MESSAGE_PROOF_LEN);
        if !is_right {
            self.report(&ConnectError::WrongKey);
            let reject = Message { reason: KEY_MISMATCH, ..Message::new(Kind::Reject) };
            let _ = self.stream.write_all(&reject.encode());
        }
        Some(is_right)
    }

    fn report(&self, error: &ConnectError) {
        if let Ok(peer) = self.stream.peer_addr() {
            log::limited!(Warn, "{peer} is refused: {error}");
        }
    }

    fn deadline(&self) -> Option<Instant> {
        match self.stage {
            Stage::Accepted { deadline, .. } | Stage::Requested { deadline, .. } => Some(deadline),
            Stage::Passed | Stage::Open => None,
        }
    }

    /// Returns the listener of a peer without a request.
    fn listener(&self) -> Option<u64> {
        match self.stage {
            Stage::Accepted { listener, .. } => Some(listener),
            Stage::Passed | Stage::Requested { .. } | Stage::Open => None,
        }
    }
}

impl State {
    /// Processes input for some numbers, and all overdue ones. Returns calls of handlers.
    fn advance(&mut self, agent: &Agent, mut numbers: Vec<u64>) -> Vec<Call> {
        let now = Instant::now();
        numbers.append(&mut self.due);
        numbers.extend(self.deadlines().filter(|(_, deadline)| *deadline <= now).map(|(number, _)| number));
        let mut calls = Vec::new();
        for number in numbers {
            self.accept(agent, number);
            self.connect(agent, number, &mut calls);
            self.receive(number, &mut calls);
        }
        calls
    }

    /// Accepts peers, while fewer than the backlog of the listener have not sent their request.
    fn accept(&mut self, agent: &Agent, number: u64) {
        let Some(listener) = self.listeners.get_mut(&number) else { return };
        if !listener.resume(&agent.watch, number) {
            return;
        }
        let now = Instant::now();
        let waiting = self.peers.values().filter(|peer| peer.listener() == Some(number)).count();
        for _ in waiting..listener.backlog() {
            match listener.accept() {
                Ok(Some((stream, proofs))) => {
                    let connection = agent.number();
                    let stage = Stage::Accepted { listener: number, deadline: now + TIMEOUT };
                    let (input, handler) = (Vec::new(), Weak::clone(&listener.handler));
                    if agent.watch.add(&stream, connection).is_ok() {
                        self.peers.insert(connection, Peer { stream, input, proofs, handler, stage });
                    }
                }
                Ok(None) => return,
                // The process has no free descriptor.
                Err(_) => break,
            }
        }
        listener.pause(&agent.watch, number);
        for peer in self.peers.values_mut() {
            if let Stage::Accepted { listener, deadline } = &mut peer.stage
                && *listener == number
            {
                *deadline = (*deadline).min(now + BUSY_TIMEOUT);
            }
        }
    }

    fn connect(&mut self, agent: &Agent, number: u64, calls: &mut Vec<Call>) {
        let Some(attempt) = self.attempts.get_mut(&number) else { return };
        let Some(outcome) = attempt.advance(&agent.watch, number) else { return };
        let Some(attempt) = self.attempts.remove(&number) else { return };
        let handler = Weak::clone(&attempt.handler);
        let is_refused = match outcome {
            Outcome::Sent(stream, proofs) => {
                let deadline = Instant::now() + attempt.answer_timeout;
                let stage = Stage::Requested { attempt: Box::new(attempt), deadline };
                let peer = Peer { stream, input: Vec::new(), proofs, handler, stage };
                self.peers.insert(number, peer);
                return;
            }
            Outcome::Refused => true,
            Outcome::TimedOut => false,
        };
        calls.push(fail(handler, is_refused));
    }

    /// Receives from a peer.
    fn receive(&mut self, number: u64, calls: &mut Vec<Call>) {
        let Some(peer) = self.peers.get_mut(&number) else { return };
        if matches!(peer.stage, Stage::Passed) {
            return;
        }
        let is_late = peer.deadline().is_some_and(|deadline| deadline <= Instant::now());
        let mut has_ended = is_late;
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
                Err(_) => {
                    has_ended = true;
                    break;
                }
            };
            if let Some(is_right) = peer.has_proof(&message, len) {
                if !is_right {
                    has_ended = true;
                    break;
                }
            } else {
                break;
            }
            let handler = Weak::clone(&peer.handler);
            let stage = std::mem::replace(&mut peer.stage, Stage::Open);
            if matches!(stage, Stage::Accepted { .. }) {
                if let (Ok(local), Ok(source)) = (peer.stream.local_addr(), peer.stream.peer_addr()) {
                    peer.stage = Stage::Passed;
                    calls.push(Box::new(move || request(&handler, number, local, source, message)));
                    return;
                }
                has_ended = true;
                break;
            }
            calls.push(Box::new(move || {
                if let Some(handler) = handler.upgrade() {
                    handler.received(message);
                }
            }));
        }
        if has_ended {
            self.end(number, is_late, calls);
        }
    }

    /// Removes a peer whose connection has ended, or who is late.
    fn end(&mut self, number: u64, is_late: bool, calls: &mut Vec<Call>) {
        let Some(Peer { handler, stage, .. }) = self.peers.remove(&number) else { return };
        let retried = match stage {
            Stage::Accepted { .. } => return,
            Stage::Requested { .. } if is_late => return calls.push(fail(handler, false)),
            // A listener that does not take a request rejects it: this one was busy.
            Stage::Requested { attempt, .. } => attempt.restart(),
            Stage::Passed | Stage::Open => None,
        };
        if let Some(attempt) = retried {
            self.attempts.insert(number, attempt);
            return;
        }
        calls.push(Box::new(move || {
            if let Some(handler) = handler.upgrade() {
                handler.closed();
            }
        }));
    }

    fn deadline(&self) -> Option<Instant> {
        self.deadlines().map(|(_, deadline)| deadline).min()
    }

    /// Returns the times at which a listener, an attempt, or a peer advances without an event.
    fn deadlines(&self) -> impl Iterator<Item = (u64, Instant)> {
        let listeners =
            self.listeners.iter().filter_map(|(number, found)| Some((*number, found.paused_until?)));
        let attempts = self.attempts.iter().map(|(number, found)| (*number, found.deadline()));
        let peers = self.peers.iter().filter_map(|(number, found)| Some((*number, found.deadline()?)));
        listeners.chain(attempts).chain(peers)
    }
}

/// Returns a call that reports a connection that could not be made.
fn fail(handler: HandlerRef, is_refused: bool) -> Call {
    Box::new(move || {
        if let Some(handler) = handler.upgrade() {
            handler.failed(is_refused);
        }
    })
}

/// Passes a request to its listener.
fn request(handler: &HandlerRef, number: u64, local: SocketAddr, peer: SocketAddr, request: Message) {
    let handler = handler.upgrade();
    let answer = handler.map_or(Answer::Refused, |handler| handler.requested(number, local, peer, request));
    if let Ok(agent) = agent() {
        match answer {
            Answer::Taken => {}
            Answer::Refused => agent.refuse(number),
            Answer::Busy => agent.close(number),
        }
    }
}

/// Time in which a peer sends its request to a listener that can accept no further one.
const BUSY_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum length of the unread messages of a peer.
const MAX_INPUT_BYTES: usize = 8 * (LEN + 255 + MESSAGE_PROOF_LEN);

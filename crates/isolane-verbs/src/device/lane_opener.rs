//! Lanes that are opened between queue pairs that name each other.
//!
//! Invariant: a connection becomes a lane only if its addresses, both numbers, and both first messages are the ones
//! that the queue pair expects.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Weak;
use std::time::Instant;

use isolane_tcp::SocketOptions;
use parking_lot::{Condvar, Mutex};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::handshake::{self, ConnectError, Greeting, LaneAttempt, LocalHello, gid};
use super::lane::{Lane, TcpLane};
use super::reserved_number::ReservedNumber;
use crate::shared_key::SharedKey;
use crate::types::{ConnectionParameters, Peer};
use crate::wire::{Hello, Role};

/// A queue pair, which owns the lanes that the manager opens.
pub(super) trait LaneOwner: Send + Sync {
    /// Starts to open a lane. `None` if it is not needed.
    fn start_lane(&self, lane: u8) -> Option<LaneAttempt>;

    /// A peer that has not proved its key asks for a lane, which changes nothing. `None` if it must not open it. The epoch is 0
    /// if the lane is open, so that the peer's proof can only end it.
    fn offer_lane(&self, hello: &Hello, parameters: &ConnectionParameters) -> Option<LaneAttempt>;

    /// The peer opens a lane. `None` if it must not.
    fn accept_lane(&self, hello: &Hello, parameters: &ConnectionParameters) -> Option<LaneAttempt>;

    /// Takes a lane that connects it with its peer.
    fn open_lane(&self, lane: Box<dyn Lane>, hello: &Hello, parameters: &ConnectionParameters);

    /// Handles the deadlines that have passed.
    fn check_deadline(&self);
}

/// Opens the lanes of a queue pair to its peer, whenever one is missing.
pub(super) struct LaneOpener {
    pub(super) owner: Weak<dyn LaneOwner>,
    pub(super) local_hello: LocalHello,
    /// Local address of the lanes.
    pub(super) address: IpAddr,
    pub(super) peer: Peer,
    /// Whether this end connects or accepts.
    pub(super) role: Role,
    /// It has connected to an address: a router can translate the addresses of both ends, and its first lane reports the
    /// number of the peer.
    pub(super) by_address: bool,
}

impl LaneOpener {
    /// Whether a hello from this address is the one of the peer.
    pub(super) fn accepts(&self, hello: &Hello, source: IpAddr) -> bool {
        gid(source) == gid(self.peer.address)
            && (self.by_address || hello.source_gid == gid(source))
            && (hello.source_qpn == self.peer.number || self.peer.number == UNKNOWN)
            && hello.destination_qpn == self.local_hello.number
    }

    /// Answers the hello of the peer, and opens the lane.
    ///
    /// # Errors
    /// If the queue pair does not take the lane now, or the peer has gone. The peer tries again.
    pub(super) fn accept(&self, stream: TcpStream, hello: &Hello) -> io::Result<()> {
        if stream.peek(&mut [0]).err().map(|error| error.kind()) != Some(io::ErrorKind::WouldBlock) {
            return Err(io::Error::other("the peer has gone"));
        }
        let parameters = self.local_hello.parameters(hello);
        let attempt = self.owner.upgrade().and_then(|owner| owner.accept_lane(hello, &parameters));
        let attempt = attempt.ok_or_else(not_taken)?;
        let reply = self.local_hello.hello(
            Role::Accepts,
            attempt,
            self.local_hello.agreed(hello),
            hello.source_qpn,
            &stream,
        )?;
        handshake::write(&stream, &reply.encode())?;
        self.open(stream, hello);
        Ok(())
    }

    /// Answers the hello of a peer with a proof of the key. Nothing changes before the peer's proof.
    ///
    /// # Errors
    /// If the queue pair does not take the lane now, or the peer has gone.
    pub(super) fn offer(&self, stream: &TcpStream, hello: &Hello, key: &SharedKey) -> io::Result<Hello> {
        let parameters = self.local_hello.parameters(hello);
        let attempt = self.owner.upgrade().and_then(|owner| owner.offer_lane(hello, &parameters));
        let attempt = attempt.ok_or_else(not_taken)?;
        self.local_hello.reply(stream, hello, attempt, key)
    }

    /// Opens the lane of a peer that has proved its key, to which `reply` was sent.
    ///
    /// # Errors
    /// If the queue pair does not take the lane now. The peer tries again.
    pub(super) fn accept_proven(&self, stream: TcpStream, hello: &Hello, reply: &Hello) -> io::Result<()> {
        let parameters = self.local_hello.parameters(hello);
        let attempt = self.owner.upgrade().and_then(|owner| owner.accept_lane(hello, &parameters));
        attempt.filter(|attempt| attempt.agrees_with(reply)).ok_or_else(not_taken)?;
        self.open(stream, hello);
        Ok(())
    }

    pub(super) fn open(&self, stream: TcpStream, hello: &Hello) {
        if let Some(owner) = self.owner.upgrade() {
            owner.open_lane(Box::new(TcpLane(stream)), hello, &self.local_hello.parameters(hello));
        }
    }
}

fn not_taken() -> io::Error {
    io::Error::other("the queue pair does not take the lane")
}

/// An attempt to connect a lane to the peer.
pub(super) struct Attempt {
    pub(super) stream: TcpStream,
    lane: LaneAttempt,
    /// The hello of this end, once it is sent.
    hello: Option<Hello>,
    greeting: Greeting,
}

impl Attempt {
    /// Starts a connection to the peer: from the address of the queue pair, by which a peer knows it that it names.
    pub(super) fn start(
        opener: &LaneOpener,
        lane: LaneAttempt,
        options: &SocketOptions,
        to: SocketAddr,
    ) -> Result<Attempt, ConnectError> {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None).map_err(io::Error::from)?;
        options.apply(&socket)?;
        if !opener.by_address {
            rustix::net::bind(&socket, &SocketAddr::new(opener.address, 0)).map_err(io::Error::from)?;
        }
        match rustix::net::connect(&socket, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        Ok(Attempt { stream, lane, hello: None, greeting: Greeting::default() })
    }

    /// Returns the socket and the readiness that it waits for.
    pub(super) fn descriptor(&self) -> (BorrowedFd<'_>, PollFlags) {
        (self.stream.as_fd(), if self.hello.is_some() { PollFlags::IN } else { PollFlags::OUT })
    }

    /// Sends and receives hellos, and proofs of a key. Returns the valid hello of the peer.
    pub(super) fn advance(
        &mut self,
        opener: &LaneOpener,
        options: &SocketOptions,
        key: Option<&SharedKey>,
    ) -> Result<Option<Hello>, ConnectError> {
        let Some(hello) = &self.hello else {
            if let Some(error) = self.stream.take_error()? {
                return Err(error.into());
            }
            if self.stream.peer_addr().is_err() {
                return Ok(None);
            }
            handshake::tune(&self.stream, options);
            let (local_hello, number) = (&opener.local_hello, opener.peer.number);
            let hello =
                local_hello.hello(Role::Connects, self.lane, local_hello.offer(), number, &self.stream)?;
            handshake::write(&self.stream, &hello.encode())?;
            self.hello = Some(hello);
            return Ok(None);
        };
        let Some(reply) = self.greeting.receive(&self.stream, Role::Accepts)? else { return Ok(None) };
        let proof = match (key, reply.capabilities.authenticated()) {
            (None, false) => None,
            (None, true) => return Err(ConnectError::KeyRequired),
            (Some(_), false) => return Err(ConnectError::PeerLacksKey),
            (Some(key), true) if key.verifies_reply(hello, &reply) => {
                Some(key.sign_connection(hello, &reply))
            }
            (Some(_), true) => return Err(ConnectError::WrongKey),
        };
        if !opener.accepts(&reply, opener.peer.address) || reply.lane != self.lane.lane {
            return Err(io::Error::other("the hello names another queue pair").into());
        }
        if let Some(proof) = proof {
            handshake::write(&self.stream, &proof)?;
        }
        if reply.epoch != self.lane.epoch {
            return Err(io::Error::other("the lane was open at the peer, which ends it").into());
        }
        Ok(Some(reply))
    }
}

/// The first lane of a queue pair that this end has not created.
pub(super) struct FirstLane {
    pub(super) stream: TcpStream,
    pub(super) hello: Hello,
    /// The queue pair that this end has offered to the peer, which has proved its key.
    pub(super) proven: Option<OfferedQueuePair>,
}

/// A queue pair that is created once the peer has proved its key.
pub(super) struct OfferedQueuePair {
    pub(super) number: ReservedNumber,
    pub(super) local_hello: LocalHello,
    pub(super) reply: Hello,
}

/// First lanes of queue pairs that this end has not created.
#[derive(Default)]
pub(super) struct FirstLanes {
    state: Mutex<FirstLanesState>,
    changed: Condvar,
}

#[derive(Default)]
struct FirstLanesState {
    waiting: VecDeque<FirstLane>,
    /// The last connection could not be accepted.
    failure: Option<io::Error>,
}

impl FirstLanes {
    /// Whether further peers must wait in the kernel.
    pub(super) fn is_full(&self) -> bool {
        self.state.lock().waiting.len() >= MAX_WAITING
    }

    /// Adds a lane after its hello has arrived.
    pub(super) fn add(&self, lane: FirstLane) {
        let mut state = self.state.lock();
        state.waiting.push_back(lane);
        state.failure = None;
        self.changed.notify_one();
    }

    /// Passes the error of a connection that could not be accepted to [`FirstLanes::next`].
    pub(super) fn fail(&self, error: io::Error) {
        self.state.lock().failure = Some(error);
        self.changed.notify_one();
    }

    /// Waits for the next lane. `None` after the deadline.
    ///
    /// # Errors
    /// The system cannot accept connections now.
    pub(super) fn next(&self, deadline: Option<Instant>) -> io::Result<Option<FirstLane>> {
        let mut state = self.state.lock();
        loop {
            if let Some(next) = state.waiting.pop_front() {
                return Ok(Some(next));
            }
            if let Some(error) = state.failure.take() {
                return Err(error);
            }
            let Some(deadline) = deadline else {
                self.changed.wait(&mut state);
                continue;
            };
            if deadline <= Instant::now() {
                return Ok(None);
            }
            self.changed.wait_until(&mut state, deadline);
        }
    }
}

/// Number of no queue pair: the hello of the peer names it.
const UNKNOWN: u32 = 0;
/// Maximum number of peers that wait for [`FirstLanes::next`]; further ones wait in the kernel.
const MAX_WAITING: usize = 64;

//! Opening of lanes: the exchange of hellos.
//!
//! Invariant: a peer that does not complete its hello within [`TIMEOUT`] is closed. Up to [`MAX_WAITING`] such peers
//! hold up no other peer.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use isolane_reactor::SocketOptionError;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};

use super::progress::timespec;
use super::{Device, QueuePair, QueuePairConfig, TcpLane};
use crate::connection::Agreement;
use crate::wire::{Capabilities, Hello, HelloError, Role};

/// Why a queue pair is not connected.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The system failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A socket option cannot be set.
    #[error(transparent)]
    Socket(#[from] SocketOptionError),
    /// The peer's hello is invalid.
    #[error(transparent)]
    Hello(#[from] HelloError),
    /// The peer did not answer.
    #[error("the peer did not complete its hello within {} s", TIMEOUT.as_secs())]
    Timeout,
    /// The system has no random bytes.
    #[error("no random bytes for a hello: {0}")]
    Random(String),
}

/// Contents of the hellos of this end.
pub(super) struct Identity {
    pub(super) number: u32,
    first_message: u32,
    nonce: [u8; 16],
    responder_resources: u8,
}

impl Identity {
    pub(super) fn new(number: u32, responder_resources: usize) -> Result<Identity, ConnectError> {
        let random = |error: getrandom::Error| ConnectError::Random(error.to_string());
        let first_message = getrandom::u32().map_err(random)?;
        let mut nonce = [0; 16];
        getrandom::fill(&mut nonce).map_err(random)?;
        let responder_resources = responder_resources.min(u8::MAX.into()) as u8;
        Ok(Identity { number, first_message, nonce, responder_resources })
    }

    fn hello(&self, role: Role, peer_number: u32, stream: &TcpStream) -> io::Result<Hello> {
        Ok(Hello {
            magic: Hello::MAGIC,
            version: Hello::VERSION,
            role: role.code(),
            lane: 0,
            capabilities: Capabilities(0),
            lanes: 1,
            responder_resources: self.responder_resources,
            epoch: 0,
            max_segment_bytes: crate::connection::SEGMENT_BYTES,
            source_gid: gid(stream.local_addr()?.ip()),
            destination_gid: gid(stream.peer_addr()?.ip()),
            source_qpn: self.number,
            destination_qpn: peer_number,
            first_message: self.first_message,
            nonce: self.nonce,
            authentication: [0; 32],
        })
    }

    fn agreement(&self, peer: &Hello) -> Agreement {
        Agreement {
            first_message: self.first_message,
            peer_first_message: peer.first_message,
            peer_segment_bytes: peer.max_segment_bytes,
            peer_responder_resources: peer.responder_resources.into(),
            peer_shares_receives: peer.capabilities.shared_receives(),
            rnr_retries: RNR_RETRIES,
            rnr_timer: RNR_TIMER,
        }
    }
}

/// Returns the GID of an address: an IPv4 address is mapped.
fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Exchanges hellos as the end that connects. The number of the peer's queue pair is not known before.
pub(super) fn connect(stream: &TcpStream, identity: &Identity) -> Result<Agreement, ConnectError> {
    let deadline = Instant::now() + TIMEOUT;
    let mut greeting = Greeting::default();
    write_hello(stream, &identity.hello(Role::Connects, 0, stream)?)?;
    loop {
        if let Some(hello) = greeting.receive(stream, Role::Accepts)? {
            return Ok(identity.agreement(&hello));
        }
        wait_readable(&[stream], deadline)?;
    }
}

/// The part of a peer's hello that has arrived.
struct Greeting {
    bytes: [u8; Hello::LEN],
    len: usize,
}

impl Default for Greeting {
    fn default() -> Greeting {
        Greeting { bytes: [0; Hello::LEN], len: 0 }
    }
}

impl Greeting {
    /// Receives no byte beyond the hello. `None` if some are missing.
    fn receive(&mut self, mut stream: &TcpStream, role: Role) -> Result<Option<Hello>, ConnectError> {
        while self.len < Hello::LEN {
            match stream.read(&mut self.bytes[self.len..]) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(count) => self.len += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Some(Hello::decode_from(&self.bytes, role)?))
    }
}

/// A hello fits into the buffer of a new socket.
fn write_hello(mut stream: &TcpStream, hello: &Hello) -> io::Result<()> {
    stream.write_all(&hello.encode())
}

/// Waits until one of the sockets is readable.
fn wait_readable(sockets: &[impl AsFd], deadline: Instant) -> Result<(), ConnectError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ConnectError::Timeout);
    }
    let mut descriptors: Vec<PollFd<'_>> =
        sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
    match poll(&mut descriptors, Some(&timespec(left))) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(io::Error::from(error).into()),
    }
}

/// Accepts queue pairs.
pub struct Listener<'d> {
    device: &'d Device,
    listener: TcpListener,
    waiting: Mutex<Vec<Waiting>>,
}

/// A peer whose hello has not arrived.
struct Waiting {
    stream: TcpStream,
    greeting: Greeting,
    deadline: Instant,
}

impl<'d> Listener<'d> {
    pub(super) fn new(device: &'d Device, listener: TcpListener) -> io::Result<Listener<'d>> {
        listener.set_nonblocking(true)?;
        Ok(Listener { device, listener, waiting: Mutex::default() })
    }

    /// Returns the address.
    ///
    /// # Errors
    /// The error of the system.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Waits for the next queue pair. Peers with an invalid hello are closed.
    ///
    /// # Errors
    /// [`ConnectError`], if this end fails.
    pub fn accept(&self, config: &QueuePairConfig) -> Result<QueuePair, ConnectError> {
        let mut waiting = self.waiting.lock();
        loop {
            while waiting.len() < MAX_WAITING
                && let Some(stream) = self.next_stream()?
            {
                let deadline = Instant::now() + TIMEOUT;
                waiting.push(Waiting { stream, greeting: Greeting::default(), deadline });
            }
            if let Some((stream, hello)) = next_greeted(&mut waiting) {
                let identity = self.device.identity(config)?;
                let greeted = identity.hello(Role::Accepts, hello.source_qpn, &stream);
                if let Err(error) = greeted.and_then(|hello| write_hello(&stream, &hello)) {
                    log::debug!("a peer has gone during its hello: {error}");
                    continue;
                }
                let agreement = identity.agreement(&hello);
                return self.device.queue_pair(
                    Box::new(TcpLane(stream)),
                    identity.number,
                    &agreement,
                    config,
                );
            }
            let first_deadline = waiting.iter().map(|peer| peer.deadline).min();
            let deadline = first_deadline.unwrap_or_else(|| Instant::now() + TIMEOUT);
            let mut sockets: Vec<_> = waiting.iter().map(|peer| peer.stream.as_fd()).collect();
            if sockets.len() < MAX_WAITING {
                sockets.push(self.listener.as_fd());
            }
            match wait_readable(&sockets, deadline) {
                Ok(()) | Err(ConnectError::Timeout) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn next_stream(&self) -> Result<Option<TcpStream>, ConnectError> {
        match self.listener.accept() {
            Ok((stream, peer)) => match self.device.prepare(&stream) {
                Ok(()) => Ok(Some(stream)),
                Err(error) => {
                    log::warn!("{peer} is refused: {error}");
                    Ok(None)
                }
            },
            Err(error) if is_transient(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Whether an error of `accept` concerns only one connection, or reports an empty queue.
fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted | ConnectionAborted | ConnectionReset)
}

/// Removes and returns the first peer whose hello is complete; drops failed peers.
fn next_greeted(waiting: &mut Vec<Waiting>) -> Option<(TcpStream, Hello)> {
    let now = Instant::now();
    let mut at = 0;
    while at < waiting.len() {
        let peer = &mut waiting[at];
        match peer.greeting.receive(&peer.stream, Role::Connects) {
            Ok(Some(hello)) => return Some((waiting.swap_remove(at).stream, hello)),
            Ok(None) if peer.deadline > now => at += 1,
            Ok(None) => drop(waiting.swap_remove(at)),
            Err(error) => {
                log::debug!("a peer is refused: {error}");
                waiting.swap_remove(at);
            }
        }
    }
    None
}

/// Maximum duration of a connect, and of a hello.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of peers whose hello is missing; further ones wait in the kernel.
const MAX_WAITING: usize = 64;
/// Requests wait for a shared receive of the peer without a limit.
const RNR_RETRIES: u8 = 7;
/// Code of 640 µs.
const RNR_TIMER: u8 = 12;

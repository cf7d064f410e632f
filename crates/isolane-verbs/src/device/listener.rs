//! Queue pairs that connect to an address instead of a number: blocking connect and accept.
//!
//! Invariant: a peer that does not complete its hello within [`TIMEOUT`] is closed. Up to [`MAX_WAITING`] such peers
//! hold up no other peer.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Instant;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};

use super::handshake::{ConnectError, Greeting, Identity, LaneAttempt, TIMEOUT, prepare, write_hello};
use super::progress::timespec;
use super::{Device, QueuePair, QueuePairConfig};
use crate::wire::{Hello, Role};

/// Exchanges hellos as the end that connects. The number of the peer's queue pair is not known before.
pub(super) fn connect(
    stream: &TcpStream,
    identity: &Identity,
    attempt: LaneAttempt,
) -> Result<Hello, ConnectError> {
    let deadline = Instant::now() + TIMEOUT;
    let mut greeting = Greeting::default();
    write_hello(stream, &identity.hello(Role::Connects, attempt, identity.lanes(), 0, stream)?)?;
    loop {
        if let Some(hello) = greeting.receive(stream, Role::Accepts)? {
            return Ok(hello);
        }
        wait_readable(&[stream], deadline)?;
    }
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
                match self.device.accept_first(stream, &hello, config)? {
                    Some(pair) => return Ok(pair),
                    None => continue,
                }
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
            Ok((stream, peer)) => match prepare(&stream, &self.device.socket) {
                Ok(()) => Ok(Some(stream)),
                Err(error) => {
                    log::limited!(Warn, "{peer} is refused: {error}");
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

/// Maximum number of peers whose hello is missing; further ones wait in the kernel.
const MAX_WAITING: usize = 64;

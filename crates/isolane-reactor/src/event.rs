//! Events that a turn or a backend reports.

use crate::file::FileCompletion;
use crate::key::Key;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Identifies a socket of one reactor. The token of a removed socket is invalid and harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl Token {
    /// Returns a small index, unique among the reactor's current sockets, for the driver's own
    /// table.
    pub fn index(self) -> usize {
        self.index as usize
    }
}

/// An event for the driver.
#[derive(Debug)]
pub enum Event {
    /// A new connection, not yet one of the reactor's sockets.
    Accepted {
        /// The listener that accepted it: its index in the order of
        /// [`Reactor::listen`](crate::Reactor::listen) from 0.
        listener: usize,
        /// The connection, close-on-exec; [`Reactor::add`](crate::Reactor::add) makes it non-blocking.
        socket: TcpStream,
        /// Address of the peer.
        peer: SocketAddr,
    },
    /// The socket may be readable. Reported again every turn until a receive finds the socket
    /// empty.
    Readable(Token),
    /// The socket is writable again after a short send. Reported once per short send.
    Writable(Token),
    /// A file operation completed.
    File(FileCompletion),
    /// [`Waker::wake`](crate::Waker::wake) was called: poll the mailboxes.
    Woken,
}

/// Result of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Bytes placed in the order of the plan; at least one.
    Bytes(usize),
    /// The socket is empty.
    WouldBlock,
    /// The peer closed its sending direction.
    Eof,
}

/// An event from the kernel.
#[derive(Debug)]
pub(crate) enum BackendEvent {
    /// Socket readable or closed.
    Readable { key: Key, hung_up: bool },
    /// Socket writable or closed.
    Writable { key: Key },
    /// Connection to accept.
    Acceptable { index: u32 },
    /// Wakeup by a [`Waker`](crate::Waker).
    Doorbell,
    /// Completed file operation.
    File(FileCompletion),
}

/// Wait for events.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PollWait {
    /// Only poll; skipped in most turns if `urgent` is false and polling costs a system call.
    No { urgent: bool },
    /// Wait for an event or the timeout.
    For(Option<Duration>),
}

//! What a turn reports.

use crate::file::Finished;
use std::net::{SocketAddr, TcpStream};

/// Names a socket of one reactor. A token of a removed socket is harmless: it names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl Token {
    /// A small number, unique among the reactor's present sockets: fit to index the driver's own table.
    pub fn index(self) -> usize {
        self.index as usize
    }
}

/// Names a listener of one reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerToken(pub(crate) u32);

impl ListenerToken {
    /// The listeners are numbered from 0 in the order of [`Reactor::listen`](crate::Reactor::listen).
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Something for the driver to do.
#[derive(Debug)]
pub enum Event {
    /// A connection came in. It is not yet one of the reactor's sockets.
    Accepted {
        /// Where it came in.
        listener: ListenerToken,
        /// The connection, close-on-exec; [`Reactor::add`](crate::Reactor::add) makes it non-blocking.
        socket: TcpStream,
        /// The other end.
        peer: SocketAddr,
    },
    /// Try to receive: bytes may have come. Reported again every turn until a receive finds the socket empty.
    Readable(Token),
    /// A socket whose last send took less than was offered takes bytes again. Reported once per such send.
    Writable(Token),
    /// A file operation is done.
    File(Finished),
    /// Somebody called [`Waker::wake`](crate::Waker::wake): look into the mailboxes.
    Woken,
}

/// What a receive found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// So many bytes were placed, in the order of the plan; at least one.
    Bytes(usize),
    /// Nothing there now.
    Nothing,
    /// The peer sends no more.
    End,
}

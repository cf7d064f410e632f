//! Streams: TCP connections whose bytes go through an engine.
//!
//! The application keeps the real socket, the engine works on a duplicate of it. What is received stays in the
//! kernel until the application has read it, and what is written and not sent yet can be sent by the
//! application itself: so a stream is taken back at any moment, and survives the engine's death.
//!
//! * [`Stream`]: a connection, as `std`'s `TcpStream` is one; [`Stream::adopt`] and [`Stream::into_std`] are the way
//!   there and back. Blocking, with timeouts; without waiting; async. [`Listener`] makes them of those that connect.
//! * [`Poller`]: one thread that waits for many streams.
//! * [`Incoming`], [`Outgoing`], [`Block`]: the ends of the rings, and what both sides see beside them.
//!
//! While a stream is adopted, its socket is not to be read or written by others, or by the application itself
//! past the stream. An urgent byte that comes meanwhile is read in its place among the others.

mod block;
mod doorman;
mod ends;
mod halves;
mod last_close;
mod listener;
mod options;
mod parts;
mod poller;
mod recovery;
mod shared;
mod tasks;
mod waiting;

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::{AttachError, Session};

pub use block::{Block, End, is_past};
pub use ends::{Incoming, Moved, Outgoing, ends};
pub use halves::{ReadHalf, WriteHalf};
pub use listener::Listener;
pub use options::{AdoptError, StreamOptions};
pub use parts::{Parts, Unfinished};
pub use poller::Poller;
pub use recovery::{Origin, discarded, sent};
pub(crate) use tasks::Lounge;

/// A TCP connection whose bytes go through an engine. Dropping it closes it, without waiting for anybody: what was
/// written is still sent. If the engine and its supervisor end before, the connection is reset, so that the peer sees
/// no end of what was cut off: so it is if the program ends after them without taking it back. Only if its socket lingers (SO_LINGER with a time) the drop waits for that, and until the
/// peer has acknowledged it, for so long at most.
pub struct Stream {
    read: ReadHalf,
    write: WriteHalf,
}

/// What a thread waits for on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Bytes, or their end.
    Read,
    /// Room, or an error.
    Write,
    /// Either.
    Both,
}

impl Stream {
    /// Connects, as `TcpStream::connect` does, and has the connection adopted if that is possible
    /// ([`StreamOptions::adopt_if_possible`]).
    ///
    /// # Errors
    /// As `TcpStream::connect`, and [`AttachError::Over`].
    pub fn connect(session: &Session, address: impl ToSocketAddrs) -> io::Result<Stream> {
        session.check()?;
        Ok(StreamOptions::default().adopt_if_possible(session, TcpStream::connect(address)?)?)
    }

    /// Has the engine do the network processing of a connection from now on, with the default
    /// [`StreamOptions`].
    ///
    /// # Errors
    /// [`AttachError::Refused`] for a socket that cannot be adopted: it must be a connected TCP socket, without kernel
    /// TLS or error queue. [`AttachError::NoRoom`], [`AttachError::Over`]. The socket comes back with each.
    pub fn adopt(session: &Session, socket: TcpStream) -> Result<Stream, AdoptError> {
        StreamOptions::default().adopt(session, socket)
    }

    /// Takes the connection back: a socket that no engine knows of any more. What was written and not sent yet
    /// is sent first, by this thread, for as long as the write timeout allows between two bits of progress.
    ///
    /// That works without an engine, too: if the session is over, this waits, for 10 s at most, until the engine and
    /// its supervisor have let go of everything, and finds out itself where the stream is.
    ///
    /// # Errors
    /// Of the session, or of sending (`WouldBlock` if the write timeout has passed). If the connection was taken back,
    /// [`Unfinished::into_parts`] has it, and what is not sent: a caller that must not wait so long goes on there. If
    /// nobody takes it from there it is reset, so that the peer sees no end of what was cut off.
    pub fn into_std(self) -> Result<TcpStream, Unfinished> {
        let timeout = self.write.timeout;
        match self.into_parts() {
            Ok(parts) => parts.finish(timeout),
            Err(error) => Err(Unfinished::new(error, None)),
        }
    }

    /// As [`Stream::into_std`], without sending or shutting down: whoever must not wait does that, [`Parts::finish`] for
    /// others.
    ///
    /// # Errors
    /// Of the session.
    pub fn into_parts(mut self) -> io::Result<Parts> {
        let Stream { read: ReadHalf { incoming, shared, .. }, write: WriteHalf { outgoing, .. } } = &mut self;
        let socket = shared.socket.try_clone()?;
        let unsent = match shared.release() {
            Ok(()) => outgoing.unsent()?,
            Err(AttachError::Over(_)) if shared.is_alone() => {
                incoming.take_back(socket.as_fd(), &shared.origin)?;
                outgoing.take_back(socket.as_fd(), &shared.origin)?
            }
            Err(error) => return Err(error.into()),
        };
        shared.waiters.last_close.restore()?;
        Ok(Parts { socket, unsent, is_shut: outgoing.is_shut() })
    }

    /// Two halves, for two threads.
    pub fn split(self) -> (ReadHalf, WriteHalf) {
        (self.read, self.write)
    }

    /// Both halves of a stream again.
    ///
    /// # Panics
    /// If they are halves of two.
    pub fn unite(read: ReadHalf, write: WriteHalf) -> Stream {
        assert!(Arc::ptr_eq(&read.shared, &write.shared), "these halves are of two streams");
        Stream { read, write }
    }

    /// Its name in the session, by which a [`Poller`] calls it.
    pub fn id(&self) -> u32 {
        self.read.shared.id
    }

    /// Whether an engine works on it. Otherwise it works on the socket itself, and on no thread but the callers'.
    pub fn is_adopted(&self) -> bool {
        !self.read.shared.is_plain
    }

    /// The engine's core that works on it, by index in [`Session::cores`].
    pub fn core(&self) -> u32 {
        self.read.shared.core
    }

    /// The socket, for its addresses and options. Not to be read, written or shut down.
    pub fn socket(&self) -> &TcpStream {
        &self.read.shared.socket
    }

    /// As `TcpStream::peer_addr`.
    ///
    /// # Errors
    /// The system's.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket().peer_addr()
    }

    /// As `TcpStream::local_addr`.
    ///
    /// # Errors
    /// The system's.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket().local_addr()
    }

    /// How long a read waits, for ever if `None`.
    pub fn set_read_timeout(&mut self, timeout: Option<Duration>) {
        self.read.timeout = timeout;
    }

    /// How long a write waits, for ever if `None`.
    pub fn set_write_timeout(&mut self, timeout: Option<Duration>) {
        self.write.timeout = timeout;
    }

    /// Reads what there is, without waiting; 0 if the peer sends nothing more.
    ///
    /// # Errors
    /// `WouldBlock`; what the connection has failed with; `ConnectionAborted` if the session is over.
    #[inline]
    pub fn try_read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.read.try_read(bytes)
    }

    /// Writes what there is room for, without waiting.
    ///
    /// # Errors
    /// As [`Stream::try_read`]; `BrokenPipe` after a shutdown.
    #[inline]
    pub fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write.try_write(bytes)
    }

    /// Shuts a direction down, or both: the peer is told once all that was written is sent; reads end behind
    /// what is in the ring.
    ///
    /// # Errors
    /// Of the session.
    pub fn shutdown(&mut self, how: Shutdown) -> io::Result<()> {
        if how != Shutdown::Write {
            self.read.shut()?;
        }
        if how != Shutdown::Read {
            self.write.shut()?;
        }
        Ok(())
    }

    /// Asks for a notice in its [`Poller`] once there is what is waited for, and says whether it is there
    /// already; then there may be one all the same. One notice answers all that was asked for before, for whichever
    /// interest and by whichever half: look at all of it, and ask again.
    ///
    /// # Errors
    /// Of the session.
    pub fn arm(&mut self, interest: Interest) -> io::Result<bool> {
        let reads = interest != Interest::Write && self.read.arm()?;
        Ok(reads || (interest != Interest::Read && self.write.arm()?))
    }

    /// Reads, for a task that is woken when it can. Not for streams of a [`Poller`], which wakes no task.
    ///
    /// # Errors
    /// As [`Stream::try_read`], without `WouldBlock`.
    pub fn poll_read(&mut self, context: &mut Context<'_>, bytes: &mut [u8]) -> Poll<io::Result<usize>> {
        self.read.poll_read(context, bytes)
    }

    /// Writes, for a task that is woken when it can.
    ///
    /// # Errors
    /// As [`Stream::try_write`], without `WouldBlock`.
    pub fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.write.poll_write(context, bytes)
    }

    /// Reads, in a task of any executor.
    ///
    /// # Errors
    /// As [`Stream::try_read`], without `WouldBlock`.
    pub async fn read_async(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.read.read_async(bytes).await
    }

    /// Writes, in a task of any executor.
    ///
    /// # Errors
    /// As [`Stream::try_write`], without `WouldBlock`.
    pub async fn write_async(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write.write_async(bytes).await
    }

    /// Writes everything, in a task of any executor.
    ///
    /// # Errors
    /// As [`Stream::write_async`]; then a part was written.
    pub async fn write_all_async(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write.write_all_async(bytes).await
    }
}

impl Read for Stream {
    #[inline]
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.read.read(bytes)
    }
}

impl Write for Stream {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket().as_fd()
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("id", &self.id())
            .field("core", &self.core())
            .field("socket", self.socket())
            .finish_non_exhaustive()
    }
}

//! Streams: TCP connections whose data passes through an engine.
//!
//! The application keeps the socket, and the engine works on a duplicate. Received data stays in the kernel until the
//! application has read it, and the application can send unsent data itself. So a stream can be taken back at any time,
//! and survives the engine's death.
//!
//! * [`Stream`]: a connection, similar to `std`'s `TcpStream`: blocking with timeouts, non-blocking, or async.
//!   [`Stream::adopt`] and [`Stream::into_std`] convert. [`Listener`] accepts streams.
//! * [`Poller`]: waits of one thread for many streams.
//! * [`RxRing`], [`TxRing`]: the application's ends of the rings.
//!
//! While a stream is adopted, do not read or write its socket directly. Urgent data is received inline.

mod driver;
mod halves;
mod into_std;
mod listener;
mod options;
mod poller;
mod ring_ends;
mod shared;
mod wait;
mod waiter;
mod wakers;

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::{AttachError, Session};
use isolane_engine_api::stream::StreamEnd;

pub use halves::{ReadHalf, WriteHalf};
pub use into_std::{IntoStdError, Parts};
pub use listener::Listener;
pub use options::{AdoptError, StreamOptions};
pub use poller::Poller;
pub use ring_ends::{RxRing, Transferred, TxRing, open_rings};
pub use waiter::{Direction, StreamWaiter};

/// TCP connection whose data passes through an engine.
///
/// Dropping it closes it without waiting; written data is still sent. If the engine and its supervisor exit before that,
/// the connection is reset, so that the peer does not mistake truncated data for complete data. The same happens if the
/// program exits after them without taking the stream back. Only if its socket lingers (SO_LINGER with a time), the drop
/// waits, for at most that time, until the peer has acknowledged all data.
pub struct Stream {
    read: ReadHalf,
    write: WriteHalf,
}

/// Events to wait for on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Data, or its end.
    Read,
    /// Send space, or an error.
    Write,
    /// Either.
    Both,
}

/// Events of a stream that have occurred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// Number of bytes that can be read.
    pub unread: u64,
    /// A read would not wait.
    pub readable: bool,
    /// A write would not wait.
    pub writable: bool,
    /// The peer sends nothing more after the unread bytes.
    pub finished: bool,
    /// Error of the connection.
    pub error: Option<i32>,
}

impl Stream {
    /// Connects like `TcpStream::connect`, and moves the connection to the engine if possible
    /// ([`StreamOptions::adopt_if_possible`]).
    ///
    /// # Errors
    /// As `TcpStream::connect`, and [`AttachError::SessionClosed`].
    pub fn connect(session: &Session, address: impl ToSocketAddrs) -> io::Result<Stream> {
        session.check()?;
        Ok(StreamOptions::default().adopt_if_possible(session, TcpStream::connect(address)?)?)
    }

    /// Moves a connection to the engine, with the default [`StreamOptions`].
    ///
    /// # Errors
    /// [`AttachError::Refused`] for a socket that cannot be adopted: it must be a connected TCP socket, without kernel
    /// TLS or error queue. [`AttachError::OutOfMemory`], [`AttachError::SessionClosed`]. Each error returns the socket.
    pub fn adopt(session: &Session, socket: TcpStream) -> Result<Stream, AdoptError> {
        StreamOptions::default().adopt(session, socket)
    }

    /// Takes the connection back from the engine. First sends the unsent data in this thread; the write timeout limits
    /// the time without progress.
    ///
    /// This works without an engine as well: if the session is closed, it waits up to 10 s until the engine and its
    /// supervisor have released everything, and recovers the stream's positions itself.
    ///
    /// # Errors
    /// Of the session, or of sending (`WouldBlock` after the write timeout). If the engine released the connection,
    /// [`IntoStdError::into_parts`] returns it with the unsent data, for callers that cannot wait so long. Otherwise it
    /// is reset, so that the peer does not mistake truncated data for complete data.
    pub fn into_std(self) -> Result<TcpStream, IntoStdError> {
        let timeout = self.write.timeout;
        match self.into_parts() {
            Ok(parts) => parts.finish(timeout),
            Err(error) => Err(IntoStdError::new(error, None)),
        }
    }

    /// Like [`Stream::into_std`], but leaves sending and shutdown to the caller, who can use [`Parts::finish`].
    ///
    /// # Errors
    /// Of the session.
    pub fn into_parts(self) -> io::Result<Parts> {
        self.into_parts_or_socket().map_err(|(error, _)| error)
    }

    /// Like [`Stream::into_parts`], but an error returns the socket. Its next bytes are unknown in both directions, so
    /// that the connection is of no use, but its descriptor stays open.
    ///
    /// # Errors
    /// Of the session.
    pub fn into_parts_or_socket(mut self) -> Result<Parts, (io::Error, TcpStream)> {
        let unsent = self.take_back();
        let (mut socket, shut_down) = (Arc::clone(&self.read.shared.socket), self.write.tx.is_shut());
        drop(self);
        let socket = loop {
            match Arc::try_unwrap(socket) {
                Ok(socket) => break socket,
                // The end of the session is being handled, which borrows the socket for a moment.
                Err(shared) => socket = shared,
            }
            std::thread::yield_now();
        };
        match unsent {
            Ok(unsent) => Ok(Parts { socket, unsent, shut_down }),
            Err(error) => Err((error, socket)),
        }
    }

    /// Requests that the engine release the connection, so that the following [`Stream::into_parts`] waits less. In the
    /// meantime, do not use the stream.
    ///
    /// # Errors
    /// Of the session.
    pub fn start_release(&mut self) -> io::Result<()> {
        Ok(self.read.shared.start_release()?)
    }

    /// Makes the socket the application's again. Returns the unsent data.
    fn take_back(&mut self) -> io::Result<Vec<u8>> {
        let Stream { read: ReadHalf { rx, shared, .. }, write: WriteHalf { tx, .. } } = self;
        let unsent = match shared.release() {
            Ok(()) => tx.unsent()?,
            Err(AttachError::SessionClosed(_)) if shared.engine_gone() => {
                rx.reclaim(shared.as_fd(), &shared.origin)?;
                tx.reclaim(shared.as_fd(), &shared.origin)?
            }
            Err(error) => return Err(error.into()),
        };
        shared.wakers.restore_linger()?;
        Ok(unsent)
    }

    /// Returns the events that have occurred, as `poll` would report them.
    ///
    /// # Errors
    /// Of the session; `InvalidData` if the engine violates the protocol.
    pub fn readiness(&mut self) -> io::Result<Readiness> {
        self.read.shared.check()?;
        let (unread, received) = self.read.rx.state()?;
        let sent = self.write.tx.end();
        let error = |end| match end {
            Some(StreamEnd::Failed(error)) => Some(error),
            _ => None,
        };
        Ok(Readiness {
            unread,
            readable: unread > 0 || received.is_some(),
            writable: self.write.tx.is_ready()?,
            finished: received.is_some(),
            error: error(received).or(error(sent)),
        })
    }

    /// Copies available data without consuming it. Returns 0 at the end of the stream.
    ///
    /// # Errors
    /// As [`Stream::try_read`].
    pub fn try_peek(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.read.shared.check()?;
        self.read.rx.try_peek(bytes)
    }

    /// Returns `true` if a write would not block before it has written `bytes` bytes, which are at most those of the ring.
    ///
    /// # Errors
    /// As [`Stream::readiness`].
    #[inline]
    pub fn has_space(&mut self, bytes: u64) -> io::Result<bool> {
        self.read.shared.check()?;
        self.write.tx.has_space(bytes)
    }

    /// Returns `true` if a read would find nothing, but the kernel has data, or the end of the stream, that the engine has
    /// not fetched yet. Only a peer on the same machine can know that they have arrived.
    ///
    /// # Errors
    /// As [`Stream::readiness`]; the system's.
    pub fn is_behind(&mut self) -> io::Result<bool> {
        self.read.shared.check()?;
        self.read.rx.is_behind(self.read.shared.as_fd())
    }

    /// Returns the number of written bytes that the engine has not sent yet.
    ///
    /// # Errors
    /// `InvalidData` if the engine violates the protocol.
    pub fn unsent_bytes(&mut self) -> io::Result<u64> {
        self.write.tx.unsent_bytes()
    }

    /// Returns a handle that waits for the stream without access to it.
    pub fn waiter(&self) -> StreamWaiter {
        StreamWaiter(Arc::clone(&self.read.shared.wakers.block))
    }

    /// Splits the stream into halves for two threads.
    pub fn split(self) -> (ReadHalf, WriteHalf) {
        (self.read, self.write)
    }

    /// Reunites the halves of a stream.
    ///
    /// # Panics
    /// If they belong to different streams.
    pub fn reunite(read: ReadHalf, write: WriteHalf) -> Stream {
        assert!(Arc::ptr_eq(&read.shared, &write.shared), "these halves belong to different streams");
        Stream { read, write }
    }

    /// Returns its ID in the session, as reported by a [`Poller`].
    pub fn id(&self) -> u32 {
        self.read.shared.id
    }

    /// Returns `true` if an engine has the stream. Otherwise it works on the socket directly, in the calling threads.
    pub fn is_adopted(&self) -> bool {
        !self.read.shared.plain
    }

    /// Returns the engine's core, by index in [`Session::cores`].
    pub fn core(&self) -> u32 {
        self.read.shared.core
    }

    /// Returns the socket, for its addresses and options. Do not read, write, or shut it down.
    pub fn socket(&self) -> &TcpStream {
        &self.read.shared.socket
    }

    /// Like `TcpStream::peer_addr`.
    ///
    /// # Errors
    /// The system's.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket().peer_addr()
    }

    /// Like `TcpStream::local_addr`.
    ///
    /// # Errors
    /// The system's.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket().local_addr()
    }

    /// Sets the read timeout; `None` waits indefinitely.
    pub fn set_read_timeout(&mut self, timeout: Option<Duration>) {
        self.read.timeout = timeout;
    }

    /// Sets the write timeout; `None` waits indefinitely.
    pub fn set_write_timeout(&mut self, timeout: Option<Duration>) {
        self.write.timeout = timeout;
    }

    /// Reads available data without waiting. Returns 0 at the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock`; the error of the connection; `ConnectionAborted` if the session is closed.
    #[inline]
    pub fn try_read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.read.try_read(bytes)
    }

    /// Writes as much as fits without waiting.
    ///
    /// # Errors
    /// As [`Stream::try_read`]; `BrokenPipe` after a shutdown.
    #[inline]
    pub fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write.try_write(bytes)
    }

    /// Shuts down one or both directions: the FIN follows all written data; reads end after the ring's contents.
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

    /// Requests a notification in its [`Poller`] when an event of `interest` occurs. Returns `true` if one has occurred
    /// already; a notification may still follow, also for an event that is not of `interest`. One notification covers all requests of both halves: check both,
    /// then arm again.
    ///
    /// # Errors
    /// Of the session.
    pub fn arm(&mut self, interest: Interest) -> io::Result<bool> {
        let is_readable = interest != Interest::Write && self.read.arm()?;
        Ok(is_readable || (interest != Interest::Read && self.write.arm()?))
    }

    /// Polls for data. Not for streams of a [`Poller`], which wakes no tasks.
    ///
    /// # Errors
    /// As [`Stream::try_read`], without `WouldBlock`.
    pub fn poll_read(&mut self, context: &mut Context<'_>, bytes: &mut [u8]) -> Poll<io::Result<usize>> {
        self.read.poll_read(context, bytes)
    }

    /// Polls for send space and writes.
    ///
    /// # Errors
    /// As [`Stream::try_write`], without `WouldBlock`.
    pub fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.write.poll_write(context, bytes)
    }

    /// Reads in a task of any executor.
    ///
    /// # Errors
    /// As [`Stream::try_read`], without `WouldBlock`.
    pub async fn read_async(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.read.read_async(bytes).await
    }

    /// Writes in a task of any executor.
    ///
    /// # Errors
    /// As [`Stream::try_write`], without `WouldBlock`.
    pub async fn write_async(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write.write_async(bytes).await
    }

    /// Writes all of `bytes` in a task of any executor.
    ///
    /// # Errors
    /// As [`Stream::write_async`]; a part may have been written.
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

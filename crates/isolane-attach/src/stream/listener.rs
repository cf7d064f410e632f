//! Listener for incoming connections.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::task::{Context, Poll};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;

use super::accept_waker::AcceptWaker;
use super::{Stream, StreamOptions};
use crate::Session;

/// Listener whose connections pass through an engine. It accepts them itself, like `std`'s, and then moves them to the
/// engine if possible ([`StreamOptions::adopt_if_possible`]). It can block, be polled by its descriptor, or be awaited.
#[derive(Debug)]
pub struct Listener {
    /// Non-blocking; waits use `poll`.
    listener: TcpListener,
    /// Its original mode.
    blocking: bool,
    session: Session,
    options: StreamOptions,
    accept_waker: Mutex<Option<AcceptWaker>>,
}

impl Listener {
    /// Like `TcpListener::bind`.
    ///
    /// # Errors
    /// As that.
    pub fn bind(session: &Session, address: impl ToSocketAddrs) -> io::Result<Listener> {
        Listener::bind_with(session, address, StreamOptions::default())
    }

    /// Like `TcpListener::bind`, with options for the accepted streams.
    ///
    /// # Errors
    /// As that.
    pub fn bind_with(
        session: &Session,
        address: impl ToSocketAddrs,
        options: StreamOptions,
    ) -> io::Result<Listener> {
        Listener::from_std(session, TcpListener::bind(address)?, options)
    }

    /// Wraps a listener, which is non-blocking until [`Listener::into_std`].
    ///
    /// # Errors
    /// The system's; [`AttachError::Forked`](crate::AttachError::Forked).
    pub fn from_std(
        session: &Session,
        listener: TcpListener,
        options: StreamOptions,
    ) -> io::Result<Listener> {
        session.check_process()?;
        let blocking = !fcntl_getfl(&listener)?.contains(OFlags::NONBLOCK);
        listener.set_nonblocking(true)?;
        let session = session.clone();
        Ok(Listener { listener, blocking, session, options, accept_waker: Mutex::default() })
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// As `TcpListener::accept`, and [`AttachError::SessionClosed`](crate::AttachError::SessionClosed).
    pub fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        loop {
            match self.try_accept() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            match poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Returns the next connection without waiting.
    ///
    /// # Errors
    /// `WouldBlock` without a connection, and the errors of [`Listener::accept`].
    pub fn try_accept(&self) -> io::Result<(Stream, SocketAddr)> {
        self.session.check()?;
        let (socket, address) = self.listener.accept()?;
        Ok((self.options.adopt_if_possible(&self.session, socket)?, address))
    }

    /// Polls for the next connection. A connection wakes all waiting tasks; one of them gets it.
    pub fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<(Stream, SocketAddr)>> {
        match self.try_accept() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return Poll::Ready(result),
        }
        let mut accept_waker = self.accept_waker.lock();
        if accept_waker.is_none() {
            *accept_waker = Some(AcceptWaker::start(&self.listener)?);
        }
        // The thread polls after the registration, so no connection is missed.
        accept_waker.iter().for_each(|accept_waker| accept_waker.register(context.waker()));
        Poll::Pending
    }

    /// Waits for the next connection in a task of any executor. Uses a thread, started on the first wait.
    ///
    /// # Errors
    /// As [`Listener::accept`]; that no thread can be started.
    pub async fn accept_async(&self) -> io::Result<(Stream, SocketAddr)> {
        std::future::poll_fn(|context| self.poll_accept(context)).await
    }

    /// Like `TcpListener::local_addr`.
    ///
    /// # Errors
    /// The system's.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Returns the listener, which is non-blocking.
    pub fn as_std(&self) -> &TcpListener {
        &self.listener
    }

    /// Returns the listener in its original mode.
    ///
    /// # Errors
    /// The system's; [`AttachError::Forked`](crate::AttachError::Forked) in a forked child, because the parent shares
    /// the socket and needs it non-blocking. A child can use [`Listener::as_std`].
    pub fn into_std(self) -> io::Result<TcpListener> {
        self.session.check_process()?;
        self.listener.set_nonblocking(!self.blocking)?;
        Ok(self.listener)
    }
}

impl AsFd for Listener {
    /// Readable when a connection is pending.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

//! Listener for incoming connections.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use rustix::event::PollFlags;
use rustix::fs::{OFlags, fcntl_getfl};

use super::driver::{DriverHandle, WakeTasks};
use super::wait::{to_poll, wait_for_socket};
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
    /// Set by the first task that waits.
    wakers: OnceLock<AcceptWakers>,
}

/// Tasks that wait for the connections of a listener. The session's driver wakes them.
#[derive(Debug)]
struct AcceptWakers {
    id: u32,
    listener: TcpListener,
    tasks: Arc<Mutex<Vec<Waker>>>,
    driver: DriverHandle,
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
        Ok(Listener { listener, blocking, session, options, wakers: OnceLock::new() })
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
            wait_for_socket(None, self.listener.as_fd(), PollFlags::IN, None)?;
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
    ///
    /// # Errors
    /// As [`Listener::accept`], and if the thread that wakes the tasks cannot start or watch the listener.
    pub fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<(Stream, SocketAddr)>> {
        match self.try_accept() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return Poll::Ready(result),
        }
        match self.wakers() {
            Ok(wakers) => wakers.register(context.waker()),
            // Nothing would wake the task.
            Err(error) => return Poll::Ready(Err(error)),
        }
        to_poll(self.try_accept())
    }

    /// Returns the wakers. Creates them if necessary; after an error, the next call tries again.
    fn wakers(&self) -> io::Result<&AcceptWakers> {
        if let Some(wakers) = self.wakers.get() {
            return Ok(wakers);
        }
        let wakers = AcceptWakers::new(&self.session, &self.listener)?;
        Ok(self.wakers.get_or_init(|| wakers))
    }

    /// Waits for the next connection in a task of any executor. The thread that wakes the tasks of the session's streams
    /// wakes it.
    ///
    /// # Errors
    /// As [`Listener::poll_accept`].
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

impl AcceptWakers {
    fn new(session: &Session, listener: &TcpListener) -> io::Result<AcceptWakers> {
        let driver = DriverHandle::for_session(session)?;
        let (id, listener, tasks) = (session.next_id(), listener.try_clone()?, Arc::default());
        let registered: Weak<Mutex<Vec<Waker>>> = Arc::downgrade(&tasks);
        driver.register(id, registered, Some(listener.as_fd()))?;
        Ok(AcceptWakers { id, listener, tasks, driver })
    }

    /// Registers a task to wake at the next connection. Check for a connection again afterwards.
    fn register(&self, waker: &Waker) {
        let mut tasks = self.tasks.lock();
        if !tasks.iter().any(|known| known.will_wake(waker)) {
            tasks.push(waker.clone());
        }
    }
}

impl WakeTasks for Mutex<Vec<Waker>> {
    fn wake_tasks(&self) {
        let tasks = std::mem::take(&mut *self.lock());
        tasks.into_iter().for_each(Waker::wake);
    }
}

impl Drop for AcceptWakers {
    fn drop(&mut self) {
        self.driver.deregister(self.id, Some(self.listener.as_fd()));
    }
}

impl AsFd for Listener {
    /// Readable when a connection is pending.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

//! Connections that come in.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::task::{Context, Poll};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;

use super::doorman::Doorman;
use super::{Stream, StreamOptions};
use crate::Session;

/// A listener whose connections go through an engine. It listens itself, as `std`'s does: only what it accepts
/// is adopted, or works on its socket itself if it cannot be ([`StreamOptions::adopt_if_possible`]). Blocking; without waiting, its descriptor watched by whatever watches others; async.
#[derive(Debug)]
pub struct Listener {
    /// Set not to block; whoever waits polls.
    listener: TcpListener,
    /// It was set to block before it was ours.
    is_blocking: bool,
    session: Session,
    options: StreamOptions,
    doorman: Mutex<Option<Doorman>>,
}

impl Listener {
    /// As `TcpListener::bind`.
    ///
    /// # Errors
    /// As that.
    pub fn bind(session: &Session, address: impl ToSocketAddrs) -> io::Result<Listener> {
        Listener::bind_with(session, address, StreamOptions::default())
    }

    /// As `TcpListener::bind`, for streams with these options.
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

    /// Of a listener that listens already. It is set not to block, as long as it is here.
    ///
    /// # Errors
    /// The system's; [`AttachError::Forked`](crate::AttachError::Forked).
    pub fn from_std(
        session: &Session,
        listener: TcpListener,
        options: StreamOptions,
    ) -> io::Result<Listener> {
        session.check_process()?;
        let is_blocking = !fcntl_getfl(&listener)?.contains(OFlags::NONBLOCK);
        listener.set_nonblocking(true)?;
        let session = session.clone();
        Ok(Listener { listener, is_blocking, session, options, doorman: Mutex::default() })
    }

    /// The next connection. Waits for one.
    ///
    /// # Errors
    /// As `TcpListener::accept`, and [`AttachError::Over`](crate::AttachError::Over).
    pub fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        loop {
            match self.try_accept() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => return outcome,
            }
            match poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The next connection, if there is one.
    ///
    /// # Errors
    /// `WouldBlock` if there is none; as [`Listener::accept`].
    pub fn try_accept(&self) -> io::Result<(Stream, SocketAddr)> {
        self.session.check()?;
        let (socket, address) = self.listener.accept()?;
        Ok((self.options.adopt_if_possible(&self.session, socket)?, address))
    }

    /// The next connection, for a task. Of several tasks all are woken, and one gets it.
    pub fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<(Stream, SocketAddr)>> {
        match self.try_accept() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            outcome => return Poll::Ready(outcome),
        }
        let mut doorman = self.doorman.lock();
        if doorman.is_none() {
            *doorman = Some(Doorman::start(&self.listener)?);
        }
        // It looks after it knows of the task, so nobody who comes meanwhile is missed.
        doorman.iter().for_each(|doorman| doorman.register(context.waker()));
        Poll::Pending
    }

    /// The next connection, in a task. A thread that starts with the first one that waits wakes it.
    ///
    /// # Errors
    /// As [`Listener::accept`]; that no thread can be started.
    pub async fn accept_async(&self) -> io::Result<(Stream, SocketAddr)> {
        std::future::poll_fn(|context| self.poll_accept(context)).await
    }

    /// As `TcpListener::local_addr`.
    ///
    /// # Errors
    /// The system's.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The listener itself, which does not block.
    pub fn as_std(&self) -> &TcpListener {
        &self.listener
    }

    /// The listener itself, without the engine, and as blocking as it was.
    ///
    /// # Errors
    /// The system's; [`AttachError::Forked`](crate::AttachError::Forked) in a forked child, because the parent shares
    /// the socket and relies on it not to block. A child can use [`Listener::as_std`].
    pub fn into_std(self) -> io::Result<TcpListener> {
        self.session.check_process()?;
        self.listener.set_nonblocking(!self.is_blocking)?;
        Ok(self.listener)
    }
}

impl AsFd for Listener {
    /// What becomes readable when somebody connects.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

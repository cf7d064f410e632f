//! Waits of one thread for many streams.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::{AdoptError, Stream, StreamOptions};
use crate::AttachError;
use crate::session::{NotificationQueue, Session};
use isolane_engine_api::layout::notification;

/// A thread's notification queue. It reports each change of the streams that it adopted, once per [`Stream::arm`].
#[derive(Debug)]
pub struct Poller {
    session: Session,
    queue: NotificationQueue,
}

impl Poller {
    /// Creates a poller for up to `streams` streams, rounded up to a power of two; beyond that, notifications are delayed.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn new(session: &Session, streams: u32) -> Result<Poller, AttachError> {
        let entries = streams.max(1).checked_next_power_of_two().unwrap_or(u32::MAX);
        Ok(Poller { session: session.clone(), queue: session.open_queue(entries)? })
    }

    /// Moves a connection to the engine; this poller reports its changes.
    ///
    /// # Errors
    /// As [`Stream::adopt`].
    pub fn adopt(&self, socket: TcpStream, options: StreamOptions) -> Result<Stream, AdoptError> {
        options.open(&self.session, socket, self.queue.id(), None)
    }

    /// Returns the ID of the queue, for [`StreamOptions::adopt_into_queue`].
    pub fn queue(&self) -> u32 {
        self.queue.id()
    }

    /// Returns the ID of the next stream that changed, without waiting.
    ///
    /// # Errors
    /// [`AttachError::InvalidIndex`].
    pub fn try_next(&mut self) -> Result<Option<u32>, AttachError> {
        while let Some(entry) = self.queue.try_pop()? {
            if let Some(id) = notification::object(&entry) {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// Like [`Poller::try_next`], but waits. Returns `None` on timeout.
    ///
    /// # Errors
    /// [`AttachError::SessionClosed`], [`AttachError::InvalidIndex`].
    pub fn next(&mut self, timeout: Option<Duration>) -> Result<Option<u32>, AttachError> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(id) = self.try_next()? {
                return Ok(Some(id));
            }
            let remaining = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if remaining == Some(Duration::ZERO) {
                return Ok(None);
            }
            self.queue.wait(remaining)?;
        }
    }

    /// Arms the poller for threads that also wait for other descriptors: [`Poller::as_fd`] becomes readable on the next
    /// notification, or when the session closes. Returns `true` if a notification is available already. Call
    /// [`Poller::disarm`] after waking up.
    ///
    /// # Errors
    /// [`AttachError::InvalidIndex`].
    pub fn arm(&mut self) -> Result<bool, AttachError> {
        self.queue.arm()
    }

    /// Disarms the poller.
    ///
    /// # Errors
    /// [`AttachError::SessionClosed`].
    pub fn disarm(&mut self) -> io::Result<()> {
        Ok(self.queue.disarm()?)
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

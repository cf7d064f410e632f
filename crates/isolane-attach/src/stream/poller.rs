//! One thread that waits for many streams.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::{AdoptError, Stream, StreamOptions};
use crate::AttachError;
use crate::layout::notice;
use crate::session::{Queue, Session};

/// A thread's notification queue: it hears of every stream that it has adopted, once each time that the stream
/// was armed ([`Stream::arm`]) and something has changed since.
#[derive(Debug)]
pub struct Poller {
    session: Session,
    queue: Queue,
}

impl Poller {
    /// For up to so many streams; more than that are told late. Rounded up to a power of two.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn new(session: &Session, streams: u32) -> Result<Poller, AttachError> {
        let entries = streams.max(1).checked_next_power_of_two().unwrap_or(u32::MAX);
        Ok(Poller { session: session.clone(), queue: session.open_queue(entries)? })
    }

    /// Has a connection adopted, of which this poller hears.
    ///
    /// # Errors
    /// As [`Stream::adopt`].
    pub fn adopt(&self, socket: TcpStream, options: StreamOptions) -> Result<Stream, AdoptError> {
        options.open(&self.session, socket, self.queue.id(), None)
    }

    /// The id of the next stream about which something has changed, without waiting.
    ///
    /// # Errors
    /// [`AttachError::Impossible`].
    pub fn take(&mut self) -> Result<Option<u32>, AttachError> {
        while let Some(entry) = self.queue.take()? {
            if let Some(id) = notice::object(&entry) {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// As [`Poller::take`], but sleeps until there is one; `None` if time ran out.
    ///
    /// # Errors
    /// [`AttachError::Over`], [`AttachError::Impossible`].
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<Option<u32>, AttachError> {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(id) = self.take()? {
                return Ok(Some(id));
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            self.queue.wait(left)?;
        }
    }

    /// Arms the poller's bell, for who sleeps on other things as well ([`Poller::as_fd`], which becomes readable when
    /// the session is over, too); true if a notice is there already. [`Poller::disarm`] once awake.
    ///
    /// # Errors
    /// [`AttachError::Impossible`].
    pub fn arm(&mut self) -> Result<bool, AttachError> {
        self.queue.arm()
    }

    /// Asks for no more rings.
    ///
    /// # Errors
    /// [`AttachError::Over`].
    pub fn disarm(&mut self) -> io::Result<()> {
        Ok(self.queue.disarm()?)
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.end()
    }
}

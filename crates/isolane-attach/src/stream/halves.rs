//! The two halves of a stream, each for one thread.

use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::ends::{Incoming, Moved, Outgoing};
use super::shared::Shared;
use super::waiting::{
    is_ready_natively, moment, pending, wait, wait_for_bytes, wait_for_room, wait_natively,
};

/// The half that reads.
pub struct ReadHalf {
    pub(super) incoming: Incoming,
    pub(super) shared: Arc<Shared>,
    pub(super) timeout: Option<Duration>,
    pub(super) spin: Duration,
    /// A read that brings so many is a long one.
    pub(super) past_bytes: usize,
    /// Reads in a row that would have gone better the other way: past the ring, or through it.
    pub(super) unlike: u8,
}

/// The half that writes.
pub struct WriteHalf {
    pub(super) outgoing: Outgoing,
    pub(super) shared: Arc<Shared>,
    pub(super) timeout: Option<Duration>,
    pub(super) spin: Duration,
    pub(super) past_bytes: usize,
}

impl ReadHalf {
    /// As [`Stream::try_read`](super::Stream::try_read).
    ///
    /// # Errors
    /// As that.
    #[inline]
    pub fn try_read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.shared.session.check_process()?;
        if self.shared.is_plain {
            return self.try_read_natively(bytes);
        }
        if self.incoming.wants_past() {
            self.want_past(false)?;
        }
        moved(self.incoming.try_read(bytes), &self.shared)
    }

    /// As [`Stream::poll_read`](super::Stream::poll_read).
    ///
    /// # Errors
    /// As that.
    pub fn poll_read(&mut self, context: &mut Context<'_>, bytes: &mut [u8]) -> Poll<io::Result<usize>> {
        match self.try_read(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            outcome => return Poll::Ready(outcome),
        }
        self.shared.waiters.register(&self.shared.waiters.reader, context);
        self.shared.waiters.block.notify.arm();
        pending(self.try_read(bytes))
    }

    /// As [`Stream::read_async`](super::Stream::read_async).
    ///
    /// # Errors
    /// As that.
    pub async fn read_async(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        poll_fn(|context| self.poll_read(context, bytes)).await
    }

    /// How long a read waits, for ever if `None`.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// From now on, what is not in the ring yet reads as the end.
    ///
    /// # Errors
    /// [`AttachError::Forked`](crate::AttachError::Forked).
    pub fn shut(&mut self) -> io::Result<()> {
        self.shared.session.check_process()?;
        self.incoming.shut();
        Ok(())
    }

    /// As [`Stream::arm`](super::Stream::arm), for reads.
    ///
    /// # Errors
    /// Of the session.
    pub fn arm(&mut self) -> io::Result<bool> {
        self.shared.check()?;
        if self.shared.is_plain {
            return is_ready_natively(self.shared.as_fd(), PollFlags::IN);
        }
        self.shared.waiters.block.notify.arm();
        self.shared.check()?;
        // What comes goes through the ring, where the engine tells of it.
        self.want_past(false)?;
        self.incoming.is_ready()
    }

    #[cold]
    fn try_read_natively(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match recv(&self.shared, bytes, RecvFlags::DONTWAIT) {
            // Whoever has shut it down reads what had come before.
            Err(Errno::AGAIN) if self.incoming.is_shut() => Ok(0),
            Ok((count, _)) => Ok(count),
            Err(Errno::INTR) => Err(io::ErrorKind::WouldBlock.into()),
            Err(error) => Err(error.into()),
        }
    }

    fn want_past(&mut self, wants: bool) -> io::Result<()> {
        self.unlike = 0;
        match self.incoming.want_past(wants) {
            true => self.shared.ring(),
            false => Ok(()),
        }
    }

    /// Reads without waiting, past the ring where the engine has yielded.
    fn try_read_past(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if !self.incoming.is_past()? || bytes.is_empty() {
            return moved(self.incoming.try_read(bytes), &self.shared);
        }
        match self.incoming.receive_past(self.shared.as_fd(), bytes) {
            // The engine tells whether that was in order.
            Ok(0) => self.want_past(false).and(Err(io::ErrorKind::WouldBlock.into())),
            outcome => outcome,
        }
    }

    /// Chooses the way of the next reads by what this one has brought.
    #[inline]
    fn learn(&mut self, count: usize) {
        let is_long = count >= self.past_bytes;
        if is_long == self.incoming.wants_past() {
            self.unlike = 0;
        } else if self.unlike < UNLIKE_MAX {
            self.unlike += 1;
        } else {
            // If it cannot be rung the session is over, as the next read hears. These bytes are to be had.
            let _ = self.want_past(is_long);
        }
    }

    #[cold]
    fn wait(&mut self, until: Option<Instant>) -> io::Result<()> {
        let ReadHalf { incoming, shared, spin, .. } = self;
        if shared.is_plain {
            return wait_natively(shared.as_fd(), PollFlags::IN, until);
        }
        if incoming.is_past()? {
            return wait_for_bytes(&shared.session, shared.as_fd(), *spin, until);
        }
        let is_ready = || Ok(incoming.is_ready()? || incoming.is_past()?);
        wait(&shared.session, &shared.waiters.block.rx_flag, *spin, until, is_ready)
    }
}

impl Read for ReadHalf {
    #[inline]
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.shared.session.check_process()?;
        let mut until = None;
        loop {
            let outcome = match self.incoming.wants_past() {
                true => self.try_read_past(bytes),
                false if self.shared.is_plain => self.try_read_natively(bytes),
                false => moved(self.incoming.try_read(bytes), &self.shared),
            };
            match outcome {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => {
                    if !self.shared.is_plain {
                        self.learn(*outcome.as_ref().unwrap_or(&0));
                    }
                    return outcome;
                }
            }
            until = until.or_else(|| moment(self.timeout));
            self.wait(until)?;
        }
    }
}

impl WriteHalf {
    /// As [`Stream::try_write`](super::Stream::try_write).
    ///
    /// # Errors
    /// As that.
    #[inline]
    pub fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.shared.check()?;
        if self.shared.is_plain {
            let sent = send(&self.shared, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            return Ok(sent?);
        }
        moved(self.outgoing.try_write(bytes), &self.shared)
    }

    /// As [`Stream::poll_write`](super::Stream::poll_write).
    ///
    /// # Errors
    /// As that.
    pub fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.try_write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            outcome => return Poll::Ready(outcome),
        }
        self.shared.waiters.register(&self.shared.waiters.writer, context);
        self.shared.waiters.block.notify.arm();
        pending(self.try_write(bytes))
    }

    /// As [`Stream::write_async`](super::Stream::write_async).
    ///
    /// # Errors
    /// As that.
    pub async fn write_async(&mut self, bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|context| self.poll_write(context, bytes)).await
    }

    /// As [`Stream::write_all_async`](super::Stream::write_all_async).
    ///
    /// # Errors
    /// As that.
    pub async fn write_all_async(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let count = self.write_async(rest).await?;
            rest = &rest[count..];
        }
        Ok(())
    }

    /// How long a write waits, for ever if `None`.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// Nothing more is sent behind what was written.
    ///
    /// # Errors
    /// Of the session.
    pub fn shut(&mut self) -> io::Result<()> {
        self.shared.session.check_process()?;
        if self.shared.is_plain {
            self.outgoing.shut();
            return self.shared.socket.shutdown(Shutdown::Write);
        }
        match self.outgoing.shut() {
            true => self.shared.ring(),
            false => Ok(()),
        }
    }

    /// As [`Stream::arm`](super::Stream::arm), for writes.
    ///
    /// # Errors
    /// Of the session.
    pub fn arm(&mut self) -> io::Result<bool> {
        self.shared.check()?;
        if self.shared.is_plain {
            return is_ready_natively(self.shared.as_fd(), PollFlags::OUT);
        }
        self.shared.waiters.block.notify.arm();
        self.shared.check()?;
        self.outgoing.is_ready()
    }

    #[cold]
    fn wait(&mut self, until: Option<Instant>) -> io::Result<()> {
        let WriteHalf { outgoing, shared, spin, .. } = self;
        if shared.is_plain {
            return wait_natively(shared.as_fd(), PollFlags::OUT, until);
        }
        wait(&shared.session, &shared.waiters.block.tx_flag, *spin, until, || outgoing.is_ready())
    }

    /// A long write goes past the ring, once that is empty.
    #[cold]
    fn write_past(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let until = moment(self.timeout);
        loop {
            self.shared.check()?;
            let WriteHalf { outgoing, shared, spin, .. } = self;
            if !outgoing.is_idle()? {
                wait(&shared.session, &shared.waiters.block.tx_flag, *spin, until, || outgoing.is_idle())?;
                continue;
            }
            match outgoing.send_past(shared.as_fd(), bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => return outcome,
            }
            wait_for_room(Some(&shared.session), shared.as_fd(), until)?;
        }
    }
}

impl Write for WriteHalf {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() >= self.past_bytes && !self.shared.is_plain {
            return self.write_past(bytes);
        }
        let mut until = None;
        loop {
            match self.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => return outcome,
            }
            until = until.or_else(|| moment(self.timeout));
            self.wait(until)?;
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[inline]
fn moved(outcome: io::Result<Moved>, shared: &Shared) -> io::Result<usize> {
    match outcome {
        Ok(moved) => {
            if moved.rings {
                shared.ring()?;
            }
            Ok(moved.bytes)
        }
        Err(error) => {
            // Nothing will come any more where the session is over.
            shared.check()?;
            Err(error)
        }
    }
}

/// So many reads in a row that go the wrong way are not enough to change it.
const UNLIKE_MAX: u8 = 3;

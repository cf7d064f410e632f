//! The two halves of a stream, each usable by its own thread.

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

use super::ring_ends::{RxRing, Transferred, TxRing};
use super::shared::Shared;
use super::wait::{deadline, is_socket_ready, to_poll, wait, wait_for_bytes, wait_for_socket};

/// Reading half.
pub struct ReadHalf {
    pub(super) rx: RxRing,
    pub(super) shared: Arc<Shared>,
    pub(super) timeout: Option<Duration>,
    pub(super) spin: Duration,
    /// Minimum length of a long read, which favors the bypass.
    pub(super) bypass_min: usize,
    /// Consecutive reads that favored the other path.
    pub(super) mismatches: u8,
}

/// Writing half.
pub struct WriteHalf {
    pub(super) tx: TxRing,
    pub(super) shared: Arc<Shared>,
    pub(super) timeout: Option<Duration>,
    pub(super) spin: Duration,
    pub(super) bypass_min: usize,
}

impl ReadHalf {
    /// See [`Stream::try_read`](super::Stream::try_read).
    ///
    /// # Errors
    /// As that.
    #[inline]
    pub fn try_read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.shared.session.check_process()?;
        if self.shared.plain {
            return self.try_read_plain(bytes);
        }
        if self.rx.bypass_requested() {
            self.set_bypass(false)?;
        }
        finish_transfer(self.rx.try_read(bytes), &self.shared)
    }

    /// See [`Stream::poll_read`](super::Stream::poll_read).
    ///
    /// # Errors
    /// As that.
    pub fn poll_read(&mut self, context: &mut Context<'_>, bytes: &mut [u8]) -> Poll<io::Result<usize>> {
        match self.try_read(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return Poll::Ready(result),
        }
        self.shared.register(&self.shared.wakers.reader, context);
        to_poll(self.try_read(bytes))
    }

    /// See [`Stream::read_async`](super::Stream::read_async).
    ///
    /// # Errors
    /// As that.
    pub async fn read_async(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        poll_fn(|context| self.poll_read(context, bytes)).await
    }

    /// Sets the read timeout; `None` waits indefinitely.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// Makes reads return the end of the stream after the data in the ring.
    ///
    /// # Errors
    /// [`AttachError::Forked`](crate::AttachError::Forked).
    pub fn shut(&mut self) -> io::Result<()> {
        self.shared.session.check_process()?;
        self.rx.shut();
        Ok(())
    }

    /// See [`Stream::arm`](super::Stream::arm), for reads.
    ///
    /// # Errors
    /// Of the session.
    pub fn arm(&mut self) -> io::Result<bool> {
        self.shared.check()?;
        if self.shared.plain {
            return Ok(is_socket_ready(self.shared.as_fd(), PollFlags::IN)?);
        }
        self.shared.wakers.block.notify.arm_some();
        self.shared.check()?;
        // The engine notifies of data in the ring only.
        self.set_bypass(false)?;
        self.rx.is_ready()
    }

    #[cold]
    fn try_read_plain(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match recv(&self.shared, bytes, RecvFlags::DONTWAIT) {
            // After a shutdown, data that arrived before is still readable.
            Err(Errno::AGAIN) if self.rx.is_shut() => Ok(0),
            Ok((count, _)) => Ok(count),
            Err(Errno::INTR) => Err(io::ErrorKind::WouldBlock.into()),
            Err(error) => Err(error.into()),
        }
    }

    fn set_bypass(&mut self, bypass: bool) -> io::Result<()> {
        self.mismatches = 0;
        if self.rx.set_bypass(bypass) { self.shared.ring_doorbell() } else { Ok(()) }
    }

    /// Reads without waiting, directly from the socket if the engine has acknowledged the bypass.
    fn try_read_bypass(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if !self.rx.is_bypassing()? || bytes.is_empty() {
            return finish_transfer(self.rx.try_read(bytes), &self.shared);
        }
        match self.rx.receive_direct(self.shared.as_fd(), bytes) {
            // The engine reports how the stream ended.
            Ok(0) => self.set_bypass(false).and(Err(io::ErrorKind::WouldBlock.into())),
            result => result,
        }
    }

    /// Chooses the path of the next reads by the length of this one.
    #[inline]
    fn update_bypass(&mut self, count: usize) {
        let is_long = count >= self.bypass_min;
        if is_long == self.rx.bypass_requested() {
            self.mismatches = 0;
        } else if self.mismatches < MAX_MISMATCHES {
            self.mismatches += 1;
        } else {
            // Fails only if the session is closed, which the next read reports. These bytes are valid.
            let _ = self.set_bypass(is_long);
        }
    }

    #[cold]
    fn wait(&mut self, until: Option<Instant>) -> io::Result<()> {
        let ReadHalf { rx, shared, spin, .. } = self;
        if shared.plain {
            return wait_for_socket(None, shared.as_fd(), PollFlags::IN, until);
        }
        if rx.is_bypassing()? {
            return wait_for_bytes(&shared.session, shared.as_fd(), *spin, until);
        }
        let is_ready = || Ok(rx.is_ready()? || rx.is_bypassing()?);
        wait(&shared.session, &shared.wakers.block.rx_flag, *spin, until, is_ready)
    }
}

impl Read for ReadHalf {
    #[inline]
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.shared.session.check_process()?;
        let mut until = None;
        loop {
            let result = match self.rx.bypass_requested() {
                true => self.try_read_bypass(bytes),
                false if self.shared.plain => self.try_read_plain(bytes),
                false => finish_transfer(self.rx.try_read(bytes), &self.shared),
            };
            match result {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => {
                    if !self.shared.plain {
                        self.update_bypass(*result.as_ref().unwrap_or(&0));
                    }
                    return result;
                }
            }
            until = until.or_else(|| deadline(self.timeout));
            self.wait(until)?;
        }
    }
}

impl WriteHalf {
    /// See [`Stream::try_write`](super::Stream::try_write).
    ///
    /// # Errors
    /// As that.
    #[inline]
    pub fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.shared.check()?;
        if self.shared.plain {
            let sent = send(&self.shared, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            return Ok(sent?);
        }
        finish_transfer(self.tx.try_write(bytes), &self.shared)
    }

    /// See [`Stream::poll_write`](super::Stream::poll_write).
    ///
    /// # Errors
    /// As that.
    pub fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.try_write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return Poll::Ready(result),
        }
        self.shared.register(&self.shared.wakers.writer, context);
        to_poll(self.try_write(bytes))
    }

    /// See [`Stream::write_async`](super::Stream::write_async).
    ///
    /// # Errors
    /// As that.
    pub async fn write_async(&mut self, bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|context| self.poll_write(context, bytes)).await
    }

    /// See [`Stream::write_all_async`](super::Stream::write_all_async).
    ///
    /// # Errors
    /// As that.
    pub async fn write_all_async(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut remaining = bytes;
        while !remaining.is_empty() {
            let count = self.write_async(remaining).await?;
            remaining = &remaining[count..];
        }
        Ok(())
    }

    /// Sets the write timeout; `None` waits indefinitely.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// Ends the stream after the data written so far.
    ///
    /// # Errors
    /// Of the session.
    pub fn shut(&mut self) -> io::Result<()> {
        self.shared.session.check_process()?;
        if self.shared.plain {
            self.tx.shut();
            return self.shared.socket.shutdown(Shutdown::Write);
        }
        if self.tx.shut() { self.shared.ring_doorbell() } else { Ok(()) }
    }

    /// See [`Stream::arm`](super::Stream::arm), for writes.
    ///
    /// # Errors
    /// Of the session.
    pub fn arm(&mut self) -> io::Result<bool> {
        self.shared.check()?;
        if self.shared.plain {
            return Ok(is_socket_ready(self.shared.as_fd(), PollFlags::OUT)?);
        }
        self.shared.wakers.block.notify.arm();
        self.shared.check()?;
        self.tx.is_ready()
    }

    #[cold]
    fn wait(&mut self, until: Option<Instant>) -> io::Result<()> {
        let WriteHalf { tx, shared, spin, .. } = self;
        if shared.plain {
            return wait_for_socket(None, shared.as_fd(), PollFlags::OUT, until);
        }
        wait(&shared.session, &shared.wakers.block.tx_flag, *spin, until, || tx.is_ready())
    }

    /// Sends a long write directly once the ring is empty.
    #[cold]
    fn write_bypass(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let until = deadline(self.timeout);
        loop {
            self.shared.check()?;
            let WriteHalf { tx, shared, spin, .. } = self;
            if !tx.is_idle()? {
                wait(&shared.session, &shared.wakers.block.tx_flag, *spin, until, || tx.is_idle())?;
                continue;
            }
            match tx.send_direct(shared.as_fd(), bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            wait_for_socket(Some(&shared.session), shared.as_fd(), PollFlags::OUT, until)?;
        }
    }
}

impl Write for WriteHalf {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() >= self.bypass_min && !self.shared.plain {
            return self.write_bypass(bytes);
        }
        let mut until = None;
        loop {
            match self.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            until = until.or_else(|| deadline(self.timeout));
            self.wait(until)?;
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[inline]
fn finish_transfer(result: io::Result<Transferred>, shared: &Shared) -> io::Result<usize> {
    match result {
        Ok(transferred) => {
            if transferred.ring_doorbell {
                shared.ring_doorbell()?;
            }
            Ok(transferred.bytes)
        }
        Err(error) => {
            // If the session is closed, report that instead.
            shared.check()?;
            Err(error)
        }
    }
}

/// Consecutive mismatches that do not change the path yet.
const MAX_MISMATCHES: u8 = 3;

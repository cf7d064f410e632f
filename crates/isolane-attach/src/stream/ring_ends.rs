//! The application's ends of a stream's two rings. They never wait, and hold no session: the caller rings the doorbell.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use isolane_shm::{MemoryError, SharedMemory, bytes};
use isolane_tcp::TcpState;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};

use isolane_engine_api::stream::{
    ControlBlock, Origin, StreamEnd, StreamLayout, recover_discarded, recover_sent, requests_bypass,
};

/// Result of a read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transferred {
    /// Number of bytes. 0 for a read: the peer sends nothing more.
    pub bytes: usize,
    /// The caller must ring the engine's doorbell.
    pub ring_doorbell: bool,
}

/// Receiving end.
#[derive(Debug)]
pub struct RxRing {
    ring: bytes::Reader,
    block: Arc<ControlBlock>,
    /// Last request to the engine: odd if it must leave data in the kernel.
    bypass: u64,
    /// The engine has applied it, and the ring is empty.
    bypassing: bool,
    /// Bytes received directly.
    bypassed: u64,
    /// Error of a direct receive, which the kernel reports only once.
    error: Option<i32>,
    shut_down: bool,
}

/// Sending end.
#[derive(Debug)]
pub struct TxRing {
    ring: bytes::Writer,
    block: Arc<ControlBlock>,
    /// Bytes sent directly.
    bypassed: u64,
    shut_down: bool,
}

/// Opens both ends of a new stream, whose control block must be zeroed.
///
/// # Errors
/// [`MemoryError`].
pub fn open_rings(
    memory: &SharedMemory,
    layout: &StreamLayout,
) -> Result<(RxRing, TxRing, Arc<ControlBlock>), MemoryError> {
    let block = Arc::new(ControlBlock::open(memory, layout)?);
    let rx = RxRing {
        ring: bytes::Reader::open(memory, layout.rx_ring())?,
        block: Arc::clone(&block),
        bypass: 0,
        bypassing: false,
        bypassed: 0,
        error: None,
        shut_down: false,
    };
    let tx = TxRing {
        ring: bytes::Writer::open(memory, layout.tx_ring())?,
        block: Arc::clone(&block),
        bypassed: 0,
        shut_down: false,
    };
    Ok((rx, tx, block))
}

impl RxRing {
    /// Reads available data. No data arrives while the engine leaves it in the kernel ([`RxRing::set_bypass`]).
    ///
    /// # Errors
    /// `WouldBlock` if no data is available; the error of the connection; `InvalidData` if the engine violates the
    /// protocol.
    #[inline]
    pub fn try_read(&mut self, bytes: &mut [u8]) -> io::Result<Transferred> {
        let count = self.ring.read(bytes).map_err(invalid_index_error)?;
        if count == 0 && !bytes.is_empty() {
            return self.try_read_end(bytes);
        }
        let ring_doorbell = self.ring.position() >= self.block.rx_wake_at() && self.block.need_wakeup.take();
        Ok(Transferred { bytes: count, ring_doorbell })
    }

    fn try_read_end(&mut self, bytes: &mut [u8]) -> io::Result<Transferred> {
        if self.shut_down {
            return Ok(Transferred { bytes: 0, ring_doorbell: false });
        }
        let end = self.end().ok_or(io::ErrorKind::WouldBlock)?;
        // The end is published after the last bytes, which may have arrived in the meantime.
        match (self.ring.read(bytes).map_err(invalid_index_error)?, end) {
            (0, StreamEnd::Finished) => Ok(Transferred { bytes: 0, ring_doorbell: false }),
            (0, StreamEnd::Failed(error)) => Err(io::Error::from_raw_os_error(error)),
            (count, _) => Ok(Transferred { bytes: count, ring_doorbell: self.block.need_wakeup.take() }),
        }
    }

    /// Returns `true` if a read would not block.
    ///
    /// # Errors
    /// `InvalidData` if the engine violates the protocol.
    #[inline]
    pub fn is_ready(&mut self) -> io::Result<bool> {
        let has_bytes = self.ring.available() > 0 || self.ring.refresh().map_err(invalid_index_error)? > 0;
        Ok(has_bytes || self.shut_down || self.end().is_some())
    }

    /// Copies available data without consuming it. Returns 0 at the end of the stream.
    ///
    /// # Errors
    /// As [`RxRing::try_read`].
    pub fn try_peek(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let (unread, end) = self.state()?;
        match end {
            _ if unread > 0 || bytes.is_empty() => self.ring.peek(bytes).map_err(invalid_index_error),
            None => Err(io::ErrorKind::WouldBlock.into()),
            Some(StreamEnd::Finished) => Ok(0),
            Some(StreamEnd::Failed(error)) => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Returns the number of unread bytes, and how receiving ended after them.
    ///
    /// # Errors
    /// `InvalidData` if the engine violates the protocol.
    pub fn state(&mut self) -> io::Result<(u64, Option<StreamEnd>)> {
        // The end is published after the last bytes.
        let end = if self.shut_down { Some(StreamEnd::Finished) } else { self.end() };
        Ok((self.ring.refresh().map_err(invalid_index_error)?, end))
    }

    /// Returns `true` if the ring is empty, but the kernel has data, or the end of the stream, that the engine has not
    /// fetched yet.
    ///
    /// # Errors
    /// `InvalidData` if the engine violates the protocol; the kernel's.
    pub fn is_behind(&mut self, socket: BorrowedFd<'_>) -> io::Result<bool> {
        if self.bypass_requested() || self.is_ready()? {
            return Ok(false);
        }
        let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::IN | PollFlags::RDHUP)];
        poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
        let events = polled[0].revents();
        if !events.is_empty() && events != PollFlags::IN {
            return Ok(!self.is_ready()?);
        }
        // Bytes stay in the kernel until the engine discards them, which changes both positions.
        for _ in 0..DISCARD_POLLS {
            let discarding = self.block.rx_discarding.get();
            let discarded = self.block.rx_discarded.get();
            if events.is_empty() && discarded == self.ring.position() {
                return Ok(false);
            }
            // Waits for a call of the engine on the socket, after which the kernel handles packets that have arrived.
            let unread = isolane_tcp::unread_bytes(socket)?;
            if discarded == discarding && discarding == self.block.rx_discarding.get() {
                return Ok(discarded.saturating_add(unread) > self.ring.position() && !self.is_ready()?);
            }
            std::thread::yield_now();
        }
        Ok(false)
    }

    fn end(&self) -> Option<StreamEnd> {
        self.error.map(StreamEnd::Failed).or_else(|| self.block.rx_end())
    }

    /// Requests that the engine leave data in the kernel, or fetch it again. Returns `true` if the caller must ring the
    /// doorbell.
    #[cold]
    pub fn set_bypass(&mut self, bypass: bool) -> bool {
        if bypass == self.bypass_requested() {
            return false;
        }
        self.bypass += 1;
        self.bypassing = false;
        self.block.rx_bypass.set(self.bypass);
        self.block.need_wakeup.take()
    }

    /// Returns `true` if the engine is requested to leave data in the kernel.
    #[inline]
    pub fn bypass_requested(&self) -> bool {
        requests_bypass(self.bypass)
    }

    /// Returns `true` if the engine has complied, and all data that it fetched before was read: the application can
    /// receive directly.
    ///
    /// # Errors
    /// `InvalidData` if the engine violates the protocol.
    #[inline]
    pub fn is_bypassing(&mut self) -> io::Result<bool> {
        if !self.bypassing && self.bypass_requested() && self.block.rx_bypass_ack.get() == self.bypass {
            self.bypassing = self.ring.refresh().map_err(invalid_index_error)? == 0;
        }
        // The engine reports the end through the ring only.
        Ok(self.bypassing && !self.shut_down && self.end().is_none())
    }

    /// Receives from the application's socket without waiting, while the engine does not ([`RxRing::is_bypassing`]). 0
    /// means that the engine must report how the stream ended: an earlier call may have received the error.
    ///
    /// # Errors
    /// `WouldBlock` if there is no data yet; the error of the connection.
    ///
    /// # Panics
    /// If the engine may receive as well: data would be duplicated.
    #[inline]
    pub fn receive_direct(&mut self, socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<usize> {
        assert!(self.bypassing, "the engine has not acknowledged the bypass");
        let count = match recv(socket, bytes, RecvFlags::DONTWAIT) {
            Ok((count, _)) => count,
            Err(Errno::AGAIN | Errno::INTR) => return Err(io::ErrorKind::WouldBlock.into()),
            Err(error) => {
                self.error = Some(error.raw_os_error());
                return Err(error.into());
            }
        };
        self.bypassed += count as u64;
        self.block.rx_bypassed.set(self.bypassed);
        Ok(count)
    }

    /// Makes reads return the end of the stream after the data in the ring.
    pub fn shut(&mut self) {
        self.shut_down = true;
    }

    /// Returns `true` after [`RxRing::shut`].
    pub fn is_shut(&self) -> bool {
        self.shut_down
    }

    /// Takes the socket back when no engine uses it and none will: returns it to its original state, with all unread
    /// data in the kernel.
    ///
    /// # Errors
    /// `InvalidData` on a protocol violation; the kernel's.
    pub fn reclaim(&mut self, socket: BorrowedFd<'_>, origin: &Origin) -> io::Result<()> {
        // An engine reports this error if it could not recover the position either.
        if self.block.rx_end() == Some(StreamEnd::Failed(Errno::CONNABORTED.raw_os_error())) {
            return Err(desync_error());
        }
        let consumed = self.ring.position();
        let produced = consumed + self.ring.refresh().map_err(invalid_index_error)?;
        let discarded = recover_discarded(socket, produced, &self.block)?;
        let mut discarded = discarded.filter(|discarded| *discarded <= consumed).ok_or_else(desync_error)?;
        // Repeats only at an urgent mark.
        while discarded < consumed {
            match isolane_tcp::discard(socket, (consumed - discarded) as usize)? {
                0 => return Err(desync_error()),
                count => discarded += count as u64,
            }
        }
        isolane_tcp::set_peek_offset(socket, -1)?;
        Ok(sockopt::set_socket_oobinline(socket, origin.oob_inline)?)
    }
}

impl TxRing {
    /// Writes as much as fits.
    ///
    /// # Errors
    /// `WouldBlock` if there is no space yet; `BrokenPipe` after [`TxRing::shut`]; the error of the connection;
    /// `InvalidData` if the engine violates the protocol.
    #[inline]
    pub fn try_write(&mut self, bytes: &[u8]) -> io::Result<Transferred> {
        self.check()?;
        let count = self.ring.write(bytes).map_err(invalid_index_error)?;
        if count == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Transferred { bytes: count, ring_doorbell: self.block.need_wakeup.take() })
    }

    /// Sends on the application's socket without waiting, if the ring is empty ([`TxRing::is_idle`]).
    ///
    /// # Errors
    /// As [`TxRing::try_write`].
    ///
    /// # Panics
    /// If the ring is not empty: these bytes would overtake its contents.
    pub fn send_direct(&mut self, socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
        self.check()?;
        assert!(self.ring.unread() == 0, "the ring has bytes to send first");
        let count = send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        self.bypassed += count as u64;
        self.block.tx_bypassed.set(self.bypassed);
        Ok(count)
    }

    #[inline]
    fn check(&self) -> io::Result<()> {
        if self.shut_down {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        match self.block.tx_end() {
            None => Ok(()),
            Some(StreamEnd::Failed(error)) => Err(io::Error::from_raw_os_error(error)),
            Some(StreamEnd::Finished) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Returns the number of bytes that the engine has not sent yet.
    ///
    /// # Errors
    /// `InvalidData` if the engine violates the protocol.
    pub fn unsent_bytes(&mut self) -> io::Result<u64> {
        self.ring.refresh().map_err(invalid_index_error)?;
        Ok(self.ring.unread())
    }

    /// Returns why nothing more can be sent.
    pub fn end(&self) -> Option<StreamEnd> {
        self.block.tx_end()
    }

    /// Returns `true` if a write would not block.
    ///
    /// # Errors
    /// `InvalidData` if the engine violates the protocol.
    #[inline]
    pub fn is_ready(&mut self) -> io::Result<bool> {
        self.has_space(1)
    }

    /// Returns `true` if a write would not block before it has written `bytes` bytes.
    ///
    /// # Errors
    /// `InvalidData` if the engine violates the protocol.
    #[inline]
    pub fn has_space(&mut self, bytes: u64) -> io::Result<bool> {
        let has_space =
            self.ring.free_space() >= bytes || self.ring.refresh().map_err(invalid_index_error)? >= bytes;
        Ok(has_space || self.shut_down || self.block.tx_end().is_some())
    }

    /// Ends the stream after the data written so far. Returns `true` if the caller must ring the doorbell.
    pub fn shut(&mut self) -> bool {
        if std::mem::replace(&mut self.shut_down, true) {
            return false;
        }
        self.block.set_tx_end_pos(self.ring.position());
        self.block.need_wakeup.take()
    }

    /// Returns `true` after [`TxRing::shut`].
    pub fn is_shut(&self) -> bool {
        self.shut_down
    }

    /// Returns `true` if the ring is empty, so that all data is in the kernel, or if nothing can be sent.
    ///
    /// # Errors
    /// `InvalidData` if the engine violates the protocol.
    pub fn is_idle(&mut self) -> io::Result<bool> {
        self.ring.refresh().map_err(invalid_index_error)?;
        Ok(self.ring.unread() == 0 || self.check().is_err())
    }

    /// Returns the unsent data when no engine uses the stream and none will.
    ///
    /// # Errors
    /// As [`RxRing::reclaim`].
    pub fn reclaim(&mut self, socket: BorrowedFd<'_>, origin: &Origin) -> io::Result<Vec<u8>> {
        let now = isolane_tcp::counters(socket)?;
        let unsent = self.ring.reclaim_unread().map_err(invalid_index_error)?;
        let published = self.ring.position() - unsent.len() as u64;
        let tx_end_pos = self.shut_down.then(|| self.ring.position());
        match recover_sent(&now, origin.written, self.bypassed, tx_end_pos).checked_sub(published) {
            Some(more) => Ok(unsent[unsent.len().min(more.try_into().unwrap_or(usize::MAX))..].to_vec()),
            // The kernel does not count bytes of a closed connection.
            None if now.state == TcpState::Closed => Ok(unsent),
            None => Err(desync_error()),
        }
    }

    /// Returns the data that the engine has not sent, after it released the stream.
    ///
    /// # Errors
    /// `InvalidData` if the engine violates the protocol.
    pub fn unsent(&mut self) -> io::Result<Vec<u8>> {
        self.ring.reclaim_unread().map_err(invalid_index_error)
    }
}

/// Number of polls of the positions while the engine changes them.
const DISCARD_POLLS: u32 = 64;

/// Another process, or the engine, used the socket directly.
fn desync_error() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the positions of the stream and its socket do not match")
}

#[cold]
fn invalid_index_error(error: isolane_shm::InvalidIndex) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

//! Receive path: peeks data from the socket into the application's ring, and discards it once it was read.

use std::os::fd::AsFd;

use isolane_engine_api::stream::{ControlBlock, StreamEnd, recover_discarded, requests_bypass};
use isolane_shm::{SharedMemory, bytes};
use isolane_tcp::{PeekResult, TcpState};
use rustix::io::Errno;

use super::{Common, PathProgress, QUANTUM, StreamError, system};

/// Receive state.
///
/// Three positions count bytes from the start of the stream: `discarded <= consumed <= produced`. `produced` and
/// `consumed` are the ring's; `discarded` is the start of the kernel's queue. Between operations, the
/// peek offset of the kernel is `produced - discarded`; each peek and each discard moves it, so that the next
/// engine can tell which of the two was in progress, and how far it came.
///
/// While the application bypasses the ring, the three positions are equal, the peek offset is 0, and nothing
/// here touches the socket. Bytes received that way are in none of the positions; the application counts them.
#[derive(Debug)]
pub(super) struct RxPath {
    ring: bytes::Writer,
    discarded: u64,
    /// Number of read bytes that are discarded together while the stream is active.
    step: u64,
    /// The kernel may hold data.
    pub readable: bool,
    /// An end, an error, or an urgent mark is pending or expected, at which a peek stops: a short peek does not
    /// mean that the queue is empty.
    pub peek_may_stop: bool,
    finished: bool,
    /// Error of a send, which the kernel reports only once.
    error: Option<i32>,
    idle_polls: u32,
    /// Last bypass request of the application that was applied: odd while it receives directly.
    bypass_ack: u64,
}

impl RxPath {
    /// See [`StreamMachine::resume`](super::StreamMachine::resume).
    pub fn resume(common: &Common, memory: &SharedMemory) -> Result<RxPath, StreamError> {
        let Common { block, record, failpoint, .. } = common;
        let socket = common.socket.as_fd();
        let ring = bytes::Writer::open(memory, record.place.rx_ring())?;
        let (produced, consumed) = (ring.position(), ring.position() - ring.unread());
        let discarded = recover_discarded(socket, produced, block).map_err(system(PEEK))?;
        let discarded = discarded.ok_or(TAMPERED)?;
        let ahead = produced.checked_sub(discarded).and_then(|ahead| i32::try_from(ahead).ok());
        let ahead = ahead.filter(|_| discarded <= consumed).ok_or(TAMPERED)?;
        block.rx_discarded.set(discarded);
        failpoint.hit()?;
        block.rx_discarding.set(discarded);
        failpoint.hit()?;
        isolane_tcp::set_peek_offset(socket, ahead).map_err(system(PEEK))?;
        failpoint.hit()?;
        let error = match block.tx_end() {
            Some(StreamEnd::Failed(error)) if error != Errno::PIPE.raw_os_error() => Some(error),
            _ => None,
        };
        Ok(RxPath {
            discarded,
            step: (record.place.rx_capacity / 4).min(MAX_STEP),
            readable: true,
            peek_may_stop: true,
            finished: block.rx_end().is_some(),
            error,
            idle_polls: 0,
            bypass_ack: block.rx_bypass_ack.get(),
            ring,
        })
    }

    #[inline]
    pub fn poll(&mut self, common: &Common) -> Result<PathProgress, StreamError> {
        let bypass = common.block.rx_bypass.get();
        if bypass != self.bypass_ack && self.apply_bypass(bypass, common)? {
            return Ok(PathProgress { busy: true, publishes: false });
        }
        let progress = if self.readable && !self.finished && !requests_bypass(bypass) {
            self.peek(common)?
        } else {
            PathProgress::default()
        };
        self.ring.refresh()?;
        let due = self.consumed() - self.discarded;
        // When idle, discards everything that was read: with a small window, the peer waits for that.
        self.idle_polls = if progress.busy { 0 } else { self.idle_polls.saturating_add(1) };
        if due >= self.step || (due > 0 && self.ring.unread() == 0 && self.idle_polls >= IDLE_POLLS) {
            self.discard(common)?;
            self.idle_polls = 0;
        }
        Ok(progress)
    }

    /// Whether the application receives directly.
    pub fn is_bypassed(&self) -> bool {
        requests_bypass(self.bypass_ack)
    }

    /// Starts or ends the bypass; it starts only once the application has read all peeked data. Returns whether
    /// the request was applied.
    #[cold]
    fn apply_bypass(&mut self, bypass: u64, common: &Common) -> Result<bool, StreamError> {
        self.ring.refresh()?;
        if requests_bypass(bypass) {
            if self.ring.unread() > 0 {
                return Ok(false);
            }
            self.discard(common)?;
        }
        // Events during the bypass were not reported here.
        (self.readable, self.peek_may_stop) = (true, true);
        self.bypass_ack = bypass;
        common.block.rx_bypass_ack.set(bypass);
        common.failpoint.hit()?;
        common.block.rx_flag.wake();
        Ok(true)
    }

    fn peek(&mut self, common: &Common) -> Result<PathProgress, StreamError> {
        let Common { socket, block, failpoint, .. } = common;
        let peeked = isolane_tcp::peek_into(&mut self.ring, socket.as_fd(), QUANTUM)?;
        failpoint.hit()?;
        match peeked {
            Ok(PeekResult::Bytes(count)) => {
                // A short peek has emptied the queue; an edge reports later data.
                self.readable = self.ring.free_space() == 0 || count == QUANTUM || self.peek_may_stop;
                self.ring.publish();
                failpoint.hit()?;
                block.rx_flag.wake();
                Ok(PathProgress { busy: true, publishes: true })
            }
            Ok(PeekResult::Full) => Ok(PathProgress::default()),
            Ok(PeekResult::WouldBlock) => {
                (self.readable, self.peek_may_stop) = (false, false);
                Ok(PathProgress::default())
            }
            Ok(PeekResult::End) => {
                let end = self.stream_end(common)?;
                Ok(self.finish(block, end))
            }
            Err(Errno::NOMEM | Errno::NOBUFS) => Ok(PathProgress::default()),
            Err(error) => Ok(self.finish(block, StreamEnd::Failed(error.raw_os_error()))),
        }
    }

    fn finish(&mut self, block: &ControlBlock, end: StreamEnd) -> PathProgress {
        self.finished = true;
        block.end_rx(end);
        if let StreamEnd::Failed(_) = end
            && block.tx_end().is_none()
        {
            block.end_tx(StreamEnd::Failed(Errno::PIPE.raw_os_error()));
            block.tx_flag.wake();
        }
        block.rx_flag.wake();
        PathProgress { busy: true, publishes: true }
    }

    /// Returns how the stream has ended. The kernel reports an error once, possibly to an engine that has ended,
    /// and an end of file from then on; but it counts a FIN as a received byte.
    fn stream_end(&self, common: &Common) -> Result<StreamEnd, StreamError> {
        let Common { block, record, .. } = common;
        let socket = common.socket.as_fd();
        let call = "cannot get the final state of a stream";
        let now = isolane_tcp::counters(socket).map_err(system(call))?;
        let unread = isolane_tcp::unread_bytes(socket).map_err(system(call))?;
        let data = self.discarded.wrapping_add(block.rx_bypassed.get()).wrapping_add(unread);
        let has_fin = now.received.wrapping_sub(record.received) == data.wrapping_add(1);
        Ok(match now.state {
            TcpState::Closed if !has_fin => {
                StreamEnd::Failed(self.error.unwrap_or(Errno::CONNRESET.raw_os_error()))
            }
            _ => StreamEnd::Finished,
        })
    }

    /// Called when a send has failed.
    pub fn on_error(&mut self, error: i32) {
        if error != Errno::PIPE.raw_os_error() {
            self.error = Some(error);
        }
        (self.readable, self.peek_may_stop) = (true, true);
    }

    /// Discards all data that was read, and sets the position from which on the application reports reads.
    pub fn discard_consumed(&mut self, common: &Common) -> Result<(), StreamError> {
        self.ring.refresh()?;
        self.discard(common)?;
        // At the latest at the end of the data, because the kernel's window may be closed.
        common.block.set_rx_wake_at(self.ring.position().min(self.discarded.saturating_add(self.step)));
        Ok(())
    }

    /// Whether there is work that neither the application nor the kernel will announce.
    pub fn has_work(&mut self, common: &Common) -> Result<bool, StreamError> {
        let space = self.ring.refresh()?;
        let consumed = self.consumed();
        let has_read = consumed > self.discarded && consumed >= common.block.rx_wake_at();
        let bypass = common.block.rx_bypass.get();
        let has_request = bypass != self.bypass_ack && (!requests_bypass(bypass) || self.ring.unread() == 0);
        let can_peek = space > 0 && self.readable && !self.finished && !requests_bypass(bypass);
        Ok(has_read || has_request || can_peek)
    }

    fn discard(&mut self, common: &Common) -> Result<(), StreamError> {
        let Common { socket, block, failpoint, .. } = common;
        let consumed = self.consumed();
        if consumed == self.discarded {
            return Ok(());
        }
        block.rx_discarding.set(consumed);
        // Takes several calls only at an urgent mark.
        while self.discarded < consumed {
            failpoint.hit()?;
            let result = isolane_tcp::discard(socket.as_fd(), (consumed - self.discarded) as usize);
            failpoint.hit()?;
            match result {
                Ok(count) if count > 0 => self.discarded += count as u64,
                _ => return Err(READ_DIRECTLY),
            }
            block.rx_discarded.set(self.discarded);
        }
        Ok(())
    }

    /// Number of bytes received into the ring.
    #[inline]
    pub fn received(&self) -> u64 {
        self.ring.position()
    }

    /// Number of bytes that the application has fetched from the ring, as last seen.
    #[inline]
    pub fn consumed(&self) -> u64 {
        self.ring.position() - self.ring.unread()
    }
}

const TAMPERED: StreamError = StreamError::Violation("wrote invalid receive positions");
const READ_DIRECTLY: StreamError = StreamError::Violation("has read bytes of an adopted socket itself");
const PEEK: &str = "cannot restore the peek offset";
/// Maximum of [`RxPath::step`], because read data still occupies the kernel's receive buffer.
const MAX_STEP: u64 = 64 << 10;
/// Polls without data after which a stream counts as idle.
const IDLE_POLLS: u32 = 8;

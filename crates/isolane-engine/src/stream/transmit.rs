//! From the application to the kernel.

use std::os::fd::BorrowedFd;

use isolane_attach::stream::{Block, End, sent};
use isolane_ring::adopted::{self, Sent, State};
use isolane_ring::{Memory, bytes};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};

use super::fuse::Fuse;
use super::kept::Kept;
use super::{Done, QUANTUM, Stop, system};

/// What is sent. `consumed` of its ring is what the kernel was given.
#[derive(Debug)]
pub(super) struct Transmit {
    ring: bytes::Reader,
    capacity: u64,
    /// The kernel's buffer may have room.
    pub is_writable: bool,
    /// Nothing more can be sent, or was to be.
    is_over: bool,
    /// What a send has failed with, until somebody asks.
    error: Option<i32>,
}

impl Transmit {
    /// See [`Machine::take_up`](super::Machine::take_up). The application may go on meanwhile: it writes into the ring, or, where that
    /// is empty as far as it can see, sends itself.
    pub fn take_up(
        socket: BorrowedFd<'_>,
        memory: &Memory,
        kept: &Kept,
        block: &Block,
    ) -> Result<Transmit, Stop> {
        let mut ring = bytes::Reader::resume(memory, kept.place.tx_ring())?;
        // What the application has sent itself it counts before it puts more into the ring, and it sends nothing
        // itself while anything is there. So if there is, both counts go together. If there is not, it may be
        // sending, and the kernel has counted more.
        ring.refresh()?;
        let native = block.tx_native();
        let now = adopted::counters(socket).map_err(system("cannot ask what was sent"))?;
        let is_shut = now.state == State::Shut && block.tx_shut().is_some();
        let sent = sent(&now, kept.written, native, block.tx_shut());
        // More than there is in the ring: what the application sends itself, and has not counted yet. Then the
        // ring is empty. Less than was published: it counts what it has not sent.
        let more = sent.wrapping_sub(ring.position()).min(ring.available());
        if sent < ring.position() && now.state != State::Closed {
            return Err(TAMPERED);
        }
        if now.state != State::Closed || sent >= ring.position() {
            ring.consume(more as usize);
        }
        ring.publish();
        let is_over = is_shut || block.tx_end().is_some();
        Ok(Transmit { ring, capacity: kept.place.tx_capacity, is_writable: true, is_over, error: None })
    }

    #[inline]
    pub fn look(&mut self, socket: BorrowedFd<'_>, block: &Block, fuse: &Fuse) -> Result<Done, Stop> {
        if self.is_over || !self.is_writable {
            return Ok(Done::default());
        }
        let sent = self.ring.send_to(socket, QUANTUM)?;
        fuse.burn()?;
        match sent {
            Ok(Sent::Bytes(_)) => {
                self.ring.publish();
                fuse.burn()?;
                // Not for a few bytes of room each time.
                let has_room = self.ring.available() <= self.capacity - self.capacity / 4;
                if has_room {
                    block.tx_flag.rouse();
                }
                Ok(Done { is_busy: true, publishes: has_room })
            }
            Ok(Sent::Empty) => self.shut(socket, block, fuse),
            Ok(Sent::Blocked) => {
                self.is_writable = false;
                Ok(Done::default())
            }
            Err(Errno::NOMEM | Errno::NOBUFS) => Ok(Done::default()),
            Err(error) => {
                self.is_over = true;
                self.error = Some(error.raw_os_error());
                block.end_tx(End::Failed(error.raw_os_error()));
                block.tx_flag.rouse();
                Ok(Done { is_busy: true, publishes: true })
            }
        }
    }

    /// All is sent. Shuts down if the application wants that.
    #[inline]
    fn shut(&mut self, socket: BorrowedFd<'_>, block: &Block, fuse: &Fuse) -> Result<Done, Stop> {
        let Some(position) = block.tx_shut() else { return Ok(Done::default()) };
        // It was stored behind what was published last.
        if self.ring.refresh()? > 0 {
            return Ok(Done::default());
        }
        if position != self.ring.position() {
            return Err(TAMPERED);
        }
        // It fails only where there is no connection any more.
        let _ = shutdown(socket, Shutdown::Write);
        fuse.burn()?;
        self.is_over = true;
        Ok(Done { is_busy: true, publishes: false })
    }

    /// What a send has failed with, if that was not asked before.
    #[inline]
    pub fn take_error(&mut self) -> Option<i32> {
        self.error.take()
    }

    /// Whether there is something to do that the application or a poller would not tell of any more.
    pub fn has_work(&mut self, block: &Block) -> Result<bool, Stop> {
        let is_wanted = self.ring.refresh()? > 0 || block.tx_shut().is_some();
        Ok(is_wanted && self.is_writable && !self.is_over)
    }

    /// Whether nothing is left to be sent.
    pub fn is_done(&mut self, block: &Block) -> Result<bool, Stop> {
        Ok(self.ring.refresh()? == 0 && (self.is_over || block.tx_shut().is_none()))
    }

    /// Whether nothing more can be sent, whatever is left.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Bytes given to the kernel.
    pub fn sent(&self) -> u64 {
        self.ring.position()
    }
}

const TAMPERED: Stop = Stop::Foul("wrote counts of what it sends that cannot be");

//! From the kernel to the application: peek, and discard what was read.

use std::os::fd::BorrowedFd;

use isolane_attach::stream::{Block, End, discarded, is_past};
use isolane_ring::adopted::{self, Peeked, State};
use isolane_ring::{Memory, bytes};
use rustix::io::Errno;

use super::fuse::Fuse;
use super::kept::Kept;
use super::{Done, QUANTUM, Stop, system};

/// What is received.
///
/// Three positions, each counted from the beginning of the stream: `discarded <= consumed <= produced`.
/// `produced` and `consumed` are the ring's; `discarded` is where the kernel's queue begins. The kernel's peek
/// offset is `produced - discarded` whenever nothing is under way; it moves with each peek and each discard,
/// so that it tells a next engine which of the two was under way, and how far.
///
/// While the application receives itself, past the ring, the three are one, the peek offset is 0, and nothing
/// here touches the socket. What it receives so is in none of the positions; it counts that by itself.
#[derive(Debug)]
pub(super) struct Receive {
    ring: bytes::Writer,
    discarded: u64,
    /// Bytes read from which on they are discarded while the stream is looked at.
    step: u64,
    /// Something may be in the kernel.
    pub is_readable: bool,
    /// An end, an error or an urgent mark, at which a peek stops, is there or about to be: less than was asked
    /// for does not mean that it was all.
    pub stops_short: bool,
    is_over: bool,
    /// What a send has failed with, which the kernel tells only once.
    error: Option<i32>,
    idle_looks: u32,
    /// What the application wanted that is obeyed: odd while it receives itself.
    yielded: u64,
}

impl Receive {
    /// See [`Machine::take_up`](super::Machine::take_up).
    pub fn take_up(
        socket: BorrowedFd<'_>,
        memory: &Memory,
        kept: &Kept,
        block: &Block,
        fuse: &Fuse,
    ) -> Result<Receive, Stop> {
        let ring = bytes::Writer::resume(memory, kept.place.rx_ring())?;
        let (produced, consumed) = (ring.position(), ring.position() - ring.unread());
        let discarded = discarded(socket, produced, block.rx_discarded()).map_err(system(PEEK))?;
        let discarded = discarded.ok_or(TAMPERED)?;
        let ahead = produced.checked_sub(discarded).and_then(|ahead| i32::try_from(ahead).ok());
        let ahead = ahead.filter(|_| discarded <= consumed).ok_or(TAMPERED)?;
        block.set_rx_discarded(discarded);
        fuse.burn()?;
        block.set_rx_discarding(discarded);
        fuse.burn()?;
        adopted::set_peek_offset(socket, ahead).map_err(system(PEEK))?;
        fuse.burn()?;
        let error = match block.tx_end() {
            Some(End::Failed(error)) if error != Errno::PIPE.raw_os_error() => Some(error),
            _ => None,
        };
        Ok(Receive {
            discarded,
            step: (kept.place.rx_capacity / 4).min(STEP_MAX),
            is_readable: true,
            stops_short: true,
            is_over: block.rx_end().is_some(),
            error,
            idle_looks: 0,
            yielded: block.rx_yielded(),
            ring,
        })
    }

    #[inline]
    pub fn look(
        &mut self,
        socket: BorrowedFd<'_>,
        block: &Block,
        fuse: &Fuse,
        kept: &Kept,
    ) -> Result<Done, Stop> {
        let past = block.rx_past();
        if past != self.yielded && self.obey(past, socket, block, fuse)? {
            return Ok(Done { is_busy: true, publishes: false });
        }
        let done = match self.is_readable && !self.is_over && !is_past(past) {
            true => self.peek(socket, block, fuse, kept)?,
            false => Done::default(),
        };
        self.ring.refresh()?;
        let due = self.consumed() - self.discarded;
        // Nothing is left in the kernel but what was read: where its window is small, the peer waits for that.
        self.idle_looks = if done.is_busy { 0 } else { self.idle_looks.saturating_add(1) };
        if due >= self.step || (due > 0 && self.ring.unread() == 0 && self.idle_looks >= IDLE_LOOKS) {
            self.discard(socket, block, fuse)?;
            self.idle_looks = 0;
        }
        Ok(done)
    }

    /// Whether the application receives itself.
    pub fn is_past(&self) -> bool {
        is_past(self.yielded)
    }

    /// Leaves what comes to the application, once it has read all that was peeked; or goes on. Returns whether
    /// it is so now.
    #[cold]
    fn obey(&mut self, past: u64, socket: BorrowedFd<'_>, block: &Block, fuse: &Fuse) -> Result<bool, Stop> {
        self.ring.refresh()?;
        if is_past(past) {
            if self.ring.unread() > 0 {
                return Ok(false);
            }
            self.discard(socket, block, fuse)?;
        }
        // What was said meanwhile was for the application.
        (self.is_readable, self.stops_short) = (true, true);
        self.yielded = past;
        block.set_rx_yielded(past);
        fuse.burn()?;
        block.rx_flag.rouse();
        Ok(true)
    }

    fn peek(
        &mut self,
        socket: BorrowedFd<'_>,
        block: &Block,
        fuse: &Fuse,
        kept: &Kept,
    ) -> Result<Done, Stop> {
        let peeked = self.ring.peek_from(socket, QUANTUM)?;
        fuse.burn()?;
        match peeked {
            Ok(Peeked::Bytes(count)) => {
                // Less than there was room for is all there was: an edge tells of what comes later.
                self.is_readable = self.ring.room() == 0 || count == QUANTUM || self.stops_short;
                self.ring.publish();
                fuse.burn()?;
                block.rx_flag.rouse();
                Ok(Done { is_busy: true, publishes: true })
            }
            Ok(Peeked::Full) => Ok(Done::default()),
            Ok(Peeked::Nothing) => {
                (self.is_readable, self.stops_short) = (false, false);
                Ok(Done::default())
            }
            Ok(Peeked::End) => {
                let end = self.end(socket, block, kept)?;
                Ok(self.finish(block, end))
            }
            Err(Errno::NOMEM | Errno::NOBUFS) => Ok(Done::default()),
            Err(error) => Ok(self.finish(block, End::Failed(error.raw_os_error()))),
        }
    }

    fn finish(&mut self, block: &Block, end: End) -> Done {
        self.is_over = true;
        block.end_rx(end);
        if let End::Failed(_) = end
            && block.tx_end().is_none()
        {
            block.end_tx(End::Failed(Errno::PIPE.raw_os_error()));
            block.tx_flag.rouse();
        }
        block.rx_flag.rouse();
        Done { is_busy: true, publishes: true }
    }

    /// The kernel tells an error once, and then that there is nothing more; the one who was told may have been
    /// an engine that is dead. But it has counted the FIN, if there was one.
    fn end(&self, socket: BorrowedFd<'_>, block: &Block, kept: &Kept) -> Result<End, Stop> {
        let what = "cannot ask how a stream has ended";
        let now = adopted::counters(socket).map_err(system(what))?;
        let unread = adopted::unread(socket).map_err(system(what))?;
        let data = self.discarded.wrapping_add(block.rx_native()).wrapping_add(unread);
        let has_finished = now.received.wrapping_sub(kept.received) == data.wrapping_add(1);
        Ok(match now.state {
            State::Closed if !has_finished => {
                End::Failed(self.error.unwrap_or(Errno::CONNRESET.raw_os_error()))
            }
            _ => End::Finished,
        })
    }

    /// A send has failed.
    pub fn on_error(&mut self, error: i32) {
        if error != Errno::PIPE.raw_os_error() {
            self.error = Some(error);
        }
        (self.is_readable, self.stops_short) = (true, true);
    }

    /// Discards all that was read, and says from where on the application is to tell when it has read more.
    pub fn settle(&mut self, socket: BorrowedFd<'_>, block: &Block, fuse: &Fuse) -> Result<(), Stop> {
        self.ring.refresh()?;
        self.discard(socket, block, fuse)?;
        // At the latest when it has read all: the kernel's window may be closed.
        block.set_rx_want(self.ring.position().min(self.discarded.saturating_add(self.step)));
        Ok(())
    }

    /// Whether there is something to do that the application or a poller would not tell of any more.
    pub fn has_work(&mut self, block: &Block) -> Result<bool, Stop> {
        let room = self.ring.refresh()?;
        let consumed = self.consumed();
        let has_read = consumed > self.discarded && consumed >= block.rx_want();
        let past = block.rx_past();
        let is_to_obey = past != self.yielded && (!is_past(past) || self.ring.unread() == 0);
        let may_peek = room > 0 && self.is_readable && !self.is_over && !is_past(past);
        Ok(has_read || is_to_obey || may_peek)
    }

    fn discard(&mut self, socket: BorrowedFd<'_>, block: &Block, fuse: &Fuse) -> Result<(), Stop> {
        let consumed = self.consumed();
        if consumed == self.discarded {
            return Ok(());
        }
        block.set_rx_discarding(consumed);
        // More than once only where there is an urgent mark.
        while self.discarded < consumed {
            fuse.burn()?;
            let outcome = adopted::discard(socket, (consumed - self.discarded) as usize);
            fuse.burn()?;
            match outcome {
                Ok(count) if count > 0 => self.discarded += count as u64,
                _ => return Err(READ_PAST),
            }
            block.set_rx_discarded(self.discarded);
        }
        Ok(())
    }

    fn consumed(&self) -> u64 {
        self.ring.position() - self.ring.unread()
    }
}

const TAMPERED: Stop = Stop::Foul("wrote positions of a stream that cannot be");
const READ_PAST: Stop = Stop::Foul("has read bytes of an adopted socket itself");
const PEEK: &str = "cannot peek where an engine before has stopped";
/// The kernel needs its memory back, too.
const STEP_MAX: u64 = 64 << 10;
/// Looks that found nothing until a stream counts as idle.
const IDLE_LOOKS: u32 = 8;

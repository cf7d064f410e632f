//! One stream: bytes between a TCP socket that the application has, too, and two rings in its memory.
//!
//! **Receiving**: what the kernel has is peeked into the ring, and discarded in the kernel only once the
//! application has read it. So the kernel's queue begins at every moment with the first byte that the
//! application has not read, or a little before: flow control, hand-back and recovery are the kernel's.
//! **Sending**: what is in the ring is sent and then said to be consumed; the kernel counts what it was given.
//!
//! What this process knows beyond the socket, the shared words and [`Kept`] can be lost at any point:
//! [`Machine::take_up`] finds both positions again. It is not the loop: when to look, what woke it, and who
//! else is told, is the caller's (`core`).
//!
//! What is where after each thing that can happen, who goes on, and which test shows it, is the table of
//! `docs/ARCHITECTURE.md`, "Streams of the engine".
//!
//! Invariant: not one byte is lost, doubled or reordered, whenever this process ends; a client that writes
//! anything into the words harms its own stream alone.

mod fuse;
mod kept;
mod lost;
mod notices;
mod receive;
mod service;
mod transmit;

#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use isolane_attach::stream::{Block, End};
use isolane_ring::{Flag, Impossible, Memory, MemoryError, adopted};
use rustix::io::Errno;
use rustix::net::sockopt;

use crate::closer::Socket;
use crate::service::Ready;
use fuse::Fuse;
pub use kept::{Kept, Refusal};
use receive::Receive;
pub(crate) use service::{adopt, resume};
use transmit::Transmit;

/// A stream that the engine works on.
#[derive(Debug)]
pub struct Machine {
    socket: Socket,
    block: Block,
    kept: Kept,
    rx: Receive,
    tx: Transmit,
    closing: Option<Closing>,
    fuse: Fuse,
}

/// The application is done with it, but not all is sent. No time ends that: the session's quota bounds the memory,
/// because a peer that only acknowledges window probes never lets it go ([`Machine::relieve`]).
#[derive(Clone, Copy, Debug)]
struct Closing {
    /// Bytes given to the kernel, and of them those that the peer has not acknowledged.
    moved: (u64, u64),
    /// Since when that has not changed.
    since: Instant,
    /// Its session needs the memory, and its peer takes nothing.
    is_abandoned: bool,
}

/// What a look has brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Something was done, so that there may be more to do.
    pub is_busy: bool,
    /// The application has asked to be told of it: an entry in its queue is due.
    pub notifies: bool,
    /// It was closed, and all is done: [`Machine::hand_back`] is next, for others may have the socket, too. Then
    /// it is dropped, which resets the connection if bytes are unread.
    pub is_over: bool,
}

/// Why a stream cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// The application wrote an index that cannot be.
    #[error(transparent)]
    Impossible(#[from] Impossible),
    /// The application broke another rule.
    #[error("the application {0}")]
    Foul(&'static str),
    /// The rings cannot be where they were said to be.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A call failed that does not on any socket that was adopted.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A test has ended this engine's life.
    #[cfg(test)]
    #[error("killed")]
    Killed,
}

impl Machine {
    /// Works from now on, on a stream that was never worked on or that an engine before this one has left
    /// anywhere, which must be dead: the socket, the shared words and what was kept say where.
    ///
    /// # Errors
    /// [`Stop`]. The socket is what it was.
    pub fn take_up(socket: OwnedFd, memory: &Memory, kept: Kept) -> Result<Machine, Stop> {
        Machine::take_up_with(socket, memory, kept, Fuse::default())
    }

    fn take_up_with(socket: OwnedFd, memory: &Memory, kept: Kept, fuse: Fuse) -> Result<Machine, Stop> {
        let socket = Socket::new(socket);
        let block = Block::open(memory, &kept.place)?;
        // What may fail goes first: whoever is refused has its socket as it was.
        let tx = Transmit::take_up(socket.as_fd(), memory, &kept, &block)?;
        let rx = Receive::take_up(socket.as_fd(), memory, &kept, &block, &fuse)?;
        // And this does not fail where the peek offset could be set.
        sockopt::set_socket_oobinline(&socket, true).map_err(system("cannot have urgent bytes inline"))?;
        // The engine before may have died between publishing and waking.
        block.told.disarm();
        block.rx_flag.rouse_anyway();
        block.tx_flag.rouse_anyway();
        Ok(Machine { socket, block, kept, rx, tx, closing: None, fuse })
    }

    /// The socket, to be watched on edges for what [`Machine::on_ready`] is told.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The flag that the application takes before it rings.
    pub fn told(&self) -> &Flag {
        &self.block.told
    }

    /// Whether [`Machine::on_ready`] is to be told of bytes. Not while the application receives them itself.
    #[inline]
    pub fn hears_reads(&self) -> bool {
        !self.rx.is_past() || self.is_closing()
    }

    /// A poller has said something about the socket, since the last time that it did.
    #[inline]
    pub fn on_ready(&mut self, ready: Ready) {
        let hangs = ready.hung_up || ready.finished;
        self.rx.is_readable |= ready.readable || hangs;
        self.rx.stops_short |= hangs || ready.urgent;
        self.tx.is_writable |= ready.writable || hangs;
    }

    /// Does what there is to do, of each kind so much that others wait no longer than they must.
    ///
    /// # Errors
    /// [`Stop`]: the stream is to be dropped.
    #[inline]
    pub fn look(&mut self) -> Result<Progress, Stop> {
        let Machine { socket, block, rx, tx, fuse, .. } = self;
        let socket = socket.as_fd();
        let sent = tx.look(socket, block, fuse)?;
        if let Some(error) = tx.take_error() {
            rx.on_error(error);
        }
        if self.closing.is_some() {
            return self.look_closing(sent.is_busy);
        }
        let received = rx.look(socket, block, fuse, &self.kept)?;
        let publishes = sent.publishes || received.publishes;
        let notifies = publishes && self.block.notify.take();
        Ok(Progress { is_busy: sent.is_busy || received.is_busy, notifies, is_over: false })
    }

    /// Nothing was to be done for a while: asks the application to ring, unless there is something after all.
    /// Returns whether it will.
    ///
    /// # Errors
    /// [`Stop`].
    pub fn rest(&mut self) -> Result<bool, Stop> {
        self.rx.settle(self.socket.as_fd(), &self.block, &self.fuse)?;
        self.block.told.arm();
        let receives = match self.closing {
            None => self.rx.has_work(&self.block)?,
            // It may have to be reset.
            Some(_) => self.rx.is_readable,
        };
        let has_work = receives || self.tx.has_work(&self.block)?;
        if has_work {
            self.block.told.disarm();
        }
        Ok(!has_work)
    }

    /// It is looked at each turn again.
    pub fn wake(&self) {
        self.block.told.disarm();
    }

    /// The application has closed it, or has died.
    pub fn close(&mut self, now: Instant) {
        if self.closing.is_none() {
            self.closing = Some(Closing { moved: self.moved(), since: now, is_abandoned: false });
            self.rx.is_readable = true;
        }
    }

    /// Whether it was closed.
    pub fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    /// It cannot go on: the application is told so, in both directions. It may still read what is in the ring, and
    /// have the socket back then ([`Machine::hand_back`]).
    pub fn give_up(&self) {
        abort(&self.block);
    }

    /// Closed though it cannot go on: leaves the socket, and resets unless all was sent.
    ///
    /// # Errors
    /// [`Stop`].
    pub fn cut_off(&mut self) -> Result<(), Stop> {
        if !matches!(self.tx.is_done(&self.block), Ok(true)) {
            self.reset_at_close();
        }
        self.hand_back()
    }

    /// Nor does it have the socket back: nobody knows which byte is next.
    pub fn abandon(&self) {
        self.give_up();
        self.reset_at_close();
        // Others may have it. Whoever has broken the socket may have broken it so that this fails.
        let _ = self.restore();
    }

    /// Its session needs memory: abandons a closed stream that has not moved for [`STALLED`], and tells whether it does.
    pub fn relieve(&mut self, now: Instant) -> bool {
        if self.closing.is_none() {
            return false;
        }
        let moved = self.moved();
        let Some(closing) = &mut self.closing else { return false };
        if closing.moved != moved {
            *closing = Closing { moved, since: now, ..*closing };
        }
        closing.is_abandoned |= now.saturating_duration_since(closing.since) >= STALLED;
        closing.is_abandoned
    }

    fn moved(&self) -> (u64, u64) {
        // What is no connection any more does not move.
        (self.tx.sent(), adopted::unacknowledged(self.socket.as_fd()).unwrap_or(0))
    }

    fn look_closing(&mut self, is_busy: bool) -> Result<Progress, Stop> {
        let is_abandoned = self.closing.is_some_and(|closing| closing.is_abandoned);
        let is_sent = self.tx.is_done(&self.block)?;
        let is_over = is_abandoned || is_sent || self.tx.is_over() || self.resets()?;
        match is_sent {
            // The kernel has all of it: a close is now what it would be without an engine.
            true => self.let_end()?,
            false => self.forbid_end()?,
        }
        Ok(Progress { is_busy, notifies: false, is_over })
    }

    /// From now on until [`Machine::let_end`] the last close of the socket, whoever does that, resets: a peer must not
    /// take a part for all.
    fn forbid_end(&self) -> Result<(), Stop> {
        if !self.block.is_draining() {
            // First, so that the next engine does not take it for the application's wish.
            self.block.set_draining();
            self.fuse.burn()?;
            self.reset_at_close();
            self.fuse.burn()?;
        }
        Ok(())
    }

    fn let_end(&self) -> Result<(), Stop> {
        match self.block.is_draining() {
            true => sockopt::set_socket_linger(&self.socket, None).map_err(system("cannot set SO_LINGER"))?,
            // An application that wants to wait for its peer has waited itself.
            false => self.socket.linger_no_more(),
        }
        self.fuse.burn()
    }

    fn reset_at_close(&self) {
        reset_at_close(self.socket.as_fd());
    }

    /// Whether a close resets the connection, as it would without an engine.
    fn resets(&mut self) -> Result<bool, Stop> {
        if !std::mem::take(&mut self.rx.is_readable) {
            return Ok(false);
        }
        let socket = self.socket.as_fd();
        self.rx.settle(socket, &self.block, &self.fuse)?;
        let linger = sockopt::socket_linger(socket).map_err(system("cannot ask for SO_LINGER"))?;
        let unread = adopted::unread(socket).map_err(system("cannot ask for what is unread"))?;
        let is_wanted = linger == Some(Duration::ZERO) && !self.block.is_draining();
        Ok(is_wanted || unread > 0)
    }

    /// Leaves the socket as if no engine had ever worked on it. The application may go on with it once the
    /// supervisor keeps nothing of it any more.
    ///
    /// # Errors
    /// [`Stop`].
    pub fn hand_back(&mut self) -> Result<(), Stop> {
        self.rx.settle(self.socket.as_fd(), &self.block, &self.fuse)?;
        self.restore()
    }

    fn restore(&self) -> Result<(), Stop> {
        let socket = self.socket.as_fd();
        self.fuse.burn()?;
        adopted::set_peek_offset(socket, -1).map_err(system("cannot peek from the beginning again"))?;
        self.fuse.burn()?;
        sockopt::set_socket_oobinline(socket, self.kept.is_inline)
            .map_err(system("cannot have urgent bytes as before"))?;
        self.fuse.burn()
    }
}

/// Tells the application that a stream has ended, in both directions, without being closed.
fn abort(block: &Block) {
    let aborted = End::Failed(Errno::CONNABORTED.raw_os_error());
    block.end_rx(aborted);
    block.end_tx(aborted);
    block.rx_flag.rouse_anyway();
    block.tx_flag.rouse_anyway();
}

/// Has the last close of a socket reset the connection: a peer must not take a part for all.
fn reset_at_close(socket: BorrowedFd<'_>) {
    // It fails only where there is no connection.
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

fn system<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> Stop {
    move |source| Stop::System { what, source: source.into() }
}

/// What a direction has done.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    is_busy: bool,
    /// The application sees something new.
    publishes: bool,
}

/// How long a closed stream does not move until it is abandoned if its session needs its memory.
/// A peer's window may open once in two minutes if it reads 1 KB/s.
const STALLED: Duration = Duration::from_secs(300);

/// Bytes that one look moves each way.
const QUANTUM: usize = 256 << 10;

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

/// The application is done with it, but not all is sent.
#[derive(Clone, Copy, Debug)]
struct Closing {
    /// Sent when there was progress last.
    sent: u64,
    /// Until when there must be some more.
    until: Instant,
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
    pub fn look(&mut self, now: Instant) -> Result<Progress, Stop> {
        let Machine { socket, block, rx, tx, fuse, .. } = self;
        let socket = socket.as_fd();
        let sent = tx.look(socket, block, fuse)?;
        if let Some(error) = tx.take_error() {
            rx.on_error(error);
        }
        if self.closing.is_some() {
            return self.look_closing(now, sent.is_busy);
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
            self.closing = Some(Closing { sent: self.tx.sent(), until: now + DRAIN });
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

    /// Nor does it have the socket back: nobody knows which byte is next.
    pub fn abandon(&self) {
        self.give_up();
        // Others may have it. Whoever has broken the socket may have broken it so that this fails.
        let _ = self.restore();
    }

    /// When it is to be looked at even if nothing happens.
    pub fn deadline(&self) -> Option<Instant> {
        self.closing.map(|closing| closing.until)
    }

    fn look_closing(&mut self, now: Instant, is_busy: bool) -> Result<Progress, Stop> {
        let closing = self.closing.as_mut().expect("it closes");
        if closing.sent != self.tx.sent() {
            *closing = Closing { sent: self.tx.sent(), until: now + DRAIN };
        }
        let is_late = now >= closing.until;
        let is_over = is_late || self.tx.is_done(&self.block)? || self.resets()?;
        if is_over {
            // An application that wants to wait for its peer has waited itself.
            self.socket.linger_no_more();
        }
        Ok(Progress { is_busy, notifies: false, is_over })
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
        Ok(linger == Some(Duration::ZERO) || unread > 0)
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

/// How long a closed stream may make no progress until what is left is lost with it: what the kernel gives a
/// connection that nobody has any more (`tcp_fin_timeout`).
const DRAIN: Duration = Duration::from_secs(60);

/// Bytes that one look moves each way.
const QUANTUM: usize = 256 << 10;

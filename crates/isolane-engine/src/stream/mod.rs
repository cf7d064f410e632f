//! Stream: moves bytes between a TCP socket that the application also holds and two rings in its memory.
//!
//! **Receive**: data is peeked from the kernel into the ring, and discarded in the kernel only once the
//! application has read it. The kernel's queue always starts at the first unread byte or a little before, so
//! flow control, release of the socket, and recovery need no state here. **Transmit**: data in the ring is sent,
//! then marked as consumed; the kernel counts sent bytes.
//!
//! State in addition to the socket, the shared memory, and the [`StreamRecord`] may be lost at any point:
//! [`StreamMachine::resume`] recovers both positions. `docs/ISOLATION.md`, "Recovery of streams", lists the
//! state after each event, with its test.
//!
//! Invariant: no byte is lost, duplicated, or reordered, whenever this process ends; a client that writes
//! invalid shared memory affects only its own stream.

mod dead_stream;
mod failpoint;
mod notifications;
mod object;
mod receive;
mod record;
mod stream_times;
mod transmit;

#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use isolane_engine_api::stream::{ControlBlock, StreamEnd};
use isolane_shm::{InvalidIndex, MemoryError, SharedMemory, WakeFlag};
use rustix::io::Errno;
use rustix::net::sockopt;

use crate::close_threads::Socket;
use crate::object::Ready;
use failpoint::Failpoint;
pub(crate) use object::StreamKind;
use receive::RxPath;
pub use record::{SocketRefusal, StreamRecord};
use stream_times::Positions;
use transmit::TxPath;

/// State machine of a stream, without thread, clock, or control plane.
#[derive(Debug)]
pub struct StreamMachine {
    common: Common,
    rx: RxPath,
    tx: TxPath,
    closing: Option<Closing>,
}

/// State that both directions use.
#[derive(Debug)]
struct Common {
    socket: Socket,
    block: ControlBlock,
    record: StreamRecord,
    failpoint: Failpoint,
}

/// Close that waits until everything is sent. It has no time limit; the session's quota bounds the memory,
/// because a peer that only acknowledges window probes never releases it ([`StreamMachine::relieve`]).
#[derive(Clone, Copy, Debug)]
struct Closing {
    /// Bytes given to the kernel, and those among them that the peer has not acknowledged.
    moved: (u64, u64),
    /// Time of the last change of `moved`.
    since: Instant,
    /// The session needs the memory, and the peer accepts nothing.
    abandoned: bool,
}

/// Result of a poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Work was done; there may be more.
    pub busy: bool,
    /// The application has requested a notification, which is due.
    pub notifies: bool,
    /// The close is complete. The caller must call [`StreamMachine::release`], because other processes may hold
    /// the socket, and drop the stream, which resets the connection if bytes are unread.
    pub closed: bool,
}

/// Failure of a stream.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The application published an out-of-range index.
    #[error(transparent)]
    InvalidIndex(#[from] InvalidIndex),
    /// The application broke another rule.
    #[error("the application {0}")]
    Violation(&'static str),
    /// The layout of the rings is invalid.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A call failed that succeeds on every adopted socket.
    #[error("{call}: {source}")]
    System {
        /// Description of the call.
        call: &'static str,
        /// Error of the system.
        source: io::Error,
    },
    /// A failpoint of a test was hit.
    #[cfg(test)]
    #[error("failpoint hit")]
    Failpoint,
}

impl StreamMachine {
    /// Starts work on a new stream, or on a stream that an engine has left in any state. That engine must have
    /// ended.
    ///
    /// # Errors
    /// [`StreamError`]. The socket is unchanged.
    pub fn resume(
        socket: OwnedFd,
        memory: &SharedMemory,
        record: StreamRecord,
    ) -> Result<StreamMachine, StreamError> {
        StreamMachine::resume_with(socket, memory, record, Failpoint::default())
    }

    fn resume_with(
        socket: OwnedFd,
        memory: &SharedMemory,
        record: StreamRecord,
        failpoint: Failpoint,
    ) -> Result<StreamMachine, StreamError> {
        let socket = Socket::new(socket);
        let block = ControlBlock::open(memory, &record.place)?;
        let common = Common { socket, block, record, failpoint };
        // Steps that can fail come first, so that a refused socket is unchanged.
        let tx = TxPath::resume(&common, memory)?;
        let rx = RxPath::resume(&common, memory)?;
        // Does not fail on a socket that accepted a peek offset.
        sockopt::set_socket_oobinline(&common.socket, true).map_err(system("cannot set SO_OOBINLINE"))?;
        // The previous engine may have ended between publishing and waking.
        common.block.need_wakeup.disarm();
        common.block.rx_flag.force_wake();
        common.block.tx_flag.force_wake();
        Ok(StreamMachine { common, rx, tx, closing: None })
    }

    /// Socket to watch, edge-triggered, for [`StreamMachine::on_ready`].
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.common.socket.as_fd()
    }

    /// Flag that the application takes before it rings.
    pub fn need_wakeup(&self) -> &WakeFlag {
        &self.common.block.need_wakeup
    }

    /// Whether [`StreamMachine::on_ready`] needs read events: not while the application receives directly.
    #[inline]
    pub fn wants_reads(&self) -> bool {
        !self.rx.is_bypassed() || self.is_closing()
    }

    /// Called when the kernel reports the socket ready.
    #[inline]
    pub fn on_ready(&mut self, ready: Ready) {
        let hangs = ready.hung_up || ready.finished;
        self.rx.readable |= ready.readable || hangs;
        self.rx.peek_may_stop |= hangs || ready.urgent;
        self.tx.writable |= ready.writable || hangs;
    }

    /// Does pending work, up to a quantum in each direction.
    ///
    /// # Errors
    /// [`StreamError`]; the stream must be dropped.
    #[inline]
    pub fn poll(&mut self) -> Result<Progress, StreamError> {
        let StreamMachine { common, rx, tx, .. } = self;
        let sent = tx.poll(common)?;
        if let Some(error) = tx.take_error() {
            rx.on_error(error);
        }
        if self.closing.is_some() {
            return self.poll_closing(sent.busy);
        }
        let received = rx.poll(common)?;
        let notify = &self.common.block.notify;
        // Space alone is not an event of a reader.
        let notifies = if received.publishes || (sent.publishes && self.tx.is_finished()) {
            notify.take()
        } else {
            sent.publishes && notify.take_for_all()
        };
        Ok(Progress { busy: sent.busy || received.busy, notifies, closed: false })
    }

    /// Positions of both directions, as the last poll has seen them.
    #[inline]
    fn positions(&self) -> Positions {
        Positions {
            pushed: self.tx.pushed(),
            sent: self.tx.sent(),
            received: self.rx.received(),
            fetched: self.rx.consumed(),
        }
    }

    /// Called after some idle time: requests doorbells of the application, unless there is work. Returns whether
    /// the stream is idle.
    ///
    /// # Errors
    /// [`StreamError`].
    pub fn prepare_idle(&mut self) -> Result<bool, StreamError> {
        self.rx.discard_consumed(&self.common)?;
        self.common.block.need_wakeup.arm();
        let has_rx_work = match self.closing {
            None => self.rx.has_work(&self.common)?,
            // The connection may have to be reset.
            Some(_) => self.rx.readable,
        };
        let has_work = has_rx_work || self.tx.has_work(&self.common)?;
        if has_work {
            self.common.block.need_wakeup.disarm();
        }
        Ok(!has_work)
    }

    /// Called when the application has closed the stream or has ended.
    pub fn close(&mut self, now: Instant) {
        if self.closing.is_none() {
            self.closing = Some(Closing { moved: self.moved(), since: now, abandoned: false });
            self.rx.readable = true;
        }
    }

    /// Whether the stream was closed.
    pub fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    /// Fails both directions for the application. It can still read the data in the ring, and then get the
    /// socket back ([`StreamMachine::release`]).
    pub fn fail(&self) {
        abort(&self.common.block);
    }

    /// Closes a failed stream: releases the socket, with a reset unless everything was sent.
    ///
    /// # Errors
    /// [`StreamError`].
    pub fn close_failed(&mut self) -> Result<(), StreamError> {
        if !matches!(self.tx.is_done(&self.common), Ok(true)) {
            reset_at_close(self.common.socket.as_fd());
        }
        self.release()
    }

    /// Fails a stream whose socket the application must not get back, because the position of the next byte is
    /// unknown.
    pub fn abandon(&self) {
        self.fail();
        reset_at_close(self.common.socket.as_fd());
        // For other holders of the socket. The cause of the failure may prevent this too.
        let _ = self.common.restore();
    }

    /// Called when the session needs memory. Abandons a closed stream without progress for `STALL_TIMEOUT`,
    /// and returns whether it did.
    pub fn relieve(&mut self, now: Instant) -> bool {
        if self.closing.is_none() {
            return false;
        }
        let moved = self.moved();
        let Some(closing) = &mut self.closing else { return false };
        if closing.moved != moved {
            *closing = Closing { moved, since: now, ..*closing };
        }
        closing.abandoned |= now.saturating_duration_since(closing.since) >= STALL_TIMEOUT;
        closing.abandoned
    }

    fn moved(&self) -> (u64, u64) {
        // Fails only without a connection, which makes no progress.
        let queued = isolane_tcp::socket::unacknowledged_bytes(&self.common.socket);
        (self.tx.sent(), queued.unwrap_or(0) as u64)
    }

    fn poll_closing(&mut self, busy: bool) -> Result<Progress, StreamError> {
        let is_abandoned = self.closing.is_some_and(|closing| closing.abandoned);
        let is_sent = self.tx.is_done(&self.common)?;
        let closed = is_abandoned || is_sent || self.tx.is_finished() || self.should_reset()?;
        if is_sent {
            // The kernel has all data: a close acts as without an engine.
            self.common.allow_fin()?
        } else {
            self.common.forbid_fin()?
        }
        Ok(Progress { busy, notifies: false, closed })
    }

    /// Whether a close resets the connection, as it would without an engine.
    fn should_reset(&mut self) -> Result<bool, StreamError> {
        if !std::mem::take(&mut self.rx.readable) {
            return Ok(false);
        }
        let socket = self.common.socket.as_fd();
        self.rx.discard_consumed(&self.common)?;
        let linger = sockopt::socket_linger(socket).map_err(system("cannot get SO_LINGER"))?;
        let unread =
            isolane_tcp::unread_bytes(socket).map_err(system("cannot get the count of unread bytes"))?;
        let is_requested = linger == Some(Duration::ZERO) && !self.common.block.is_draining();
        Ok(is_requested || unread > 0)
    }

    /// Restores the socket to its state before adoption. The application may use it once the supervisor has
    /// removed the stream's record.
    ///
    /// # Errors
    /// [`StreamError`].
    pub fn release(&mut self) -> Result<(), StreamError> {
        self.rx.discard_consumed(&self.common)?;
        self.common.restore()
    }
}

impl Common {
    /// Makes the last close of the socket, by any process, reset the connection until
    /// [`Common::allow_fin`]: a FIN would make partial data look complete to the peer.
    fn forbid_fin(&self) -> Result<(), StreamError> {
        if !self.block.is_draining() {
            // First, so that the next engine does not take SO_LINGER for the application's setting.
            self.block.set_draining();
            self.failpoint.hit()?;
            reset_at_close(self.socket.as_fd());
            self.failpoint.hit()?;
        }
        Ok(())
    }

    fn allow_fin(&self) -> Result<(), StreamError> {
        if self.block.is_draining() {
            sockopt::set_socket_linger(&self.socket, None).map_err(system("cannot set SO_LINGER"))?
        } else {
            // An application with SO_LINGER has waited for its peer itself.
            self.socket.disable_linger()
        }
        self.failpoint.hit()
    }

    fn restore(&self) -> Result<(), StreamError> {
        let socket = self.socket.as_fd();
        self.failpoint.hit()?;
        isolane_tcp::set_peek_offset(socket, -1).map_err(system("cannot reset the peek offset"))?;
        self.failpoint.hit()?;
        sockopt::set_socket_oobinline(socket, self.record.oob_inline)
            .map_err(system("cannot restore SO_OOBINLINE"))?;
        self.failpoint.hit()
    }
}

/// Fails both directions of a stream that the application has not closed.
fn abort(block: &ControlBlock) {
    let aborted = StreamEnd::Failed(Errno::CONNABORTED.raw_os_error());
    block.end_rx(aborted);
    block.end_tx(aborted);
    block.rx_flag.force_wake();
    block.tx_flag.force_wake();
}

/// Makes the last close of a socket reset the connection, so that partial data does not look complete.
fn reset_at_close(socket: BorrowedFd<'_>) {
    // Fails only without a connection.
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

fn system<E: Into<io::Error>>(call: &'static str) -> impl Fn(E) -> StreamError {
    move |source| StreamError::System { call, source: source.into() }
}

/// Progress of one direction.
#[derive(Clone, Copy, Debug, Default)]
struct PathProgress {
    busy: bool,
    /// The application sees new data, space, or an end.
    publishes: bool,
}

/// Time without progress after which a closed stream can be abandoned. A peer that reads 1 KB/s may open its
/// window only once in two minutes.
const STALL_TIMEOUT: Duration = Duration::from_secs(300);

/// Maximum number of bytes per poll and direction.
const QUANTUM: usize = 256 << 10;

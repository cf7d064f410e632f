//! Recovery of a stream's positions from the kernel's counters and the shared memory: by a new engine, or by an
//! application without an engine.
//!
//! Invariant: the caller is the only user of the socket; the previous engine has exited, or released it.

use std::io;
use std::os::fd::BorrowedFd;

use super::ControlBlock;
use isolane_tcp::{TcpCounters, TcpState};
use serde::{Deserialize, Serialize};

/// State of a socket before its adoption, reported by the engine in [`Reply::Opened`](crate::Reply::Opened).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The kernel's counter of written bytes.
    pub written: u64,
    /// SO_OOBINLINE was set.
    pub oob_inline: bool,
}

/// Returns how many bytes of the ring the kernel has accepted; the application has sent `bypassed` bytes directly. The
/// result exceeds the position of the ring if the application has sent bytes that it has not counted yet: then the ring
/// is empty.
pub fn recover_sent(now: &TcpCounters, written: u64, bypassed: u64, tx_end_pos: Option<u64>) -> u64 {
    let accepted = now.written.wrapping_sub(written).wrapping_sub(bypassed);
    match now.state {
        // The FIN counts as well, and follows all data.
        TcpState::Closing => tx_end_pos.unwrap_or(accepted.wrapping_sub(1)),
        _ => accepted,
    }
}

/// Returns how many bytes were discarded from the kernel's buffer, of a stream of which `produced` bytes were published.
/// The control block has a lower and an upper bound of the result. `None` if the result is not between them.
///
/// # Errors
/// Error of the system call.
pub fn recover_discarded(
    socket: BorrowedFd<'_>,
    produced: u64,
    block: &ControlBlock,
) -> io::Result<Option<u64>> {
    let (from, to) = (block.rx_discarded.get(), block.rx_discarding.get());
    if from == to {
        return Ok(Some(from));
    }
    // All peeked data was published, so the offset counts from there. An untouched or released socket has no offset, and
    // no discard in progress.
    let ahead = u64::try_from(isolane_tcp::peek_offset(socket)?).ok();
    let discarded = ahead.and_then(|ahead| produced.checked_sub(ahead));
    Ok(discarded.filter(|discarded| (from..=to).contains(discarded)))
}

//! When a socket moves to the engine, and when its transfers have become too long for it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Transfers of a socket since its state changed.
pub(crate) struct Counts {
    /// Transfers up to the next decision.
    left: AtomicU32,
    /// Consecutive long transfers of an adopted socket.
    long: AtomicU32,
    /// Time of the last decision, if that was the first of two, or 0.
    since: AtomicU64,
    /// Segments received and sent when the last dialog was found.
    segments: AtomicU64,
}

impl Counts {
    pub(crate) const fn new() -> Counts {
        Counts {
            left: AtomicU32::new(0),
            long: AtomicU32::new(0),
            since: AtomicU64::new(0),
            segments: AtomicU64::new(0),
        }
    }

    pub(crate) fn reset(&self) {
        self.restart();
        self.long.store(0, Ordering::Relaxed);
        self.segments.store(0, Ordering::Relaxed);
    }

    /// On the path of long transfers, where a call would save registers.
    #[inline(always)]
    fn restart(&self) {
        self.left.store(FIRST.load(Ordering::Relaxed), Ordering::Relaxed);
        self.since.store(0, Ordering::Relaxed);
    }
}

/// Transfers that must happen within [`WINDOW`].
const TRANSFERS: u32 = 32;
/// Transfer from which on the time counts, so that sockets with other transfers in between read no clock.
const TIMED_TRANSFER: u32 = 4;
/// Maximum size of such a transfer, in bytes.
const MAX_TRANSFER: usize = 4 << 10;
const WINDOW: Duration = Duration::from_millis(100);
/// Consecutive long transfers after which a socket returns to the kernel.
const LONG_TRANSFERS: u32 = 32;
/// Minimum size of a long transfer, in bytes.
const MIN_LONG_TRANSFER: usize = 16 << 10;
/// Number of cores of program and engine up to which dialogs stay with the kernel: both and the peer wait for each other,
/// and their messages cannot be combined.
const MAX_DIALOG_CORES: usize = 2;
/// A dialog has at least one segment in one direction for so many in the other.
const DIALOG_SEGMENTS: u32 = 4;
/// Transfers of a dialog up to its next decision.
const DIALOG_TRANSFERS: u32 = 1024;
/// Time without an attempt to attach after one has failed.
pub(crate) const RETRY_DELAY: Duration = Duration::from_secs(10);

static ALWAYS: AtomicBool = AtomicBool::new(false);
/// Transfers up to the first decision.
static FIRST: AtomicU32 = AtomicU32::new(TIMED_TRANSFER);

/// Reads `ISOLANE_ADOPT`.
pub(crate) fn read_environment() {
    if std::env::var_os("ISOLANE_ADOPT").is_some_and(|value| value == "always") {
        ALWAYS.store(true, Ordering::Relaxed);
        FIRST.store(1, Ordering::Relaxed);
    }
}

/// Records a transfer of a candidate. Returns `false` if [`is_due`] must record it.
#[inline]
pub(crate) fn is_early(counts: &Counts, bytes: usize) -> bool {
    if bytes > MAX_TRANSFER {
        counts.restart();
        return !ALWAYS.load(Ordering::Relaxed);
    }
    // Threads that transfer at the same time may count as one.
    let left = counts.left.load(Ordering::Relaxed).wrapping_sub(1);
    let is_early = left != 0;
    if is_early {
        counts.left.store(left, Ordering::Relaxed);
    }
    is_early
}

/// Records a transfer of a candidate. Returns `true` if it should be adopted.
pub(crate) fn is_due(counts: &Counts, bytes: usize) -> bool {
    if ALWAYS.load(Ordering::Relaxed) {
        return true;
    }
    if is_early(counts, bytes) {
        return false;
    }
    let (since, now) = (counts.since.load(Ordering::Relaxed), now_ns());
    counts.restart();
    if since == 0 {
        counts.left.store(TRANSFERS - TIMED_TRANSFER, Ordering::Relaxed);
        counts.since.store(now, Ordering::Relaxed);
        return false;
    }
    now.saturating_sub(since) <= WINDOW.as_nanos() as u64
}

/// Returns `true` if a candidate should stay with the kernel, because it carries a dialog and cores are scarce: `cores` are
/// those of program and engine. `segments` are the numbers of segments with data that were received and sent.
pub(crate) fn stays_as_dialog(counts: &Counts, cores: usize, segments: (u32, u32)) -> bool {
    if ALWAYS.load(Ordering::Relaxed) || cores > MAX_DIALOG_CORES {
        return false;
    }
    let (received, sent) = segments;
    let old = counts.segments.swap(u64::from(received) << 32 | u64::from(sent), Ordering::Relaxed);
    let (received, sent) = (received.wrapping_sub((old >> 32) as u32), sent.wrapping_sub(old as u32));
    let (fewer, more) = (received.min(sent), received.max(sent));
    let is_dialog = fewer > 0 && fewer.saturating_mul(DIALOG_SEGMENTS) >= more;
    if is_dialog {
        counts.left.store(DIALOG_TRANSFERS, Ordering::Relaxed);
    }
    is_dialog
}

/// Records a transfer of an adopted socket if it is short. Returns `false` if it is long.
#[inline]
pub(crate) fn is_short(counts: &Counts, bytes: usize) -> bool {
    let is_short = bytes < MIN_LONG_TRANSFER;
    if is_short {
        counts.long.store(0, Ordering::Relaxed);
    }
    is_short
}

/// Records a transfer of an adopted socket. Returns `true` if it should return to the kernel.
pub(crate) fn is_outgrown(counts: &Counts, bytes: usize) -> bool {
    !is_short(counts, bytes)
        && !ALWAYS.load(Ordering::Relaxed)
        && counts.long.fetch_add(1, Ordering::Relaxed) + 1 >= LONG_TRANSFERS
}

/// Returns the time since the start of the system, in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts() -> Counts {
        let counts = Counts::new();
        counts.reset();
        counts
    }

    #[test]
    fn adopts_after_short_transfers_and_returns_after_long_ones() {
        let slot = counts();
        assert!((1..TRANSFERS).all(|_| !is_due(&slot, 1)));
        assert!(is_due(&slot, MAX_TRANSFER));
        assert!((1..TRANSFERS).all(|_| !is_due(&slot, 1)) && !is_due(&slot, MAX_TRANSFER + 1));
        assert!((1..TRANSFERS).all(|_| !is_due(&slot, 1)) && is_due(&slot, 1));
        let record = |bytes| !is_early(&slot, bytes) && is_due(&slot, bytes);
        assert!((1..TRANSFERS).all(|_| !record(1)) && !record(MAX_TRANSFER + 1));
        assert!((1..TRANSFERS).all(|_| !record(1)) && record(1));
        assert!(
            (1..LONG_TRANSFERS).all(|_| !is_outgrown(&slot, MIN_LONG_TRANSFER)) && !is_outgrown(&slot, 1)
        );
        assert!((1..LONG_TRANSFERS).all(|_| !is_outgrown(&slot, MIN_LONG_TRANSFER)));
        assert!(is_outgrown(&slot, MIN_LONG_TRANSFER));
    }

    #[test]
    fn dialogs_stay_if_cores_are_scarce() {
        let slot = counts();
        assert!(stays_as_dialog(&slot, MAX_DIALOG_CORES, (100, 110)));
        assert!((1..DIALOG_TRANSFERS).all(|_| !is_due(&slot, 1)));
        assert!(!stays_as_dialog(&slot, MAX_DIALOG_CORES + 1, (200, 210)));
        // Since the last decision, it has sent only.
        assert!(!stays_as_dialog(&slot, MAX_DIALOG_CORES, (101, 140)));
        assert!(!stays_as_dialog(&slot, MAX_DIALOG_CORES, (141, 141)));
        assert!(stays_as_dialog(&slot, MAX_DIALOG_CORES, (151, 151)));
    }

    #[test]
    fn slow_transfers_are_not_due() {
        let slot = counts();
        assert!((0..TIMED_TRANSFER).all(|_| !is_due(&slot, 1)));
        slot.since.fetch_sub(WINDOW.as_nanos() as u64 + 1, Ordering::Relaxed);
        assert!((TIMED_TRANSFER..TRANSFERS).all(|_| !is_due(&slot, 1)));
    }
}

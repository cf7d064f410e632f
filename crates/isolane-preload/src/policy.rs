//! When a socket moves to the engine, and when its transfers have become too long for it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Transfers of a socket since its state changed.
pub(crate) struct Counts {
    transfers: AtomicU32,
    /// Time of the first one.
    since: AtomicU64,
}

impl Counts {
    pub(crate) const fn new() -> Counts {
        Counts { transfers: AtomicU32::new(0), since: AtomicU64::new(0) }
    }

    pub(crate) fn reset(&self) {
        self.transfers.store(0, Ordering::Relaxed);
    }
}

/// Transfers that must happen within [`WINDOW`].
const TRANSFERS: u32 = 32;
/// Maximum size of such a transfer, in bytes.
const MAX_TRANSFER: usize = 4 << 10;
const WINDOW: Duration = Duration::from_millis(100);
/// Consecutive long transfers after which a socket returns to the kernel.
const LONG_TRANSFERS: u32 = 32;
/// Minimum size of a long transfer, in bytes.
const MIN_LONG_TRANSFER: usize = 16 << 10;
/// Time without an attempt to attach after one has failed.
pub(crate) const RETRY_DELAY: Duration = Duration::from_secs(10);

static ALWAYS: AtomicBool = AtomicBool::new(false);

/// Reads `ISOLANE_ADOPT`.
pub(crate) fn read_environment() {
    ALWAYS.store(std::env::var_os("ISOLANE_ADOPT").is_some_and(|value| value == "always"), Ordering::Relaxed);
}

/// Records a transfer of a candidate. Returns `true` if it should be adopted.
pub(crate) fn is_due(counts: &Counts, bytes: usize) -> bool {
    if ALWAYS.load(Ordering::Relaxed) {
        return true;
    }
    if bytes > MAX_TRANSFER {
        counts.transfers.store(0, Ordering::Relaxed);
        return false;
    }
    // Threads that transfer at the same time may count as one.
    let count = counts.transfers.load(Ordering::Relaxed) + 1;
    counts.transfers.store(count, Ordering::Relaxed);
    if count == 1 {
        counts.since.store(now_ns(), Ordering::Relaxed);
    }
    if count < TRANSFERS {
        return false;
    }
    counts.transfers.store(0, Ordering::Relaxed);
    now_ns().saturating_sub(counts.since.load(Ordering::Relaxed)) <= WINDOW.as_nanos() as u64
}

/// Records a transfer of an adopted socket. Returns `true` if it should return to the kernel.
pub(crate) fn is_outgrown(counts: &Counts, bytes: usize) -> bool {
    if bytes < MIN_LONG_TRANSFER {
        counts.transfers.store(0, Ordering::Relaxed);
        return false;
    }
    !ALWAYS.load(Ordering::Relaxed) && counts.transfers.fetch_add(1, Ordering::Relaxed) + 1 >= LONG_TRANSFERS
}

/// Returns the time since the start of the system, in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adopts_after_short_transfers_and_returns_after_long_ones() {
        let slot = Counts::new();
        assert!((1..TRANSFERS).all(|_| !is_due(&slot, 1)));
        assert!(is_due(&slot, MAX_TRANSFER));
        assert!((1..TRANSFERS).all(|_| !is_due(&slot, 1)) && !is_due(&slot, MAX_TRANSFER + 1));
        assert!((1..TRANSFERS).all(|_| !is_due(&slot, 1)) && is_due(&slot, 1));
        assert!(
            (1..LONG_TRANSFERS).all(|_| !is_outgrown(&slot, MIN_LONG_TRANSFER)) && !is_outgrown(&slot, 1)
        );
        assert!((1..LONG_TRANSFERS).all(|_| !is_outgrown(&slot, MIN_LONG_TRANSFER)));
        assert!(is_outgrown(&slot, MIN_LONG_TRANSFER));
    }

    #[test]
    fn slow_transfers_are_not_due() {
        let slot = Counts::new();
        assert!(!is_due(&slot, 1));
        slot.since.fetch_sub(WINDOW.as_nanos() as u64 + 1, Ordering::Relaxed);
        assert!((1..TRANSFERS).all(|_| !is_due(&slot, 1)));
    }
}

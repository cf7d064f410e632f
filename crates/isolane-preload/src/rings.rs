//! Rings of io_uring, whose operations pass this library.
//!
//! Under the filter of `isolane engine run`, no process gets a ring. Without the filter, a ring made by the C library's
//! `syscall` is seen when it is made. One made by an instruction of the program is seen among the process's descriptors
//! before the next adoption. Afterwards, no socket is adopted.

use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libc::ENOSYS;

use crate::policy::now_ns;
use crate::real;

/// Whether the system has io_uring for this process. It never changes.
static SYSTEM: AtomicU32 = AtomicU32::new(UNKNOWN);
const UNKNOWN: u32 = 0;
const MISSING: u32 = 1;
const PRESENT: u32 = 2;
/// Time of the next check. Checks take a tenth of the time, so that many descriptors do not slow a program down.
static CHECK_AT: AtomicU64 = AtomicU64::new(0);
const SHARE: u64 = 10;
const MAX_INTERVAL_NS: u64 = 100_000_000;

/// Result of a check.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rings {
    Absent,
    Present,
    /// The next check is not due.
    Unknown,
}

/// Returns `false` under the filter.
pub(crate) fn are_possible() -> bool {
    if SYSTEM.load(Ordering::Relaxed) == UNKNOWN {
        SYSTEM.store(if is_system_without_rings() { MISSING } else { PRESENT }, Ordering::Relaxed);
    }
    SYSTEM.load(Ordering::Relaxed) == PRESENT
}

/// Checks whether this process has a ring.
pub(crate) fn check() -> Rings {
    if !are_possible() {
        return Rings::Absent;
    }
    let start = now_ns();
    if start < CHECK_AT.load(Ordering::Relaxed) {
        return Rings::Unknown;
    }
    let has_ring = has_ring();
    let end = now_ns();
    let interval = (end - start).saturating_mul(SHARE).min(MAX_INTERVAL_NS);
    CHECK_AT.store(end.saturating_add(interval), Ordering::Relaxed);
    if has_ring { Rings::Present } else { Rings::Absent }
}

fn is_system_without_rings() -> bool {
    // SAFETY: without parameters, the call fails.
    let result = unsafe { real::syscall(libc::SYS_io_uring_setup, 0, 0) };
    // SAFETY: the location of this thread's error is valid.
    result == -1 && unsafe { *libc::__errno_location() } == ENOSYS
}

/// Returns `true` if a descriptor of this process is a ring, or if descriptors cannot be listed.
fn has_ring() -> bool {
    let Ok(mut descriptors) = std::fs::read_dir("/proc/self/fd") else { return true };
    // Another thread can close a descriptor in the meantime.
    descriptors.any(|found| {
        found.is_ok_and(|found| found.path().read_link().is_ok_and(|file| file == Path::new(RING)))
    })
}

const RING: &str = "anon_inode:[io_uring]";

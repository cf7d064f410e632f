//! Where a thread runs.

use std::io;

use rustix::thread::{CpuSet, sched_setaffinity};

/// Pins the calling thread, and what it starts, to one core. A machine without that core runs unpinned on
/// core 0, so that a single-core machine can still show something.
pub fn pin(core: usize) -> io::Result<()> {
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    let mut set = CpuSet::new();
    set.set(core.min(available - 1));
    Ok(sched_setaffinity(None, &set)?)
}

//! What a thread asks of the machine: its core, and enough descriptors for the process.

use rustix::process::{Resource, Rlimit, getpid, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::io;

/// Cores are numbered below this.
pub const CORES_MAX: usize = CpuSet::MAX_CPU;

/// Pins the calling thread to one core.
///
/// # Errors
/// `InvalidInput` if there is no such core or this process may not run on it.
pub fn pin(core: usize) -> io::Result<()> {
    if core >= CORES_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

/// The cores that the calling thread may run on, in rising order.
///
/// # Errors
/// The kernel's.
pub fn usable() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CORES_MAX).filter(|&core| set.is_set(core)).collect())
}

/// Lets the calling thread run wherever the process's first thread may.
pub(crate) fn unpin() {
    // At worst it stays where it is.
    let _ = sched_getaffinity(Some(getpid())).and_then(|set| sched_setaffinity(None, &set));
}

/// The core that the calling thread runs on now.
pub fn current() -> usize {
    sched_getcpu()
}

/// Raises the process's limit of open descriptors as far as it may without privilege, and returns it.
///
/// # Errors
/// The kernel's.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    }
    Ok(limit.maximum.unwrap_or(u64::MAX))
}

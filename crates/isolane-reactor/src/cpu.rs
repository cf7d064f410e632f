//! Thread affinity and the limit of open files.

use rustix::process::{Resource, Rlimit, getpid, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::io;

/// Core numbers are below this.
pub const MAX_CORES: usize = CpuSet::MAX_CPU;

/// Pins the calling thread to one core.
///
/// # Errors
/// `InvalidInput` if the core does not exist or this process may not run on it.
pub fn pin(core: usize) -> io::Result<()> {
    if core >= MAX_CORES {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

/// Returns the cores that the calling thread may run on, in ascending order.
///
/// # Errors
/// The error of the system call.
pub fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..MAX_CORES).filter(|&core| set.is_set(core)).collect())
}

/// Resets the affinity of the calling thread to the one of the process's first thread.
pub(crate) fn unpin() {
    // On failure the affinity stays unchanged.
    let _ = sched_getaffinity(Some(getpid())).and_then(|set| sched_setaffinity(None, &set));
}

/// Returns the core that the calling thread runs on now.
pub fn current() -> usize {
    sched_getcpu()
}

/// Raises the process's limit of open descriptors to its hard limit and returns it.
///
/// # Errors
/// The error of the system call.
pub fn raise_fd_limit() -> io::Result<u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    }
    Ok(limit.maximum.unwrap_or(u64::MAX))
}

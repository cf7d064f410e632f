//! Where a thread runs.

use std::io;

use rustix::thread::{CpuSet, sched_setaffinity};

/// Pins the calling thread, and what it starts, to one core. A machine without that core runs on core 0, so
/// that a single-core machine can still show something.
///
/// Which cores a thread may use at the moment does not matter: it may have been pinned to another one before.
pub fn pin(core: usize) -> io::Result<()> {
    Ok(pin_to(core).or_else(|_| pin_to(0))?)
}

fn pin_to(core: usize) -> rustix::io::Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set)
}

#[cfg(test)]
mod tests {
    use rustix::thread::sched_getaffinity;

    use super::*;

    #[test]
    fn a_pinned_thread_can_be_pinned_to_another_core() {
        for core in [0, 1, 0] {
            if pin_to(core).is_ok() {
                pin(core).unwrap();
                assert!(sched_getaffinity(None).unwrap().is_set(core));
            }
        }
    }
}

//! Identity of this process that a fork does not inherit, and its rights.
//!
//! The kernel clears one page of a forked child (`MADV_WIPEONFORK`), so [`process_id`] costs a load instead of a system
//! call, and a child can detect objects that its parent created.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(not(miri))]
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

#[cfg(not(miri))]
use crate::PAGE_SIZE;

/// Returns an ID that no ancestor or descendant by fork has, and that never changes within a process.
#[inline]
pub fn process_id() -> u64 {
    static PAGE: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();
    match PAGE.get_or_init(page) {
        Some(id) => match id.load(Ordering::Relaxed) {
            CLEARED => next(id),
            id => id,
        },
        // The PID, at the price of a system call.
        None => std::process::id().into(),
    }
}

/// Returns `true` if the program runs with more rights than the user who started it: set-user-ID, set-group-ID, or with
/// file capabilities (`AT_SECURE`). That user controls its environment.
pub fn is_privileged() -> bool {
    // SAFETY: reads a value that the kernel has passed to this program.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Assigns an ID to this new process.
#[cold]
fn next(id: &AtomicU64) -> u64 {
    // A fork inherits the counter and continues from it.
    static LAST: AtomicU64 = AtomicU64::new(0);
    let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    match id.compare_exchange(CLEARED, next, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => next,
        // Another thread was first.
        Err(next) => next,
    }
}

/// Maps the page permanently. Returns `None` if the kernel does not clear it in children.
#[cfg(not(miri))]
fn page() -> Option<&'static AtomicU64> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new zeroed mapping at an address that the kernel chooses affects no existing memory. It is never
    // unmapped, and aligned for an atomic.
    unsafe {
        let start = mmap_anonymous(std::ptr::null_mut(), PAGE_SIZE, access, MapFlags::PRIVATE).ok()?;
        madvise(start, PAGE_SIZE, Advice::LinuxWipeOnFork).ok()?;
        Some(&*start.cast::<AtomicU64>())
    }
}

#[cfg(miri)]
fn page() -> Option<&'static AtomicU64> {
    None
}

const CLEARED: u64 = 0;

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn forked_child_has_another_id_and_keeps_it() {
        let ours = process_id();
        assert_eq!(process_id(), ours);
        // SAFETY: the child only makes system calls and atomic accesses, and exits immediately.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                let id = process_id();
                libc::_exit(i32::from(id == ours || id != process_id()));
            }
            let mut status = -1;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            status
        };
        assert_eq!(status, 0, "the child has its parent's ID");
        assert_eq!(process_id(), ours);
    }
}

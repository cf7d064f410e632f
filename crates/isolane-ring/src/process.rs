//! Identity of this process, which a fork does not inherit.
//!
//! The kernel clears one page of a forked child (`MADV_WIPEONFORK`), so that [`process_id`] costs a load, not a system
//! call, and a child finds out that it is not the process that made an object.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(not(miri))]
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

#[cfg(not(miri))]
use crate::PAGE_SIZE;

/// Returns a number that no process has that was forked from this one, or that this one was forked from. It stays the
/// same as long as the process lives.
#[inline]
pub fn process_id() -> u64 {
    static PAGE: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();
    match PAGE.get_or_init(page) {
        Some(id) => match id.load(Ordering::Relaxed) {
            CLEARED => next(id),
            id => id,
        },
        // The kernel's own number, at the price of a system call.
        None => std::process::id().into(),
    }
}

/// Gives this process, which is new, its number.
#[cold]
fn next(id: &AtomicU64) -> u64 {
    // A fork inherits the counter, and counts on.
    static LAST: AtomicU64 = AtomicU64::new(0);
    let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    match id.compare_exchange(CLEARED, next, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => next,
        // Another thread was faster.
        Err(next) => next,
    }
}

/// Maps the page, for as long as the process lives. Returns none if the kernel does not clear it for children.
#[cfg(not(miri))]
fn page() -> Option<&'static AtomicU64> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping of zeroes at a place of the kernel's choice touches nothing that exists. It is never
    // unmapped, and aligned for an atomic number.
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
        // SAFETY: the child makes system calls and atomic accesses only, and ends at once.
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
        assert_eq!(status, 0, "the child takes itself for its parent");
        assert_eq!(process_id(), ours);
    }
}

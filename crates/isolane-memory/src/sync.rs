//! Atomics of [`entry`](crate::entry). Its loom test replaces this module.

use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Calls `attempt` until it returns a value.
#[cold]
pub(crate) fn wait_until<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    for attempts in 1u32.. {
        if attempts.is_multiple_of(SPINS_BEFORE_YIELD) {
            std::thread::yield_now();
        } else {
            spin_loop();
        }
        if let Some(value) = attempt() {
            return value;
        }
    }
    unreachable!("the lock of an entry is held for at most one copy of a page")
}

const SPINS_BEFORE_YIELD: u32 = 64;

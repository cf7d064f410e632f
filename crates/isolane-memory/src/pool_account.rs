//! Count of the pages of a pool that were freed elsewhere.
//!
//! Accounts are never freed, because pages can outlive their pool. An account without references is reused.

use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Part of a pool that other threads access.
pub(crate) struct PoolAccount {
    /// Pages of the pool that were freed elsewhere.
    pub(crate) freed_elsewhere: AtomicUsize,
}

impl PoolAccount {
    /// Returns an unused account.
    pub(crate) fn take() -> &'static PoolAccount {
        spare()
            .pop()
            .unwrap_or_else(|| Box::leak(Box::new(PoolAccount { freed_elsewhere: AtomicUsize::new(0) })))
    }

    /// Releases an account without pages.
    pub(crate) fn release(&'static self) {
        spare().push(self);
    }
}

fn spare() -> MutexGuard<'static, Vec<&'static PoolAccount>> {
    static SPARE: Mutex<Vec<&'static PoolAccount>> = Mutex::new(Vec::new());
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}

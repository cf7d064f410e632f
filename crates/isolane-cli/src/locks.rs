//! Mutexes whose content is valid also after a panic of a thread that held them.

use std::sync::{Mutex, MutexGuard, TryLockError};

/// Locks a mutex, unless another thread holds it.
pub fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

//! The guard of a queue pair's state: what has finished leaves it when the lock is released, however the function
//! returns.

use std::ops::{Deref, DerefMut};
use std::thread::panicking;

use parking_lot::MutexGuard;

use super::progress::Progress;

/// The owner of a state from which completions and events move to their receivers.
pub(super) trait Settle {
    type State;

    /// Moves completions to their queues, and events to their receiver.
    fn settle(&self, state: &mut Self::State);
}

/// A locked state. Dropping it settles, then unlocks, then wakes tasks; during a panic it only unlocks, because the
/// state can be inconsistent, and a second panic would end the process.
pub(super) struct Guard<'a, T: Settle> {
    owner: &'a T,
    state: MutexGuard<'a, T::State>,
    /// Dropped last, because fields are dropped in this order.
    _wake: Option<WakeTasks<'a>>,
}

struct WakeTasks<'a>(&'a Progress);

impl<'a, T: Settle> Guard<'a, T> {
    /// Guards a state for a caller that holds no other lock.
    #[inline]
    pub(super) fn new(owner: &'a T, state: MutexGuard<'a, T::State>, progress: &'a Progress) -> Self {
        Guard { owner, state, _wake: Some(WakeTasks(progress)) }
    }

    /// Guards a state for a driver, which wakes tasks when it has released its own locks.
    #[inline]
    pub(super) fn for_driver(owner: &'a T, state: MutexGuard<'a, T::State>) -> Self {
        Guard { owner, state, _wake: None }
    }
}

impl<T: Settle> Deref for Guard<'_, T> {
    type Target = T::State;

    #[inline]
    fn deref(&self) -> &T::State {
        &self.state
    }
}

impl<T: Settle> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T::State {
        &mut self.state
    }
}

impl<T: Settle> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if !panicking() {
            self.owner.settle(&mut self.state);
        }
    }
}

impl Drop for WakeTasks<'_> {
    #[inline]
    fn drop(&mut self) {
        if !panicking() {
            self.0.wake_tasks();
        }
    }
}

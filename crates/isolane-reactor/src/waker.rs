//! Wakeups of a reactor from other threads.
//!
//! One atomic word holds the state of the reactor. A waker swaps in `NOTIFIED` and makes a system
//! call only if the reactor was asleep. The reactor goes to sleep by exchanging `RUNNING` for
//! `ASLEEP`, which fails after a notification.
//!
//! Invariant: no notification is lost, and everything written before [`Waker::wake`] is visible to
//! the turn that reports it.

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Makes a reactor report [`Event::Woken`](crate::Event::Woken). Costs one atomic exchange while
/// the reactor runs, and one system call while it sleeps.
#[derive(Clone, Debug)]
pub struct Waker {
    shared: Arc<Shared>,
}

#[repr(align(64))]
struct Shared {
    state: AtomicU32,
    doorbell: WakeMethod,
}

/// How to end the sleep.
enum WakeMethod {
    Eventfd(OwnedFd),
    Call(Box<dyn Fn() + Send + Sync>),
}

impl Waker {
    /// Wakes the reactor. Calls before its next turn are merged.
    pub fn wake(&self) {
        if self.shared.state.swap(NOTIFIED, Ordering::AcqRel) == ASLEEP {
            match &self.shared.doorbell {
                // A non-blocking eventfd fails only if its counter is full, and then it is readable
                // already.
                WakeMethod::Eventfd(doorbell) => {
                    let _ = rustix::io::write(doorbell, &1u64.to_ne_bytes());
                }
                WakeMethod::Call(call) => call(),
            }
        }
    }
}

/// Sleeping end: a reactor, or another event loop.
#[derive(Debug)]
pub struct Sleeper {
    shared: Arc<Shared>,
}

impl Sleeper {
    /// Creates the sleeper of a running loop with an eventfd.
    ///
    /// # Errors
    /// The error of `eventfd`: out of descriptors.
    pub fn new() -> io::Result<Sleeper> {
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Sleeper::with(WakeMethod::Eventfd(doorbell)))
    }

    /// Creates the sleeper of a loop that does not sleep in epoll: `wake` ends its sleep, or
    /// prevents a sleep that was announced and not started.
    pub fn with_callback(wake: impl Fn() + Send + Sync + 'static) -> Sleeper {
        Sleeper::with(WakeMethod::Call(Box::new(wake)))
    }

    fn with(doorbell: WakeMethod) -> Sleeper {
        Sleeper { shared: Arc::new(Shared { state: AtomicU32::new(RUNNING), doorbell }) }
    }

    /// Returns a handle that wakes this loop.
    pub fn waker(&self) -> Waker {
        Waker { shared: self.shared.clone() }
    }

    /// Returns the eventfd that becomes readable when a waker finds the loop asleep.
    ///
    /// # Panics
    /// If the sleeper was created by [`Sleeper::with_callback`].
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        match &self.shared.doorbell {
            WakeMethod::Eventfd(doorbell) => doorbell.as_fd(),
            WakeMethod::Call(_) => panic!("a sleeper with a callback has no descriptor"),
        }
    }

    /// Announces sleep. Returns `false` after a notification; the loop must not sleep then.
    pub fn try_sleep(&self) -> bool {
        let state = &self.shared.state;
        state.compare_exchange(RUNNING, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Ends the announced sleep. A notification that arrived in the meantime stays pending.
    pub fn finish_sleep(&self) {
        let _ = self.shared.state.compare_exchange(ASLEEP, RUNNING, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Whether a notification is pending.
    pub fn is_notified(&self) -> bool {
        self.shared.state.load(Ordering::Relaxed) == NOTIFIED
    }

    /// Takes a pending notification. Returns `false` without one.
    pub fn take_notification(&self) -> bool {
        let state = &self.shared.state;
        self.is_notified() && state.swap(RUNNING, Ordering::AcqRel) == NOTIFIED
    }
}

/// Clears an eventfd.
pub fn drain_eventfd(doorbell: BorrowedFd<'_>) {
    let mut count = [0u8; 8];
    // Nothing to read: already clear.
    let _ = rustix::io::read(doorbell, &mut count[..]);
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("state", &self.state).finish_non_exhaustive()
    }
}

const RUNNING: u32 = 0;
const ASLEEP: u32 = 1;
const NOTIFIED: u32 = 2;

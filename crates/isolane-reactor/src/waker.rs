//! Wakes a reactor from other threads.
//!
//! One atomic word says what the reactor does. A waker swaps in `NOTIFIED`; only when the reactor slept does
//! it pay for a system call. The reactor goes to sleep by exchanging `RUNNING` for `ASLEEP`, which fails if a
//! notification came first. So a notification is never lost: whatever was written before [`Waker::wake`] is
//! visible to the turn that reports it.

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Makes a reactor report [`Event::Woken`](crate::Event::Woken) soon. Costs one atomic exchange while the
/// reactor runs, and one system call when it sleeps.
#[derive(Clone, Debug)]
pub struct Waker {
    shared: Arc<Shared>,
}

#[repr(align(64))]
struct Shared {
    state: AtomicU32,
    doorbell: Doorbell,
}

/// How the one who sleeps is reached.
enum Doorbell {
    Eventfd(OwnedFd),
    Call(Box<dyn Fn() + Send + Sync>),
}

impl Waker {
    /// Wakes the reactor. Calls before its next turn count as one.
    pub fn wake(&self) {
        if self.shared.state.swap(NOTIFIED, Ordering::AcqRel) == ASLEEP {
            match &self.shared.doorbell {
                // The only failure of a non-blocking eventfd is a full counter, and then the doorbell rings
                // already.
                Doorbell::Eventfd(doorbell) => {
                    let _ = rustix::io::write(doorbell, &1u64.to_ne_bytes());
                }
                Doorbell::Call(call) => call(),
            }
        }
    }
}

/// The end of who is woken: a reactor, or another loop that sleeps in an epoll of its own.
#[derive(Debug)]
pub struct Sleeper {
    shared: Arc<Shared>,
}

impl Sleeper {
    /// Of a loop that runs.
    ///
    /// # Errors
    /// The kernel's, for want of descriptors.
    pub fn new() -> io::Result<Sleeper> {
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Sleeper::with(Doorbell::Eventfd(doorbell)))
    }

    /// Of a loop that sleeps in something else than an epoll: `wake` ends that sleep, or, if it has been
    /// announced and not begun, has it not begin.
    pub fn calling(wake: impl Fn() + Send + Sync + 'static) -> Sleeper {
        Sleeper::with(Doorbell::Call(Box::new(wake)))
    }

    fn with(doorbell: Doorbell) -> Sleeper {
        Sleeper { shared: Arc::new(Shared { state: AtomicU32::new(RUNNING), doorbell }) }
    }

    /// One who wakes it.
    pub fn waker(&self) -> Waker {
        Waker { shared: self.shared.clone() }
    }

    /// What becomes readable when a waker finds the reactor asleep.
    ///
    /// # Panics
    /// If it sleeps in something else ([`Sleeper::calling`]).
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        match &self.shared.doorbell {
            Doorbell::Eventfd(doorbell) => doorbell.as_fd(),
            Doorbell::Call(_) => panic!("who is woken by a call has no descriptor"),
        }
    }

    /// Announces sleep. If false somebody called meanwhile, and the reactor must not sleep.
    pub fn try_sleep(&self) -> bool {
        let state = &self.shared.state;
        state.compare_exchange(RUNNING, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Takes back the announcement after the sleep. A notification that came meanwhile stays to be taken.
    pub fn awake(&self) {
        let _ = self.shared.state.compare_exchange(ASLEEP, RUNNING, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Whether somebody has called since the last take.
    pub fn is_notified(&self) -> bool {
        self.shared.state.load(Ordering::Relaxed) == NOTIFIED
    }

    /// Takes the note that somebody called since the last take.
    pub fn take_notification(&self) -> bool {
        let state = &self.shared.state;
        self.is_notified() && state.swap(RUNNING, Ordering::AcqRel) == NOTIFIED
    }
}

/// Silences a doorbell that rang.
pub fn silence(doorbell: BorrowedFd<'_>) {
    let mut count = [0u8; 8];
    // Nothing to read means that it is silent.
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

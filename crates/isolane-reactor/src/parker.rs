//! Wait of one thread for completions: asleep in a futex, or in another event loop.
//!
//! Invariant: everything written before [`Parker::wake`] is visible to the thread that it wakes, and no wakeup is
//! lost.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::futex;
use rustix::time::Timespec;

use crate::waker::drain_eventfd;

/// Wakes one waiting thread. Costs a fence and a load while the thread is awake.
#[derive(Debug, Default)]
pub struct Parker {
    state: AtomicU32,
    /// Created for the first wait in another event loop.
    doorbell: OnceLock<OwnedFd>,
}

impl Parker {
    /// Wakes the thread if it waits.
    pub fn wake(&self) {
        // Orders the completion before the load: either the waiting thread sees the completion, or this sees its wait.
        fence(Ordering::SeqCst);
        if self.state.load(Ordering::Relaxed) == AWAKE {
            return;
        }
        match (self.state.swap(AWAKE, Ordering::AcqRel), self.doorbell.get()) {
            // Fails only if no thread sleeps.
            (ASLEEP, _) => _ = futex::wake(&self.state, futex::Flags::PRIVATE, 1),
            // Fails only if the counter is full, and then it is readable already.
            (ARMED, Some(doorbell)) => _ = rustix::io::write(doorbell, &1u64.to_ne_bytes()),
            _ => {}
        }
    }

    /// Sleeps until [`Parker::wake`], or `deadline`; not at all if `is_over` returns `true`.
    pub fn sleep(&self, deadline: Option<Instant>, is_over: impl Fn() -> bool) {
        self.state.store(ASLEEP, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while self.state.load(Ordering::Acquire) == ASLEEP {
            let remaining = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if is_over() || remaining.is_some_and(|remaining| remaining.is_zero()) {
                self.state.store(AWAKE, Ordering::Relaxed);
                return;
            }
            // A timeout that the clock cannot represent never passes.
            let timeout = remaining.and_then(|remaining| Timespec::try_from(remaining).ok());
            // Ends by a wake, a signal, or because the state has changed: the loop checks again.
            let _ = futex::wait(&self.state, futex::Flags::PRIVATE, ASLEEP, timeout.as_ref());
        }
    }

    /// Returns the eventfd that becomes readable at the first [`Parker::wake`] after [`Parker::arm`].
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn wait_fd(&self) -> io::Result<BorrowedFd<'_>> {
        if self.doorbell.get().is_none() {
            // Another thread can be first; its descriptor stays then.
            let _ = self.doorbell.set(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        }
        self.doorbell.get().map(AsFd::as_fd).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Announces a wait for [`Parker::wait_fd`]. Returns `false` if `is_over` returns `true`: there is no wait then, but a
    /// concurrent wake can still make the descriptor readable.
    ///
    /// # Errors
    /// As [`Parker::wait_fd`].
    pub fn arm(&self, is_over: impl Fn() -> bool) -> io::Result<bool> {
        self.wait_fd()?;
        self.state.store(ARMED, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let is_over = is_over();
        if is_over {
            self.state.store(AWAKE, Ordering::Relaxed);
        }
        Ok(!is_over)
    }

    /// Ends a wait for [`Parker::wait_fd`], and clears the descriptor.
    pub fn disarm(&self) {
        self.state.store(AWAKE, Ordering::Relaxed);
        if let Some(doorbell) = self.doorbell.get() {
            drain_eventfd(doorbell.as_fd());
        }
    }
}

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
const ARMED: u32 = 2;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    /// Returns whether the descriptor is readable within `timeout_ms`.
    fn is_readable(parker: &Parker, timeout_ms: i64) -> bool {
        let fd = parker.wait_fd().unwrap();
        let timeout = Timespec { tv_sec: timeout_ms / 1000, tv_nsec: timeout_ms % 1000 * 1_000_000 };
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).unwrap() == 1
    }

    #[test]
    fn armed_thread_misses_no_wake() {
        let (parker, count, rounds) = (Arc::new(Parker::default()), Arc::new(AtomicU64::new(0)), 5_000);
        let (wakes, counted) = (Arc::clone(&parker), Arc::clone(&count));
        let thread = std::thread::spawn(move || {
            for _ in 0..rounds {
                counted.fetch_add(1, Ordering::Relaxed);
                wakes.wake();
            }
        });
        let mut seen = 0;
        while seen < rounds {
            let has_more = || count.load(Ordering::Relaxed) > seen;
            if parker.arm(has_more).unwrap() {
                assert!(is_readable(&parker, 60_000), "lost a wakeup after {seen}");
            }
            parker.disarm();
            seen = count.load(Ordering::Relaxed);
        }
        thread.join().unwrap();
    }

    #[test]
    fn only_an_armed_wait_makes_the_descriptor_readable() {
        let parker = Parker::default();
        parker.wake();
        assert!(!is_readable(&parker, 0));
        assert!(!parker.arm(|| true).unwrap());
        parker.wake();
        assert!(!is_readable(&parker, 0));
        assert!(parker.arm(|| false).unwrap());
        parker.wake();
        parker.wake();
        assert!(is_readable(&parker, 0));
        parker.disarm();
        assert!(!is_readable(&parker, 0));
        parker.sleep(Some(Instant::now() + Duration::from_millis(1)), || false);
    }
}

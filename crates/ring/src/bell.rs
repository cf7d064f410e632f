//! Who waits, and who wakes: a flag in shared memory, and an eventfd for the one who sleeps.
//!
//! The one who waits spins, arms the flag, looks once more, and sleeps; who publishes rings only where the flag is armed. So a
//! waiter that spins costs its other side nothing, and one that sleeps is woken once. The flag belongs to whom it wakes: a thread
//! has one for all of its rings.
//!
//! Invariant: whoever publishes before [`Flag::take`] is seen by who looks after [`Flag::arm`], or takes the flag: a fence on
//! both sides lets neither miss the other. A hostile other side can only ring too often or never.

use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::index::Line;
use crate::sync::{AtomicU32, Ordering, fence};

/// The word that says whether somebody sleeps, or is about to.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Flag {
    armed: Line<AtomicU32>,
}

impl Flag {
    /// Bytes in shared memory.
    pub const BYTES: usize = crate::index::LINE_BYTES;

    /// A flag that is not armed.
    pub fn new() -> Flag {
        Flag::default()
    }

    /// Asks to be woken. Look once more before sleeping.
    #[inline]
    pub fn arm(&self) {
        self.armed.0.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Asks no more.
    #[inline]
    pub fn disarm(&self) {
        self.armed.0.store(0, Ordering::Relaxed);
    }

    /// Whether to wake now: call it after publishing. Of several who publish, one gets the duty.
    #[inline]
    pub fn take(&self) -> bool {
        fence(Ordering::SeqCst);
        self.armed.0.load(Ordering::Relaxed) != 0 && self.armed.0.swap(0, Ordering::Relaxed) != 0
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Flag>() == Flag::BYTES);

/// A flag and the eventfd behind it.
#[derive(Debug)]
pub struct Bell<F> {
    flag: F,
    eventfd: OwnedFd,
}

impl<F: Deref<Target = Flag>> Bell<F> {
    /// A bell with an eventfd of its own.
    ///
    /// # Errors
    /// The kernel's, for want of descriptors.
    pub fn new(flag: F) -> io::Result<Bell<F>> {
        Ok(Bell { flag, eventfd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    /// A bell whose eventfd the other side has made. Writes to it never block if it is one; what else it may be is up to who
    /// receives it to find out.
    pub fn with(flag: F, eventfd: OwnedFd) -> Bell<F> {
        Bell { flag, eventfd }
    }

    /// The eventfd, to be given to the other side or watched by a poller.
    pub fn eventfd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }

    /// The flag.
    pub fn flag(&self) -> &Flag {
        &self.flag
    }

    /// Wakes the other side if it sleeps: to be called after something was published. Returns whether it did.
    #[inline]
    pub fn ring(&self) -> bool {
        let must = self.flag.take();
        if must {
            self.ring_anyway();
        }
        must
    }

    /// Wakes the other side whether or not it has asked for it.
    #[cold]
    pub fn ring_anyway(&self) {
        // Full means that it is awake, or about to be.
        let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
    }

    /// Sleeps until somebody rings, unless `look` finds something to do once the flag is armed. Returns false if time ran out.
    ///
    /// # Errors
    /// The kernel's, or what `look` returns.
    pub fn wait<E: From<io::Error>>(
        &self,
        timeout: Option<Duration>,
        look: impl FnOnce() -> Result<bool, E>,
    ) -> Result<bool, E> {
        self.flag.arm();
        let outcome = match look() {
            Ok(true) => Ok(true),
            Ok(false) => self.sleep(timeout).map_err(E::from),
            Err(error) => Err(error),
        };
        self.flag.disarm();
        outcome
    }

    fn sleep(&self, timeout: Option<Duration>) -> io::Result<bool> {
        let timeout = timeout.map(|timeout| Timespec::try_from(timeout).unwrap_or(FOREVER));
        let mut watched = [PollFd::new(&self.eventfd, PollFlags::IN)];
        let count = match poll(&mut watched, timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => return Ok(true),
            other => other?,
        };
        self.quiet();
        Ok(count > 0)
    }

    /// Forgets that somebody has rung.
    pub fn quiet(&self) {
        // Empty means that nobody has.
        let _ = rustix::io::read(&self.eventfd, &mut [0u8; 8]);
    }
}

const FOREVER: Timespec = Timespec { tv_sec: i32::MAX as i64, tv_nsec: 0 };

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn only_who_has_armed_is_woken_and_only_once() {
        let flag = Arc::new(Flag::new());
        let bell = Bell::new(Arc::clone(&flag)).unwrap();
        assert!(!bell.ring());
        flag.arm();
        assert!(bell.ring() && !bell.ring());
        assert!(bell.sleep(Some(Duration::ZERO)).unwrap());
        assert!(!bell.sleep(Some(Duration::ZERO)).unwrap(), "the ring was heard");
    }

    #[test]
    fn who_finds_something_to_do_does_not_sleep() {
        let bell = Bell::new(Arc::new(Flag::new())).unwrap();
        assert!(bell.wait::<io::Error>(None, || Ok(true)).unwrap());
        assert!(!bell.ring(), "nobody asks any more");
        assert!(!bell.wait::<io::Error>(Some(Duration::ZERO), || Ok(false)).unwrap());
    }

    #[test]
    fn nothing_that_is_published_is_slept_through() {
        let shared = Arc::new((AtomicU64::new(0), Flag::new()));
        struct Part(Arc<(AtomicU64, Flag)>);
        impl Deref for Part {
            type Target = Flag;
            fn deref(&self) -> &Flag {
                &self.0.1
            }
        }
        let waiter = Bell::new(Part(Arc::clone(&shared))).unwrap();
        let waker = Bell::with(Part(Arc::clone(&shared)), waiter.eventfd().try_clone_to_owned().unwrap());
        let counted = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            for _ in 0..20_000 {
                counted.0.fetch_add(1, Ordering::Release);
                waker.ring();
            }
        });
        while shared.0.load(Ordering::Acquire) < 20_000 {
            let seen = shared.0.load(Ordering::Acquire);
            let has_come =
                || Ok::<bool, io::Error>(shared.0.load(Ordering::Acquire) != seen || seen == 20_000);
            assert!(waiter.wait(Some(Duration::from_secs(60)), has_come).unwrap(), "a ring was lost");
        }
        thread.join().unwrap();
    }
}

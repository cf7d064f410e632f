//! Forks while another thread opens, connects, or closes an object.
//!
//! Such a thread can hold locks of the whole library, of the C library, or of librbd, which nothing releases in a child.
//! The functions that open volumes and sessions fail there, instead of waiting forever. Others need an object, and
//! objects belong to the process that opened them.
//!
//! Invariant: a thread of the program takes such a lock only while it has a [`Busy`].

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::error::Failure;

/// A thread in a function that can take locks of the whole library.
pub(crate) struct Busy(());

impl Busy {
    /// For a function that ends or extends an object.
    pub fn enter() -> Busy {
        BUSY.fetch_add(1, Ordering::SeqCst);
        Busy(())
    }

    /// For a function that needs no object of this process.
    ///
    /// # Errors
    /// This process is a child whose locks can be held.
    pub fn open() -> Result<Busy, Failure> {
        if IS_STUCK.load(Ordering::SeqCst) {
            return Err(Failure::WithErrno(libc::EDEADLK, FORKED.to_owned()));
        }
        Ok(Busy::enter())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        BUSY.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Runs when the library is loaded.
extern "C" fn start() {
    // SAFETY: the function stays loaded, or is removed with the library. Fails only without memory, when no program starts.
    unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
}

/// Runs in a child, before its other code. Its only thread is not in the library, unless a handler of a signal forked.
extern "C" fn after_fork_in_child() {
    IS_STUCK.fetch_or(BUSY.swap(0, Ordering::SeqCst) > 0, Ordering::SeqCst);
}

#[unsafe(link_section = ".init_array")]
#[used]
static START: extern "C" fn() = start;

/// Threads with a [`Busy`].
static BUSY: AtomicUsize = AtomicUsize::new(0);
static IS_STUCK: AtomicBool = AtomicBool::new(false);
const FORKED: &str = "another thread of the parent was opening or closing an object during fork(), and its locks are \
                      held in this child forever: fork at another time, or call exec()";

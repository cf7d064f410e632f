//! Waiting outside the reactor, for a thread that drives several reactors.
//!
//! The thread turns each reactor without waiting, calls [`Reactor::prepare_wait`] on each, and
//! sleeps on their descriptors together with its own.
//!
//! Invariant: between `prepare_wait` and `finish_wait`, every event makes the descriptor readable.

use super::Reactor;
use rustix::fd::BorrowedFd;
use std::time::Instant;

impl Reactor {
    /// Returns the descriptor that becomes readable on an event. `None` on io_uring, which cannot
    /// wait outside.
    pub fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.backend.wait_fd()
    }

    /// Prepares to sleep outside. The next turn must follow [`Reactor::finish_wait`] and is due
    /// when [`Reactor::wait_fd`] is readable or at the returned deadline, if there is one
    /// (`Some(None)`: no limit). Returns `None` if a turn is due now.
    pub fn prepare_wait(&mut self) -> Option<Option<Instant>> {
        self.wait_fd()?;
        if !self.sockets.is_all_idle() || self.listeners.is_ready() || !self.ended.is_empty() {
            return None;
        }
        let deadline = self.listeners.poll_timeout().into_iter().chain(self.zerocopy_timeout()).min();
        self.sleeper.try_sleep().then_some(deadline)
    }

    /// Ends a wait. Does nothing without one.
    pub fn finish_wait(&mut self) {
        self.sleeper.finish_sleep();
    }
}

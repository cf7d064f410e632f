//! Sleeping in somebody else's sleep: one thread turns several reactors, and waits for all of them at once.
//!
//! It turns each without waiting, asks each to rest, and sleeps on their descriptors together with its own.
//! Invariant: while a reactor rests, all that can happen to it makes its descriptor readable.

use super::Reactor;
use rustix::fd::BorrowedFd;
use std::time::Instant;

impl Reactor {
    /// What becomes readable when something happens while it rests; `None` if it waits in io_uring, and so
    /// cannot rest.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.poller.descriptor()
    }

    /// Begins to rest, if there is nothing to do: then its next turn, before which comes
    /// [`Reactor::end_rest`], is due when its descriptor is readable or at the time that this returns. `None`
    /// if a turn is due now.
    pub fn try_rest(&mut self) -> Option<Rest> {
        self.descriptor()?;
        if !self.lanes.are_all_cold() || self.listeners.is_ready() || !self.ended.is_empty() {
            return None;
        }
        let until = self.listeners.poll_timeout().into_iter().chain(self.lending_timeout()).min();
        self.sleeper.try_sleep().then_some(Rest { until })
    }

    /// Ends a rest; without one it does nothing.
    pub fn end_rest(&mut self) {
        self.sleeper.awake();
    }
}

/// A reactor rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest {
    /// When it wants to be turned even if nothing happens; none: never.
    pub until: Option<Instant>,
}

//! Sleeping in somebody else's sleep: for a thread that drives several clients, and other things beside.
//!
//! It turns each without waiting, asks each to rest, and sleeps on their descriptors together with its own.

use std::time::Instant;

use rustix::fd::BorrowedFd;

use super::Client;
use super::link::Link;

impl Client {
    /// What becomes readable when something happens while the client rests; `None` if it waits in io_uring,
    /// and so cannot rest.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.reactor.descriptor()
    }

    /// Begins to rest, if there is nothing to do, and says when the client has to be turned even if nothing
    /// happens. It has to be turned before, after [`Client::end_rest`], if its descriptor becomes readable or
    /// a request is submitted. `None` if it has to be turned now; with
    /// [`Mode::Poll`](crate::Mode::Poll) that is always so.
    pub fn try_rest(&mut self) -> Option<Instant> {
        let has_finished = !self.finished.is_empty();
        let wants_transmit = matches!(&self.link, Link::Up(up) if up.wants_transmit());
        if has_finished || wants_transmit || self.has_more || self.holding.is_holding() {
            return None;
        }
        let rest = self.reactor.try_rest()?;
        Some(rest.until.map_or(self.housekeeping, |until| until.min(self.housekeeping)))
    }

    /// Ends a rest; without one it does nothing.
    pub fn end_rest(&mut self) {
        self.reactor.end_rest();
    }
}

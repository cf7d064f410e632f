//! Outstanding Async Event Requests.
//!
//! A host may reuse the CID of such a request at any time: SPDK's host abandons its requests before it
//! shuts down. So a held request has neither a permit nor a slot, only its CID here.
//!
//! Invariant: a held request is completed or replaced, never both.

use super::{Connection, Permit};
use crate::Completion;

impl Connection {
    /// Keeps an Async Event Request until [`Connection::complete_held`] or [`Connection::replace_held`].
    ///
    /// # Panics
    /// If more than [`MAX_ASYNC_EVENTS`] requests are held.
    pub fn hold(&mut self, permit: Permit) {
        self.held.push(permit.cid());
        self.slots.close(permit);
    }

    /// Whether an Async Event Request of this CID is held.
    #[inline]
    pub fn is_held(&self, cid: u16) -> bool {
        self.held.contains(&cid)
    }

    /// Answers a held request. Does nothing if none has this CID.
    pub fn complete_held(&mut self, cid: u16, completion: Completion) {
        if self.release(cid) && self.phase.is_alive() {
            self.queue_response(cid, completion);
        }
    }

    /// Forgets a held request, because its host has given the CID to another command.
    pub fn replace_held(&mut self, cid: u16) {
        if self.release(cid) {
            self.submission_queue.advance();
        }
    }

    fn release(&mut self, cid: u16) -> bool {
        let place = self.held.iter().position(|&held| held == cid);
        place.map(|place| self.held.remove(place)).is_some()
    }
}

/// Async Event Requests that a controller accepts: AERL + 1.
pub const MAX_ASYNC_EVENTS: usize = 4;

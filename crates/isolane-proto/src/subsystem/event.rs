//! Asynchronous events of one controller: its held requests (Base 1.4 §5.2).
//!
//! Tracks Async Event Requests by CID. A request is held until an event occurs or it is aborted.
//! Its completion stays here until the driver of the admin queue takes it.
//!
//! Invariant: every request completes once, unless its host reuses the CID.

use arrayvec::ArrayVec;
use isolane_wire::Status;

use crate::completion::Completion;
use crate::failure::Failure;
use crate::target::MAX_ASYNC_EVENTS;

/// The held requests of one controller.
#[derive(Debug, Default)]
pub(super) struct AsyncEvents {
    held: ArrayVec<u16, MAX_ASYNC_EVENTS>,
    /// Completions that the driver has not taken, oldest first.
    completions: ArrayVec<(u16, Completion), MAX_ASYNC_EVENTS>,
}

impl AsyncEvents {
    /// Holds a request. Rejects it if AERL + 1 requests are held (Base 1.4 §5.2).
    pub(super) fn hold(&mut self, cid: u16) -> Result<(), Status> {
        if self.held.len() + self.completions.len() >= MAX_ASYNC_EVENTS {
            return Err(Failure::AsyncEventLimit.status());
        }
        self.held.push(cid);
        Ok(())
    }

    /// Completes the held request with this CID. Returns `false` if the CID is not held.
    pub(super) fn complete(&mut self, cid: u16, completion: Completion) -> bool {
        let is_held = self.release(cid);
        if is_held {
            self.completions.push((cid, completion));
        }
        is_held
    }

    /// Completes the oldest held request. Returns `false` if none is held.
    pub(super) fn complete_oldest(&mut self, completion: Completion) -> bool {
        self.held.first().copied().is_some_and(|cid| self.complete(cid, completion))
    }

    /// Completes all held requests.
    pub(super) fn complete_all(&mut self, completion: Completion) {
        self.completions.extend(self.held.drain(..).map(|cid| (cid, completion)));
    }

    /// Drops the request with this CID, which another command uses now. Returns the completion of
    /// the request if it has one.
    pub(super) fn replace(&mut self, cid: u16) -> Option<Completion> {
        if self.release(cid) {
            return None;
        }
        let at = self.completions.iter().position(|(completed, _)| *completed == cid)?;
        Some(self.completions.remove(at).1)
    }

    /// Takes the next completion.
    pub(super) fn poll(&mut self) -> Option<(u16, Completion)> {
        self.completions.pop_at(0)
    }

    /// Whether the driver must take completions.
    pub(super) fn has_completions(&self) -> bool {
        !self.completions.is_empty()
    }

    /// Clears all requests.
    pub(super) fn clear_requests(&mut self) {
        self.held.clear();
        self.completions.clear();
    }

    /// Returns the held requests, and the completions.
    pub(super) fn state(&self) -> (&[u16], &[(u16, Completion)]) {
        (&self.held, &self.completions)
    }

    /// Returns requests with this state; `None` if there are too many.
    pub(super) fn from_state(held: &[u16], completions: &[(u16, Completion)]) -> Option<AsyncEvents> {
        let is_valid = held.len() + completions.len() <= MAX_ASYNC_EVENTS;
        is_valid.then(|| AsyncEvents {
            held: held.iter().copied().collect(),
            completions: completions.iter().copied().collect(),
        })
    }

    fn release(&mut self, cid: u16) -> bool {
        let at = self.held.iter().position(|&held| held == cid);
        at.map(|at| self.held.remove(at)).is_some()
    }
}

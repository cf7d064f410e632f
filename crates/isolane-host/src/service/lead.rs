//! The lead: the right to turn a volume's client, and the duty to look back when it is given up.
//!
//! It says how long its holder goes on; who gets it is told in `shared`. Invariant: a panic under it closes
//! the volume, because what was being turned is in an unknown state.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use parking_lot::MutexGuard;

use super::caller::Caller;
use super::engine::Engine;
use super::shared::{Patience, Shared, is_past};
use crate::client::Wait;

/// The right to turn the client, until it is dropped.
pub(super) struct Lead<'a> {
    shared: &'a Shared,
    guard: Option<MutexGuard<'a, Option<Engine>>>,
}

impl<'a> Lead<'a> {
    /// The guard holds an engine.
    pub(super) fn new(shared: &'a Shared, guard: MutexGuard<'a, Option<Engine>>) -> Lead<'a> {
        Lead { shared, guard: Some(guard) }
    }

    /// Turns the client once. Returns the number of requests without an answer.
    pub(super) fn turn(&mut self, wait: Wait) -> usize {
        let shared = self.shared;
        let Some(engine) = self.engine() else { return 0 };
        engine.turn(&shared.inbox, wait);
        engine.outstanding()
    }

    /// Turns the client until nothing is left to do for callers, or the volume stops. Returns when it wants
    /// to be turned again.
    pub(super) fn serve_all(&mut self) -> Option<Instant> {
        let shared = self.shared;
        let mut wait = Wait::None;
        loop {
            let outstanding = self.turn(wait);
            let stays = !shared.is_inline() || self.engine().is_some_and(|engine| engine.is_for_futures());
            if shared.is_stopping() || (!stays && outstanding == 0 && shared.inbox.is_empty()) {
                return self.engine().map(|engine| engine.housekeeping());
            }
            wait = Wait::Forever;
        }
    }

    /// Turns the client until the caller has an answer, its patience has ended, or the volume stops.
    pub(super) fn serve(&mut self, caller: &Arc<Caller>, patience: Patience) {
        let shared = self.shared;
        let wait = match patience {
            Patience { polls: true, .. } => Wait::None,
            Patience { until: Some(until), .. } => Wait::Until(until),
            Patience { until: None, .. } => Wait::Forever,
        };
        if let Some(engine) = self.engine() {
            engine.take_from(caller);
        }
        while !caller.has_completions() && !shared.is_stopping() {
            self.turn(wait);
            if is_past(patience.until) {
                return;
            }
        }
    }

    /// Ends the association in order. What is without an answer gets an error.
    pub(super) fn close(mut self) {
        if let Some(engine) = self.take() {
            engine.close();
        }
    }

    fn engine(&mut self) -> Option<&mut Engine> {
        self.guard.as_deref_mut()?.as_mut()
    }

    /// Takes the engine out for good.
    fn take(&mut self) -> Option<Engine> {
        self.shared.is_stopping.store(true, Ordering::Release);
        self.guard.as_deref_mut()?.take()
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // What was being turned is in an unknown state: nobody turns it again.
            drop(self.take());
        }
        let outstanding = self.engine().map(|engine| engine.outstanding());
        self.shared.outstanding.store(outstanding.unwrap_or_default(), Ordering::Relaxed);
        if outstanding.is_none() {
            self.shared.is_over.store(true, Ordering::SeqCst);
            self.shared.refuse_if_over(None);
        }
        drop(self.guard.take());
        self.shared.look_back();
    }
}

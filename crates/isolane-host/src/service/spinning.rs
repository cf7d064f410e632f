//! How long a caller that does not lead spins for its answer before it sleeps.
//!
//! Not at all where whoever leads shares its core, or where nobody spins; else for the time that the options
//! give.

use std::sync::atomic::Ordering;
use std::time::Instant;

use isolane_reactor::core;

use super::shared::Shared;

/// Looks at the clock are that many rounds apart.
const ROUNDS: u32 = 16;

pub(super) struct Spinning<'a> {
    shared: &'a Shared,
    until: Option<Instant>,
    rounds: u32,
    may_lead: bool,
    /// Whether others count on this caller to lead.
    is_counted: bool,
}

impl<'a> Spinning<'a> {
    pub(super) fn new(shared: &'a Shared, may_lead: bool) -> Spinning<'a> {
        Spinning {
            shared,
            until: None,
            rounds: 0,
            may_lead: may_lead && shared.is_inline(),
            is_counted: false,
        }
    }

    /// Whether to go round once more.
    pub(super) fn goes_on(&mut self) -> bool {
        self.rounds += 1;
        let is_over = match self.until {
            None => !self.begin(),
            Some(until) => self.rounds.is_multiple_of(ROUNDS) && Instant::now() >= until,
        };
        if is_over {
            self.end();
        }
        !is_over
    }

    fn begin(&mut self) -> bool {
        let shared = self.shared;
        if shared.spin.is_zero() || shared.core.load(Ordering::Relaxed) == core::current() {
            return false;
        }
        self.until = Some(Instant::now() + shared.spin);
        self.is_counted = self.may_lead;
        shared.spinners.fetch_add(usize::from(self.is_counted), Ordering::SeqCst);
        true
    }

    /// Others count on this caller no more. Who sleeps next looks whether somebody leads; who returns looks
    /// back. True if they did.
    pub(super) fn end(&mut self) -> bool {
        self.until = None;
        let was_counted = std::mem::take(&mut self.is_counted);
        self.shared.spinners.fetch_sub(usize::from(was_counted), Ordering::SeqCst);
        was_counted
    }
}

impl Drop for Spinning<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

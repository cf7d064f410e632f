//! Time that a caller spins for its completion before it sleeps.
//!
//! A caller does not spin if the leader runs on its core or [`Mode::Sleep`](crate::Mode::Sleep) is set; otherwise
//! it spins for [`Options::spin`](crate::Options::spin).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use isolane_reactor::cpu;

/// Rounds between two reads of the clock.
const ROUNDS: u32 = 16;

/// Spinning callers of a service.
pub(super) struct Spinners {
    /// Callers that lead as soon as no other thread does.
    leaders: AtomicUsize,
    /// The core on which the current leader began to lead.
    leader_core: AtomicUsize,
    spin: Duration,
}

impl Spinners {
    /// `spin` is how long a caller spins.
    pub fn new(spin: Duration) -> Spinners {
        Spinners { leaders: AtomicUsize::new(0), leader_core: AtomicUsize::new(usize::MAX), spin }
    }

    /// Records the core of a new leader.
    pub fn on_lead(&self) {
        if !self.spin.is_zero() {
            self.leader_core.store(cpu::current(), Ordering::Relaxed);
        }
    }

    /// Returns whether a spinning caller will lead.
    pub fn has_leaders(&self) -> bool {
        self.leaders.load(Ordering::Relaxed) > 0
    }
}

/// One spinning caller.
pub(crate) struct SpinWait<'a> {
    spinners: &'a Spinners,
    deadline: Option<Instant>,
    rounds: u32,
    may_lead: bool,
    /// Whether it is counted in [`Spinners::leaders`].
    counted: bool,
}

impl<'a> SpinWait<'a> {
    pub(super) fn new(spinners: &'a Spinners, may_lead: bool) -> SpinWait<'a> {
        SpinWait { spinners, deadline: None, rounds: 0, may_lead, counted: false }
    }

    /// Returns whether to spin for another round.
    pub(crate) fn should_spin(&mut self) -> bool {
        self.rounds += 1;
        let is_over = match self.deadline {
            None => !self.begin(),
            Some(deadline) => self.rounds.is_multiple_of(ROUNDS) && Instant::now() >= deadline,
        };
        if is_over {
            self.end();
        }
        !is_over
    }

    fn begin(&mut self) -> bool {
        let Spinners { leaders, leader_core, spin } = self.spinners;
        if spin.is_zero() || leader_core.load(Ordering::Relaxed) == cpu::current() {
            return false;
        }
        self.deadline = Some(Instant::now() + *spin);
        self.counted = self.may_lead;
        leaders.fetch_add(usize::from(self.counted), Ordering::SeqCst);
        true
    }

    /// Ends the spin before the caller sleeps or returns. Returns whether other threads counted on it to lead.
    pub(super) fn end(&mut self) -> bool {
        self.deadline = None;
        let was_counted = std::mem::take(&mut self.counted);
        self.spinners.leaders.fetch_sub(usize::from(was_counted), Ordering::SeqCst);
        was_counted
    }
}

impl Drop for SpinWait<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

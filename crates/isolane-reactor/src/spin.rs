//! Whether to go on spinning. Spinning pays only while work follows on work; so the time spent on it doubles
//! each time a sleep turns out to have been short, and halves each time it was long. A core with nothing but
//! keep-alives spins for microseconds only; a lane that bounces replies finds its reactor awake.

use crate::Mode;
use std::time::{Duration, Instant};

/// How long a loop goes on spinning.
#[derive(Debug)]
pub struct Spin {
    mode: Mode,
    longest: Duration,
    current: Duration,
    last_work: Instant,
}

impl Spin {
    /// Spins for `longest` at most, in [`Mode::Adaptive`].
    pub fn new(mode: Mode, longest: Duration, now: Instant) -> Spin {
        Spin { mode, longest, current: longest, last_work: now }
    }

    /// What it does when there is nothing to do.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Does something else from now on.
    pub fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
    }

    /// There was something to do.
    pub fn on_work(&mut self, now: Instant) {
        self.last_work = now;
    }

    /// Whether there may soon be something to do.
    pub fn is_spinning(&self, now: Instant) -> bool {
        match self.mode {
            Mode::Poll => true,
            Mode::Adaptive => now.saturating_duration_since(self.last_work) < self.current,
            Mode::Sleep => false,
        }
    }

    /// Passes the time between two looks. Who spins for somebody that may wait for the same core lets it run; with
    /// nobody there that takes a fraction of a microsecond. In [`Mode::Poll`] the core is its own.
    pub fn give_way(&self) {
        match self.mode {
            Mode::Poll => std::hint::spin_loop(),
            Mode::Adaptive | Mode::Sleep => std::thread::yield_now(),
        }
    }

    /// How long after its last work something is worth being looked at every turn.
    pub fn lingers(&self) -> Duration {
        match self.mode {
            Mode::Poll => self.longest,
            Mode::Adaptive => self.current,
            Mode::Sleep => Duration::ZERO,
        }
    }

    /// A sleep was ended by work.
    pub fn on_slept(&mut self, slept: Duration) {
        let shortest = self.longest / SHRINK_MAX;
        self.current = match slept < self.longest {
            true => (self.current * 2).min(self.longest),
            false => (self.current / 2).max(shortest),
        };
    }
}

/// The shortest spin is this part of the longest.
const SHRINK_MAX: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_micros(64);

    #[test]
    fn an_adaptive_reactor_spins_a_little_after_work() {
        let start = Instant::now();
        let mut spin = Spin::new(Mode::Adaptive, LONGEST, start);
        assert!(spin.is_spinning(start + LONGEST / 2));
        assert!(!spin.is_spinning(start + LONGEST));
        spin.on_work(start + LONGEST);
        assert!(spin.is_spinning(start + LONGEST + LONGEST / 2));
    }

    #[test]
    fn rare_work_makes_the_spin_short_and_frequent_work_makes_it_long_again() {
        let start = Instant::now();
        let mut spin = Spin::new(Mode::Adaptive, LONGEST, start);
        for _ in 0..20 {
            spin.on_slept(Duration::from_millis(5));
        }
        assert!(!spin.is_spinning(start + Duration::from_micros(2)));
        for _ in 0..5 {
            spin.on_slept(Duration::from_micros(30));
        }
        assert!(spin.is_spinning(start + Duration::from_micros(63)));
    }

    #[test]
    fn the_other_modes_never_change_their_mind() {
        let start = Instant::now();
        let later = start + Duration::from_secs(3600);
        assert!(Spin::new(Mode::Poll, LONGEST, start).is_spinning(later));
        assert!(!Spin::new(Mode::Sleep, LONGEST, start).is_spinning(start));
    }
}

//! Adaptive spinning before sleep. Spinning pays only while work follows work: the spin time
//! doubles after each short sleep and halves after each long one. A core with only keep-alives
//! spins for microseconds; a connection with steady traffic finds its reactor awake.

use crate::Mode;
use std::time::{Duration, Instant};

/// Spin time of an event loop.
#[derive(Debug)]
pub struct AdaptiveSpin {
    mode: Mode,
    longest: Duration,
    current: Duration,
    last_work: Instant,
}

impl AdaptiveSpin {
    /// Creates a spin of at most `longest` in [`Mode::Adaptive`].
    pub fn new(mode: Mode, longest: Duration, now: Instant) -> AdaptiveSpin {
        AdaptiveSpin { mode, longest, current: longest, last_work: now }
    }

    /// Returns the idle behavior.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Changes the idle behavior.
    pub fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
    }

    /// Records work.
    pub fn on_work(&mut self, now: Instant) {
        self.last_work = now;
    }

    /// Whether the loop should keep spinning.
    pub fn is_spinning(&self, now: Instant) -> bool {
        match self.mode {
            Mode::Poll => true,
            Mode::Adaptive => now.saturating_duration_since(self.last_work) < self.current,
            Mode::Sleep => false,
        }
    }

    /// Pauses between two polls. Except in [`Mode::Poll`], where the core is dedicated, yields to a
    /// thread that may wait for the same core; with no such thread that takes a fraction of a
    /// microsecond.
    pub fn yield_cpu(&self) {
        match self.mode {
            Mode::Poll => std::hint::spin_loop(),
            Mode::Adaptive | Mode::Sleep => std::thread::yield_now(),
        }
    }

    /// Returns how long after its last work an object is polled every turn.
    pub fn linger_time(&self) -> Duration {
        match self.mode {
            Mode::Poll => self.longest,
            Mode::Adaptive => self.current,
            Mode::Sleep => Duration::ZERO,
        }
    }

    /// Adapts the spin time after a sleep that ended with work.
    pub fn on_slept(&mut self, slept: Duration) {
        let shortest = self.longest / MAX_SHRINK;
        self.current = if slept < self.longest {
            (self.current * 2).min(self.longest)
        } else {
            (self.current / 2).max(shortest)
        };
    }
}

/// Ratio of the longest to the shortest spin.
const MAX_SHRINK: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_micros(64);

    #[test]
    fn adaptive_mode_spins_after_work() {
        let start = Instant::now();
        let mut spin = AdaptiveSpin::new(Mode::Adaptive, LONGEST, start);
        assert!(spin.is_spinning(start + LONGEST / 2));
        assert!(!spin.is_spinning(start + LONGEST));
        spin.on_work(start + LONGEST);
        assert!(spin.is_spinning(start + LONGEST + LONGEST / 2));
    }

    #[test]
    fn spin_time_follows_work_frequency() {
        let start = Instant::now();
        let mut spin = AdaptiveSpin::new(Mode::Adaptive, LONGEST, start);
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
    fn poll_and_sleep_modes_do_not_adapt() {
        let start = Instant::now();
        let later = start + Duration::from_secs(3600);
        assert!(AdaptiveSpin::new(Mode::Poll, LONGEST, start).is_spinning(later));
        assert!(!AdaptiveSpin::new(Mode::Sleep, LONGEST, start).is_spinning(start));
    }
}

//! Threads that poll on fewer cores than there are of them.
//!
//! A thread that polls yields, so that another one can run. If that one polls too, it yields soon. If it spins, it keeps
//! the core for milliseconds. A thread that sleeps runs soon after it is woken. So a thread sleeps between its polls
//! once a yield has taken long. It does not sleep in each poll, because it can hold a lock of the program, for which
//! another thread waits.

use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

/// How the calling thread polls.
#[derive(Clone, Copy)]
struct Polling {
    /// Polls left until the next yield, and polls between two of them.
    left: u32,
    interval: u32,
    /// Number of polls until the next one that sleeps.
    awake: u32,
    /// Number of polls that sleep, and their number after the next long yield.
    sleeps: u32,
    next_sleeps: u32,
}

thread_local! {
    static POLLING: Cell<Polling> = const {
        let (left, interval) = (MAX_YIELD_INTERVAL, MAX_YIELD_INTERVAL);
        Cell::new(Polling { left, interval, awake: 0, sleeps: 0, next_sleeps: MIN_SLEEPS })
    };
}

/// Makes the next polls of the calling thread sleep.
#[cfg(test)]
pub(super) fn sleep_in_polls(count: u32) {
    POLLING.set(Polling { sleeps: count, ..POLLING.get() });
}

/// Called before a poll. Returns whether it should sleep until a lane is ready.
pub(super) fn should_sleep() -> bool {
    let polling = POLLING.get();
    if polling.sleeps == 0 {
        return false;
    }
    if polling.awake > 0 {
        POLLING.set(Polling { awake: polling.awake - 1, ..polling });
        return false;
    }
    POLLING.set(Polling { awake: AWAKE_POLLS, sleeps: polling.sleeps - 1, ..polling });
    true
}

/// Called after a poll without a result, and after a turn of a dedicated thread. Yields now and then, and each time if
/// that lets another thread run. A thread whose next polls sleep does not yield.
pub(super) fn relax(can_sleep: bool) {
    let polling = POLLING.get();
    if can_sleep && polling.sleeps > 0 {
        return;
    }
    if polling.left > 1 {
        return POLLING.set(Polling { left: polling.left - 1, ..polling });
    }
    let start = Instant::now();
    thread::yield_now();
    POLLING.set(polling.after_yield(start.elapsed()));
}

impl Polling {
    fn after_yield(self, time: Duration) -> Polling {
        let interval = if time > SHORT_YIELD { 1 } else { (2 * self.interval).min(MAX_YIELD_INTERVAL) };
        if time > LONG_YIELD {
            let next_sleeps = (2 * self.next_sleeps).min(MAX_SLEEPS);
            return Polling { left: 1, interval, awake: 0, sleeps: self.next_sleeps, next_sleeps };
        }
        Polling { left: interval, interval, awake: 0, sleeps: 0, next_sleeps: MIN_SLEEPS }
    }
}

/// Maximum number of polls without a result between two yields.
const MAX_YIELD_INTERVAL: u32 = 64;
/// A yield that takes longer has let another thread run.
const SHORT_YIELD: Duration = Duration::from_micros(5);
/// A yield that takes longer has let a thread run that spins.
const LONG_YIELD: Duration = Duration::from_micros(500);
/// Number of polls that sleep until a thread yields again, to find out whether others still spin. It doubles while they
/// do.
const MIN_SLEEPS: u32 = 64;
const MAX_SLEEPS: u32 = 8192;
/// Number of polls between two that sleep.
const AWAKE_POLLS: u32 = 7;
/// Longest sleep of a poll: a thread can have other work.
pub(super) const MAX_SLEEP: Duration = Duration::from_micros(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_in_few_polls_and_yields_in_none_meanwhile() {
        sleep_in_polls(3);
        let polls = 3 * (AWAKE_POLLS + 1);
        let slept: Vec<u32> = (0..polls).filter(|_| should_sleep()).collect();
        assert_eq!(slept, [0, AWAKE_POLLS + 1, 2 * (AWAKE_POLLS + 1)]);
        sleep_in_polls(1);
        let before = POLLING.get().left;
        (0..before).for_each(|_| relax(true));
        assert_eq!(POLLING.get().left, before, "a thread that sleeps does not yield");
        relax(false);
        assert_ne!(POLLING.get().left, before, "a dedicated thread does not sleep");
    }

    #[test]
    fn sleeps_longer_while_others_spin() {
        let mut polling = POLLING.get();
        for sleeps in [MIN_SLEEPS, 2 * MIN_SLEEPS, 4 * MIN_SLEEPS] {
            polling = polling.after_yield(2 * LONG_YIELD);
            assert_eq!((polling.sleeps, polling.left), (sleeps, 1));
        }
        for _ in 0..20 {
            polling = polling.after_yield(2 * LONG_YIELD);
        }
        assert_eq!(polling.sleeps, MAX_SLEEPS);
        // A thread that polls has run.
        polling = polling.after_yield(2 * SHORT_YIELD);
        assert_eq!((polling.sleeps, polling.left), (0, 1));
        for left in [2, 4, 8, 16, 32, 64, 64] {
            polling = polling.after_yield(Duration::ZERO);
            assert_eq!((polling.sleeps, polling.left), (0, left));
        }
        assert_eq!(polling.after_yield(2 * LONG_YIELD).sleeps, MIN_SLEEPS);
    }
}

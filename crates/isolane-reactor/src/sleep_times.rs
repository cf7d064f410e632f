//! Durations of the sleeps of an event loop, readable from any thread at any time.
//!
//! Invariant: one thread writes, and only when a sleep begins or ends.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Total durations of the sleeps of an event loop.
#[derive(Debug)]
pub struct SleepTimes {
    start: Instant,
    /// Awake: the time asleep in nanoseconds. Asleep: [`ASLEEP`] and the time awake, both since `start`. One number
    /// holds both, so that no reader counts a sleep twice.
    state: AtomicU64,
    late_ns: AtomicU64,
}

impl Default for SleepTimes {
    fn default() -> SleepTimes {
        SleepTimes { start: Instant::now(), state: AtomicU64::new(0), late_ns: AtomicU64::new(0) }
    }
}

impl SleepTimes {
    /// Records the begin of a sleep. Only the sleeping thread calls it.
    pub fn begin(&self, now: Instant) {
        let asleep = self.asleep_ns(now);
        self.state.store(ASLEEP | self.since_start(now).saturating_sub(asleep), Ordering::Relaxed);
    }

    /// Records the end of a sleep, if one has begun. Only the sleeping thread calls it.
    pub fn end(&self, now: Instant) {
        self.state.store(self.asleep_ns(now), Ordering::Relaxed);
    }

    /// Adds the delay of a sleep that ended late. Only the sleeping thread calls it.
    pub fn add_late(&self, late: Duration) {
        let late_ns = self.late_ns.load(Ordering::Relaxed) + late.as_nanos() as u64;
        self.late_ns.store(late_ns, Ordering::Relaxed);
    }

    /// Returns the duration of all sleeps until `now` in nanoseconds, with the sleep in progress.
    pub fn asleep_ns(&self, now: Instant) -> u64 {
        let state = self.state.load(Ordering::Relaxed);
        if state & ASLEEP == 0 { state } else { self.since_start(now).saturating_sub(state & !ASLEEP) }
    }

    /// Returns the total time in nanoseconds between the deadline of a sleep and its end, for sleeps without an event
    /// that end later than timers of the kernel usually do.
    pub fn late_ns(&self) -> u64 {
        self.late_ns.load(Ordering::Relaxed)
    }

    fn since_start(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_nanos() as u64
    }
}

const ASLEEP: u64 = 1 << 63;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_sleep_in_progress() {
        let times = SleepTimes::default();
        let at = |ns| times.start + Duration::from_nanos(ns);
        times.begin(at(100));
        assert_eq!(times.asleep_ns(at(100)), 0);
        assert_eq!(times.asleep_ns(at(150)), 50, "in progress");
        times.end(at(160));
        assert_eq!(times.asleep_ns(at(500)), 60, "ended");
        times.end(at(600));
        assert_eq!(times.asleep_ns(at(600)), 60, "no sleep has begun");
        times.begin(at(1000));
        assert_eq!(times.asleep_ns(at(1001)), 61);
        assert_eq!(times.asleep_ns(at(0)), 0, "the time of a reader may be earlier");
        times.end(at(1040));
        assert_eq!(times.asleep_ns(at(2000)), 100);
    }

    #[test]
    fn adds_late_ends() {
        let times = SleepTimes::default();
        [300, 400].into_iter().for_each(|ns| times.add_late(Duration::from_nanos(ns)));
        assert_eq!(times.late_ns(), 700);
    }
}

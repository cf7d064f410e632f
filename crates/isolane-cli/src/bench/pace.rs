//! Start, end, and rate of a measurement.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use super::Args;
use crate::failure::Failure;

/// Times of one measurement, and its share of the rate.
#[derive(Debug, Clone)]
pub struct Pace {
    /// End of the warm-up.
    pub from: Instant,
    /// End of the measurement; no operation starts later.
    pub until: Instant,
    /// Time between two operations, if the rate is limited.
    interval: Option<Duration>,
    next: Instant,
    stopped: Arc<AtomicI32>,
}

impl Pace {
    /// Returns a measurement that starts now, for one of `threads` that share the rate. It ends early once
    /// `stopped` is a signal.
    pub fn new(args: &Args, threads: u16, stopped: &Arc<AtomicI32>) -> Result<Pace, Failure> {
        let now = Instant::now();
        let too_long = || Failure::new("--time", "too long for the clock");
        let from = now.checked_add(args.warm_up).ok_or_else(too_long)?;
        Ok(Pace {
            from,
            until: from.checked_add(args.time).ok_or_else(too_long)?,
            interval: args.rate.map(|rate| Duration::from_secs(1) * u32::from(threads) / rate),
            next: now,
            stopped: Arc::clone(stopped),
        })
    }

    /// Returns the pace of each of `threads`, staggered so that together they keep the rate.
    pub fn for_threads(&self, threads: u32) -> impl Iterator<Item = Pace> {
        let between = self.interval.unwrap_or_default() / threads.max(1);
        (0..threads).map(move |index| Pace { next: self.next + between * index, ..self.clone() })
    }

    /// Returns the signal that ends the measurement, or 0.
    pub fn stopped(&self) -> &Arc<AtomicI32> {
        &self.stopped
    }

    /// Returns `true` once the time has passed or a signal has arrived.
    pub fn is_finished(&self, now: Instant) -> bool {
        now >= self.until || self.stopped.load(Ordering::Relaxed) != 0
    }

    /// Returns `true` if an operation may start, and counts it.
    pub fn start(&mut self, now: Instant) -> bool {
        let Some(interval) = self.interval else { return true };
        if now < self.next {
            return false;
        }
        // A late target does not get all missed operations together.
        self.next = (self.next + interval).max(now.checked_sub(MAX_CATCH_UP).unwrap_or(now));
        true
    }

    /// Returns the start time of the next operation, if the rate is limited.
    pub fn next(&self) -> Option<Instant> {
        self.interval.map(|_| self.next)
    }
}

/// Returns the time since the end of the warm-up, or since the start if the run ended in the warm-up.
pub fn elapsed_since(from: Instant, started: Instant) -> Duration {
    let now = Instant::now();
    now - if now > from { from } else { started }
}

/// Share of the rate that is caught up after a delay.
const MAX_CATCH_UP: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_the_rate_and_catches_up_little() {
        let now = Instant::now();
        let second = Duration::from_secs(1);
        let stopped = Arc::default();
        let mut pace =
            Pace { from: now, until: now + second, interval: Some(second / 1000), next: now, stopped };
        assert!(pace.start(now) && !pace.start(now));
        let mut started = |now| (0..10_000).take_while(|_| pace.start(now)).count();
        assert_eq!(started(now + second / 100), 10);
        assert_eq!(started(now + 10 * second), 102);
        let next: Vec<_> = pace.for_threads(2).map(|pace| pace.next - now).collect();
        assert_eq!(next[1] - next[0], second / 2000);
        pace.stopped.store(2, Ordering::Relaxed);
        assert!(pace.is_finished(now));
    }
}

//! Limits for the time that readings take, and the readings that are not available.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::system::ReadError;

/// Share of the time that each reading may take: one part in this many.
const SHARE: u32 = 400;
/// The same for lists of processes, which are rarely read.
pub const PROCESSES_SHARE: u32 = 20;

/// Limit for the time that a reading takes.
#[derive(Debug)]
pub struct Throttle {
    next: Option<Instant>,
    share: u32,
}

impl Default for Throttle {
    fn default() -> Throttle {
        Throttle::with_share(SHARE)
    }
}

impl Throttle {
    /// Returns a limit of one part in `share`.
    pub const fn with_share(share: u32) -> Throttle {
        Throttle { next: None, share }
    }

    /// Runs a reading, unless it would take more than its share of the time.
    pub fn run<T>(&mut self, read: impl FnOnce() -> T) -> Option<T> {
        let started = Instant::now();
        if self.next.is_some_and(|next| started < next) {
            return None;
        }
        let result = read();
        self.next = Some(started + (started.elapsed() * self.share).min(MAX_PAUSE));
        Some(result)
    }
}

/// Longest time between two readings.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// Readings that are not available.
#[derive(Debug, Default)]
pub struct Missing(BTreeMap<String, String>);

impl Missing {
    /// Returns the value of a reading, or remembers the error.
    pub fn check<T>(&mut self, what: &str, read: Result<T, ReadError>) -> Option<T> {
        read.inspect_err(|error| self.add(what, error)).ok()
    }

    /// Remembers a reading that is not available.
    pub fn add(&mut self, what: &str, needs: &impl ToString) {
        self.0.insert(what.to_owned(), needs.to_string());
    }

    /// Returns each reading with its requirement.
    pub fn into_list(self) -> Vec<(String, String)> {
        self.0.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_readings_are_rare() {
        let mut throttle = Throttle::default();
        assert_eq!(throttle.run(|| std::thread::sleep(Duration::from_millis(50))), Some(()));
        assert_eq!(throttle.run(|| ()), None);
    }
}

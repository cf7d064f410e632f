//! Counters of a run: operations, bytes, errors, and latencies.
//!
//! Latencies are recorded in nanoseconds in an HDR histogram with three significant digits.

use std::fmt::Display;

use hdrhistogram::Histogram;

use super::access_pattern::Direction;

/// Counters of the operations in one direction.
pub struct DirectionStats {
    histogram: Histogram<u64>,
    /// The latest latency and its number of occurrences, for operations that start and end together. Not yet in the
    /// histogram.
    latest: (u64, u64),
    /// Number of moved bytes.
    pub bytes: u64,
    /// Number of failed operations.
    pub errors: u64,
    first_error: Option<String>,
}

impl DirectionStats {
    fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, MAX_LATENCY_NS, 3).expect("valid bounds");
        DirectionStats { histogram, latest: (1, 0), bytes: 0, errors: 0, first_error: None }
    }

    /// Counts one successful operation.
    #[inline]
    pub fn on_success(&mut self, latency_ns: u64, bytes: u64) {
        if latency_ns != self.latest.0 {
            record(&mut self.histogram, self.latest);
            self.latest = (latency_ns, 0);
        }
        self.latest.1 += 1;
        self.bytes += bytes;
    }

    /// Counts one failed operation.
    pub fn on_error(&mut self, error: &dyn Display) {
        self.errors += 1;
        self.first_error.get_or_insert_with(|| error.to_string());
    }

    /// Returns the histogram of all latencies in nanoseconds.
    pub fn latencies(&self) -> Histogram<u64> {
        let mut histogram = self.histogram.clone();
        record(&mut histogram, self.latest);
        histogram
    }

    /// Returns the number of successful operations.
    pub fn operations(&self) -> u64 {
        self.histogram.len() + self.latest.1
    }

    fn add(&mut self, other: &DirectionStats) {
        self.bytes += other.bytes;
        self.errors += other.errors;
        self.first_error = self.first_error.take().or_else(|| other.first_error.clone());
        self.histogram.add(other.latencies()).expect("same bounds");
    }
}

/// Counters of one run: reads, then writes.
pub struct Stats(pub [DirectionStats; 2]);

impl Stats {
    /// Returns empty counters.
    pub fn new() -> Self {
        Stats([DirectionStats::new(), DirectionStats::new()])
    }

    /// Returns the counters of one direction.
    #[inline]
    pub fn direction(&mut self, direction: Direction) -> &mut DirectionStats {
        &mut self.0[usize::from(direction == Direction::Write)]
    }

    /// Replaces the first error, which may be less specific.
    pub fn replace_error(&mut self, reason: &dyn Display) {
        for error in self.0.iter_mut().filter_map(|stats| stats.first_error.as_mut()) {
            *error = reason.to_string();
        }
    }

    /// Adds the counters of another thread.
    pub fn add(&mut self, other: &Stats) {
        self.0.iter_mut().zip(&other.0).for_each(|(sum, one)| sum.add(one));
    }

    /// Returns the sum of reads and writes.
    pub fn total(&self) -> DirectionStats {
        let mut total = DirectionStats::new();
        self.0.iter().for_each(|stats| total.add(stats));
        total
    }

    /// Returns the number of successful operations.
    pub fn operations(&self) -> u64 {
        self.0.iter().map(DirectionStats::operations).sum()
    }

    /// Returns the number of failed operations.
    pub fn errors(&self) -> u64 {
        self.0.iter().map(|stats| stats.errors).sum()
    }

    /// Returns the reason of the first failure.
    pub fn first_error(&self) -> Option<&str> {
        self.0.iter().find_map(|stats| stats.first_error.as_deref())
    }
}

fn record(histogram: &mut Histogram<u64>, (latency_ns, count): (u64, u64)) {
    if count > 0 {
        histogram.saturating_record_n(latency_ns.clamp(1, MAX_LATENCY_NS), count);
    }
}

const MAX_LATENCY_NS: u64 = 600_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_all_operations_of_threads() {
        let mut sum = DirectionStats::new();
        for _ in 0..2 {
            let mut one = DirectionStats::new();
            [5000, 7000, 7000].into_iter().for_each(|ns| one.on_success(ns, 512));
            sum.add(&one);
        }
        assert_eq!((sum.operations(), sum.bytes), (6, 6 * 512));
    }

    #[test]
    fn counts_repeated_latencies() {
        let mut stats = DirectionStats::new();
        [5000, 5000, 7000, 5000, 5000].into_iter().for_each(|ns| stats.on_success(ns, 512));
        assert_eq!((stats.operations(), stats.bytes), (5, 5 * 512));
        let latencies = stats.latencies();
        assert_eq!((latencies.len(), latencies.count_at(5000), latencies.count_at(7000)), (5, 4, 1));
    }
}

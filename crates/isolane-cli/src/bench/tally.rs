//! What a thread of `bench` counts while it runs: operations, bytes, errors and latencies.
//!
//! Latencies are recorded in nanoseconds into an HDR histogram with three significant digits.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::plan::Direction;
use super::report::{LatencyUs, Report, StreamReport};
use super::verifier::Verdict;
use super::workload::Workload;
use crate::failure::{Context, Failure};

/// Counts and latencies of one run.
pub struct Tally {
    histogram: Histogram<u64>,
    /// The last latency and how often in a row it came: that of operations that began and ended together. Not
    /// yet in the histogram.
    run: (u64, u64),
    bytes: u64,
    errors: u64,
    first_error: Option<String>,
}

impl Tally {
    /// Nothing counted yet.
    pub fn new() -> Result<Self, Failure> {
        let histogram =
            Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).context("cannot set up the histogram")?;
        Ok(Tally { histogram, run: (1, 0), bytes: 0, errors: 0, first_error: None })
    }

    /// One operation of `bytes` bytes that succeeded after `latency_ns`.
    #[inline]
    pub fn completed(&mut self, latency_ns: u64, bytes: u64) {
        if latency_ns != self.run.0 {
            record_run(&mut self.histogram, self.run);
            self.run = (latency_ns, 0);
        }
        self.run.1 += 1;
        self.bytes += bytes;
    }

    /// All latencies.
    fn latencies(&self) -> Histogram<u64> {
        let mut histogram = self.histogram.clone();
        record_run(&mut histogram, self.run);
        histogram
    }

    /// One operation that failed.
    pub fn failed(&mut self, why: &dyn std::fmt::Display) {
        self.errors += 1;
        self.first_error.get_or_insert_with(|| why.to_string());
    }

    /// Names `why` as the reason of what failed: the first failed operation may know less.
    pub fn blame(&mut self, why: &dyn std::fmt::Display) {
        if let Some(error) = &mut self.first_error {
            *error = why.to_string();
        }
    }

    /// Adds what another thread counted.
    pub fn add(&mut self, other: &Tally) -> Result<(), Failure> {
        self.bytes += other.bytes;
        self.errors += other.errors;
        self.first_error = self.first_error.take().or_else(|| other.first_error.clone());
        self.histogram.add(other.latencies()).context("cannot add two histograms up")
    }

    /// Why the first failed operation failed.
    pub fn first_error(&self) -> Option<&str> {
        self.first_error.as_deref()
    }

    /// Operations that succeeded so far.
    pub fn operations(&self) -> u64 {
        self.histogram.len() + self.run.1
    }

    /// Bytes moved so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Operations that failed so far.
    pub fn errors(&self) -> u64 {
        self.errors
    }

    /// Rates and latencies.
    pub fn stream_report(&self, elapsed: Duration) -> StreamReport {
        let seconds = elapsed.as_secs_f64().max(f64::EPSILON);
        StreamReport {
            iops: self.operations() as f64 / seconds,
            mib_per_s: self.bytes as f64 / f64::from(1 << 20) / seconds,
            latency_us: LatencyUs::of(&self.latencies()),
            errors: self.errors,
        }
    }
}

/// Counts and latencies of one run, by direction.
pub struct Tallies([Tally; 2]);

impl Tallies {
    /// Nothing counted yet.
    pub fn new() -> Result<Self, Failure> {
        Ok(Tallies([Tally::new()?, Tally::new()?]))
    }

    /// Those of one direction.
    #[inline]
    pub fn of(&mut self, direction: Direction) -> &mut Tally {
        &mut self.0[usize::from(direction == Direction::Write)]
    }

    /// Names `why` as the reason of what failed, in both directions.
    pub fn blame(&mut self, why: &dyn std::fmt::Display) {
        self.0.iter_mut().for_each(|tally| tally.blame(why));
    }

    /// Adds what another thread counted.
    pub fn add(&mut self, other: &Tallies) -> Result<(), Failure> {
        self.0.iter_mut().zip(&other.0).try_for_each(|(mine, theirs)| mine.add(theirs))
    }

    /// Reads and writes together.
    pub fn sum(&self) -> Result<Tally, Failure> {
        let mut sum = Tally::new()?;
        self.0.iter().try_for_each(|tally| sum.add(tally))?;
        Ok(sum)
    }

    /// Operations that succeeded so far.
    pub fn operations(&self) -> u64 {
        self.0.iter().map(Tally::operations).sum()
    }

    /// Bytes moved so far.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(Tally::bytes).sum()
    }

    /// Operations that failed so far.
    pub fn errors(&self) -> u64 {
        self.0.iter().map(Tally::errors).sum()
    }

    /// Why the first failed operation failed.
    pub fn first_error(&self) -> Option<&str> {
        self.0.iter().find_map(Tally::first_error)
    }

    /// The result of the run; reads and writes also apart if there are both.
    pub fn report(
        &self,
        elapsed: Duration,
        verdict: &Verdict,
        workload: Workload,
    ) -> Result<Report, Failure> {
        let sum = self.sum()?;
        let StreamReport { iops, mib_per_s, latency_us, errors } = sum.stream_report(elapsed);
        let is_mixed = self.0.iter().all(|tally| tally.operations() + tally.errors() > 0);
        let [read, write] = self.0.each_ref().map(|tally| is_mixed.then(|| tally.stream_report(elapsed)));
        Ok(Report {
            iops,
            mib_per_s,
            latency_us,
            errors,
            verified_blocks: verdict.blocks_checked(),
            verify_errors: verdict.errors(),
            operations: sum.operations(),
            seconds: elapsed.as_secs_f64().max(f64::EPSILON),
            workload,
            read,
            write,
            beside: None,
            placement: None,
        })
    }
}

fn record_run(histogram: &mut Histogram<u64>, (latency_ns, count): (u64, u64)) {
    if count > 0 {
        histogram.saturating_record_n(latency_ns.clamp(1, LATENCY_NS_MAX), count);
    }
}

/// Longest latency that is told apart from longer ones, in nanoseconds.
const LATENCY_NS_MAX: u64 = 600_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_add_up_to_the_last_operation() {
        let mut sum = Tally::new().unwrap();
        for _ in 0..2 {
            let mut one = Tally::new().unwrap();
            [5000, 7000, 7000].into_iter().for_each(|ns| one.completed(ns, 512));
            sum.add(&one).unwrap();
        }
        assert_eq!((sum.operations(), sum.bytes()), (6, 6 * 512));
    }

    #[test]
    fn equal_latencies_in_a_row_all_count() {
        let mut tally = Tally::new().unwrap();
        [5000, 5000, 7000, 5000, 5000].into_iter().for_each(|ns| tally.completed(ns, 512));
        assert_eq!((tally.operations(), tally.bytes()), (5, 5 * 512));
        let latencies = tally.latencies();
        assert_eq!((latencies.len(), latencies.count_at(5000), latencies.count_at(7000)), (5, 4, 1));
    }
}

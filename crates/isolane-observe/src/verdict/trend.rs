//! Series of the steps: start of a problem, and correlation with readings of the system.

use std::collections::BTreeMap;

use super::ledger::Class;
use super::window::is_sound;
use crate::histogram::{Histogram, Resolution};
use crate::snapshot::{Series, Step};

/// Steps that a correlation needs, of at most [`MAX_STEP_MS`] each.
const MIN_STEPS: usize = 30;
const MAX_STEP_MS: u64 = 2000;
/// Least correlation coefficient.
const MIN_CORRELATION: f64 = 0.7;
/// Least ratio of the rate in bad steps to the rate in the others.
const MIN_RATE_RATIO: f64 = 2.0;
/// Steps without slow operations that do not end a problem.
const MAX_GAP: usize = 3;
/// A step is bad if its operations lose at least this part of the loss in the window.
const BAD_PART: f64 = 0.25;

/// One step of a volume, a core, or another thing with operations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Point {
    pub start_unix_ms: u64,
    pub seconds: f64,
    pub operations: f64,
    /// Time of slow operations above the median, in nanoseconds.
    pub excess_ns: f64,
}

impl Point {
    fn excess_per_operation(&self) -> f64 {
        self.excess_ns / self.operations.max(1.0)
    }
}

/// Returns the points of the chosen series in all steps. `thresholds` are the shortest totals of slow operations.
pub(super) fn points(
    steps: &[&Step],
    thresholds: &BTreeMap<Class, u64>,
    chosen: impl Fn(&Series) -> bool,
) -> Vec<Point> {
    let point = |step: &&Step| {
        let mut point = Point {
            start_unix_ms: step.at_unix_ms.saturating_sub(step.length_ms),
            seconds: step.length_ms as f64 / 1000.0,
            ..Point::default()
        };
        for series in step.numbers.series.iter().filter(|series| is_sound(series) && chosen(series)) {
            let threshold = thresholds.get(&(series.side, series.operation, series.size));
            point.operations += series.total.count() as f64;
            point.excess_ns += excess_ns(&series.total, *threshold.unwrap_or(&u64::MAX));
        }
        point
    };
    steps.iter().map(point).collect()
}

/// Returns the time that operations of at least `threshold_ns` take above half of it, in nanoseconds.
fn excess_ns(times: &Histogram, threshold_ns: u64) -> f64 {
    let resolution: Resolution = times.resolution();
    let slow = times.cells().filter(|(cell, _)| resolution.start_of(*cell) >= threshold_ns);
    slow.map(|(cell, count)| {
        count as f64 * (resolution.middle_of(cell) as f64 - threshold_ns as f64 / 2.0).max(0.0)
    })
    .sum()
}

/// Returns the start of the problem that lasts until the end, or `None` if it began before the first step.
/// `first` is the first step of the window.
pub(super) fn start_of(points: &[Point], first: usize) -> Option<u64> {
    let window = points.get(first..)?;
    let operations: f64 = window.iter().map(|point| point.operations).sum();
    let mean = window.iter().map(|point| point.excess_ns).sum::<f64>() / operations.max(1.0);
    let is_bad = |point: &Point| mean > 0.0 && point.excess_per_operation() >= mean * BAD_PART;
    let mut start = None;
    let mut gap = 0;
    for (at, point) in points.iter().enumerate().rev() {
        gap = if is_bad(point) { 0 } else { gap + 1 };
        if gap == 0 {
            start = Some(at);
        } else if gap > MAX_GAP && at < first {
            break;
        }
    }
    start.filter(|at| *at > 0).map(|at| points[at].start_unix_ms)
}

/// Returns the correlation of the loss with another series of the same steps, if it is strong: at least 0.7 over 30
/// steps, and twice the rate in bad steps.
pub(super) fn correlation(points: &[Point], others: &[f64]) -> Option<f64> {
    let pairs: Vec<(f64, f64)> = points
        .iter()
        .zip(others)
        .filter(|(point, _)| point.seconds > 0.0 && point.seconds * 1000.0 <= MAX_STEP_MS as f64)
        .map(|(point, other)| (point.excess_ns / point.seconds, other / point.seconds))
        .filter(|(loss, other)| loss.is_finite() && other.is_finite())
        .collect();
    if pairs.len() < MIN_STEPS {
        return None;
    }
    let coefficient = pearson(&pairs)?;
    let mean = pairs.iter().map(|(loss, _)| loss).sum::<f64>() / pairs.len() as f64;
    let (bad, good): (Vec<_>, Vec<_>) = pairs.iter().partition(|(loss, _)| *loss > mean);
    let rate =
        |pairs: &[(f64, f64)]| pairs.iter().map(|(_, other)| other).sum::<f64>() / pairs.len().max(1) as f64;
    let moves = coefficient >= MIN_CORRELATION && rate(&bad) >= rate(&good) * MIN_RATE_RATIO;
    moves.then_some(coefficient)
}

fn pearson(pairs: &[(f64, f64)]) -> Option<f64> {
    let count = pairs.len() as f64;
    let mean = |value: fn(&(f64, f64)) -> f64| pairs.iter().map(value).sum::<f64>() / count;
    let (left, right) = (mean(|pair| pair.0), mean(|pair| pair.1));
    let sum = |value: &dyn Fn(f64, f64) -> f64| {
        pairs.iter().map(|pair| value(pair.0 - left, pair.1 - right)).sum::<f64>()
    };
    let product = sum(&|x, _| x * x).sqrt() * sum(&|_, y| y * y).sqrt();
    let coefficient = sum(&|x, y| x * y) / product;
    coefficient.is_finite().then_some(coefficient)
}

/// Returns a time as in RFC 3339, in UTC.
pub(super) fn to_rfc3339(unix_ms: u64) -> String {
    let seconds = (unix_ms / 1000).min(MAX_UNIX_S);
    let (days, second) = ((seconds / 86_400) as i64, seconds % 86_400);
    let (year, month, day) = to_date(days);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{:02}Z", second % 60)
}

/// Last second of the year 9999.
const MAX_UNIX_S: u64 = 253_402_300_799;

/// Returns year, month, and day of a number of days since 1970. Years begin in March, so that the leap day is the last.
fn to_date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(losses: &[f64]) -> Vec<Point> {
        let point = |(at, loss): (usize, &f64)| Point {
            start_unix_ms: at as u64 * 1000,
            seconds: 1.0,
            operations: 100.0,
            excess_ns: *loss,
        };
        losses.iter().enumerate().map(point).collect()
    }

    #[test]
    fn start_is_the_first_bad_step() {
        let mut losses = vec![0.0; 20];
        losses.extend([9.0, 0.0, 0.0, 9.0, 9.0, 0.0, 9.0, 9.0, 9.0, 9.0]);
        assert_eq!(start_of(&steps(&losses), 26), Some(20_000));
        assert_eq!(start_of(&steps(&[9.0; 10]), 5), None, "before the first step");
        assert_eq!(start_of(&steps(&[0.0; 10]), 5), None);
        assert_eq!(start_of(&[], 0), None);
    }

    #[test]
    fn correlation_needs_bad_steps_at_twice_the_rate() {
        let losses: Vec<f64> = (0..40).map(|at| f64::from(at % 4 == 0) * 100.0).collect();
        let points = steps(&losses);
        assert!(correlation(&points, &losses).expect("equal") > 0.99);
        let flat: Vec<f64> = losses.iter().map(|loss| loss + 1000.0).collect();
        assert_eq!(correlation(&points, &flat), None, "only a tenth more");
        assert_eq!(correlation(&points, &[1.0; 40]), None, "constant");
        assert_eq!(correlation(&points[..29], &losses), None, "too few steps");
    }

    #[test]
    fn writes_dates() {
        for (unix_s, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_795_788_130, "2026-11-27T14:02:10Z"),
            (u64::MAX / 1000, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(to_rfc3339(unix_s * 1000), text);
        }
    }
}

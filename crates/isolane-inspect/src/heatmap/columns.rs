//! Columns of a heat map: intervals of time.

use std::ops::Range;

use isolane_observe::snapshot::Step;

use super::MAX_COLUMNS;

/// One or more adjacent steps.
#[derive(Clone, Debug)]
pub struct Column {
    /// Start, in milliseconds since 1970.
    pub start_ms: u64,
    /// End, in milliseconds since 1970.
    pub end_ms: u64,
    /// Sum of the lengths of its steps, in milliseconds; not 0.
    length_ms: u64,
    /// Positions of its steps in the snapshot.
    pub steps: Range<usize>,
}

impl Column {
    /// Returns operations per second.
    pub fn rate(&self, count: u64) -> f64 {
        count as f64 * 1000.0 / self.length_ms as f64
    }
}

/// Returns at most [`MAX_COLUMNS`] columns.
pub fn of_steps(steps: &[Step]) -> Vec<Column> {
    let each = steps.len().div_ceil(MAX_COLUMNS).max(1);
    let starts = (0..steps.len()).step_by(each);
    starts.map(|start| column(steps, start..(start + each).min(steps.len()))).collect()
}

fn column(all: &[Step], positions: Range<usize>) -> Column {
    let steps = &all[positions.clone()];
    let starts = steps.iter().map(|step| step.at_unix_ms.saturating_sub(step.length_ms));
    let lengths = steps.iter().fold(0, |sum: u64, step| sum.saturating_add(step.length_ms));
    Column {
        start_ms: starts.min().unwrap_or(0),
        end_ms: steps.iter().map(|step| step.at_unix_ms).max().unwrap_or(0),
        length_ms: lengths.max(1),
        steps: positions,
    }
}

//! Operations by latency.

use isolane_observe::histogram::{COARSE_CELLS, Histogram, Resolution};

/// Rows of a strip: two for each doubling of the latency, and one at each end.
pub const ROWS: usize = (COARSE_CELLS - 2) / 2 + 2;

/// Number of operations in each cell of a histogram with [`Resolution::Four`].
#[derive(Clone, Debug)]
pub struct Counts([u64; COARSE_CELLS]);

impl Default for Counts {
    fn default() -> Counts {
        Counts([0; COARSE_CELLS])
    }
}

impl Counts {
    /// Adds the operations of a histogram of either resolution.
    pub fn add(&mut self, histogram: &Histogram) {
        let each = histogram.resolution().per_doubling() / Resolution::Four.per_doubling();
        for (cell, count) in histogram.cells() {
            let coarse = cell.div_ceil(each);
            let at = &mut self.0[coarse.min(COARSE_CELLS - 1)];
            *at = at.saturating_add(count);
        }
    }

    /// Returns the number of operations in a row.
    pub fn row(&self, row: usize) -> u64 {
        let cells = match row {
            0 => 0..1,
            _ => 2 * row - 1..(2 * row + 1).min(COARSE_CELLS),
        };
        self.0[cells].iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns the largest number of operations in a row.
    pub fn largest(&self) -> u64 {
        (0..ROWS).map(|row| self.row(row)).max().unwrap_or(0)
    }

    /// Returns the first and the last row with operations.
    pub fn used_rows(&self) -> Option<(usize, usize)> {
        let mut used = (0..ROWS).filter(|row| self.row(*row) > 0);
        let first = used.next()?;
        Some((first, used.next_back().unwrap_or(first)))
    }

    /// Returns the histogram, without the sum of its durations.
    pub fn to_histogram(&self) -> Histogram {
        Histogram::from_counts(Resolution::Four, &self.0, 0)
    }
}

/// Returns the binary logarithm of the lowest latency of a row, in nanoseconds. Rows are equally high.
pub fn row_start(row: usize) -> f64 {
    const FIRST: f64 = 6.0;
    FIRST + (row as f64 - 1.0) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolutions_are_counted_alike() {
        for ns in
            (0..37).flat_map(|shift| [1u64 << shift, (1 << shift) + (1 << shift >> 1), (2 << shift) - 1])
        {
            let [fine, coarse] = [Resolution::Eight, Resolution::Four].map(|resolution| {
                let mut histogram = Histogram::new(resolution);
                histogram.record(ns, 3);
                let mut counts = Counts::default();
                counts.add(&histogram);
                counts
            });
            assert_eq!(fine.0, coarse.0, "{ns} ns");
            let (row, last) = fine.used_rows().expect("one row");
            assert_eq!((row, fine.row(row)), (last, 3));
            let log = (ns as f64).log2();
            assert!(row == 0 || row_start(row) <= log + 0.1, "{ns} ns in row {row}");
            assert!(row == ROWS - 1 || log < row_start(row + 1) + 0.1, "{ns} ns in row {row}");
        }
    }
}

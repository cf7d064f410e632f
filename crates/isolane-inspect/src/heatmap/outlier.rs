//! The items that are slower than their peers, and the times at which they are.
//!
//! Applies the rule of the verdict once, to all columns together.

use std::collections::BTreeMap;

use isolane_observe::histogram::Histogram;
use isolane_observe::peers::{self, Criterion, compare};

use super::Strip;
use super::counts::Counts;

/// Comparison with the peers.
#[derive(Clone, Debug)]
pub struct Outlier {
    /// Quantile that differs most.
    pub quantile: f64,
    /// Its ratio to the median of the peers.
    pub ratio: f64,
    /// Columns in which the item was slow.
    pub columns: Vec<bool>,
}

/// Minimum ratio of a slow column to the peers.
const SLOW_COLUMN_RATIO: f64 = 2.0;

/// Marks the strips that are slower than the others with the same text in `peers`.
pub fn mark(strips: &mut [Strip], peers: &[&str]) {
    let mut groups: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    peers.iter().enumerate().for_each(|(strip, group)| groups.entry(group).or_default().push(strip));
    let totals: Vec<Histogram> = strips.iter().map(|strip| strip.total.to_histogram()).collect();
    for members in groups.values() {
        for criterion in [Criterion::MEDIAN, Criterion::TAIL, Criterion::STALLS] {
            let quantiles: Vec<Option<f64>> =
                members.iter().map(|strip| criterion.quantile_of(&totals[*strip])).collect();
            for found in compare(&quantiles, criterion.ratio) {
                mark_one(&mut strips[members[found.member]], criterion.quantile, &found);
            }
        }
    }
}

/// Marks a strip, if its mark by another quantile is not clearer.
fn mark_one(strip: &mut Strip, quantile: f64, found: &peers::Outlier) {
    if strip.outlier.as_ref().is_none_or(|other| other.ratio < found.ratio) {
        let columns = slow_columns(&strip.counts, quantile, found);
        strip.outlier = Some(Outlier { quantile, ratio: found.ratio, columns });
    }
}

/// Returns the columns that are nearer to the item's own quantile than to its peers'.
fn slow_columns(counts: &[Counts], quantile: f64, found: &peers::Outlier) -> Vec<bool> {
    let between = (found.others_ns * found.value_ns).sqrt();
    let limit = between.max(found.others_ns * SLOW_COLUMN_RATIO);
    counts.iter().map(|counts| counts.to_histogram().quantile(quantile) as f64 >= limit).collect()
}

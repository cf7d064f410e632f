//! The items that are slower than their peers, and the times at which they are.
//!
//! The mark of a picture is simpler than the rule of the verdict: it compares whole strips, without the effect of load.

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

/// Quantile, minimum ratio to the peers, and minimum number of operations.
const RULES: [(f64, f64, u64); 3] = [(0.5, 2.0, 200), (0.99, 3.0, 500), (0.999, 4.0, 2000)];
/// Minimum difference to the peers, in nanoseconds.
const MIN_DIFFERENCE_NS: u64 = 50_000;
/// Minimum ratio to the slowest peer.
const MIN_RATIO_TO_NEXT: f64 = 1.5;
/// Minimum ratio of a slow column to the peers.
const SLOW_COLUMN_RATIO: f64 = 2.0;

/// Marks the strips that are slower than the others with the same text in `peers`. Groups below three have no majority.
pub fn mark(strips: &mut [Strip], peers: &[&str]) {
    for (quantile, min_ratio, min_count) in RULES {
        let values: Vec<Option<u64>> = strips
            .iter()
            .map(|strip| (strip.total.sum() >= min_count).then(|| strip.total.quantile(quantile)))
            .collect();
        for at in 0..strips.len() {
            let Some(own) = values[at] else { continue };
            let others = (0..strips.len()).filter(|other| *other != at && peers[*other] == peers[at]);
            let mut others: Vec<u64> = others.filter_map(|other| values[other]).collect();
            others.sort_unstable();
            let ([_, _, ..], Some(worst)) = (&others[..], others.last()) else { continue };
            let usual = others[(others.len() - 1) / 2].max(1);
            let ratio = own as f64 / usual as f64;
            let is_slow = ratio >= min_ratio
                && own.saturating_sub(usual) >= MIN_DIFFERENCE_NS
                && own as f64 >= *worst as f64 * MIN_RATIO_TO_NEXT;
            let is_more = strips[at].outlier.as_ref().is_none_or(|found| found.ratio < ratio);
            if is_slow && is_more {
                let columns = slow_columns(&strips[at].counts, quantile, (usual, own));
                strips[at].outlier = Some(Outlier { quantile, ratio, columns });
            }
        }
    }
}

/// Returns the columns that are nearer to the item's own quantile than to its peers'.
fn slow_columns(counts: &[Counts], quantile: f64, (usual_ns, own_ns): (u64, u64)) -> Vec<bool> {
    let between = (usual_ns as f64 * own_ns as f64).sqrt();
    let limit = between.max(usual_ns as f64 * SLOW_COLUMN_RATIO);
    counts.iter().map(|counts| counts.quantile(quantile) as f64 >= limit).collect()
}

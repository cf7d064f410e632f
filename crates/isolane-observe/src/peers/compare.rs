//! Comparison of the members of a group in one window.

use crate::histogram::Histogram;

/// Condition on one quantile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Criterion {
    /// Quantile, from 0 to 1.
    pub quantile: f64,
    /// Least ratio to the median of the other members.
    pub ratio: f64,
    /// Operations that a member needs for this quantile.
    pub min_operations: u64,
}

impl Criterion {
    /// The median. A member with twice the median of the others can show a ratio of 1.75, because quantiles of a
    /// histogram are within 7 %.
    pub const MEDIAN: Criterion = Criterion { quantile: 0.5, ratio: 1.75, min_operations: 200 };
    /// The tail of a second.
    pub const TAIL: Criterion = Criterion { quantile: 0.99, ratio: 3.0, min_operations: 500 };
    /// Rare stalls.
    pub const STALLS: Criterion = Criterion { quantile: 0.999, ratio: 4.0, min_operations: 2000 };
}

impl Criterion {
    /// Returns the quantile of a histogram in nanoseconds, if it has enough operations.
    pub fn quantile_of(self, times: &Histogram) -> Option<f64> {
        (times.count() >= self.min_operations).then(|| times.quantile(self.quantile) as f64)
    }
}

/// Least difference to the median of the other members, in nanoseconds.
pub const MIN_DIFFERENCE_NS: f64 = 50_000.0;
/// Least ratio of an outlier to the worst member that is not an outlier.
pub const MIN_GAP: f64 = 1.5;
/// Members that a window needs. Two have no majority.
pub const MIN_MEMBERS: usize = 3;

/// A member that is slower than the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outlier {
    /// Position of the member.
    pub member: usize,
    /// Its quantile, in nanoseconds.
    pub value_ns: f64,
    /// Median of the quantiles of the other members, in nanoseconds.
    pub others_ns: f64,
    /// Ratio of the two.
    pub ratio: f64,
    /// Lowest and highest ratio of the members that are not outliers, to their median.
    pub spread: (f64, f64),
}

/// Returns the work of operations: each counts 1, and each 64 KiB counts 1.
pub fn work_of(operations: u64, bytes: u64) -> f64 {
    operations as f64 + bytes as f64 / 65536.0
}

/// Returns the outliers among the quantiles of all members in nanoseconds, the slowest first. A member that is left out
/// has none.
///
/// A member is an outlier if it is slower than the median of the others by `ratio` and by [`MIN_DIFFERENCE_NS`], and if
/// there is a gap of [`MIN_GAP`] between all outliers and all other members.
pub fn compare(quantiles_ns: &[Option<f64>], ratio: f64) -> Vec<Outlier> {
    let present = quantiles_ns.iter().enumerate().filter_map(|(member, value)| Some((member, (*value)?)));
    let mut values: Vec<(usize, f64)> = present.collect();
    if values.len() < MIN_MEMBERS {
        return Vec::new();
    }
    values.sort_by(|left, right| right.1.total_cmp(&left.1));
    let ascending: Vec<f64> = values.iter().rev().map(|(_, value)| *value).collect();
    let others_of = |at: usize| median_without(&ascending, ascending.len() - 1 - at);
    let is_slow = |at: usize| {
        let (value, others) = (values[at].1, others_of(at));
        value >= others * ratio && value - others >= MIN_DIFFERENCE_NS
    };
    let slow = (0..(values.len() - 1) / 2).take_while(|at| is_slow(*at)).count();
    let Some(count) = (1..=slow).rev().find(|count| values[count - 1].1 >= values[*count].1 * MIN_GAP) else {
        return Vec::new();
    };
    let alike = &ascending[..ascending.len() - count];
    let middle = median(alike).max(1.0);
    let spread = (alike[0] / middle, alike[alike.len() - 1] / middle);
    let outlier = |at: usize| {
        let ((member, value_ns), others_ns) = (values[at], others_of(at));
        Outlier { member, value_ns, others_ns, ratio: value_ns / others_ns.max(1.0), spread }
    };
    (0..count).map(outlier).collect()
}

/// Returns the ratio of each value to the median of the others.
pub fn ratios(values: &[Option<f64>]) -> Vec<Option<f64>> {
    let mut sorted: Vec<f64> = values.iter().copied().flatten().collect();
    if sorted.len() < 2 {
        return vec![None; values.len()];
    }
    sorted.sort_by(f64::total_cmp);
    let ratio = |value: f64| {
        let position = sorted.partition_point(|other| other.total_cmp(&value).is_lt());
        value / median_without(&sorted, position).max(f64::MIN_POSITIVE)
    };
    values.iter().map(|value| value.map(ratio)).collect()
}

/// Returns the median of sorted values; 0 without values.
pub fn median(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => 0.0,
        len if len % 2 == 1 => sorted[len / 2],
        len => f64::midpoint(sorted[len / 2 - 1], sorted[len / 2]),
    }
}

/// Returns the median of sorted values without the one at `position`.
fn median_without(sorted: &[f64], position: usize) -> f64 {
    let len = sorted.len().saturating_sub(1);
    let at = |index: usize| sorted[if index < position { index } else { index + 1 }];
    match len {
        0 => 0.0,
        len if len % 2 == 1 => at(len / 2),
        len => f64::midpoint(at(len / 2 - 1), at(len / 2)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn quantiles(values_us: &[u64]) -> Vec<Option<f64>> {
        values_us.iter().map(|us| Some(*us as f64 * 1000.0)).collect()
    }

    fn outliers(values_us: &[u64]) -> Vec<usize> {
        compare(&quantiles(values_us), 2.0).iter().map(|outlier| outlier.member).collect()
    }

    #[test]
    fn names_member_beyond_all_limits() {
        assert_eq!(outliers(&[200, 200, 600, 220]), [2]);
        assert_eq!(outliers(&[200, 200, 380]), [0; 0], "less than twice");
        assert_eq!(outliers(&[20, 20, 60]), [0; 0], "only 40 us more");
        assert_eq!(outliers(&[200, 200, 600, 500]), [0; 0], "no gap to the next one");
        assert_eq!(outliers(&[200, 600]), [0; 0], "two members have no majority");
    }

    #[test]
    fn names_several_members_below_half() {
        assert_eq!(outliers(&[200, 900, 200, 1000, 200]), [3, 1]);
        assert_eq!(outliers(&[200, 900, 200, 1000]), [0; 0], "half of the group");
    }

    #[test]
    fn leaves_out_members_without_data() {
        let mut values = quantiles(&[200, 200, 600, 200]);
        values[0] = None;
        assert_eq!(compare(&values, 2.0)[0].member, 2);
        assert_eq!(ratios(&values), [None, Some(0.5), Some(3.0), Some(0.5)]);
        values[2] = None;
        assert_eq!(compare(&values, 2.0), []);
    }

    proptest! {
        #[test]
        fn outliers_are_a_minority(values in prop::collection::vec(1u64..1_000_000, 0..30)) {
            let found = outliers(&values);
            prop_assert!(found.len() * 2 < values.len().max(1));
            let least = found.iter().map(|at| values[*at]).min().unwrap_or(u64::MAX);
            let others = values.iter().enumerate().filter(|(at, _)| !found.contains(at));
            prop_assert!(others.into_iter().all(|(_, value)| *value <= least));
        }

        #[test]
        fn median_without_one_is_the_median_of_others(
            mut values in prop::collection::vec(0.0f64..1e9, 1..12),
            position in any::<prop::sample::Index>(),
        ) {
            values.sort_by(f64::total_cmp);
            let position = position.index(values.len());
            let mut others = values.clone();
            others.remove(position);
            prop_assert_eq!(median_without(&values, position), median(&others));
        }
    }
}

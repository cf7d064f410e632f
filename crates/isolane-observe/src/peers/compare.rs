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
    /// The median.
    pub const MEDIAN: Criterion = Criterion { quantile: 0.5, ratio: 2.0, min_operations: 200 };
    /// The tail of a second.
    pub const TAIL: Criterion = Criterion { quantile: 0.99, ratio: 3.0, min_operations: 500 };
    /// Rare stalls.
    pub const STALLS: Criterion = Criterion { quantile: 0.999, ratio: 4.0, min_operations: 2000 };
}

/// Least difference to the median of the other members, in nanoseconds.
pub const MIN_DIFFERENCE_NS: f64 = 50_000.0;
/// Least ratio of an outlier to the worst member that is not an outlier.
pub const MIN_GAP: f64 = 1.5;
/// Members that a window needs. Two have no majority.
pub const MIN_MEMBERS: usize = 3;

/// One member in one window.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// Latencies of one operation and size class; none if the member is left out.
    pub times: Option<&'a Histogram>,
    /// Work per second: see [`work_of`].
    pub work: f64,
}

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

/// Returns the outliers of a window, the slowest first.
///
/// A member is one if it is slower than the median of the others by the ratio and by [`MIN_DIFFERENCE_NS`], and if
/// there is a gap of [`MIN_GAP`] between all outliers and all other members.
pub fn compare(samples: &[Sample<'_>], criterion: Criterion) -> Vec<Outlier> {
    let mut values = quantiles(samples, criterion);
    if values.len() < MIN_MEMBERS {
        return Vec::new();
    }
    values.sort_by(|left, right| right.1.total_cmp(&left.1));
    let ascending: Vec<f64> = values.iter().rev().map(|(_, value)| *value).collect();
    let is_slow = |at: usize| {
        let (value, others) = (values[at].1, median_without(&ascending, ascending.len() - 1 - at));
        value >= others * criterion.ratio && value - others >= MIN_DIFFERENCE_NS
    };
    let slow = (0..(values.len() - 1) / 2).take_while(|at| is_slow(*at)).count();
    let Some(count) = (1..=slow).rev().find(|count| values[count - 1].1 >= values[*count].1 * MIN_GAP) else {
        return Vec::new();
    };
    let alike = &ascending[..ascending.len() - count];
    let middle = median(alike).max(1.0);
    let spread = (alike[0] / middle, alike[alike.len() - 1] / middle);
    let outlier = |at: usize| {
        let (member, value_ns) = values[at];
        let others_ns = median_without(&ascending, ascending.len() - 1 - at);
        Outlier { member, value_ns, others_ns, ratio: value_ns / others_ns.max(1.0), spread }
    };
    (0..count).map(outlier).collect()
}

/// Returns the members with enough operations, and their quantiles.
fn quantiles(samples: &[Sample<'_>], criterion: Criterion) -> Vec<(usize, f64)> {
    let values = samples.iter().enumerate().filter_map(|(member, sample)| {
        let times = sample.times.filter(|times| times.count() >= criterion.min_operations)?;
        Some((member, times.quantile(criterion.quantile) as f64))
    });
    values.collect()
}

/// Returns the ratio of the work of a member to the median of the others, or `None` without others.
pub fn relative_work(samples: &[Sample<'_>], member: usize) -> Option<f64> {
    let present = samples.iter().enumerate().filter(|(_, sample)| sample.times.is_some());
    let mut others: Vec<f64> =
        present.filter(|(at, _)| *at != member).map(|(_, sample)| sample.work).collect();
    others.sort_by(f64::total_cmp);
    let middle = (!others.is_empty()).then(|| median(&others))?;
    Some(samples.get(member)?.work / middle.max(f64::MIN_POSITIVE))
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
    use crate::histogram::Resolution;

    fn group(values_us: &[u64]) -> Vec<Histogram> {
        let member = |us: &u64| {
            let mut times = Histogram::new(Resolution::Eight);
            times.record(us * 1000, 1000);
            times
        };
        values_us.iter().map(member).collect()
    }

    fn outliers(values_us: &[u64]) -> Vec<usize> {
        let group = group(values_us);
        let samples: Vec<Sample<'_>> =
            group.iter().map(|times| Sample { times: Some(times), work: 1.0 }).collect();
        compare(&samples, Criterion::MEDIAN).iter().map(|outlier| outlier.member).collect()
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
        let group = group(&[200, 200, 600, 200]);
        let mut samples: Vec<Sample<'_>> =
            group.iter().map(|times| Sample { times: Some(times), work: 1.0 }).collect();
        samples[2].times = None;
        assert_eq!(compare(&samples, Criterion::MEDIAN), []);
        samples[0].times = None;
        samples[2].times = Some(&group[2]);
        assert_eq!(compare(&samples, Criterion::MEDIAN)[0].member, 2);
        assert_eq!(relative_work(&samples, 2), Some(1.0));
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

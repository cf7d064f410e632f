//! Sums of the numbers of several steps or cores.

use std::collections::BTreeMap;

use isolane_observe::snapshot::{Numbers, Series, Step};
use isolane_observe::stage::Operation;

/// Returns the sum of steps, and their length in seconds.
pub fn sum_of_steps(steps: &[Step]) -> (Numbers, f64) {
    let mut numbers = Numbers::default();
    steps.iter().for_each(|step| numbers.merge(step.numbers.clone()));
    numbers.series.sort_by_key(Series::key);
    numbers.connections.sort_by_key(|at| at.id);
    numbers.cores.sort_by_key(|at| at.index);
    let length_ms = steps.iter().fold(0, |sum: u64, step| sum.saturating_add(step.length_ms));
    (numbers, length_ms.max(1) as f64 / 1000.0)
}

/// Returns the sums over cores and size classes, by volume and operation.
pub fn by_operation(numbers: &Numbers) -> BTreeMap<(u32, Operation), Series> {
    let mut sums: BTreeMap<_, Series> = BTreeMap::new();
    for at in &numbers.series {
        let sum = sums.entry((at.volume, at.operation));
        sum.and_modify(|sum| sum.merge(at)).or_insert_with(|| at.clone());
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;

    #[test]
    fn sum_of_steps_is_difference_of_copies() {
        let earlier = Sample { steps: 5, stall: 3..8, ..Sample::default() }.snapshot();
        let later = Sample { steps: 9, stall: 3..8, ..Sample::default() }.snapshot();
        let (mut sum, seconds) = sum_of_steps(&later.steps[5..]);
        assert_eq!(seconds, 4.0);
        let mut difference = later.numbers.since(&earlier.numbers);
        for numbers in [&mut sum, &mut difference] {
            numbers.series.sort_by_key(Series::key);
            // Not a sum.
            numbers.series.iter_mut().for_each(|series| series.max_ns = 0);
        }
        assert!(sum == difference, "the sum of the steps differs from the difference");
        let stripe: u64 = by_operation(&sum)
            .iter()
            .filter(|((volume, _), _)| *volume == 0)
            .map(|(_, at)| at.total.count())
            .sum();
        assert_eq!(stripe, 4 * 2 * 8 * 400 + 3 * 24, "both cores, all members, and the stall");
    }
}

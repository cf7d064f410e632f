//! Sums of the numbers of several steps or cores.

use std::collections::BTreeMap;

use isolane_observe::snapshot::{Connection, Core, Numbers, Series, Step, Tcp};
use isolane_observe::stage::Operation;

/// Returns the sum of steps, and their length in seconds.
pub fn sum_of_steps(steps: &[Step]) -> (Numbers, f64) {
    let mut series: BTreeMap<_, Series> = BTreeMap::new();
    let mut connections: BTreeMap<u64, Connection> = BTreeMap::new();
    let mut cores: BTreeMap<u32, Core> = BTreeMap::new();
    let mut counters: BTreeMap<String, u64> = BTreeMap::new();
    for step in steps {
        let numbers = &step.numbers;
        for at in &numbers.series {
            series.entry(at.key()).and_modify(|sum| sum.merge(at)).or_insert_with(|| at.clone());
        }
        for at in &numbers.connections {
            connections.entry(at.id).and_modify(|sum| add_connection(sum, at)).or_insert_with(|| at.clone());
        }
        for at in &numbers.cores {
            cores.entry(at.index).and_modify(|sum| add_core(sum, at)).or_insert_with(|| at.clone());
        }
        for (name, value) in &numbers.counters {
            let sum = counters.entry(name.clone()).or_default();
            *sum = sum.saturating_add(*value);
        }
    }
    let numbers = Numbers {
        series: series.into_values().collect(),
        connections: connections.into_values().collect(),
        cores: cores.into_values().collect(),
        counters,
    };
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

fn add_connection(sum: &mut Connection, step: &Connection) {
    let before = std::mem::replace(sum, step.clone());
    for (size, total) in before.totals {
        match sum.totals.iter_mut().find(|(at, _)| *at == size) {
            Some((_, sum)) => sum.merge(&total),
            None => sum.totals.push((size, total)),
        }
    }
    for (stage, ns) in before.stages_ns {
        match sum.stages_ns.iter_mut().find(|(at, _)| *at == stage) {
            Some((_, sum)) => *sum = sum.saturating_add(ns),
            None => sum.stages_ns.push((stage, ns)),
        }
    }
    sum.received_bytes = sum.received_bytes.saturating_add(before.received_bytes);
    sum.sent_bytes = sum.sent_bytes.saturating_add(before.sent_bytes);
    if let (Some(sum), Some(before)) = (&mut sum.tcp, before.tcp) {
        add_tcp(sum, before);
    }
}

fn add_tcp(sum: &mut Tcp, before: Tcp) {
    let add = |sum: &mut u64, before: u64| *sum = sum.saturating_add(before);
    add(&mut sum.busy_us, before.busy_us);
    add(&mut sum.rwnd_limited_us, before.rwnd_limited_us);
    add(&mut sum.sndbuf_limited_us, before.sndbuf_limited_us);
    add(&mut sum.retransmits, before.retransmits);
    add(&mut sum.segments, before.segments);
}

fn add_core(sum: &mut Core, step: &Core) {
    let add = |sum: &mut u64, step: u64| *sum = sum.saturating_add(step);
    add(&mut sum.busy_ns, step.busy_ns);
    add(&mut sum.asleep_ns, step.asleep_ns);
    add(&mut sum.late_ns, step.late_ns);
    add(&mut sum.waited_ns, step.waited_ns);
    add(&mut sum.ran_ns, step.ran_ns);
    match (&mut sum.turns, &step.turns) {
        (Some(sum), Some(step)) => sum.merge(step),
        (sum, step) => *sum = sum.take().or_else(|| step.clone()),
    }
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

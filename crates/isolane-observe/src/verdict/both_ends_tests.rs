//! Verdicts about slow operations at both ends.

use super::*;
use crate::snapshot::{Numbers, SeriesKey, StageHistogram, Step, Volume};
use crate::stage::SizeClass;

/// End of the measurement, in milliseconds since 1970, at the host.
const NOW_MS: u64 = 1_795_788_000_000;
/// Difference of the clocks, in microseconds.
const OFFSET_US: u64 = 7_200_000_000;

/// Times of a slow operation, in microseconds: in the host, in the network, and in the target.
#[derive(Clone, Copy)]
struct Times {
    host: (Stage, u64),
    network: u64,
    target: (Stage, u64),
}

fn operation(side: Side, at: u64, connection: u64, stages: Vec<(Stage, u64)>) -> SlowOperation {
    SlowOperation {
        side,
        at_unix_us: NOW_MS * 1000 - 5_000_000 + at * 1000,
        volume: 0,
        operation: Operation::Read,
        bytes: 4096,
        lba: at,
        core: 0,
        connection,
        cid: at as u16,
        depth: 0,
        total_ns: stages.iter().map(|(_, ns)| ns).sum(),
        stages,
        last_member: None,
    }
}

/// Both ends of 100,000 operations of 100 us, of which 20 us in the network, and of 40 slow ones.
fn ends(times: Times) -> (Snapshot, Snapshot) {
    let us = |us: u64| us * 1000;
    let wait = us(times.network + times.target.1);
    let here = |at| {
        operation(
            Side::Host,
            at,
            SlowOperation::host_connection(9, 1),
            vec![(times.host.0, us(times.host.1)), (Stage::Wait, wait)],
        )
    };
    let there = |at| SlowOperation {
        at_unix_us: NOW_MS * 1000 - 5_000_000 + at * 1000 + OFFSET_US,
        ..operation(Side::Target, at, 3, vec![(times.target.0, us(times.target.1))])
    };
    let mut waits = Histogram::new(Resolution::Four);
    waits.record(us(100), 100_000);
    let (operation, size) = (Operation::Read, SizeClass::Small);
    let mut series = SeriesKey { side: Side::Host, volume: 0, core: 0, operation, size }.empty();
    series.total.record(us(100), 100_000);
    series.stages.push(StageHistogram { stage: Stage::Wait, times: waits });
    let mut at_target = Histogram::new(Resolution::Four);
    at_target.record(us(80), 100_000);
    let connection = Connection {
        id: 3,
        controller: 9,
        queue: 1,
        host: String::from("nqn.x"),
        totals: vec![(SizeClass::Small, at_target)],
        stages_ns: vec![(Stage::Device, us(80) * 100_000)],
        ..Connection::default()
    };
    let step = |at_unix_ms, numbers| Step { at_unix_ms, length_ms: 10_000, numbers, ..Step::default() };
    let host = Snapshot {
        at_unix_ms: NOW_MS,
        slow: (0..40).map(here).collect(),
        steps: vec![step(NOW_MS, Numbers { series: vec![series], ..Numbers::default() })],
        ..Snapshot::default()
    };
    let numbers = Numbers { connections: vec![connection], ..Numbers::default() };
    let target = Snapshot {
        at_unix_ms: NOW_MS + OFFSET_US / 1000,
        volumes: vec![Volume { name: String::from("namespace 1"), ..Volume::default() }],
        slow: (0..40).map(there).collect(),
        steps: vec![step(NOW_MS + OFFSET_US / 1000, numbers.clone())],
        numbers,
        ..Snapshot::default()
    };
    (host, target)
}

const SLOW_DEVICE: Times = Times { host: (Stage::Deliver, 5), network: 30, target: (Stage::Device, 20_000) };

fn joined(times: Times) -> BothEnds {
    let (host, target) = ends(times);
    join(&host, &target, Options::default())
}

#[test]
fn means_show_the_share_of_the_network() {
    let ends = joined(SLOW_DEVICE);
    assert_eq!((ends.operations, ends.slow, ends.matched), (100_000, 40, 40));
    let close = |us: f64, wanted: f64| (us - wanted).abs() < 0.01;
    assert!(
        close(ends.network_us, 20.0) && close(ends.target_us, 80.0) && close(ends.host_us, 0.0),
        "{ends:?}"
    );
    assert_eq!(ends.target_stages_us.len(), 1);
}

#[test]
fn verdict_names_the_end() {
    let found = |times| {
        let ends = joined(times);
        let [finding] = &ends.verdict.findings[..] else { panic!("{:?}", ends.verdict) };
        assert!(finding.share > 0.9, "{finding:?}");
        (finding.kind, finding.name.clone())
    };
    assert_eq!(found(SLOW_DEVICE), (Kind::Device, String::from("namespace 1")));
    let quick = (Stage::Device, 80);
    let slow_network = Times { network: 20_000, target: quick, ..SLOW_DEVICE };
    assert_eq!(found(slow_network), (Kind::Path, String::from("network")));
    let slow_caller = Times { host: (Stage::Wake, 20_000), target: quick, ..SLOW_DEVICE };
    assert_eq!(found(slow_caller), (Kind::Caller, String::from("this host")));
    let held = Times { host: (Stage::Held, 20_000), target: quick, ..SLOW_DEVICE };
    assert_eq!(found(held), (Kind::Hot, String::from("queues")));
}

#[test]
fn used_again_commands_do_not_match() {
    let (host, mut target) = ends(SLOW_DEVICE);
    // One command ID and block twice, one far from the offset of the clocks, one longer than at the host.
    target.slow.push(target.slow[0].clone());
    target.slow[1].at_unix_us += 60_000_000;
    target.slow[2].total_ns *= 2;
    target.slow[3].connection = 4;
    target.slow[4].cid += 1000;
    assert_eq!(join(&host, &target, Options::default()).matched, 35);
}

#[test]
fn few_matches_leave_the_verdict_of_the_host() {
    let (host, mut target) = ends(SLOW_DEVICE);
    target.slow.truncate(MIN_SLOW - 1);
    let ends = join(&host, &target, Options::default());
    let missing: Vec<_> =
        ends.verdict.not_seen.iter().filter(|at| at.what.contains("it lists 7 of them")).collect();
    assert!(missing.len() == 1 && ends.verdict.operations == 100_000, "{:?}", ends.verdict);
    let nothing = join(&Snapshot::default(), &Snapshot::default(), Options::default());
    assert_eq!((nothing.operations, nothing.matched, nothing.network_us), (0, 0, 0.0));
}

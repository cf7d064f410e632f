//! Copies, sums, and differences of numbers.

#![cfg(not(loom))]
#![forbid(unsafe_code)]

use isolane_observe::cells::{SeriesCells, StageTimes, set_stage};
use isolane_observe::histogram::{Histogram, Resolution};
use isolane_observe::snapshot::{Connection, Core, Cpu, Numbers, SeriesKey, Snapshot, Step, System, VERSION};
use isolane_observe::stage::{Operation, Side, SizeClass, Stage};

fn key(volume: u32) -> SeriesKey {
    let (side, operation, size) = (Side::Target, Operation::Read, SizeClass::Small);
    SeriesKey { side, volume, core: 0, operation, size }
}

fn record(cells: &SeriesCells, device_ns: u64, count: u64) {
    let mut times = StageTimes::default();
    set_stage(&mut times, Side::Target, Stage::Batch, 500);
    set_stage(&mut times, Side::Target, Stage::Device, device_ns);
    cells.record(&times, count);
}

#[test]
fn difference_has_only_new_operations() {
    let (busy, idle) = (SeriesCells::default(), SeriesCells::default());
    record(&busy, 1_000, 10);
    record(&idle, 1_000, 10);
    let copy = || Numbers {
        series: [busy.copy(key(1)), idle.copy(key(2))].into_iter().flatten().collect(),
        ..Numbers::default()
    };
    let earlier = copy();
    record(&busy, 1_000_000, 5);
    let difference = copy().since(&earlier);
    assert_eq!(difference.series.len(), 1, "the idle volume is left out");
    let series = &difference.series[0];
    assert_eq!((series.total.count(), series.stage_sum_ns(Stage::Device)), (5, 5_000_000));
    assert_eq!(series.tail.len(), 1, "only the doubling of the new operations");
}

#[test]
fn quantile_of_a_stage_counts_zeros() {
    let cells = SeriesCells::default();
    record(&cells, 0, 90);
    record(&cells, 1_000_000, 10);
    let series = cells.copy(key(1)).expect("recorded");
    assert_eq!(series.stage_quantile(Stage::Device, 0.5), 0);
    assert!(series.stage_quantile(Stage::Device, 0.95) > 900_000);
    assert_eq!(series.stage_quantile(Stage::Memory, 0.99), 0);
}

#[test]
fn merges_cores() {
    let cores = [SeriesCells::default(), SeriesCells::default()];
    record(&cores[0], 1_000, 1);
    record(&cores[1], 1_000_000, 2);
    let [mut sum, other] = cores.map(|cells| cells.copy(key(1)).expect("recorded"));
    sum.merge(&other);
    assert_eq!((sum.total.count(), sum.stage_sum_ns(Stage::Batch)), (3, 1_500));
    assert_eq!(sum.tail.len(), 2);
}

#[test]
fn document_survives_json() {
    let cells = SeriesCells::default();
    record(&cells, 1_000, 3);
    let snapshot = Snapshot {
        version: VERSION,
        numbers: Numbers {
            series: cells.copy(key(1)).into_iter().collect(),
            connections: vec![Connection { id: 1, stages_ns: vec![(Stage::Batch, 3)], ..Default::default() }],
            ..Numbers::default()
        },
        ..Snapshot::default()
    };
    let text = serde_json::to_string(&snapshot).expect("JSON");
    assert_eq!(serde_json::from_str::<Snapshot>(&text).expect("valid"), snapshot);
}

#[test]
fn merged_steps_equal_one_longer_step() {
    let (cells, late) = (SeriesCells::default(), SeriesCells::default());
    let mut peer_times = Histogram::new(Resolution::Four);
    let mut copy = |busy_ns: u64| Numbers {
        series: [cells.copy(key(1)), late.copy(key(2))].into_iter().flatten().collect(),
        connections: vec![Connection {
            id: 1,
            sent_bytes: busy_ns,
            stages_ns: vec![(Stage::Batch, busy_ns)],
            peer_times: {
                peer_times.record(busy_ns, 1);
                Some(peer_times.clone())
            },
            ..Default::default()
        }],
        cores: vec![Core { busy_ns, ..Default::default() }],
        counters: [("errors".to_owned(), busy_ns)].into(),
    };
    record(&cells, 1_000, 1);
    let first = copy(10);
    record(&cells, 2_000, 2);
    let second = copy(30);
    record(&cells, 3_000_000, 3);
    record(&late, 1_000, 4);
    let third = copy(70);
    let step = |numbers: Numbers, at: u64| Step {
        at_unix_ms: at,
        length_ms: 1000,
        numbers,
        system: System { cpus: vec![Cpu { steal_ms: at, ..Cpu::default() }], ..System::default() },
    };
    let mut merged = step(second.since(&first), 1);
    merged.merge(step(third.since(&second), 2));
    let mut whole = step(third.since(&first), 2);
    whole.length_ms = 2000;
    whole.system.cpus[0].steal_ms = 3;
    merged.numbers.series.iter_mut().for_each(|series| series.tail.sort_by_key(|row| row.row));
    assert_eq!(merged, whole);
}

#[test]
fn merge_finds_entries_in_any_order() {
    let list = |ids: &[u64]| {
        let connection = |id: &u64| Connection { id: *id, sent_bytes: *id, ..Default::default() };
        Numbers { connections: ids.iter().map(connection).collect(), ..Numbers::default() }
    };
    let mut sum = list(&[1, 2, 3]);
    sum.merge(list(&[3, 1, 4, 2, 4]));
    let found: Vec<_> = sum.connections.iter().map(|at| (at.id, at.sent_bytes)).collect();
    assert_eq!(found, [(1, 2), (2, 4), (3, 6), (4, 8)]);
}

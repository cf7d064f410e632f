use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use isolane_observe::snapshot::{Core, Series, SeriesKey, SlowOperation, Snapshot, VERSION};
use isolane_observe::stage::{Operation, Side, SizeClass};

use super::*;
use crate::program::{OnSlow, Program, Turn};
use crate::source::Parts;

pub(crate) fn slow(at_unix_us: u64, connection: u64) -> SlowOperation {
    SlowOperation {
        side: Side::Target,
        at_unix_us,
        volume: 0,
        operation: Operation::Read,
        bytes: 4096,
        lba: 0,
        core: 0,
        connection,
        cid: 1,
        depth: 1,
        total_ns: 1_000_000,
        stages: Vec::new(),
        last_member: None,
    }
}

pub(crate) fn series(volume: u32, count: u64) -> Series {
    let (operation, size) = (Operation::Read, SizeClass::Small);
    let empty = SeriesKey { side: Side::Target, volume, core: 0, operation, size }.empty();
    let mut series = Series { bytes: 4096 * count, max_ns: 1000, ..empty };
    series.total.record(1000, count);
    series
}

/// A program that does 100 operations between two snapshots, in a turn that never ends.
#[derive(Default)]
struct Busy {
    snapshots: AtomicU64,
}

impl Program for Busy {
    fn snapshot(&self) -> Snapshot {
        let count = self.snapshots.fetch_add(1, Ordering::Relaxed) + 1;
        let mut snapshot = Snapshot { version: VERSION, at_unix_ms: count * 1000, ..Snapshot::default() };
        snapshot.numbers.series = vec![series(1, 100 * count)];
        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        snapshot.numbers.cores = vec![Core { thread, ..Core::default() }];
        snapshot
    }

    fn turns(&self) -> Vec<Turn> {
        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        vec![Turn { core: 0, thread, number: 1, phase: Some("volume") }]
    }
}

fn decoded(document: &Document, parts: Parts) -> Snapshot {
    let text: Vec<u8> = document.json(parts).concat();
    serde_json::from_slice(&text).unwrap()
}

#[test]
fn steps_have_the_work_between_snapshots() {
    let document = Document::new(Arc::new(Busy::default()), Vec::new()).unwrap();
    let mut recorder = Recorder::new(&document, OnSlow::default());
    recorder.step(&document);
    recorder.step(&document);
    let snapshot = decoded(&document, Parts::All);
    assert_eq!(snapshot.steps.len(), 2);
    for step in &snapshot.steps {
        let total = &step.numbers.series[0].total;
        assert_eq!(total.count() % 100, 0, "whole snapshots");
        assert!(total.count() > 0);
        let core = &step.numbers.cores[0];
        assert!(core.ran_ns < 60_000_000_000, "a difference: {core:?}");
    }
    // The kernel updates the time of a thread in its ticks.
    while document.snapshot().numbers.cores[0].ran_ns == 0 {}
    assert!(decoded(&document, Parts::Now).steps.is_empty());
}

#[test]
fn records_until_it_is_stopped() {
    let document = Arc::new(Document::new(Arc::new(Busy::default()), Vec::new()).unwrap());
    let (stop, stopped) = mpsc::channel();
    let recorded = Arc::clone(&document);
    let thread = std::thread::spawn(move || run(&recorded, OnSlow::default(), &stopped));
    while document.steps().bytes() == 0 || document.stuck().is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(stop);
    thread.join().unwrap();
    let snapshot = decoded(&document, Parts::All);
    assert_eq!(&*snapshot.stuck[0].phase, "volume");
    assert!(!snapshot.steps[0].system.cpus.is_empty(), "{:?}", snapshot.steps[0].system.not_seen);
}

#[test]
fn continues_after_a_panic() {
    let count = AtomicU64::new(0);
    let program = move || {
        // The first call is for the start.
        let number = count.fetch_add(1, Ordering::Relaxed);
        assert!(number != 1, "a panic in a side thread");
        Snapshot { version: VERSION, ..Snapshot::default() }
    };
    let document = Arc::new(Document::new(Arc::new(program), Vec::new()).unwrap());
    let (stop, stopped) = mpsc::channel();
    let recorded = Arc::clone(&document);
    let thread = std::thread::spawn(move || run(&recorded, OnSlow::default(), &stopped));
    while document.steps().bytes() == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(stop);
    thread.join().unwrap();
}

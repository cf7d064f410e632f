//! Latencies of volumes, which each session has for itself.

use std::time::{Duration, Instant};

use isolane_host::via_engine::wire::Submission;
use isolane_host::{Buffer, Request};
use isolane_observe::stage::Stage;
use isolane_reactor::clock;

use crate::clients::{TEST_TIMEOUT, options, run};
use crate::harness::Harness;
use crate::rogue::{Rogue, read};

/// Operations of a volume, the longest total, and whether the stages of all add up.
#[derive(Debug, PartialEq, Eq)]
struct Numbers {
    count: u64,
    longest: Duration,
    adds_up: bool,
}

/// Returns the numbers of the volumes of a session, or of all other sessions.
fn numbers(harness: &Harness, session: u32, is_own: bool) -> Numbers {
    let snapshot = harness.engine.snapshot();
    let name = format!("(session {session})");
    let volumes = snapshot.volumes.iter().filter(|volume| volume.name.ends_with(&name) == is_own);
    let ids: Vec<u32> = volumes.map(|volume| volume.id).collect();
    let mut numbers = Numbers { count: 0, longest: Duration::ZERO, adds_up: true };
    for series in snapshot.numbers.series.iter().filter(|series| ids.contains(&series.volume)) {
        numbers.count += series.total.count();
        numbers.longest = numbers.longest.max(Duration::from_nanos(series.max_ns));
        let stages: u64 = series.stages.iter().map(|stage| stage.times.sum_ns()).sum();
        numbers.adds_up &= stages == series.total.sum_ns();
    }
    numbers
}

/// Waits until operations are recorded, which happens after their outcomes are published.
fn recorded(harness: &Harness, session: u32, is_own: bool, count: u64) -> Numbers {
    let end = Instant::now() + TEST_TIMEOUT;
    loop {
        let numbers = numbers(harness, session, is_own);
        // A copy can be taken while the core records.
        if numbers.count == count && numbers.adds_up {
            return numbers;
        }
        assert!(numbers.count <= count && Instant::now() < end, "{count} operations: {numbers:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn hostile_times_change_own_numbers_only() {
    let harness = Harness::new();
    let start = Instant::now();
    let mut rogue = Rogue::new(&harness, options());
    let mut client = harness.connect(options());
    for (round, time) in [0, u64::MAX, 1 << 40, u64::MAX / 2, 1].into_iter().enumerate() {
        assert!(rogue.push(&Submission { pushed: time, ..read(round as u64, 8 << 20, 4096) }));
        rogue.ring();
        rogue.wait_for_outcome();
        assert!(rogue.take_outcome(time).result.is_ok());
        let read = Request::Read { lba: 0, buffer: Buffer::contiguous(4096) };
        assert!(run(&mut client, read).result.is_ok());
    }
    let session = rogue.session.id();
    let (own, others) = (recorded(&harness, session, true, 5), recorded(&harness, session, false, 5));
    let longest = start.elapsed();
    assert!(own.longest <= longest && others.longest <= longest, "{own:?}, {others:?} in {longest:?}");
}

/// Returns the sum of a stage of all volumes of a session.
fn stage_sum(harness: &Harness, session: u32, stage: Stage) -> Duration {
    let snapshot = harness.engine.snapshot();
    let name = format!("(session {session})");
    let volume = snapshot.volumes.iter().find(|volume| volume.name.ends_with(&name)).expect("a volume");
    let own = format!("(PID {})", std::process::id());
    assert!(volume.application.as_ref().is_some_and(|name| name.ends_with(&own)), "{volume:?}");
    let series = snapshot.numbers.series.iter().filter(|series| series.volume == volume.id);
    Duration::from_nanos(series.map(|series| series.stage_sum_ns(stage)).sum())
}

#[test]
fn measures_notice_of_late_application() {
    let harness = Harness::new();
    let mut rogue = Rogue::new(&harness, options());
    let session = rogue.session.id();
    let late = Duration::from_millis(40);
    let start = Instant::now();
    for round in 1..=3 {
        assert!(rogue.push(&read(round, 8 << 20, 4096)));
        rogue.ring();
        rogue.wait_for_outcome();
        std::thread::sleep(late);
        assert!(rogue.take_outcome(clock::monotonic()).result.is_ok());
        recorded(&harness, session, true, round);
    }
    let (notice, longest) = (stage_sum(&harness, session, Stage::Notice), start.elapsed());
    // The clocks of both sides differ by less than a hundredth.
    assert!(notice >= late * 3 * 99 / 100 && notice <= longest, "{notice:?} of {longest:?}");
}

#[test]
fn closed_volume_keeps_its_numbers_awhile() {
    let harness = Harness::new();
    let mut client = harness.connect(options());
    for _ in 0..3 {
        assert!(run(&mut client, Request::Flush).result.is_ok());
    }
    client.close();
    recorded(&harness, u32::MAX, false, 3);
    let snapshot = harness.engine.snapshot();
    assert_eq!((&*snapshot.program.name, snapshot.numbers.cores.len()), ("engine", 1));
    assert!(snapshot.numbers.cores[0].turns.as_ref().is_some_and(|turns| turns.count() > 0));
}

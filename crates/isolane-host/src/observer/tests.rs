//! Stages of the requests of a client.

use super::*;
use crate::blocking::BlockingVolume;
use crate::error::RequestError;
use crate::mock::{Script, TEST_TIMEOUT, Target};
use crate::options::{Coalesce, Mode, Options};
use crate::request::{Request, Wait};
use crate::volume::Volume;
use isolane_memory::Buffer;
use isolane_observe::snapshot::{Series, Snapshot};
use isolane_observe::stage::{Side, Stage};
use pollster::block_on;
use std::time::{Duration, Instant};

fn connect(options: Options) -> (Target, BlockingVolume) {
    let target = Target::start(Script::default());
    let volume = BlockingVolume::connect(&target.uri(), options).unwrap();
    (target, volume)
}

/// Returns all numbers once `count` operations are recorded, with stages that add up. The leader records those of
/// other threads later, and a copy can be taken while it records.
fn series(snapshot: impl Fn() -> Snapshot, count: u64) -> Vec<Series> {
    let end = Instant::now() + TEST_TIMEOUT;
    loop {
        let series = snapshot().numbers.series;
        let recorded: u64 = series.iter().map(|at| at.total.count()).sum();
        let total: u64 = series.iter().map(|at| at.total.sum_ns()).sum();
        let stages: u64 = Side::Host.stages().iter().map(|stage| sum(&series, *stage)).sum();
        if recorded == count && stages == total {
            return series;
        }
        assert!(recorded <= count && Instant::now() < end, "{recorded} of {count}: {series:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn sum(series: &[Series], stage: Stage) -> u64 {
    series.iter().map(|at| at.stage_sum_ns(stage)).sum()
}

#[test]
fn stages_add_up_to_the_total() {
    let mut observer = Observer::new(true, 512);
    let mut times_of = |mark: Mark, received: u64, now: u64| {
        let key = Key::new(observer.add(mark), Operation::Read, 8);
        observer.times_of(&Run { key, caller: NO_CALLER, received, count: 1, ..NO_RUN }, now)
    };
    let all = Mark { submitted: 10, held: 11, queued: 13, begun: 0, sent: 17, first_byte: 25, requests: 1 };
    assert_eq!(times_of(all, 41, 73)[..WAKE], [1, 2, 4, 8, 16, 32]);
    assert_eq!(times_of(Mark { begun: 14, ..all }, 41, 73)[..WAKE], [1, 3, 3, 8, 16, 32]);
    let short = Mark { submitted: 0, held: 0, first_byte: 0, ..all };
    assert_eq!(times_of(short, 41, 73)[..WAKE], [0, 0, 4, 24, 0, 32]);
    let unsent = Mark { queued: 0, sent: 0, first_byte: 0, ..all };
    assert_eq!(times_of(unsent, 5, 73)[..WAKE], [1, 62, 0, 0, 0, 0]);
    let later_clock = Mark { submitted: 12, ..all };
    assert_eq!(times_of(later_clock, 41, 40)[..WAKE], [0, 2, 4, 8, 16, 0]);
}

#[test]
fn records_each_operation_once() {
    let (_target, volume) = connect(Options::default());
    let mut bytes = vec![1; 65_536];
    for _ in 0..5 {
        volume.write_at(&bytes[..4096], 0).unwrap();
        volume.read_at(&mut bytes[..8192], 4096).unwrap();
    }
    volume.flush().unwrap();
    volume.write_zeroes(0, 65_536).unwrap();
    volume.deallocate(0, 4096).unwrap();
    let failed = volume.read_at(&mut bytes[..4096], volume.size());
    assert!(matches!(failed, Err(RequestError::OutOfRange { .. })), "rejected before it is sent");
    let series = series(|| volume.snapshot(), 13);
    let found = |at: &Series| (at.operation, at.size, at.total.count(), at.bytes);
    assert_eq!(
        series.iter().map(found).collect::<Vec<_>>(),
        [
            (Operation::Read, SizeClass::Medium, 5, 5 * 8192),
            (Operation::Write, SizeClass::Small, 5, 5 * 4096),
            (Operation::Flush, SizeClass::Small, 1, 0),
            (Operation::WriteZeroes, SizeClass::Medium, 1, 65_536),
            (Operation::Deallocate, SizeClass::Small, 1, 0),
        ]
    );
    assert!(sum(&series, Stage::Send) > 0 && sum(&series, Stage::Wait) > 0);
}

#[test]
fn records_wakes_of_other_threads() {
    let (_target, volume) =
        connect(Options { inline_submit: false, mode: Mode::Sleep, ..Options::default() });
    let threads = 3;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let volume = &volume;
            scope.spawn(move || {
                let mut bytes = [0; 4096];
                (0..50).for_each(|at| volume.read_at(&mut bytes, (thread * 50 + at) * 4096).unwrap());
            });
        }
    });
    let series = series(|| volume.snapshot(), threads * 50);
    assert!(sum(&series, Stage::Inbox) > 0 && sum(&series, Stage::Wake) > 0, "{series:?}");
}

#[test]
fn records_requests_of_futures() {
    let target = Target::start(Script::default());
    let volume = block_on(Volume::connect(&target.uri(), Options::default())).unwrap();
    for at in 0..20 {
        block_on(volume.read(at * 4096, Buffer::contiguous(4096))).unwrap();
    }
    series(|| volume.snapshot(), 20);
}

#[test]
fn held_requests_wait_for_capacity() {
    let target = Target::start(Script::default());
    let options = Options { depth: 2, coalesce: Some(Coalesce::default()), ..Options::default() };
    let mut client = crate::Client::connect(&target.uri(), options).unwrap();
    let read = |lba| Request::Read { lba, buffer: Buffer::contiguous(4096) };
    (0..20).for_each(|tag| client.submit(0, read(tag * 8), tag));
    let mut completions = Vec::new();
    while completions.len() < 20 {
        client.turn(&mut completions, Wait::Forever);
    }
    let series = series(|| client.snapshot(), 20);
    assert!(sum(&series, Stage::Held) > 0);
    let observer = client.observer();
    assert_eq!(observer.marks.len() - 1, observer.free.len(), "every mark is free again");
}

#[test]
fn caller_takes_times_of_each_completion() {
    let target = Target::start(Script::default());
    let mut client = crate::Client::connect(&target.uri(), Options::default()).unwrap();
    client.leave_times_to_caller();
    let submitted = clock::now();
    for tag in 0..9 {
        // The size of the volume is beyond its last block.
        let lba = if tag == 4 { u64::MAX / 512 } else { tag * 8 };
        let read = Request::Read { lba, buffer: Buffer::contiguous(4096) };
        client.submit_at(crate::LaneClass::Default, 0, read, tag, submitted);
    }
    let (mut completions, mut all, mut times) = (Vec::new(), Vec::new(), Vec::new());
    while all.len() < 9 {
        client.turn(&mut completions, Wait::Forever);
        client.take_times(&mut times);
        let mut each = times.drain(..).flat_map(|run| std::iter::repeat_n(run, run.count as usize));
        all.extend(completions.drain(..).map(|it| it.result.is_ok().then(|| each.next().unwrap())));
        assert_eq!(each.count(), 0);
    }
    for run in all.iter().flatten() {
        let total: u64 = run.stages.iter().sum();
        assert!(submitted + total >= run.at, "{run:?}");
    }
    assert_eq!(all.iter().filter(|run| run.is_none()).count(), 1, "one was out of range");
    assert!(client.snapshot().numbers.series.is_empty());
}

#[test]
fn slow_operations_name_their_command() {
    let target = Target::start(Script::default());
    let mut client =
        crate::Client::connect(&target.uri(), Options { lanes: 2, ..Options::default() }).unwrap();
    let mut completions = Vec::new();
    for (lane, blocks) in [(0, 8), (1, 8), (1, 4096)] {
        client.submit(lane, Request::Read { lba: 24, buffer: Buffer::contiguous(blocks * 512) }, 0);
        while client.turn(&mut completions, Wait::Forever) == 0 {}
    }
    let observer = client.observer();
    let Sink::Cells(cells) = &observer.sink else { panic!("{observer:?}") };
    observer.slow.end_second(u64::MAX, cells.slow());
    let cntlid = client.info().controller.cntlid;
    let found: Vec<_> = client.snapshot().slow.iter().map(|at| (at.bytes, at.lba, at.host_queue())).collect();
    let split = (2 << 20, 24, None);
    assert_eq!(found, [(4096, 24, Some((cntlid, 1))), (4096, 24, Some((cntlid, 2))), split]);
}

#[test]
fn records_nothing_if_off() {
    let (_target, volume) = connect(Options { observe: false, ..Options::default() });
    volume.read_at(&mut [0; 4096], 0).unwrap();
    assert!(volume.snapshot().numbers.series.is_empty());
}

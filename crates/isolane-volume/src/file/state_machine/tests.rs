//! Tests of the state machine with scripted results.

use super::*;
use crate::{Identity, VolumeInfo};

fn description(name: &str, info: VolumeInfo) -> VolumeDescription {
    VolumeDescription { name: name.to_owned(), info, identity: Identity::random(), generation: None }
}

fn machine(direct: bool) -> FileStateMachine {
    let info = VolumeInfo {
        block_size: 512,
        blocks: 2048,
        read_only: false,
        volatile_cache: true,
        deallocate: true,
        zeroes_after_deallocate: true,
    };
    FileStateMachine::new(description("simulated", info), Features::file(), direct)
}

fn write(fua: bool) -> Request {
    Request::Write { lba: 0, blocks: 8, data: Buffer::contiguous(4096), fua }
}

fn failure(raw_os_error: i32) -> io::Result<usize> {
    Err(io::Error::from_raw_os_error(raw_os_error))
}

/// Starts a request and feeds it these results.
fn play(machine: &FileStateMachine, request: Request, results: &[fn() -> io::Result<usize>]) -> Step {
    let mut pool = Pool::new(64);
    let mut step = machine.start(request, &mut pool);
    for result in results {
        let Step::File(operation, task) = step else { panic!("{step:?} leaves results unused") };
        step = machine.resume(task, result(), operation, &mut pool);
    }
    step
}

fn error(step: Step) -> VolumeError {
    match step {
        Step::Done(Err(error)) => error,
        step => panic!("{step:?} is not an error"),
    }
}

#[test]
fn short_write_continues() {
    let Step::File(remaining, _) = play(&machine(true), write(false), &[|| Ok(1024)]) else { panic!() };
    assert_eq!((remaining.offset, remaining.buffer_offset, remaining.len), (1024, 1024, 3072));
    assert!(matches!(play(&machine(true), write(false), &[|| Ok(1024), || Ok(3072)]), Step::Done(Ok(_))));
    // Direct I/O continues at a whole block.
    let Step::File(remaining, _) = play(&machine(true), write(false), &[|| Ok(1500)]) else { panic!() };
    assert_eq!(remaining.offset, 1024);
    let stuck = play(&machine(false), write(false), &[|| Ok(1024), || Ok(0)]);
    assert_eq!(error(stuck), VolumeError::ShortWrite { done: 1024, len: 4096 });
}

#[test]
fn retries_interrupted_operation() {
    assert!(matches!(play(&machine(true), write(false), &[|| failure(4), || Ok(4096)]), Step::Done(Ok(_))));
}

#[test]
fn buffered_durable_write_adds_a_sync() {
    let Step::File(operation, _) = play(&machine(true), write(true), &[]) else { panic!() };
    assert_eq!(operation.kind, FileOpKind::Write { durable: true });
    let Step::File(operation, _) = play(&machine(false), write(true), &[|| Ok(4096)]) else { panic!() };
    assert_eq!(operation.kind, FileOpKind::Sync);
}

#[test]
fn failed_sync_is_permanent() {
    for direct in [false, true] {
        let machine = machine(direct);
        let broken = VolumeError::SyncFailed { raw_os_error: 5 };
        assert_eq!(error(play(&machine, Request::Flush, &[|| failure(5)])), broken);
        assert_eq!(error(play(&machine, Request::Flush, &[])), broken);
        assert_eq!(error(play(&machine, write(true), &[])), broken);
        assert_eq!(error(play(&machine, write(false), &[])), broken);
        let read = machine.start(Request::Read { lba: 0, blocks: 1 }, &mut Pool::new(1));
        match read {
            // The page cache may have what the disk does not.
            Step::Done(Err(error)) => assert!(!direct && error == broken),
            read => assert!(direct && matches!(read, Step::File(..)), "{read:?}"),
        }
    }
}

#[test]
fn device_that_is_gone_fails_everything() {
    for request in [Request::Read { lba: 0, blocks: 8 }, write(false)] {
        let machine = machine(true);
        let gone = VolumeError::Gone { raw_os_error: 6 };
        assert_eq!(error(play(&machine, request, &[|| failure(6)])), gone);
        assert_eq!(machine.failure(), Some(gone.clone()));
        let read = Request::Read { lba: 100, blocks: 1 };
        for later in [read, write(false), Request::Flush] {
            assert_eq!(error(play(&machine, later, &[])), gone);
        }
    }
    let zeroes = Request::WriteZeroes { lba: 0, blocks: 8, fua: false, deallocate: false };
    let step = play(&machine(true), zeroes, &[|| failure(19)]);
    assert!(
        matches!(step, Step::File(..)),
        "another method, as the kernel reports ENODEV for an unknown one"
    );
}

#[test]
fn failed_durable_write_counts_as_failed_sync() {
    let machine = machine(true);
    let broken = error(play(&machine, write(true), &[|| failure(5)]));
    assert_eq!(broken, VolumeError::SyncFailed { raw_os_error: 5 });
    assert_eq!(error(play(&machine, Request::Flush, &[])), broken);
}

#[test]
fn enospc_in_sync_counts_as_failed_sync() {
    for raw_os_error in [28, 122] {
        let full: fn() -> _ = if raw_os_error == 28 { || failure(28) } else { || failure(122) };
        let machine = machine(true);
        let Step::File(repeated, _) = play(&self::machine(true), write(true), &[full]) else { panic!() };
        assert_eq!((repeated.kind, repeated.len), (FileOpKind::Write { durable: false }, 4096));
        let broken = VolumeError::SyncFailed { raw_os_error };
        assert_eq!(error(play(&machine, write(true), &[full, || Ok(1024), || Ok(3072)])), broken);
        assert_eq!(error(play(&machine, Request::Flush, &[])), broken);
    }
}

#[test]
fn enospc_in_write_loses_its_own_data_only() {
    let machine = machine(true);
    let full = VolumeError::NoSpace { raw_os_error: 28 };
    assert_eq!(error(play(&machine, write(true), &[|| failure(28), || failure(28)])), full);
    assert_eq!(error(play(&machine, write(true), &[|| failure(28), || Ok(1024), || failure(28)])), full);
    assert!(matches!(play(&machine, Request::Flush, &[|| Ok(0)]), Step::Done(Ok(_))));
    let broken = VolumeError::SyncFailed { raw_os_error: 5 };
    assert_eq!(error(play(&machine, write(true), &[|| failure(28), || failure(5)])), broken);
}

#[test]
fn flush_waits_for_overlapping_results() {
    for other in [Request::Flush, write(true)] {
        let machine = machine(true);
        let mut pool = Pool::new(1);
        let Step::File(first, earlier) = machine.start(other, &mut pool) else { panic!() };
        let Step::File(second, later) = machine.start(Request::Flush, &mut pool) else { panic!() };
        // Both have completed, the first with an error, but only the second result is known.
        let Step::Retry(remaining) = machine.resume(later, Ok(0), second, &mut pool) else { panic!() };
        let Step::Retry(remaining) = machine.start(remaining, &mut pool) else { panic!() };
        let broken = error(machine.resume(earlier, failure(5), first, &mut pool));
        assert_eq!(error(machine.start(remaining, &mut pool)), broken);
    }
}

#[test]
fn durable_write_waits_for_syncs_only() {
    let machine = machine(true);
    let mut pool = Pool::new(1);
    let at = |lba| Request::Write { lba, blocks: 8, data: Buffer::contiguous(4096), fua: true };
    let _other = machine.start(at(64), &mut pool);
    let Step::File(operation, task) = machine.start(at(16), &mut pool) else { panic!() };
    let Step::File(sync, flush) = machine.start(Request::Flush, &mut pool) else { panic!() };
    let Step::Retry(remaining) = machine.resume(task, Ok(4096), operation, &mut pool) else { panic!() };
    // The flush waits for the other durable write, but its own result is known.
    assert!(matches!(machine.resume(flush, Ok(0), sync, &mut pool), Step::Retry(_)));
    assert!(matches!(machine.start(remaining, &mut pool), Step::Done(Ok(_))));
}

#[test]
fn dropped_sync_counts_as_failed() {
    let machine = machine(true);
    drop(machine.start(Request::Flush, &mut Pool::new(1)));
    let broken = VolumeError::SyncFailed { raw_os_error: 5 };
    assert_eq!(error(play(&machine, Request::Flush, &[])), broken);
}

#[test]
fn long_deallocate_completes_under_load() {
    let machine = machine(true);
    let mut pool = Pool::new(1 << 12);
    let mut rng = fastrand::Rng::with_seed(3);
    let mut short = |pool: &mut Pool| {
        let (lba, data) = (rng.u64(..2048 / 8) * 8, Buffer::contiguous(4096));
        let is_read = rng.bool();
        let request = if is_read {
            Request::Read { lba, blocks: 8 }
        } else {
            Request::Write { lba, blocks: 8, data, fua: false }
        };
        machine.start(request, pool)
    };
    let ranges = smallvec::smallvec![BlockRange { lba: 0, blocks: 1024 }];
    let mut running: std::collections::VecDeque<Step> = (0..64).map(|_| short(&mut pool)).collect();
    let mut step = machine.start(Request::Deallocate { ranges, fua: false }, &mut pool);
    let mut turns = 0;
    while let Step::Retry(remaining) = step {
        for _ in 0..32 {
            running.pop_front();
            running.push_back(short(&mut pool));
        }
        step = machine.start(remaining, &mut pool);
        turns += 1;
        assert!(turns < 8, "still waiting");
    }
    let Step::File(operation, task) = step else { panic!() };
    assert_eq!((operation.kind, operation.len), (FileOpKind::PunchHole, 512 << 10));
    assert!(matches!(machine.resume(task, Ok(0), operation, &mut pool), Step::Done(Ok(_))));
}

#[test]
fn skipped_hint_releases_its_range() {
    let info = VolumeInfo { zeroes_after_deallocate: false, ..*machine(true).info() };
    let machine = FileStateMachine::new(description("device", info), Features::device(), true);
    let mut pool = Pool::new(1 << 12);
    let deallocate = |lba| Request::Deallocate {
        ranges: smallvec::smallvec![BlockRange { lba, blocks: 1024 }],
        fua: false,
    };
    let read = machine.start(Request::Read { lba: 1024, blocks: 8 }, &mut pool);
    let Step::Retry(waiting) = machine.start(deallocate(1024), &mut pool) else {
        panic!("the range is locked")
    };
    // In the meantime the device turns out to support neither operation.
    let Step::Done(Ok(_)) = play(&machine, deallocate(0), &[|| failure(95), || failure(95)]) else {
        panic!()
    };
    drop(read);
    if let Step::File(operation, _) = machine.start(waiting, &mut pool) {
        panic!("{operation:?}");
    }
    let write = Request::Write { lba: 1024, blocks: 8, data: Buffer::contiguous(4096), fua: false };
    assert!(matches!(machine.start(write, &mut pool), Step::File(..)), "the range stays locked");
}

#[test]
fn overlapping_buffered_sync_waits() {
    let machine = machine(false);
    let mut pool = Pool::new(1);
    let Step::File(operation, task) = machine.start(Request::Flush, &mut pool) else { panic!() };
    assert!(matches!(machine.start(Request::Flush, &mut pool), Step::Retry(Request::Flush)));
    assert!(matches!(machine.resume(task, Ok(0), operation, &mut pool), Step::Done(Ok(_))));
    assert!(matches!(machine.start(Request::Flush, &mut pool), Step::File(..)));
}

#[test]
fn falls_back_from_punch_to_zero_to_write() {
    let machine = machine(true);
    let request = || Request::WriteZeroes { lba: 0, blocks: 8, fua: false, deallocate: true };
    let Step::File(operation, _) = play(&machine, request(), &[|| failure(95)]) else { panic!() };
    assert_eq!(operation.kind, FileOpKind::ZeroRange);
    let Step::File(operation, _) = play(&machine, request(), &[|| failure(95)]) else { panic!() };
    assert_eq!(operation.kind, FileOpKind::Write { durable: false });
    assert!(matches!(play(&machine, request(), &[|| Ok(4096)]), Step::Done(Ok(_))));
}

#[test]
fn failed_read_is_not_end_of_file() {
    let read = || Request::Read { lba: 0, blocks: 8 };
    let failed = error(play(&machine(true), read(), &[|| failure(5)]));
    assert_eq!(failed, VolumeError::ReadFailed { raw_os_error: 5 });
    assert_eq!(error(play(&machine(true), read(), &[|| Ok(512), || Ok(0)])), VolumeError::Shrunk);
}

#[test]
fn small_size_fails_all_later_requests() {
    let machine = machine(true);
    assert_eq!(machine.check_size(Ok(2048 * 512)), Ok(()));
    let unknown = VolumeError::SizeUnknown { raw_os_error: 116 };
    assert_eq!(machine.check_size(Err(io::Error::from_raw_os_error(116))), Err(unknown));
    assert!(matches!(play(&machine, Request::Flush, &[|| Ok(0)]), Step::Done(Ok(_))));
    assert_eq!(machine.check_size(Ok(2048 * 512 - 1)), Err(VolumeError::Shrunk));
    assert_eq!(error(play(&machine, Request::Flush, &[])), VolumeError::Shrunk);
}

/// A truncated file that grew again reads zeroes in place of data.
#[test]
fn truncated_file_is_not_read() {
    let read = || Request::Read { lba: 0, blocks: 8 };
    let (machine, mut pool) = (machine(true), Pool::new(64));
    let Step::File(operation, in_flight) = machine.start(read(), &mut pool) else { panic!() };
    assert_eq!(machine.check_size(Ok(1024 * 512)), Err(VolumeError::Shrunk));
    assert_eq!(error(play(&machine, read(), &[])), VolumeError::Shrunk);
    // Reads in flight fail as well.
    assert_eq!(error(machine.resume(in_flight, Ok(4096), operation, &mut pool)), VolumeError::Shrunk);
    // A restored size or a failed sync changes nothing.
    assert_eq!(machine.check_size(Ok(2048 * 512)), Ok(()));
    machine.health.record_sync_failure("simulated", 5);
    assert_eq!(error(play(&machine, read(), &[])), VolumeError::Shrunk);
}

#[test]
fn remaining_zeroing_is_a_new_request() {
    let range = |lba, blocks| BlockRange { lba, blocks };
    let mut zeroing = Zeroing::deallocate(&[range(8, 8), range(0, 16)], 512, true, true);
    zeroing.advance(4096);
    zeroing.advance(4096);
    let Request::Deallocate { ranges, fua: true } = remaining_request(&zeroing) else { panic!() };
    assert_eq!(ranges[..], [range(8, 8)]);
}

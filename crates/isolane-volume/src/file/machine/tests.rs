//! Results as a kernel might give them, and what the machine makes of them.

use super::*;

fn machine(is_direct: bool) -> FileMachine {
    let geometry = Geometry {
        block_size: 512,
        blocks: 2048,
        read_only: false,
        volatile_cache: true,
        deallocate: true,
        zeroes_after_deallocate: true,
    };
    FileMachine::new("simulated".to_owned(), geometry, Identity::random(), Abilities::file(), is_direct)
}

fn write(fua: bool) -> Request {
    Request::Write { lba: 0, blocks: 8, data: Buffer::contiguous(4096), fua }
}

fn failure(raw_os_error: i32) -> io::Result<usize> {
    Err(io::Error::from_raw_os_error(raw_os_error))
}

/// Starts a request and gives its operations these results.
fn play(machine: &FileMachine, request: Request, results: &[fn() -> io::Result<usize>]) -> Step {
    let mut pool = Pool::new(64);
    let mut step = machine.start(request, &mut pool);
    for result in results {
        let Step::File(operation, task) = step else { panic!("{step:?} leaves results over") };
        step = machine.resume(task, result(), operation, &mut pool);
    }
    step
}

fn error(step: Step) -> VolumeError {
    match step {
        Step::Done(Err(error)) => error,
        step => panic!("{step:?} is no error"),
    }
}

#[test]
fn a_short_write_goes_on_where_it_stopped() {
    let Step::File(rest, _) = play(&machine(true), write(false), &[|| Ok(1024)]) else { panic!() };
    assert_eq!((rest.offset, rest.buffer_offset, rest.len), (1024, 1024, 3072));
    assert!(matches!(play(&machine(true), write(false), &[|| Ok(1024), || Ok(3072)]), Step::Done(Ok(_))));
    // Direct I/O goes on at a whole block.
    let Step::File(rest, _) = play(&machine(true), write(false), &[|| Ok(1500)]) else { panic!() };
    assert_eq!(rest.offset, 1024);
    let stuck = play(&machine(false), write(false), &[|| Ok(1024), || Ok(0)]);
    assert_eq!(error(stuck), VolumeError::ShortWrite { done: 1024, len: 4096 });
}

#[test]
fn an_interrupted_operation_is_given_again() {
    assert!(matches!(play(&machine(true), write(false), &[|| failure(4), || Ok(4096)]), Step::Done(Ok(_))));
}

#[test]
fn a_durable_write_is_one_operation_when_direct_and_two_when_buffered() {
    let Step::File(operation, _) = play(&machine(true), write(true), &[]) else { panic!() };
    assert_eq!(operation.kind, Kind::Write { durable: true });
    let Step::File(operation, _) = play(&machine(false), write(true), &[|| Ok(4096)]) else { panic!() };
    assert_eq!(operation.kind, Kind::Sync);
}

#[test]
fn a_failed_sync_is_never_forgotten() {
    for is_direct in [false, true] {
        let machine = machine(is_direct);
        let broken = VolumeError::SyncFailed { raw_os_error: 5 };
        assert_eq!(error(play(&machine, Request::Flush, &[|| failure(5)])), broken);
        assert_eq!(error(play(&machine, Request::Flush, &[])), broken);
        assert_eq!(error(play(&machine, write(true), &[])), broken);
        assert_eq!(error(play(&machine, write(false), &[])), broken);
        assert!(matches!(
            machine.start(Request::Read { lba: 0, blocks: 1 }, &mut Pool::new(1)),
            Step::File(..)
        ));
    }
}

#[test]
fn a_failed_durable_write_is_a_failed_sync() {
    let machine = machine(true);
    let broken = error(play(&machine, write(true), &[|| failure(5)]));
    assert_eq!(broken, VolumeError::SyncFailed { raw_os_error: 5 });
    assert_eq!(error(play(&machine, Request::Flush, &[])), broken);
}

#[test]
fn no_space_for_a_durable_write_is_a_failed_sync_if_the_write_alone_succeeds() {
    for raw_os_error in [28, 122] {
        let full: fn() -> _ = if raw_os_error == 28 { || failure(28) } else { || failure(122) };
        let machine = machine(true);
        let Step::File(repeated, _) = play(&self::machine(true), write(true), &[full]) else { panic!() };
        assert_eq!((repeated.kind, repeated.len), (Kind::Write { durable: false }, 4096));
        let broken = VolumeError::SyncFailed { raw_os_error };
        assert_eq!(error(play(&machine, write(true), &[full, || Ok(1024), || Ok(3072)])), broken);
        assert_eq!(error(play(&machine, Request::Flush, &[])), broken);
    }
}

#[test]
fn no_space_for_the_data_of_a_durable_write_loses_nothing_else() {
    let machine = machine(true);
    let full = VolumeError::NoSpace { raw_os_error: 28 };
    assert_eq!(error(play(&machine, write(true), &[|| failure(28), || failure(28)])), full);
    assert_eq!(error(play(&machine, write(true), &[|| failure(28), || Ok(1024), || failure(28)])), full);
    assert!(matches!(play(&machine, Request::Flush, &[|| Ok(0)]), Step::Done(Ok(_))));
    let broken = VolumeError::SyncFailed { raw_os_error: 5 };
    assert_eq!(error(play(&machine, write(true), &[|| failure(28), || failure(5)])), broken);
}

#[test]
fn a_flush_waits_for_the_results_of_syncs_and_durable_writes_that_ran_at_the_same_time() {
    for other in [Request::Flush, write(true)] {
        let machine = machine(true);
        let mut pool = Pool::new(1);
        let Step::File(first, earlier) = machine.start(other, &mut pool) else { panic!() };
        let Step::File(second, later) = machine.start(Request::Flush, &mut pool) else { panic!() };
        // The kernel has ended both, the first with an error, but only the second result has been taken.
        let Step::Later(rest) = machine.resume(later, Ok(0), second, &mut pool) else { panic!() };
        let Step::Later(rest) = machine.start(rest, &mut pool) else { panic!() };
        let broken = error(machine.resume(earlier, failure(5), first, &mut pool));
        assert_eq!(error(machine.start(rest, &mut pool)), broken);
    }
}

#[test]
fn a_durable_write_waits_for_syncs_and_not_for_other_durable_writes() {
    let machine = machine(true);
    let mut pool = Pool::new(1);
    let at = |lba| Request::Write { lba, blocks: 8, data: Buffer::contiguous(4096), fua: true };
    let _other = machine.start(at(64), &mut pool);
    let Step::File(operation, task) = machine.start(at(16), &mut pool) else { panic!() };
    let Step::File(sync, flush) = machine.start(Request::Flush, &mut pool) else { panic!() };
    let Step::Later(rest) = machine.resume(task, Ok(4096), operation, &mut pool) else { panic!() };
    // The flush waits for the other durable write, but its own result is known.
    assert!(matches!(machine.resume(flush, Ok(0), sync, &mut pool), Step::Later(_)));
    assert!(matches!(machine.start(rest, &mut pool), Step::Done(Ok(_))));
}

#[test]
fn a_sync_whose_result_nobody_took_is_a_failed_sync() {
    let machine = machine(true);
    drop(machine.start(Request::Flush, &mut Pool::new(1)));
    let broken = VolumeError::SyncFailed { raw_os_error: 5 };
    assert_eq!(error(play(&machine, Request::Flush, &[])), broken);
}

#[test]
fn a_long_deallocate_ends_however_many_short_requests_there_are() {
    let machine = machine(true);
    let mut pool = Pool::new(1 << 12);
    let mut rng = fastrand::Rng::with_seed(3);
    let mut short = |pool: &mut Pool| {
        let (lba, data) = (rng.u64(..2048 / 8) * 8, Buffer::contiguous(4096));
        let is_read = rng.bool();
        let request = match is_read {
            true => Request::Read { lba, blocks: 8 },
            false => Request::Write { lba, blocks: 8, data, fua: false },
        };
        machine.start(request, pool)
    };
    let ranges = smallvec::smallvec![BlockRange { lba: 0, blocks: 1024 }];
    let mut running: std::collections::VecDeque<Step> = (0..64).map(|_| short(&mut pool)).collect();
    let mut step = machine.start(Request::Deallocate { ranges, fua: false }, &mut pool);
    let mut turns = 0;
    while let Step::Later(rest) = step {
        for _ in 0..32 {
            running.pop_front();
            running.push_back(short(&mut pool));
        }
        step = machine.start(rest, &mut pool);
        turns += 1;
        assert!(turns < 8, "still waiting");
    }
    let Step::File(operation, task) = step else { panic!() };
    assert_eq!((operation.kind, operation.len), (Kind::PunchHole, 512 << 10));
    assert!(matches!(machine.resume(task, Ok(0), operation, &mut pool), Step::Done(Ok(_))));
}

#[test]
fn a_skipped_hint_that_waited_for_its_range_writes_nothing() {
    let geometry = Geometry { zeroes_after_deallocate: false, ..*machine(true).geometry() };
    let machine =
        FileMachine::new("device".to_owned(), geometry, Identity::random(), Abilities::device(), true);
    let mut pool = Pool::new(1 << 12);
    let deallocate = |lba| Request::Deallocate {
        ranges: smallvec::smallvec![BlockRange { lba, blocks: 1024 }],
        fua: false,
    };
    let read = machine.start(Request::Read { lba: 1024, blocks: 8 }, &mut pool);
    let Step::Later(waiting) = machine.start(deallocate(1024), &mut pool) else { panic!("it must wait") };
    // The device turns out to have neither of the two meanwhile.
    let Step::Done(Ok(_)) = play(&machine, deallocate(0), &[|| failure(95), || failure(95)]) else {
        panic!()
    };
    drop(read);
    if let Step::File(operation, _) = machine.start(waiting, &mut pool) {
        panic!("{operation:?}");
    }
    let write = Request::Write { lba: 1024, blocks: 8, data: Buffer::contiguous(4096), fua: false };
    assert!(matches!(machine.start(write, &mut pool), Step::File(..)), "the range is not let go of");
}

#[test]
fn of_two_overlapping_syncs_the_second_waits_because_only_one_would_hear_of_an_error() {
    let machine = machine(false);
    let mut pool = Pool::new(1);
    let Step::File(operation, task) = machine.start(Request::Flush, &mut pool) else { panic!() };
    assert!(matches!(machine.start(Request::Flush, &mut pool), Step::Later(Request::Flush)));
    assert!(matches!(machine.resume(task, Ok(0), operation, &mut pool), Step::Done(Ok(_))));
    assert!(matches!(machine.start(Request::Flush, &mut pool), Step::File(..)));
}

#[test]
fn what_cannot_be_punched_is_zeroed_and_what_cannot_be_zeroed_is_written() {
    let machine = machine(true);
    let request = || Request::WriteZeroes { lba: 0, blocks: 8, fua: false, deallocate: true };
    let Step::File(operation, _) = play(&machine, request(), &[|| failure(95)]) else { panic!() };
    assert_eq!(operation.kind, Kind::ZeroRange);
    let Step::File(operation, _) = play(&machine, request(), &[|| failure(95)]) else { panic!() };
    assert_eq!(operation.kind, Kind::Write { durable: false });
    assert!(matches!(play(&machine, request(), &[|| Ok(4096)]), Step::Done(Ok(_))));
}

#[test]
fn a_failed_read_is_not_an_end_of_file() {
    let read = || Request::Read { lba: 0, blocks: 8 };
    let failed = error(play(&machine(true), read(), &[|| failure(5)]));
    assert_eq!(failed, VolumeError::ReadFailed { raw_os_error: 5 });
    assert_eq!(error(play(&machine(true), read(), &[|| Ok(512), || Ok(0)])), VolumeError::Shrunk);
}

#[test]
fn a_size_that_is_unknown_fails_a_request_and_one_that_is_too_small_all() {
    let machine = machine(true);
    assert_eq!(machine.judge_size(Ok(2048 * 512)), Ok(()));
    let unknown = VolumeError::SizeUnknown { raw_os_error: 116 };
    assert_eq!(machine.judge_size(Err(io::Error::from_raw_os_error(116))), Err(unknown));
    assert!(matches!(play(&machine, Request::Flush, &[|| Ok(0)]), Step::Done(Ok(_))));
    assert_eq!(machine.judge_size(Ok(2048 * 512 - 1)), Err(VolumeError::Shrunk));
    assert_eq!(error(play(&machine, Request::Flush, &[])), VolumeError::Shrunk);
}

/// A file that was truncated and has grown again reads as zeroes where data was.
#[test]
fn a_file_known_to_be_truncated_is_not_read_any_more() {
    let read = || Request::Read { lba: 0, blocks: 8 };
    let (machine, mut pool) = (machine(true), Pool::new(64));
    let Step::File(operation, in_flight) = machine.start(read(), &mut pool) else { panic!() };
    assert_eq!(machine.judge_size(Ok(1024 * 512)), Err(VolumeError::Shrunk));
    assert_eq!(error(play(&machine, read(), &[])), VolumeError::Shrunk);
    // Not even what was under way.
    assert_eq!(error(machine.resume(in_flight, Ok(4096), operation, &mut pool)), VolumeError::Shrunk);
    // That the file has its size again, or that a sync fails, changes nothing.
    assert_eq!(machine.judge_size(Ok(2048 * 512)), Ok(()));
    machine.health.note_sync_failure("simulated", 5);
    assert_eq!(error(play(&machine, read(), &[])), VolumeError::Shrunk);
}

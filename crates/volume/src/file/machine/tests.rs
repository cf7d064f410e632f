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
fn a_failed_durable_write_is_a_failed_sync_unless_there_is_no_space() {
    let machine = machine(true);
    let full = error(play(&machine, write(true), &[|| failure(28)]));
    assert_eq!(full, VolumeError::NoSpace { raw_os_error: 28 });
    let broken = error(play(&machine, write(true), &[|| failure(5)]));
    assert_eq!(broken, VolumeError::SyncFailed { raw_os_error: 5 });
    assert_eq!(error(play(&machine, Request::Flush, &[])), broken);
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
fn a_flush_that_began_before_anothers_failure_does_not_succeed_after_it() {
    let machine = machine(true);
    let mut pool = Pool::new(1);
    let Step::File(operation, first) = machine.start(Request::Flush, &mut pool) else { panic!() };
    error(play(&machine, Request::Flush, &[|| failure(5)]));
    assert!(matches!(machine.resume(first, Ok(0), operation, &mut pool), Step::Done(Err(_))));
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

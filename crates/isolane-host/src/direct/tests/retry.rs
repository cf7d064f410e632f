//! Commands that the target refuses for now (DNR 0): sent again, after the delay that the status selects.

use std::sync::atomic::Ordering;

use isolane_wire::Status;
use isolane_wire::opcode::IoOpcode;

use super::super::retry::MAX_RETRIES;
use super::*;
use crate::error::RequestError;
use crate::mock::Fault;

const NOT_READY: Status = Status::NAMESPACE_NOT_READY;

/// One longer than all other times of a test, in units of 100 ms.
const LONG: u16 = 10;

fn refusals(status: Status, count: u8) -> impl Iterator<Item = Status> {
    std::iter::repeat_n(status, count.into())
}

fn commands(target: &Target) -> usize {
    target.shared.commands.lock().len()
}

#[test]
fn retries_commands_that_target_refuses_for_now() {
    let (target, mut client) = pair();
    for request in [write(0, 4096, 8), read(0, 4096), zeroes(false), Request::Flush] {
        let before = commands(&target);
        target.refuse(refusals(NOT_READY, MAX_RETRIES));
        let completion = run(&mut client, request);
        assert!(completion.result.is_ok(), "{completion:?}");
        assert!(completion.buffer.is_none_or(|buffer| buffer.to_vec() == vec![8; 4096]));
        assert_eq!(commands(&target) - before, usize::from(MAX_RETRIES) + 1);
    }
    assert_eq!(target.shared.landed.lock().clone(), [(0, 8), (64, 0)]);
}

#[test]
fn fails_after_the_last_retry() {
    let (target, mut client) = pair();
    target.refuse(refusals(NOT_READY, MAX_RETRIES + 1));
    let completion = run(&mut client, write(0, 4096, 1));
    let Err(RequestError::Status(status)) = completion.result else { panic!("{completion:?}") };
    assert!(status.is(NOT_READY) && completion.buffer.is_some());
    assert_eq!(commands(&target), usize::from(MAX_RETRIES) + 1);
    assert!(run(&mut client, write(0, 4096, 2)).result.is_ok(), "the next request has all its retries");
    target.refuse(refusals(NOT_READY, MAX_RETRIES));
    assert!(run(&mut client, read(0, 4096)).result.is_ok());
}

#[test]
fn honors_do_not_retry() {
    let (target, mut client) = pair();
    for request in [write(0, 4096, 1), read(0, 4096), Request::Flush] {
        let before = commands(&target);
        target.refuse([NOT_READY.with_dnr(true)]);
        assert!(matches!(run(&mut client, request).result, Err(RequestError::Status(_))));
        assert_eq!(commands(&target) - before, 1);
    }
}

fn zeroes(fua: bool) -> Request {
    Request::WriteZeroes { range: crate::BlockRange { lba: 64, blocks: 8 }, fua, deallocate: false }
}

fn durable_write() -> Request {
    Request::Write { lba: 8, buffer: buffer(4096, 3), fua: true }
}

/// After a failed sync, a second one may succeed without the data.
#[test]
fn does_not_retry_sync_that_was_executed() {
    let (target, mut client) = pair();
    for status in [Status::WRITE_FAULT, Status::INTERNAL_ERROR] {
        for request in [Request::Flush, durable_write(), zeroes(true)] {
            target.refuse([status]);
            let completion = run(&mut client, request);
            assert!(matches!(completion.result, Err(RequestError::Status(_))), "{completion:?}");
        }
    }
    assert_eq!(commands(&target), 6);
    let flushes = target.shared.commands.lock().iter().filter(|it| it.0 == IoOpcode::Flush.code()).count();
    assert_eq!(flushes, 2);
}

#[test]
fn retried_write_keeps_force_unit_access() {
    let (target, mut client) = pair();
    target.refuse([NOT_READY]);
    assert!(run(&mut client, durable_write()).result.is_ok());
    assert_eq!(target.shared.forced.lock().clone(), [8, 8]);
    assert_eq!(target.blocks(8, 8), vec![3; 4096]);
}

#[test]
fn parts_of_a_long_request_are_retried_each() {
    let target = Target::start(Script { mdts: 1, ..Script::default() });
    let mut client = connect(&target, options());
    target.refuse(refusals(NOT_READY, 20));
    assert!(run(&mut client, write(0, 20 * 8192, 8)).result.is_ok());
    assert_eq!(target.blocks(0, 320), vec![8; 20 * 8192]);
    assert_eq!(commands(&target), 40);
}

#[test]
fn waits_for_the_delay_that_the_status_selects() {
    let target = Target::start(Script { crdt: [60_000, 3, 0], ..Script::default() });
    let mut client = connect(&target, options());
    assert_eq!(target.shared.retry_delays_enabled.load(Ordering::SeqCst), 1);
    let start = Instant::now();
    target.refuse([NOT_READY.with_crd(2)]);
    client.submit(0, write(0, 4096, 1), 1);
    client.submit(0, read(100, 512), 2);
    assert_eq!(wait_for(&mut client, 1)[0].tag, 2, "others do not wait");
    assert!(wait_for(&mut client, 1)[0].result.is_ok());
    assert!(start.elapsed() >= Duration::from_millis(300), "{:?}", start.elapsed());
    // Its delay is longer than a command may take.
    target.refuse([NOT_READY.with_crd(1)]);
    assert!(matches!(run(&mut client, read(0, 512)).result, Err(RequestError::Status(_))));
}

#[test]
fn enables_delays_only_if_reported() {
    let (target, _client) = pair();
    assert_eq!(target.shared.retry_delays_enabled.load(Ordering::SeqCst), 0);
    let script = Script { crdt: [60_000; 3], knows_host_behavior: false, ..Script::default() };
    let target = Target::start(script);
    let mut client = connect(&target, options());
    target.refuse([NOT_READY.with_crd(1)]);
    assert!(run(&mut client, write(0, 4096, 1)).result.is_ok(), "at once");
}

#[test]
fn retry_survives_a_loss_of_the_association() {
    let target = Target::start(Script { crdt: [LONG; 3], ..Script::default() });
    let mut client = connect(&target, options());
    target.refuse([NOT_READY.with_crd(1)]);
    client.submit(0, write(0, 4096, 1), 1);
    let mut completions = Vec::new();
    turn_until(&mut client, &mut completions, |_, _| commands(&target) == 1);
    target.drop_connections();
    assert!(wait_for(&mut client, 1)[0].result.is_ok());
    assert_eq!(target.shared.landed.lock().clone(), [(0, 1)]);
}

#[test]
fn retry_waits_for_lost_overlapping_write() {
    let target = Target::start(Script { crdt: [LONG; 3], ..Script::default() });
    let mut client = connect(&target, options());
    target.refuse([NOT_READY.with_crd(1)]);
    client.submit(0, write(0, 4096, 1), 1);
    let mut completions = Vec::new();
    turn_until(&mut client, &mut completions, |_, _| commands(&target) == 1);
    // Lost, and it lands when the delay has long passed.
    target.inject(0, Fault::LandLate(Duration::from_millis(100) * u32::from(LONG) * 2));
    client.submit(0, write(0, 4096, 2), 2);
    turn_until(&mut client, &mut completions, |_, completions| completions.len() == 2);
    assert!(completions.iter().all(|completion| completion.result.is_ok()), "{completions:?}");
    let landed = target.shared.landed.lock().clone();
    assert_eq!(
        (landed.len(), landed[0]),
        (3, (0, 2)),
        "{landed:?}: the retry was overtaken by the lost write"
    );
}

#[test]
fn retry_fails_if_fate_stays_unknown() {
    let target = Target::start(Script { crdt: [3 * LONG; 3], keeps_controllers: true, ..Script::default() });
    let reconnect = short_reconnect();
    let mut client = connect(&target, Options { keep_alive: Duration::ZERO, reconnect, ..options() });
    target.refuse([NOT_READY.with_crd(1)]);
    client.submit(0, write(0, 4096, 1), 1);
    let mut completions = Vec::new();
    turn_until(&mut client, &mut completions, |_, _| commands(&target) == 1);
    target.inject(0, Fault::Close);
    client.submit(0, write(4, 4096, 2), 2);
    let completions = wait_for(&mut client, 2);
    assert!(matches!(completions[0].result, Err(RequestError::Fenced)), "{completions:?}");
    assert!(matches!(completions[1].result, Err(RequestError::FateUnknown)), "{completions:?}");
    assert!(target.shared.landed.lock().is_empty());
}

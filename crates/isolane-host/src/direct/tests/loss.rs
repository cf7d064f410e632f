//! Loss of the association: requests that are repeated, wait, or fail.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use isolane_wire::fabrics::{ConnectData, ConnectRejection};
use isolane_wire::{CompletionEntry, Status};

use super::*;
use crate::connect::expiry::MARGIN;
use crate::connect::fence::Fences;
use crate::error::{ConnectError, RequestError};
use crate::mock::Fault;
use crate::options::WriteReplay;

fn with_writes(writes: WriteReplay) -> Options {
    let options = options();
    Options { reconnect: Reconnect { writes, ..options.reconnect.clone() }, ..options }
}

#[test]
fn repeats_reads_and_flushes() {
    let (target, mut client) = pair();
    assert!(run(&mut client, write(0, 4096, 8)).result.is_ok());
    for request in [read(0, 4096), Request::Flush] {
        target.inject(0, Fault::Close);
        let completion = run(&mut client, request);
        assert!(completion.result.is_ok(), "{completion:?}");
        assert!(completion.buffer.is_none_or(|buffer| buffer.to_vec() == vec![8; 4096]));
    }
}

#[test]
fn repeats_lost_write_once_controller_is_gone() {
    let (target, mut client) = pair();
    target.inject(0, Fault::ApplyAndClose);
    let completion = run(&mut client, write(0, 4096, 8));
    assert!(completion.result.is_ok(), "{completion:?}");
    assert_eq!(target.shared.landed.lock().clone(), [(0, 8), (0, 8)]);
}

#[test]
fn probes_target_without_flow_control_bit() {
    let target = Target::start(Script { knows_flow_control: false, ..Script::default() });
    let mut client = connect(&target, Options { keep_alive: Duration::ZERO, ..options() });
    target.inject(0, Fault::ApplyAndClose);
    assert!(run(&mut client, write(0, 4096, 8)).result.is_ok());
}

#[test]
fn repeats_only_lost_parts_of_large_write() {
    let target = Target::start(Script { mdts: 1, ..Script::default() });
    let mut client = connect(&target, Options { depth: 2, ..options() });
    target.inject(5, Fault::Close);
    let completion = run(&mut client, write(0, 20 * 8192, 8));
    assert!(completion.result.is_ok(), "{completion:?}");
    assert_eq!(completion.buffer.unwrap().len(), 20 * 8192);
    assert_eq!(target.blocks(0, 320), vec![8; 20 * 8192]);
    let landed = target.shared.landed.lock().len();
    assert!((20..=22).contains(&landed), "{landed} parts landed");
}

#[test]
fn late_write_never_overtakes_newer_one() {
    // The old path's write of 1 lands after 300 ms. The newer write of 2 must not be under it.
    let target = Target::start(Script::default());
    let mut client = connect(&target, with_writes(WriteReplay::Never));
    target.inject(0, Fault::LandLate(Duration::from_millis(300)));
    let lost = run(&mut client, write(0, 4096, 1));
    assert!(matches!(lost.result, Err(RequestError::FateUnknown)), "{lost:?}");
    client.submit(0, write(4, 4096, 2), 2);
    client.submit(0, write(100, 4096, 3), 3);
    client.submit(0, read(100, 512), 4);
    let completions = wait_for(&mut client, 3);
    assert!(completions.iter().all(|completion| completion.result.is_ok()));
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(target.shared.landed.lock().clone(), [(100, 3), (0, 1), (4, 2)]);
    assert_eq!(target.blocks(4, 1), [2; 512]);
}

#[test]
fn queued_write_waits_for_lost_overlapping_one() {
    let target = Target::start(Script::default());
    let mut client = connect(&target, Options { depth: 1, ..with_writes(WriteReplay::Never) });
    target.inject(0, Fault::LandLate(Duration::from_millis(300)));
    for (tag, lba) in [(1, 0), (2, 4), (3, 100)] {
        client.submit(0, write(lba, 4096, tag as u8), tag);
    }
    let completions = wait_for(&mut client, 3);
    assert!(matches!(completions[0].result, Err(RequestError::FateUnknown)), "{completions:?}");
    assert!(completions[1].result.is_ok() && completions[2].result.is_ok(), "{completions:?}");
    assert_eq!(target.shared.landed.lock().clone(), [(100, 3), (0, 1), (4, 2)]);
}

#[test]
fn queued_write_fails_if_fate_stays_unknown() {
    let target = Target::start(keeping());
    let reconnect = short_reconnect();
    let options = Options { depth: 1, keep_alive: Duration::ZERO, reconnect, ..options() };
    let mut client = connect(&target, options);
    target.inject(0, Fault::Close);
    for (tag, lba) in [(1, 0), (2, 4), (3, 100)] {
        client.submit(0, write(lba, 4096, tag as u8), tag);
    }
    let completions = wait_for(&mut client, 3);
    assert!(matches!(completions[0].result, Err(RequestError::FateUnknown)), "{completions:?}");
    assert!(matches!(completions[1].result, Err(RequestError::Fenced)), "{completions:?}");
    assert!(completions[2].result.is_ok(), "{completions:?}");
    assert_eq!(target.shared.landed.lock().clone(), [(100, 3)]);
}

#[test]
fn only_overlapping_writes_wait_for_old_path() {
    let (target, mut client) = pair();
    target.inject(0, Fault::LandLate(Duration::from_millis(300)));
    client.submit(0, write(0, 4096, 1), 1);
    idle(&mut client, Duration::from_millis(50));
    client.submit(0, write(200, 512, 9), 2);
    let first = wait_for(&mut client, 1).remove(0);
    assert_eq!(first.tag, 2);
    let second = wait_for(&mut client, 1).remove(0);
    assert!(second.result.is_ok());
    assert_eq!(target.shared.landed.lock().clone(), [(200, 9), (0, 1), (0, 1)]);
}

const KEEP_ALIVE: Duration = Duration::from_millis(200);
/// No proof by time comes earlier, on however fast a machine: after two intervals and the margin.
const PROOF_BY_TIME: Duration = KEEP_ALIVE.saturating_mul(2).saturating_add(MARGIN);

/// A target that keeps its controllers, with a Command Quiesce Time of 1 ms.
fn keeping() -> Script {
    Script { keeps_controllers: true, cqt_ms: 1, ..Script::default() }
}

#[test]
fn keep_alive_timeout_is_proof_without_probes() {
    let status = Status::CONNECT_INVALID_HOST.with_dnr(true);
    let response = CompletionEntry { status, ..CompletionEntry::default() };
    let target = Target::start(Script { probe_response: Some(response), ..keeping() });
    let mut client = connect(&target, Options { keep_alive: KEEP_ALIVE, ..options() });
    target.inject(0, Fault::Close);
    let start = Instant::now();
    let completion = run(&mut client, write(0, 4096, 1));
    assert!(completion.result.is_ok(), "{completion:?}");
    assert!(start.elapsed() >= PROOF_BY_TIME, "{:?}", start.elapsed());
}

#[test]
fn fenced_writes_fail_at_reconnect_timeout() {
    let target = Target::start(keeping());
    let reconnect = Reconnect { timeout: Some(PROOF_BY_TIME * 2), ..options().reconnect };
    let mut client = connect(&target, Options { keep_alive: KEEP_ALIVE, reconnect, ..options() });
    target.inject(0, Fault::Close);
    let start = Instant::now();
    client.submit(0, write(0, 4096, 1), 1);
    idle(&mut client, Duration::from_millis(50));
    client.submit(0, write(7, 512, 2), 2);
    let completions = wait_for(&mut client, 2);
    assert!(start.elapsed() >= PROOF_BY_TIME * 2, "{:?}", start.elapsed());
    assert!(matches!(completions[0].result, Err(RequestError::FateUnknown)), "{completions:?}");
    assert!(matches!(completions[1].result, Err(RequestError::Fenced)), "{completions:?}");
    assert!(target.shared.landed.lock().is_empty(), "nothing may be written while the controller is alive");
}

/// The device of the target hangs with a write for longer than any keep-alive timeout.
fn write_waits_for_one_that_hangs(script: Script) {
    let target = Target::start(script);
    let mut client = connect(&target, Options { keep_alive: KEEP_ALIVE, ..options() });
    target.inject(0, Fault::LandLate(2 * PROOF_BY_TIME));
    assert!(run(&mut client, write(0, 4096, 1)).result.is_ok());
    assert!(run(&mut client, write(0, 4096, 2)).result.is_ok());
    let landed = || target.shared.landed.lock().clone();
    let end = Instant::now() + TEST_TIMEOUT;
    while landed().len() < 3 {
        assert!(Instant::now() < end, "{:?}", landed());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(
        landed(),
        [(0, 1), (0, 1), (0, 2)],
        "the last write is not the one that was acknowledged last"
    );
}

#[test]
fn waits_for_write_beyond_keep_alive_timeout() {
    write_waits_for_one_that_hangs(Script::default());
}

#[test]
fn waits_for_write_beyond_quiesce_time() {
    write_waits_for_one_that_hangs(Script { cqt_ms: 1, ..Script::default() });
}

#[test]
fn controller_id_of_another_host_is_proof() {
    let response = ConnectRejection::Data(ConnectData::HOSTNQN).completion();
    let target = Target::start(Script { probe_response: Some(response), ..keeping() });
    // A proof by time would come long after the client has given up.
    let mut client = connect(&target, Options { keep_alive: Duration::from_secs(3600), ..options() });
    target.inject(0, Fault::Close);
    assert!(run(&mut client, write(0, 4096, 1)).result.is_ok());
}

#[test]
fn reused_controller_id_is_proof() {
    let target = Target::start(Script { keeps_controllers: true, reuses_numbers: true, ..Script::default() });
    // A proof by time would come long after the client has given up.
    let mut client = connect(&target, Options { keep_alive: Duration::from_secs(3600), ..options() });
    target.inject(0, Fault::Close);
    let lost = run(&mut client, write(0, 4096, 1));
    assert!(lost.result.is_ok(), "{lost:?}");
}

#[test]
fn after_timeout_mode_ignores_probes() {
    let target = Target::start(Script { cqt_ms: 1, ..Script::default() });
    let options = Options { keep_alive: KEEP_ALIVE, ..with_writes(WriteReplay::AfterTimeout) };
    let mut client = connect(&target, options);
    target.inject(0, Fault::Close);
    let start = Instant::now();
    assert!(run(&mut client, write(0, 4096, 1)).result.is_ok());
    assert!(start.elapsed() >= PROOF_BY_TIME, "{:?}", start.elapsed());
}

#[test]
fn replay_after_timeout_needs_a_quiesce_time() {
    let target = Target::start(Script::default());
    let options = with_writes(WriteReplay::AfterTimeout);
    let error = Client::connect(&target.uri(), options.clone()).err().expect("no timeout is known");
    assert!(matches!(error, ConnectError::NoQuiesceTime(_)), "{error}");
    assert!(error.to_string().contains("`--quiesce` (`Reconnect::quiesce`)"), "{error}");
    let reconnect = Reconnect { quiesce: Some(Duration::ZERO), ..options.reconnect.clone() };
    let mut client = connect(&target, Options { keep_alive: KEEP_ALIVE, reconnect, ..options });
    target.inject(0, Fault::Close);
    let start = Instant::now();
    assert!(run(&mut client, write(0, 4096, 1)).result.is_ok());
    assert!(start.elapsed() >= PROOF_BY_TIME, "{:?}", start.elapsed());
}

#[test]
fn unproven_writes_fail_at_reconnect_timeout() {
    let target = Target::start(Script { keeps_controllers: true, ..Script::default() });
    let reconnect = short_reconnect();
    let mut client = connect(&target, Options { keep_alive: Duration::ZERO, reconnect, ..options() });
    target.inject(0, Fault::Close);
    client.submit(0, write(0, 4096, 1), 1);
    idle(&mut client, Duration::from_millis(50));
    client.submit(0, write(7, 512, 2), 2);
    client.submit(0, write(8, 512, 3), 3);
    let completions = wait_for(&mut client, 3);
    assert!(matches!(completions[0].result, Err(RequestError::FateUnknown)), "{completions:?}");
    assert!(matches!(completions[1].result, Err(RequestError::Fenced)), "{completions:?}");
    assert!(completions[2].result.is_ok(), "{completions:?}");
    assert!(completions.iter().all(|completion| completion.buffer.is_some()));
}

/// A target that keeps its controllers and reports no CQT, and a host that gives up soon: the fate of a lost write
/// stays unknown until the target removes the controller.
fn unknown() -> (Target, Options) {
    let script = Script { keeps_controllers: true, only_own_controller: true, ..Script::default() };
    let reconnect = short_reconnect();
    (Target::start(script), Options { keep_alive: Duration::ZERO, reconnect, ..options() })
}

/// Writes again and again until that succeeds.
fn write_until_released(client: &mut Client, fill: u8) {
    let end = Instant::now() + TEST_TIMEOUT;
    loop {
        let completion = run(client, write(0, 4096, fill));
        match completion.result {
            Ok(()) => return,
            Err(RequestError::Fenced) => assert!(Instant::now() < end, "still held back"),
            Err(error) => panic!("{error}"),
        }
        idle(client, Duration::from_millis(5));
    }
}

#[test]
fn unknown_fate_blocks_writes_until_gone() {
    let (target, options) = unknown();
    let mut client = connect(&target, options);
    let cntlid = client.info().controller.cntlid;
    target.inject(0, Fault::Close);
    let lost = run(&mut client, write(0, 4096, 1));
    assert!(matches!(lost.result, Err(RequestError::FateUnknown)), "{lost:?}");
    for fill in [2, 3] {
        let again = run(&mut client, write(7, 4096, fill));
        assert!(
            matches!(again.result, Err(RequestError::Fenced)),
            "the lost write may land over it: {again:?}"
        );
    }
    assert!(run(&mut client, write(100, 4096, 4)).result.is_ok());
    assert!(run(&mut client, read(0, 4096)).result.is_ok());
    target.shared.controllers.lock().remove(&cntlid);
    write_until_released(&mut client, 5);
    assert_eq!(target.shared.landed.lock().clone(), [(100, 4), (0, 5)]);
}

#[test]
fn unknown_fate_blocks_writes_of_other_client() {
    let (target, options) = unknown();
    let options = Options { reconnect: Reconnect::never(), ..options };
    let fences = Arc::<Fences>::default();
    let connect =
        || Client::connect_sharing_fences(&target.uri(), options.clone(), Arc::clone(&fences)).unwrap();
    let (mut one, mut other) = (connect(), connect());
    let cntlid = one.info().controller.cntlid;
    target.inject(0, Fault::Close);
    let lost = run(&mut one, write(0, 4096, 1));
    assert!(lost.result.is_err() && one.is_closed(), "{lost:?}");
    for _ in 0..2 {
        let overlapping = run(&mut other, write(0, 4096, 2));
        assert!(matches!(overlapping.result, Err(RequestError::Fenced)), "{overlapping:?}");
    }
    target.shared.controllers.lock().remove(&cntlid);
    write_until_released(&mut other, 3);
    assert_eq!(target.shared.landed.lock().clone(), [(0, 3)]);
}

#[test]
fn requests_wait_while_the_target_is_away() {
    let (target, mut client) = pair();
    target.shared.refusing.store(true, Ordering::SeqCst);
    target.drop_connections();
    idle(&mut client, Duration::from_millis(50));
    assert!(!client.is_connected());
    client.submit(0, read(0, 4096), 1);
    assert!(idle(&mut client, Duration::from_millis(100)).is_empty());
    target.shared.refusing.store(false, Ordering::SeqCst);
    assert!(wait_for(&mut client, 1)[0].result.is_ok());
    assert!(client.is_connected());
}

#[test]
fn absent_target_fails_all_requests() {
    let target = Target::start(Script::default());
    let reconnect = Reconnect { timeout: Some(Duration::from_millis(200)), ..options().reconnect };
    let mut client = connect(&target, Options { reconnect, ..options() });
    target.shared.refusing.store(true, Ordering::SeqCst);
    target.drop_connections();
    client.submit(0, write(0, 4096, 1), 1);
    client.submit(0, read(0, 4096), 2);
    let completions = wait_for(&mut client, 2);
    assert!(completions.iter().all(|completion| completion.result.is_err() && completion.buffer.is_some()));
}

#[test]
fn random_losses_lose_no_request() {
    let target = Target::start(Script { mdts: 1, ..Script::default() });
    let mut client = connect(&target, Options { lanes: 2, depth: 8, ..options() });
    for tag in 0..100 {
        client.submit(tag as usize % 2, write(tag * 80, 80 * 512, tag as u8 + 1), tag);
    }
    let mut completions = Vec::new();
    let mut losses = 0;
    turn_until(&mut client, &mut completions, |client, completions| {
        if losses < 5 && completions.len() > losses * 15 && client.is_connected() {
            target.drop_connections();
            losses += 1;
        }
        completions.len() >= 100
    });
    assert!(completions.iter().all(|completion| completion.result.is_ok()), "{completions:?}");
    for tag in 0..100 {
        assert_eq!(target.blocks(tag * 80, 80), vec![tag as u8 + 1; 80 * 512]);
    }
    assert!(losses > 2);
}

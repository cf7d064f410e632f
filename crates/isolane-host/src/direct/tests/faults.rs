//! Targets that violate the protocol: the client reports it and reconnects, and the request succeeds.

use super::*;
use crate::error::RequestError;
use crate::mock::Fault;

#[test]
fn reports_violation_to_target() {
    let (target, mut client) = pair();
    target.inject(0, Fault::DataBeyond);
    assert!(run(&mut client, read(0, 4096)).result.is_ok());
    idle(&mut client, Duration::from_millis(100));
    assert_eq!(target.shared.terminations.load(std::sync::atomic::Ordering::SeqCst), 1);
}

/// Injects a fault at a read, which is repeated on a new association.
fn survives(fault: Fault, options: Options) {
    let target = Target::start(Script::default());
    let mut client = connect(&target, options);
    assert!(run(&mut client, write(0, 8192, 3)).result.is_ok());
    let before = client.info().controller.cntlid;
    target.inject(0, fault);
    let completion = run(&mut client, read(0, 8192));
    assert!(completion.result.is_ok(), "{fault:?}: {completion:?}");
    assert_eq!(completion.buffer.unwrap().to_vec(), vec![3; 8192], "{fault:?}");
    assert_ne!(client.info().controller.cntlid, before, "{fault:?}: a new association");
}

#[test]
fn data_for_an_unknown_command_ends_the_association() {
    survives(Fault::UnknownCommand, options());
}

#[test]
fn data_beyond_the_command_ends_the_association() {
    survives(Fault::DataBeyond, options());
}

#[test]
fn success_without_data_ends_the_association() {
    survives(Fault::EarlySuccess, options());
}

#[test]
fn bytes_that_are_no_pdu_end_the_association() {
    survives(Fault::Garbage, options());
}

#[test]
fn term_req_ends_association() {
    survives(Fault::Terminate, options());
}

#[test]
fn close_midway_ends_association() {
    survives(Fault::CloseMidway, options());
}

#[test]
fn wrong_header_digest_ends_association() {
    survives(Fault::HeaderDigest, Options { header_digest: true, ..options() });
}

#[test]
fn command_timeout_ends_association() {
    survives(Fault::Silence, Options { command_timeout: Duration::from_millis(200), ..options() });
}

#[test]
fn keep_alive_timeout_ends_association() {
    let target = Target::start(Script { ignores_keep_alive: true, ..Script::default() });
    let mut client = connect(&target, Options { keep_alive: Duration::from_millis(100), ..options() });
    let before = client.info().controller.cntlid;
    idle(&mut client, Duration::from_millis(400));
    assert_ne!(client.info().controller.cntlid, before);
}

#[test]
fn repeats_damaged_read_on_same_association() {
    let target = Target::start(Script::default());
    let mut client = connect(&target, Options { data_digest: true, ..options() });
    assert!(run(&mut client, write(0, 4096, 3)).result.is_ok());
    let before = client.info().controller.cntlid;
    target.inject(0, Fault::DataDigest);
    let completion = run(&mut client, read(0, 4096));
    assert_eq!(completion.buffer.unwrap().to_vec(), vec![3; 4096]);
    assert_eq!(client.info().controller.cntlid, before);
}

#[test]
fn repeats_damaged_write() {
    let (target, mut client) = pair();
    target.inject(0, Fault::RefuseDigest);
    assert!(run(&mut client, write(0, 4096, 3)).result.is_ok());
    assert_eq!(target.shared.landed.lock().clone(), [(0, 3)]);
}

#[test]
fn r2t_beyond_write_ends_association() {
    let (target, mut client) = pair();
    target.inject(0, Fault::R2tBeyond);
    client.submit(0, write(0, 8192, 3), 0);
    idle(&mut client, Duration::from_millis(50));
    target.shared.script.lock().fault = None;
    let completion = wait_for(&mut client, 1).remove(0);
    assert!(completion.result.is_ok(), "{completion:?}");
    assert_eq!(target.blocks(0, 16), vec![3; 8192]);
}

#[test]
fn without_reconnecting_a_loss_fails_with_the_reason() {
    let target = Target::start(Script::default());
    let mut client = connect(&target, Options { reconnect: Reconnect::never(), ..options() });
    target.inject(0, Fault::UnknownCommand);
    let completion = run(&mut client, read(0, 4096));
    assert_eq!(completion.buffer.as_ref().unwrap().len(), 4096);
    let Err(RequestError::Lost(reason)) = completion.result else { panic!("{completion:?}") };
    assert!(reason.to_string().contains("unexpected data for command"), "{reason}");
    let later = run(&mut client, read(0, 4096));
    assert!(matches!(later.result, Err(RequestError::Lost(_))));
}

/// Options with which a command is repeated several times before its time is over.
fn impatient() -> Options {
    let timeout = Some(Duration::from_millis(500));
    let reconnect = Reconnect { timeout, max_delay: Duration::from_millis(20), ..options().reconnect };
    Options { command_timeout: Duration::from_millis(100), reconnect, ..options() }
}

fn assert_unanswered(completion: &Completion) {
    let Err(RequestError::Lost(reason)) = &completion.result else { panic!("{completion:?}") };
    assert!(reason.to_string().contains("does not answer a command"), "{reason}");
}

#[test]
fn closes_if_target_answers_no_command() {
    let target = Target::start(Script { silent_from: Some(0), ..Script::default() });
    for request in [read(0, 4096), write(0, 4096, 1)] {
        let mut client = connect(&target, impatient());
        // Idle time does not count.
        idle(&mut client, Duration::from_millis(700));
        client.submit(0, request, 0);
        client.submit(0, read(64, 4096), 1);
        let completions = wait_for(&mut client, 2);
        completions.iter().for_each(assert_unanswered);
        assert!(client.is_closed());
    }
    let repeated = target.shared.commands.lock().len();
    assert!(repeated > 4, "{repeated} commands");
}

#[test]
fn fails_only_command_that_target_never_answers() {
    let target = Target::start(Script { silent_from: Some(4096), ..Script::default() });
    let mut client = connect(&target, impatient());
    client.submit(0, read(4096, 4096), u64::MAX);
    // Other commands make progress on each association.
    let (mut completions, mut others) = (Vec::new(), 0);
    while completions.is_empty() {
        client.submit(0, read(0, 4096), others);
        let mut done = Vec::new();
        turn_until(&mut client, &mut done, |_, done| done.iter().any(|done| done.tag == others));
        others += 1;
        completions.extend(done.into_iter().filter(|done| done.tag == u64::MAX));
    }
    assert_unanswered(&completions[0]);
    assert!(run(&mut client, read(0, 4096)).result.is_ok());
}

//! Targets that misbehave: the client blames them, connects anew, and the request still succeeds.

use super::*;
use crate::error::RequestError;
use crate::mock::Misdeed;

#[test]
fn a_target_that_breaks_the_protocol_is_told_what_was_wrong() {
    let (target, mut client) = pair();
    target.set_misdeed(0, Misdeed::DataBeyond);
    assert!(run(&mut client, read(0, 4096)).result.is_ok());
    idle(&mut client, Duration::from_millis(100));
    assert_eq!(target.shared.terminations.load(std::sync::atomic::Ordering::SeqCst), 1);
}

/// After the misdeed at a read, the read is repeated on a new association.
fn survives(misdeed: Misdeed, options: Options) {
    let target = Target::start(Script::default());
    let mut client = connect(&target, options);
    assert!(run(&mut client, write(0, 8192, 3)).result.is_ok());
    let before = client.info().controller.cntlid;
    target.set_misdeed(0, misdeed);
    let completion = run(&mut client, read(0, 8192));
    assert!(completion.result.is_ok(), "{misdeed:?}: {completion:?}");
    assert_eq!(completion.buffer.unwrap().to_vec(), vec![3; 8192], "{misdeed:?}");
    assert_ne!(client.info().controller.cntlid, before, "{misdeed:?}: a new association");
}

#[test]
fn data_for_an_unknown_command_ends_the_association() {
    survives(Misdeed::UnknownCommand, options());
}

#[test]
fn data_beyond_the_command_ends_the_association() {
    survives(Misdeed::DataBeyond, options());
}

#[test]
fn success_without_data_ends_the_association() {
    survives(Misdeed::EarlySuccess, options());
}

#[test]
fn bytes_that_are_no_pdu_end_the_association() {
    survives(Misdeed::Garbage, options());
}

#[test]
fn a_termination_request_ends_the_association() {
    survives(Misdeed::Terminate, options());
}

#[test]
fn a_connection_that_closes_midway_ends_the_association() {
    survives(Misdeed::CloseMidway, options());
}

#[test]
fn a_wrong_header_digest_ends_the_association() {
    survives(Misdeed::HeaderDigest, Options { header_digest: true, ..options() });
}

#[test]
fn a_command_that_is_never_answered_ends_the_association() {
    survives(Misdeed::Silence, Options { command_timeout: Duration::from_millis(200), ..options() });
}

#[test]
fn keep_alive_that_is_never_answered_ends_the_association() {
    let target = Target::start(Script { ignores_keep_alive: true, ..Script::default() });
    let mut client = connect(&target, Options { keep_alive: Duration::from_millis(100), ..options() });
    let before = client.info().controller.cntlid;
    idle(&mut client, Duration::from_millis(400));
    assert_ne!(client.info().controller.cntlid, before);
}

#[test]
fn a_damaged_read_is_repeated_on_the_same_association() {
    let target = Target::start(Script::default());
    let mut client = connect(&target, Options { data_digest: true, ..options() });
    assert!(run(&mut client, write(0, 4096, 3)).result.is_ok());
    let before = client.info().controller.cntlid;
    target.set_misdeed(0, Misdeed::DataDigest);
    let completion = run(&mut client, read(0, 4096));
    assert_eq!(completion.buffer.unwrap().to_vec(), vec![3; 4096]);
    assert_eq!(client.info().controller.cntlid, before);
}

#[test]
fn a_write_that_arrived_damaged_is_repeated() {
    let (target, mut client) = pair();
    target.set_misdeed(0, Misdeed::RefuseDigest);
    assert!(run(&mut client, write(0, 4096, 3)).result.is_ok());
    assert_eq!(target.shared.landed.lock().clone(), [(0, 3)]);
}

#[test]
fn a_request_for_data_beyond_the_write_ends_the_association_and_the_write_is_repeated() {
    let (target, mut client) = pair();
    target.set_misdeed(0, Misdeed::R2tBeyond);
    client.submit(0, write(0, 8192, 3), 0);
    idle(&mut client, Duration::from_millis(50));
    target.shared.script.lock().misdeed = None;
    let completion = wait_for(&mut client, 1).remove(0);
    assert!(completion.result.is_ok(), "{completion:?}");
    assert_eq!(target.blocks(0, 16), vec![3; 8192]);
}

#[test]
fn without_reconnecting_a_loss_fails_with_the_reason() {
    let target = Target::start(Script::default());
    let mut client = connect(&target, Options { reconnect: Reconnect::never(), ..options() });
    target.set_misdeed(0, Misdeed::UnknownCommand);
    let completion = run(&mut client, read(0, 4096));
    assert_eq!(completion.buffer.as_ref().unwrap().len(), 4096);
    let Err(RequestError::Lost(why)) = completion.result else { panic!("{completion:?}") };
    assert!(why.to_string().contains("it sent data for command"), "{why}");
    let later = run(&mut client, read(0, 4096));
    assert!(matches!(later.result, Err(RequestError::Lost(_))));
}

//! Hosts that reuse the CIDs of their Async Event Requests.

use isolane_wire::pdu::{CapsuleCmd, CapsuleResp, ControllerPdu};
use isolane_wire::{CompletionEntry, Framing, Status, SubmissionEntry, admin};

use crate::Completion;
use crate::host::Data;
use crate::scenario_tests::pair::Pair;

const KEEP_ALIVE: u8 = 0x18;

/// A target's admin queue of 8 entries that holds one Async Event Request, and the CID of the
/// request.
fn holding(flow_control_disabled: bool) -> (Pair, u16) {
    let mut pair = Pair::new(Default::default(), Default::default());
    pair.connect(8, flow_control_disabled);
    pair.submit(admin::async_event_request(), Data::None, 1);
    pair.drive();
    let (permit, entry, _) = pair.command();
    pair.target.hold(permit);
    (pair, entry.cid)
}

/// Sends a command with `cid`, which the host's connection can also have in flight.
fn send_as(pair: &mut Pair, cid: u16) {
    let entry = SubmissionEntry { cid, ..SubmissionEntry::new(KEEP_ALIVE, 0) };
    let capsule = CapsuleCmd { entry, data_len: 0 };
    pair.to_target.extend(capsule.encode(&Framing::PLAIN).iter());
    pair.receive_target();
}

/// The entries of the responses that the target sends.
fn responses(pair: &mut Pair) -> Vec<CompletionEntry> {
    while pair.transmit_target() > 0 {}
    let bytes: Vec<u8> = pair.to_host.drain(..).collect();
    let decode = |bytes: &[u8]| match ControllerPdu::decode(bytes, &Framing::PLAIN) {
        Ok(ControllerPdu::CapsuleResp(response)) => response.entry,
        other => panic!("no response: {other:?}"),
    };
    bytes.chunks(CapsuleResp::LEN).map(decode).collect()
}

#[test]
fn new_command_replaces_held_request_with_its_cid() {
    let (mut pair, cid) = holding(true);
    send_as(&mut pair, cid);
    let (permit, entry, _) = pair.command();
    assert_eq!((permit.cid(), entry.opcode), (cid, KEEP_ALIVE));
    assert!(pair.target.is_held(cid));
    pair.target.replace_held(cid);
    pair.target.complete(permit, Completion::success());
    let sent: Vec<_> = responses(&mut pair).iter().map(|entry| (entry.cid, entry.status)).collect();
    assert_eq!(sent, [(cid, Status::SUCCESS)], "the command completes, the request does not");
    pair.target.complete_held(cid, Completion::with_dw0(7));
    assert!(responses(&mut pair).is_empty());
}

#[test]
fn answered_request_completes_first() {
    let (mut pair, cid) = holding(true);
    send_as(&mut pair, cid);
    let (permit, ..) = pair.command();
    pair.target.complete_held(cid, Completion::with_dw0(7));
    pair.target.complete(permit, Completion::with_dw0(8));
    let sent: Vec<_> = responses(&mut pair).iter().map(|entry| (entry.cid, entry.dw0)).collect();
    assert_eq!(sent, [(cid, 7), (cid, 8)]);
}

#[test]
fn replaced_request_releases_its_entry() {
    let (mut pair, cid) = holding(false);
    send_as(&mut pair, cid);
    let (permit, ..) = pair.command();
    pair.target.replace_held(cid);
    pair.target.complete(permit, Completion::success());
    // Connect, the replaced request, and the command have left the queue.
    assert_eq!(responses(&mut pair).iter().map(|entry| entry.sqhd).collect::<Vec<_>>(), [3]);
}

#[test]
fn held_requests_use_no_queue_entry() {
    let (mut pair, cid) = holding(true);
    (0..8).for_each(|other| send_as(&mut pair, cid.wrapping_add(1 + other)));
    assert_eq!((pair.commands.len(), pair.target.in_flight()), (8, 8));
    assert!(pair.target_ends.is_empty());
}

#[test]
fn commands_other_than_held_requests_still_conflict() {
    let (mut pair, cid) = holding(true);
    send_as(&mut pair, cid);
    pair.target.replace_held(cid);
    send_as(&mut pair, cid);
    let sent: Vec<_> = responses(&mut pair).iter().map(|entry| (entry.cid, entry.status)).collect();
    assert_eq!(sent, [(cid, Status::COMMAND_ID_CONFLICT)]);
}

//! Hosts that violate the protocol: they lose their connection and affect no other host.

mod common;

use std::time::Duration;

use common::*;
use isolane_target::TargetConfig;
use isolane_wire::io::WriteZeroesCommand;
use isolane_wire::opcode::IoOpcode;
use isolane_wire::pdu::{CapsuleCmd, ControllerPdu, FatalErrorStatus, H2cData, IcReq, R2t};
use isolane_wire::{Sgl, Status, SubmissionEntry};

#[test]
fn rejects_first_pdu_other_than_icreq() {
    let (_target, address) = start(config(&["mem:1M"]));
    let mut host = MockHost::dial(address);
    let entry = connect_entry(0, 31);
    host.send_bytes(&CapsuleCmd { entry, data_len: 0 }.encode(&host.outbound));
    assert_eq!(host.expect_termination().status(), Some(FatalErrorStatus::PduSequenceError));
    let mut host = MockHost::dial(address);
    host.send_bytes(b"GET / HTTP/1.1\r\nHost: storage.example\r\n\r\n");
    assert_eq!(host.expect_termination().status(), Some(FatalErrorStatus::InvalidHeaderField));
}

#[test]
fn wrong_direction_is_fatal_to_one_connection() {
    let (_target, address) = start(config(&["mem:1M"]));
    let admin = MockHost::admin(address);
    let (mut bad, mut good) = (admin.io_queue(1, 31), admin.io_queue(2, 31));
    bad.send_bytes(&R2t { cccid: 1, ttag: 1, r2to: 0, r2tl: 512 }.encode(&bad.outbound));
    let request = bad.expect_termination();
    assert_eq!((request.status(), request.fei), (Some(FatalErrorStatus::InvalidHeaderField), 0));
    assert_eq!(good.fetch(read_entry(0, 1), 512).0.status, Status::SUCCESS);
}

#[test]
fn wrong_header_digest_is_fatal() {
    let (target, address) = start(config(&["mem:1M"]));
    let mut host = MockHost::admin_with(address, digests(true, false), HOST);
    let entry = SubmissionEntry { cid: 9, ..read_entry(0, 1) };
    let mut bytes = CapsuleCmd { entry, data_len: 0 }.encode(&host.outbound).to_vec();
    bytes[20] ^= 1;
    host.send_bytes(&bytes);
    assert_eq!(host.expect_termination().status(), Some(FatalErrorStatus::HeaderDigestError));
    assert_eq!(target.counters().fatal_errors, 1);
}

#[test]
fn wrong_data_digest_changes_no_block() {
    let (target, address) = start(config(&["mem:1M"]));
    let admin = MockHost::admin(address);
    let mut queue = admin.io_queue_with(1, 31, digests(false, true), HOST);
    let data = pattern(3, 1024);
    let entry = in_capsule(SubmissionEntry { cid: 77, ..write_entry(0, 2) }, &data);
    let header = CapsuleCmd { entry, data_len: 1024 }.encode(&queue.outbound);
    queue.send_bytes(&[&header[..], &data, &[1, 2, 3, 4]].concat());
    assert_eq!(queue.completion(77).0.status.kind(), Status::TRANSIENT_TRANSPORT_ERROR);
    assert_eq!(queue.fetch(read_entry(0, 2), 1024).1, vec![0; 1024]);
    assert_eq!(target.counters().digest_errors, 1);
}

#[test]
fn data_for_an_unknown_tag_is_fatal() {
    let (_target, address) = start(config(&["mem:1M"]));
    let (_admin, mut queue) = pair(address, 31);
    let header = H2cData { cccid: 5, ttag: 99, datao: 0, datal: 512, last: true };
    queue.send_with_data(&header.encode(&queue.outbound), &[0; 512]);
    let request = queue.expect_termination();
    assert_eq!((request.status(), request.fei), (Some(FatalErrorStatus::InvalidHeaderField), 10));
}

#[test]
fn interrupted_write_changes_no_block() {
    let (target, address) = start(config(&["mem:4M"]));
    let mut admin = MockHost::admin(address);
    let mut queue = admin.io_queue(1, 31);
    let old = pattern(1, 1 << 20);
    assert_eq!(queue.push(write_entry(0, 2048), &old).status, Status::SUCCESS);
    queue.send(SubmissionEntry { sgl: Sgl::Transport { len: 1 << 20 }, ..write_entry(0, 2048) }, &[]);
    let ControllerPdu::R2t(r2t) = queue.answer().pdu else { panic!("no R2T") };
    let header = H2cData { cccid: r2t.cccid, ttag: r2t.ttag, datao: 0, datal: r2t.r2tl, last: true };
    queue.send_bytes(&header.encode(&queue.outbound));
    queue.send_bytes(&pattern(2, 300_000));
    drop(queue);
    eventually("the queue is gone", || target.counters().connections_open == 1);
    let mut queue = admin.io_queue(1, 31);
    assert!(queue.fetch(read_entry(0, 2048), 1 << 20).1 == old, "a broken write changed something");
    admin.property(CSTS);
}

#[test]
fn rejects_commands_before_connect_and_enable() {
    let (_target, address) = start(config(&["mem:1M"]));
    let mut host = MockHost::initialized(address, IcReq::default());
    assert_eq!(host.fetch(read_entry(0, 1), 512).0.status.kind(), Status::COMMAND_SEQUENCE_ERROR);
    let answer = host.connect(0, 0xffff, NQN, HOST, 31);
    assert_eq!(answer.status, Status::SUCCESS);
    host.cntlid = answer.dw0 as u16;
    let mut queue = MockHost::initialized(address, IcReq::default());
    let refused = queue.connect(1, host.cntlid, NQN, HOST, 31);
    assert_ne!(refused.status, Status::SUCCESS, "an I/O queue of a disabled controller");
}

#[test]
fn queue_survives_unsupported_commands() {
    let (_target, address) = start(config(&["mem:1M"]));
    let (_admin, mut queue) = pair(address, 31);
    let compare = SubmissionEntry { opcode: IoOpcode::Compare.code(), ..write_entry(0, 1) };
    assert_eq!(queue.write(compare, &[0; 512]).0.status.kind(), Status::INVALID_OPCODE);
    let elsewhere = SubmissionEntry { nsid: 2, ..read_entry(0, 1) };
    assert_eq!(queue.fetch(elsewhere, 512).0.status.kind(), Status::INVALID_NAMESPACE);
    assert_eq!(queue.fetch(read_entry(2047, 2), 1024).0.status.kind(), Status::LBA_OUT_OF_RANGE);
    assert_eq!(queue.write(write_entry(2048, 1), &[0; 512]).0.status.kind(), Status::LBA_OUT_OF_RANGE);
    let (answer, _) = queue.write(write_entry(0, 2), &[0; 512]);
    assert_eq!(answer.status.kind(), Status::DATA_SGL_LENGTH_INVALID);
    let beyond = WriteZeroesCommand { nsid: 1, slba: u64::MAX, nlb: 0, ..Default::default() };
    assert_eq!(queue.run(beyond.entry()).status.kind(), Status::LBA_OUT_OF_RANGE);
    let raw = SubmissionEntry { sgl: Sgl::Other([0x30; 16]), ..read_entry(0, 1) };
    assert_eq!(queue.run(raw).status.kind(), Status::SGL_TYPE_INVALID);
    assert_eq!(queue.fetch(read_entry(0, 1), 512).1, vec![0; 512]);
}

#[test]
fn rejects_writes_to_read_only_volume() {
    let (_target, address) = start(config(&["mem:1M,ro"]));
    let (_admin, mut queue) = pair(address, 31);
    let (answer, _) = queue.write(write_entry(0, 1), &[1; 512]);
    assert_ne!(answer.status, Status::SUCCESS);
    assert_eq!(queue.fetch(read_entry(0, 1), 512).1, vec![0; 512]);
}

#[test]
fn only_allowed_hosts_are_admitted() {
    let mut config = config(&["mem:1M"]);
    config.subsystems[0].allowed_hosts = Some(vec![HOST.parse().unwrap()]);
    let (_target, address) = start(config);
    let mut unknown = MockHost::initialized(address, IcReq::default());
    let other = "nqn.2014-08.org.nvmexpress:uuid:99999999-2222-3333-4444-555555555555";
    assert_eq!(unknown.connect(0, 0xffff, NQN, other, 31).status.kind(), Status::CONNECT_INVALID_HOST);
    unknown.expect_end();
    drop(MockHost::admin(address));
}

#[test]
fn closes_connection_without_icreq() {
    let config = TargetConfig { handshake_timeout: Duration::from_millis(300), ..config(&["mem:1M"]) };
    let (target, address) = start(config);
    let mut hosts = [MockHost::dial(address), MockHost::initialized(address, IcReq::default())];
    hosts.iter_mut().for_each(MockHost::expect_end);
    assert_eq!(target.counters().fatal_errors, 2);
}

#[test]
fn stalled_transfer_closes_only_its_connection() {
    let config = TargetConfig { stall_timeout: Duration::from_millis(300), ..config(&["mem:1M"]) };
    let (_target, address) = start(config);
    let admin = MockHost::admin(address);
    let (mut slow, mut good) = (admin.io_queue(1, 31), admin.io_queue(2, 31));
    slow.send(SubmissionEntry { sgl: Sgl::Transport { len: 65536 }, ..write_entry(0, 128) }, &[]);
    slow.expect_end();
    assert_eq!(good.fetch(read_entry(0, 1), 512).0.status, Status::SUCCESS);
}

#[test]
fn closes_host_that_reads_nothing() {
    let config = TargetConfig { stall_timeout: Duration::from_millis(300), ..config(&["mem:16M"]) };
    let (target, address) = start(config);
    let admin = MockHost::admin(address);
    let mut slow = admin.io_queue(1, 63);
    for _ in 0..60 {
        slow.send(SubmissionEntry { sgl: Sgl::Transport { len: 1 << 20 }, ..read_entry(0, 2048) }, &[]);
    }
    eventually("the connection is cut off", || target.counters().connections_open == 1);
}

#[test]
fn garbage_on_many_connections_hurts_nobody_else() {
    let (target, address) = start(config(&["mem:1M"]));
    let (admin, mut queue) = pair(address, 31);
    for seed in 0..100 {
        let mut host = MockHost::dial(address);
        let len = pattern(seed, 2).iter().map(|byte| usize::from(*byte)).sum();
        if seed % 2 == 0 {
            host.initialize(IcReq::default());
        }
        use std::io::Write;
        let _ = host.stream.write_all(&pattern(seed, len));
    }
    drop(queue.fetch(read_entry(0, 1), 512));
    drop((queue, admin));
    eventually("all connections are gone", || target.counters().connections_open == 0);
}

#[test]
fn refuses_wrong_command_with_do_not_retry() {
    let (_target, address) = start(config(&["mem:1M"]));
    let (_admin, mut queue) = pair(address, 31);
    let keyed = |entry| SubmissionEntry { sgl: Sgl::Other([0x40; 16]), ..entry };
    let without_data = SubmissionEntry { sgl: Sgl::Transport { len: 0 }, ..read_entry(0, 1) };
    let prp = SubmissionEntry { flags: Default::default(), ..read_entry(0, 1) };
    let fctype_2 = SubmissionEntry::new(0x7f, 2);
    let cases = [
        (keyed(read_entry(0, 1)), Status::SGL_TYPE_INVALID),
        (keyed(write_entry(0, 1)), Status::SGL_TYPE_INVALID),
        (without_data, Status::DATA_SGL_LENGTH_INVALID),
        (prp, Status::INVALID_FIELD),
        (keyed(fctype_2), Status::INVALID_OPCODE),
        (keyed(SubmissionEntry::new(0xc1, 1)), Status::INVALID_OPCODE),
    ];
    for (entry, status) in cases {
        assert_eq!(queue.run(entry).status, status.with_dnr(true), "{entry:?}");
    }
    let offset = SubmissionEntry { sgl: Sgl::InCapsule { offset: 8, len: 512 }, ..write_entry(0, 1) };
    let cid = queue.send(offset, &[1; 512]);
    assert_eq!(queue.completion(cid).0.status, Status::SGL_OFFSET_INVALID.with_dnr(true));
    assert_eq!(queue.write(write_entry(0, 1), &[1; 512]).0.status, Status::SUCCESS);

    let mut unconnected = MockHost::initialized(address, IcReq::default());
    let early = unconnected.run(isolane_wire::io::flush(1)).status;
    assert_eq!(early, Status::COMMAND_SEQUENCE_ERROR.with_dnr(true));
}

//! Well-formed commands at the wrong time: before Connect, before enabling, repeated, too many, and register
//! writes under load.

use std::io::Write;

use isolane_wire::admin::{AbortCommand, AbortResponse, async_event_request};
use isolane_wire::fabrics::PropertySize;
use isolane_wire::fabrics::{
    ConnectCommand, ConnectData, ConnectRejection, DisconnectCommand, PropertySetCommand,
};
use isolane_wire::pdu::{CapsuleCmd, ControllerPdu, FatalErrorStatus, IcReq};
use isolane_wire::registers::{Cc, Csts};
use isolane_wire::{Sgl, Status, SubmissionEntry};

use crate::common::*;

fn transport(entry: SubmissionEntry, len: u32) -> SubmissionEntry {
    SubmissionEntry { sgl: Sgl::Transport { len }, ..entry }
}

fn set_cc(cc: Cc) -> SubmissionEntry {
    PropertySetCommand { size: PropertySize::Bytes4, offset: CC, value: u64::from(cc.0) }.entry()
}

/// Waits for CSTS.
fn wait_for(admin: &mut MockHost, matches: impl Fn(Csts) -> bool) {
    eventually("CSTS", || matches(Csts(admin.property(CSTS) as u32)));
}

/// Sends reads and writes until the target closes, and ignores all responses.
fn load(mut host: MockHost) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut reader = host.stream.try_clone().unwrap();
        let reader = std::thread::spawn(move || {
            let _ = std::io::copy(&mut reader, &mut std::io::sink());
            // The target waits up to 5 s for this after it has closed its side.
            let _ = reader.shutdown(std::net::Shutdown::Both);
        });
        for cid in (0..=u16::MAX).cycle() {
            let data = [cid as u8; 4096];
            let entry = SubmissionEntry { cid, ..in_capsule(write_entry(u64::from(cid) % 64 * 8, 8), &data) };
            let header = CapsuleCmd { entry, data_len: 4096 }.encode(&host.outbound);
            let read = SubmissionEntry { cid: cid ^ 0x8000, ..transport(read_entry(0, 256), 256 * 512) };
            let read = CapsuleCmd { entry: read, data_len: 0 }.encode(&host.outbound);
            if host.stream.write_all(&[&header[..], &data, &read].concat()).is_err() {
                break;
            }
        }
        let _ = reader.join();
    })
}

#[test]
fn rejects_commands_before_connect() {
    let (_target, address) = start(config(&["mem:1M"]));
    let mut host = MockHost::initialized(address, IcReq::default());
    let (answer, _) = host.write(write_entry(0, 16), &[1; 8192]);
    assert_eq!(answer.status.kind(), Status::COMMAND_SEQUENCE_ERROR);
    let entry = transport(write_entry(0, 16), 8192);
    assert_eq!(host.run(entry).status.kind(), Status::COMMAND_SEQUENCE_ERROR, "no R2T for it");
    assert_eq!(host.connect(0, 0xffff, NQN, HOST, 31).status, Status::SUCCESS, "the connection stays open");
}

#[test]
fn rejects_connect_with_lowest_invalid_field() {
    let (target, address) = start(config(&["mem:1M"]));
    let admin = MockHost::admin(address);
    let other = "nqn.2014-08.org.nvmexpress:uuid:99999999-2222-3333-4444-555555555555";
    let cntlid = admin.cntlid;
    let field = |data: bool, offset| {
        if data { ConnectRejection::Data(offset) } else { ConnectRejection::Command(offset) }
    };
    // QID, CNTLID, SUBNQN, HOSTNQN, SQSIZE.
    type Fields<'a> = (u16, u16, &'a str, &'a str, u16);
    let attacks: [(&str, Fields, ConnectRejection); 11] = [
        ("CNTLID of the static model", (0, 0xfffe, NQN, HOST, 31), field(true, ConnectData::CNTLID)),
        ("a certain CNTLID", (0, cntlid, NQN, HOST, 31), field(true, ConnectData::CNTLID)),
        ("SQSIZE 0", (0, 0xffff, NQN, HOST, 0), field(false, ConnectCommand::SQSIZE)),
        ("SQSIZE FFFFh", (0, 0xffff, NQN, HOST, 0xffff), field(false, ConnectCommand::SQSIZE)),
        ("another subsystem", (0, 0xffff, other, HOST, 31), field(true, ConnectData::SUBNQN)),
        (
            "I/O queue of an unknown controller",
            (1, cntlid + 1, NQN, HOST, 31),
            field(true, ConnectData::CNTLID),
        ),
        ("I/O queue of FFFFh", (1, 0xffff, NQN, HOST, 31), field(true, ConnectData::CNTLID)),
        ("I/O queue of another host", (1, cntlid, NQN, other, 31), field(true, ConnectData::HOSTNQN)),
        ("QID beyond", (65, cntlid, NQN, HOST, 31), field(false, ConnectCommand::QID)),
        ("QID FFFFh", (0xffff, cntlid, NQN, HOST, 31), field(false, ConnectCommand::QID)),
        ("I/O SQSIZE 256", (1, cntlid, NQN, HOST, 256), field(false, ConnectCommand::SQSIZE)),
    ];
    for (what, (qid, cntlid, subnqn, hostnqn, sqsize), rejection) in attacks {
        let mut host = MockHost::initialized(address, IcReq::default());
        let answer = host.connect(qid, cntlid, subnqn, hostnqn, sqsize);
        assert_eq!(ConnectRejection::parse(&answer), Some(rejection), "{what}: {:?}", answer.status);
        host.expect_end();
    }
    eventually("all are gone", || target.counters().connections_open == 1);
    assert_eq!(target.associations().len(), 1);
}

#[test]
fn rejects_connect_data_of_wrong_length() {
    let (target, address) = start(config(&["mem:1M"]));
    let data = connect_data(0xffff, NQN, HOST);
    for len in [0_usize, 4, 1020, 1028, 8192] {
        let mut host = MockHost::initialized(address, IcReq::default());
        let mut data = data.clone();
        data.resize(len, 0);
        let (answer, _) = host.write(connect_entry(0, 31), &data);
        assert!(!answer.status.is_success(), "{len} bytes");
        host.expect_end();
    }
    for name in [256, 512] {
        let mut host = MockHost::initialized(address, IcReq::default());
        let mut data = data.clone();
        data[name..name + 256].fill(b'n');
        let (answer, _) = host.write(connect_entry(0, 31), &data);
        assert_eq!(ConnectRejection::parse(&answer), Some(ConnectRejection::Data(name as u16)));
    }
    eventually("all are gone", || target.counters().connections_open == 0);
}

#[test]
fn rejects_a_second_connect() {
    let (_target, address) = start(config(&["mem:1M"]));
    let (admin, mut queue) = pair(address, 31);
    assert!(!queue.connect(1, admin.cntlid, NQN, HOST, 31).status.is_success());
    assert!(!queue.connect(2, admin.cntlid, NQN, HOST, 31).status.is_success());
    let mut twin = MockHost::initialized(address, IcReq::default());
    assert!(!twin.connect(1, admin.cntlid, NQN, HOST, 31).status.is_success(), "a queue id twice");
    // Four concurrent Connects on one connection: one succeeds.
    let mut host = MockHost::initialized(address, IcReq::default());
    let data = connect_data(0xffff, NQN, HOST);
    let entry = in_capsule(connect_entry(0, 31), &data);
    for _ in 0..4 {
        host.send(entry, &data);
    }
    let answers = (0..4).map(|_| match host.answer().pdu {
        ControllerPdu::CapsuleResp(response) => response.entry.status,
        other => panic!("{other:?}"),
    });
    assert_eq!(answers.filter(|status| status.is_success()).count(), 1);
    assert_eq!(queue.fetch(read_entry(0, 1), 512).0.status, Status::SUCCESS);
}

#[test]
fn rejects_cids_in_use_and_queue_overflow() {
    let (_target, address) = start(config(&["mem:1M"]));
    let (_admin, mut host) = pair(address, 3);
    let entry = SubmissionEntry { cid: 7, ..transport(write_entry(0, 16), 8192) };
    let bytes = CapsuleCmd { entry, data_len: 0 }.encode(&host.outbound);
    host.send_bytes(&bytes.repeat(2));
    let ControllerPdu::R2t(r2t) = host.answer().pdu else { panic!("no R2T") };
    let ControllerPdu::CapsuleResp(response) = host.answer().pdu else { panic!("no response") };
    assert_eq!((response.entry.cid, response.entry.status.kind()), (7, Status::COMMAND_ID_CONFLICT));
    host.send_granted(&r2t, &[5; 8192]);
    assert_eq!(host.completion(7).0.status, Status::SUCCESS, "the first command is unaffected");
    for cid in 0..5 {
        let entry = SubmissionEntry { cid, ..entry };
        host.send_bytes(&CapsuleCmd { entry, data_len: 0 }.encode(&host.outbound));
    }
    let fes = std::iter::from_fn(|| host.try_answer()).find_map(|answer| match answer.pdu {
        ControllerPdu::TermReq(request) => request.status(),
        _ => None,
    });
    assert_eq!(fes, Some(FatalErrorStatus::PduSequenceError));
}

#[test]
fn bounds_and_aborts_event_requests() {
    let (_target, address) = start(config(&["mem:1M"]));
    let mut admin = MockHost::admin(address);
    let held: Vec<u16> = (0..4).map(|_| admin.send(async_event_request(), &[])).collect();
    for _ in 0..20 {
        assert_eq!(admin.run(async_event_request()).status.kind(), Status::ASYNC_EVENT_LIMIT_EXCEEDED);
    }
    for (sqid, cid) in [(0, 0xfff0), (1, held[0]), (0xffff, held[0])] {
        let answer = admin.run(AbortCommand { sqid, cid }.entry());
        assert!(AbortResponse(answer.dw0).not_aborted(), "{sqid}/{cid}");
    }
    let abort = admin.send(AbortCommand { sqid: 0, cid: held[1] }.entry(), &[]);
    let mut answered: Vec<u16> = (0..2)
        .map(|_| match admin.answer().pdu {
            ControllerPdu::CapsuleResp(response) => response.entry.cid,
            other => panic!("{other:?}"),
        })
        .collect();
    answered.sort_unstable();
    assert_eq!(answered, [held[1], abort]);
    let again = admin.run(AbortCommand { sqid: 0, cid: held[1] }.entry());
    assert!(AbortResponse(again.dw0).not_aborted(), "each command has one completion");
}

#[test]
fn survives_controller_resets_under_load() {
    let (target, address) = start(config(&["mem:1M"]));
    let mut admin = MockHost::admin(address);
    let (_other_admin, mut good) = pair(address, 31);
    for _ in 0..10 {
        let loads: Vec<_> = (1..4).map(|qid| load(admin.io_queue(qid, 127))).collect();
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(admin.run(set_cc(Cc(0))).status, Status::SUCCESS);
        let _ = admin.run(set_cc(Cc::enabled()));
        let _ = admin.run(set_cc(Cc(0)));
        wait_for(&mut admin, |csts| !csts.rdy());
        loads.into_iter().for_each(|load| load.join().unwrap());
        assert_eq!(admin.run(set_cc(Cc::enabled())).status, Status::SUCCESS);
        wait_for(&mut admin, |csts| csts.rdy());
        assert_eq!(good.fetch(read_entry(0, 1), 512).0.status, Status::SUCCESS);
    }
    drop(admin);
    eventually("only the other association remains", || target.counters().connections_open == 2);
    assert_eq!(target.associations().len(), 1);
}

#[test]
fn shutdown_under_load_ends_all_writes() {
    let directory = tempfile::tempdir().unwrap();
    let volume = format!("{},size=4M", directory.path().join("image").display());
    let (_target, address) = start(config(&[&volume]));
    let mut admin = MockHost::admin(address);
    let mut late = admin.io_queue(9, 31);
    let loads: Vec<_> = (1..4).map(|qid| load(admin.io_queue(qid, 127))).collect();
    std::thread::sleep(std::time::Duration::from_millis(50));
    admin.set_property(CC, Cc::enabled().with_shn(Cc::SHN_NORMAL).0);
    wait_for(&mut admin, |csts| csts.shst() == Csts::SHST_COMPLETE);
    let (answer, _) = late.write(write_entry(0, 1), &[0xdd; 512]);
    assert_eq!(answer.status.kind(), Status::COMMAND_SEQUENCE_ERROR);
    let mut queue = MockHost::initialized(address, IcReq::default());
    assert!(!queue.connect(10, admin.cntlid, NQN, HOST, 31).status.is_success());
    drop(admin);
    loads.into_iter().for_each(|load| load.join().unwrap());
    let (_admin, mut later) = pair(address, 31);
    assert_ne!(later.fetch(read_entry(0, 1), 512).1, vec![0xdd; 512]);
}

#[test]
fn vanished_hosts_leak_nothing() {
    let (target, address) = start(config(&["mem:1M"]));
    let (_admin, mut good) = pair(address, 31);
    for round in 0..20 {
        let admin = MockHost::admin(address);
        let queues: Vec<_> = (1..4).map(|qid| admin.io_queue(qid, 127)).collect();
        let sockets: Vec<_> = queues.iter().map(|queue| queue.stream.try_clone().unwrap()).collect();
        let loads: Vec<_> = queues.into_iter().map(load).collect();
        std::thread::sleep(std::time::Duration::from_millis(5));
        let abrupt = socket2::SockRef::from(&admin.stream);
        abrupt.set_linger(Some(std::time::Duration::ZERO)).unwrap();
        match round % 2 {
            0 => drop(admin),
            _ => sockets.iter().for_each(|socket| drop(socket.shutdown(std::net::Shutdown::Both))),
        }
        loads.into_iter().for_each(|load| load.join().unwrap());
        // Keeps the association alive on a slow machine.
        assert_eq!(good.fetch(read_entry(0, 1), 512).0.status, Status::SUCCESS, "round {round}");
    }
    eventually("all are gone", || target.counters().connections_open == 2);
    eventually("all associations are gone", || target.associations().len() == 1);
    assert_eq!(good.fetch(read_entry(0, 1), 512).0.status, Status::SUCCESS);
}

#[test]
fn shutdown_does_not_wait_for_partial_transfers() {
    let directory = tempfile::tempdir().unwrap();
    let volume = format!("{},size=4M", directory.path().join("image").display());
    let (target, address) = start(config(&["mem:1M", &volume]));
    let admin = MockHost::admin(address);
    let mut half = admin.io_queue(9, 31);
    half.send(transport(write_entry(0, 16), 8192), &[]);
    half.answer();
    let loads: Vec<_> = (1..4).map(|qid| load(admin.io_queue(qid, 127))).collect();
    std::thread::sleep(std::time::Duration::from_millis(50));
    let (start, timeout) = (std::time::Instant::now(), std::time::Duration::from_secs(120));
    let report = target.shutdown(timeout);
    assert!(start.elapsed() < timeout / 2, "shutdown waited for the partial transfer");
    assert_eq!(report.into_result(), Ok(()));
    loads.into_iter().for_each(|load| load.join().unwrap());
}

#[test]
fn disconnect_ends_io_queues_only() {
    let (target, address) = start(config(&["mem:1M"]));
    let (mut admin, mut queue) = pair(address, 31);
    assert!(!admin.run(DisconnectCommand { recfmt: 0 }.entry()).status.is_success());
    assert!(!queue.run(DisconnectCommand { recfmt: 1 }.entry()).status.is_success());
    assert_eq!(queue.run(DisconnectCommand { recfmt: 0 }.entry()).status, Status::SUCCESS);
    queue.expect_end();
    drop(queue);
    eventually("the queue is gone", || target.counters().connections_open == 1);
    assert_eq!(admin.io_queue(1, 31).fetch(read_entry(0, 1), 512).0.status, Status::SUCCESS);
}

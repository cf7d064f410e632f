//! Invalid PDUs: each is rejected with the specified status and offset, in every state of a connection, sent
//! at once or byte by byte, and other connections are unaffected.

use std::net::SocketAddr;

use isolane_wire::pdu::HeaderFault;
use isolane_wire::pdu::{C2hData, CapsuleResp, Digests};
use isolane_wire::pdu::{CapsuleCmd, ControllerPdu, FatalErrorStatus, H2cData, IcReq, IcResp, R2t, TermReq};
use isolane_wire::{Direction, Framing, Sgl, Status, SubmissionEntry};

use crate::common::*;

use FatalErrorStatus::{
    DataTransferOutOfRange as Range, InvalidHeaderField as Invalid, LimitExceeded as Limit,
    PduSequenceError as Sequence, UnsupportedParameter as Unsupported,
};

/// State of a connection before the invalid bytes.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Accepted,
    Initialised,
    Connected,
}

impl Stage {
    const ALL: [Stage; 3] = [Stage::Accepted, Stage::Initialised, Stage::Connected];

    fn reach(self, address: SocketAddr, admin: &MockHost, qid: u16) -> MockHost {
        match self {
            Stage::Accepted => MockHost::dial(address),
            Stage::Initialised => MockHost::initialized(address, IcReq::default()),
            Stage::Connected => admin.io_queue(qid, 31),
        }
    }
}

const PLAIN: Framing = Framing { header_digest: false, data_digest: false, pda: 0 };

/// A header with some bytes replaced.
fn patched(header: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut header = header.to_vec();
    header[at..at + bytes.len()].copy_from_slice(bytes);
    header
}

fn capsule() -> Vec<u8> {
    CapsuleCmd { entry: SubmissionEntry { cid: 900, ..read_entry(0, 1) }, data_len: 0 }
        .encode(&PLAIN)
        .to_vec()
}

fn capsule_with_data(data_len: u32) -> Vec<u8> {
    CapsuleCmd { entry: SubmissionEntry { cid: 900, ..write_entry(0, 1) }, data_len }.encode(&PLAIN).to_vec()
}

fn h2c_data() -> H2cData {
    H2cData { cccid: 900, ttag: 7, datao: 0, datal: 512, last: true }
}

/// Name, bytes, and the expected FES and FEI.
type BadPdu = (&'static str, Vec<u8>, FatalErrorStatus, u32);

/// Invalid in every state.
fn always_invalid() -> Vec<BadPdu> {
    let ic_resp = IcResp { cpda: 0, digests: Digests(0), maxh2cdata: 4096 };
    let c2h_data = C2hData { cccid: 1, datao: 0, datal: 512, last: true, success: false };
    let r2t = R2t { cccid: 1, ttag: 1, r2to: 0, r2tl: 512 };
    let response = CapsuleResp { entry: Default::default() };
    vec![
        ("ICResp from a host", ic_resp.encode().to_vec(), Invalid, 0),
        ("CapsuleResp from a host", response.encode(&PLAIN).to_vec(), Invalid, 0),
        ("C2HData from a host", c2h_data.encode(&PLAIN).to_vec(), Invalid, 0),
        ("R2T from a host", r2t.encode(&PLAIN).to_vec(), Invalid, 0),
        ("a type that does not exist", patched(&capsule(), 0, &[0x08]), Invalid, 0),
        ("another type that does not exist", vec![0xff; 64], Invalid, 0),
        ("a header digest that was not agreed", patched(&capsule(), 1, &[1]), Invalid, 1),
        ("a data digest that was not agreed", patched(&capsule_with_data(512), 1, &[2]), Invalid, 1),
        ("HLEN 0", patched(&capsule(), 2, &[0]), Invalid, 2),
        ("HLEN 255", patched(&capsule(), 2, &[255]), Invalid, 2),
        ("PDO inside of the header", patched(&capsule_with_data(512), 3, &[71]), Invalid, 3),
        ("PDO that is not aligned", patched(&capsule_with_data(512), 3, &[73]), Invalid, 3),
        ("PDO beyond the end", patched(&capsule_with_data(4), 3, &[252]), Invalid, 4),
        ("PLEN 0", patched(&capsule(), 4, &[0; 4]), Invalid, 4),
        ("PLEN shorter than the header", patched(&capsule(), 4, &[71, 0, 0, 0]), Invalid, 4),
        ("the lowest of several wrong fields", patched(&capsule(), 1, &[1, 0, 1, 0, 0, 0, 0]), Invalid, 1),
        ("H2CData without data", patched(&h2c_data().encode(&PLAIN), 4, &[24, 0, 0, 0]), Invalid, 4),
        ("ICReq of another length", patched(&IcReq::default().encode(), 4, &[127, 0, 0, 0]), Invalid, 4),
    ]
}

/// Invalid after initialization.
fn invalid_after_init() -> Vec<BadPdu> {
    let data = |change: fn(&mut H2cData)| {
        let mut data = h2c_data();
        change(&mut data);
        data.encode(&PLAIN).to_vec()
    };
    vec![
        ("a second ICReq", IcReq::default().encode().to_vec(), Sequence, 0),
        ("a capsule of 4 GiB", patched(&capsule(), 3, &[72, 255, 255, 255, 255]), Invalid, 4),
        ("a capsule that is too long", capsule_with_data(16 * 1024 + 4), Invalid, 4),
        ("data without an R2T", data(|_| ()), Invalid, 10),
        ("data with tag FFFFh", data(|data| data.ttag = 0xffff), Invalid, 10),
        ("DATAL that is not PLEN", patched(&data(|_| ()), 16, &[0, 4, 0, 0]), Invalid, 4),
        ("DATAL 0", patched(&data(|_| ()), 16, &[0; 4]), Invalid, 16),
        ("H2CData of 4 GiB", patched(&data(|_| ()), 4, &[255; 4]), Invalid, 4),
    ]
}

/// Invalid as the first PDU.
fn invalid_as_first() -> Vec<BadPdu> {
    let request = IcReq::default().encode();
    vec![
        ("a capsule before ICReq", capsule(), Sequence, 0),
        ("data before ICReq", h2c_data().encode(&PLAIN).to_vec(), Sequence, 0),
        ("PFV 1", patched(&request, 8, &[1]), Unsupported, 8),
        ("HPDA 32", patched(&request, 10, &[32]), Invalid, 10),
        ("PFV before HPDA", patched(&request, 8, &[1, 0, 32]), Unsupported, 8),
    ]
}

fn expect(mut host: MockHost, what: &str, bytes: &[u8], split: bool, fes: FatalErrorStatus, fei: u32) {
    use std::io::Write;
    let step = if split { 1 } else { bytes.len() };
    // The connection may be closed before all bytes are sent.
    let _ = bytes.chunks(step).try_for_each(|chunk| host.stream.write_all(chunk));
    let request = host.expect_termination();
    assert_eq!((request.status(), request.fei), (Some(fes), fei), "{what}");
}

#[test]
fn reports_lowest_invalid_header_field() {
    let (target, address) = start(config(&["mem:1M"]));
    let admin = MockHost::admin(address);
    let mut good = admin.io_queue(2, 31);
    let mut fatal_errors = 0;
    for stage in Stage::ALL {
        let for_stage = match stage {
            Stage::Accepted => invalid_as_first(),
            Stage::Initialised | Stage::Connected => invalid_after_init(),
        };
        for (what, bytes, fes, fei) in always_invalid().into_iter().chain(for_stage) {
            for split in [false, true] {
                let open = target.counters().connections_open;
                let host = stage.reach(address, &admin, 1);
                expect(host, &format!("{what}, {stage:?}"), &bytes, split, fes, fei);
                fatal_errors += 1;
                eventually("the connection is gone", || target.counters().connections_open == open);
            }
        }
    }
    assert_eq!(target.counters().fatal_errors, fatal_errors);
    assert_eq!(good.fetch(read_entry(0, 1), 512).0.status, Status::SUCCESS);
}

#[test]
fn rejects_data_that_violates_its_r2t() {
    type Misuse = fn(&mut H2cData);
    let attacks: [(&str, Misuse, FatalErrorStatus, u32); 9] = [
        ("another tag", |data| data.ttag ^= 1, Invalid, 10),
        ("a tag of the same slot", |data| data.ttag ^= 0x4000, Invalid, 10),
        ("another command", |data| data.cccid ^= 1, Invalid, 8),
        ("an offset beyond the range", |data| data.datao = 8192, Range, 0),
        ("an offset whose end wraps", |data| data.datao = 0xffff_f000, Range, 0),
        ("more than the R2T", |data| data.datal = 16384, Range, 0),
        ("a gap", |data| (data.datao, data.datal) = (4096, 4096), Sequence, 0),
        ("no LAST at the end", |data| data.last = false, Sequence, 0),
        ("LAST before the end", |data| data.datal = 4096, Sequence, 0),
    ];
    let (target, address) = start(config(&["mem:1M"]));
    let admin = MockHost::admin(address);
    for (what, change, fes, fei) in attacks {
        let mut host = admin.io_queue(1, 31);
        host.send(SubmissionEntry { sgl: Sgl::Transport { len: 8192 }, ..write_entry(0, 16) }, &[]);
        let ControllerPdu::R2t(r2t) = host.answer().pdu else { panic!("no R2T") };
        let mut data = H2cData { cccid: r2t.cccid, ttag: r2t.ttag, datao: 0, datal: 8192, last: true };
        change(&mut data);
        let bytes = [&data.encode(&PLAIN)[..], &vec![0xee; data.datal as usize]].concat();
        expect(host, what, &bytes, false, fes, fei);
        eventually("the queue is gone", || target.counters().connections_open == 1);
    }
    let mut host = admin.io_queue(1, 31);
    assert_eq!(host.fetch(read_entry(0, 16), 8192).1, vec![0; 8192]);
}

#[test]
fn rejects_data_after_completion() {
    let (target, address) = start(config(&["mem:1M"]));
    let admin = MockHost::admin(address);
    let mut host = admin.io_queue(1, 31);
    host.send(SubmissionEntry { sgl: Sgl::Transport { len: 8192 }, ..write_entry(0, 16) }, &[]);
    let ControllerPdu::R2t(r2t) = host.answer().pdu else { panic!("no R2T") };
    host.send_granted(&r2t, &[1; 8192]);
    host.send_granted(&r2t, &[2; 8192]);
    let ControllerPdu::CapsuleResp(response) = host.answer().pdu else { panic!("no response") };
    assert_eq!(response.entry.status, Status::SUCCESS);
    let request = host.expect_termination();
    assert_eq!((request.status(), request.fei), (Some(Invalid), 10));
    eventually("the queue is gone", || target.counters().connections_open == 1);
    assert_eq!(admin.io_queue(1, 31).fetch(read_entry(0, 16), 8192).1, vec![1; 8192]);
}

#[test]
fn rejects_h2c_data_beyond_maxh2cdata() {
    let (_target, address) = start(config(&["mem:4M"]));
    let (_admin, mut host) = pair(address, 31);
    host.send(SubmissionEntry { sgl: Sgl::Transport { len: 1 << 20 }, ..write_entry(0, 2048) }, &[]);
    let ControllerPdu::R2t(r2t) = host.answer().pdu else { panic!("no R2T") };
    let datal = host.maxh2cdata + 4;
    let data = H2cData { cccid: r2t.cccid, ttag: r2t.ttag, datao: 0, datal, last: true };
    expect(host, "MAXH2CDATA", &data.encode(&PLAIN), false, Limit, 0);
}

#[test]
fn term_req_of_any_length_closes_silently() {
    let (target, address) = start(config(&["mem:1M"]));
    let admin = MockHost::admin(address);
    let request = TermReq::new(Direction::HostToController, HeaderFault::sequence(), &[4; 72]).encode();
    for stage in Stage::ALL {
        for plen in [0_u32, 23, 24, 96, 152, 153, u32::MAX] {
            let mut host = stage.reach(address, &admin, 1);
            let mut bytes = patched(&request, 4, &plen.to_le_bytes());
            bytes.resize(bytes.len().max(plen.min(152) as usize), 0);
            host.send_bytes(&bytes);
            assert!(host.try_answer().is_none(), "{plen} at {stage:?}");
            eventually("the connection is gone", || target.counters().connections_open == 1);
        }
    }
}

#[test]
fn flipped_header_bits_affect_only_their_connection() {
    let (target, address) = start(config(&["mem:1M"]));
    let admin = MockHost::admin(address);
    let mut good = admin.io_queue(2, 31);
    for at in 0..24 {
        for bit in 0..8 {
            use std::io::Write;
            let mut host = admin.io_queue(1, 31);
            host.send(SubmissionEntry { sgl: Sgl::Transport { len: 8192 }, ..write_entry(64, 16) }, &[]);
            let ControllerPdu::R2t(r2t) = host.answer().pdu else { panic!("no R2T") };
            let data = H2cData { cccid: r2t.cccid, ttag: r2t.ttag, datao: 0, datal: 8192, last: true };
            let mut header = data.encode(&PLAIN).to_vec();
            header[at] ^= 1 << bit;
            let _ = host.stream.write_all(&[&header[..], &[0xee; 8192]].concat());
            let _ = host.stream.shutdown(std::net::Shutdown::Write);
            drop(host);
            eventually("the queue is gone", || target.counters().connections_open == 2);
        }
    }
    assert_eq!(good.fetch(read_entry(0, 1), 512).0.status, Status::SUCCESS);
}

#[test]
fn bad_data_digest_fails_only_its_command() {
    let (target, address) = start(config(&["mem:1M"]));
    let admin = MockHost::admin(address);
    let mut host = admin.io_queue_with(1, 31, digests(true, true), HOST);
    for wrong in 0..4 {
        let cid =
            host.send(SubmissionEntry { sgl: Sgl::Transport { len: 16384 }, ..write_entry(0, 32) }, &[]);
        let ControllerPdu::R2t(r2t) = host.answer().pdu else { panic!("no R2T") };
        for part in 0..4 {
            let (datao, last) = (part * 4096, part == 3);
            let data = H2cData { cccid: r2t.cccid, ttag: r2t.ttag, datao, datal: 4096, last };
            let digest = isolane_wire::digest::crc32c(&[9; 4096]) ^ u32::from(part == wrong);
            let header = data.encode(&host.outbound);
            host.send_bytes(&[&header[..], &[9; 4096], &digest.to_le_bytes()].concat());
        }
        assert_eq!(host.completion(cid).0.status.kind(), Status::TRANSIENT_TRANSPORT_ERROR, "part {wrong}");
    }
    assert_eq!(host.fetch(read_entry(0, 32), 16384).1, vec![0; 16384], "no block has changed");
    assert_eq!(host.push(write_entry(0, 32), &[3; 16384]).status, Status::SUCCESS, "the connection stays");
    assert_eq!((target.counters().digest_errors, target.counters().fatal_errors), (4, 0));
}

#[test]
fn checks_header_digest_before_the_header() {
    let (target, address) = start(config(&["mem:1M"]));
    let admin = MockHost::admin(address);
    for at in 8..76 {
        let host = admin.io_queue_with(1, 31, digests(true, false), HOST);
        let entry = SubmissionEntry { cid: 9, ..write_entry(0, 1) };
        let mut bytes = CapsuleCmd { entry, data_len: 0 }.encode(&host.outbound).to_vec();
        bytes[at] ^= 0x80;
        let received = u32::from_le_bytes(*bytes.last_chunk().unwrap());
        expect(host, "header digest", &bytes, false, FatalErrorStatus::HeaderDigestError, received);
        eventually("the queue is gone", || target.counters().connections_open == 1);
    }
}

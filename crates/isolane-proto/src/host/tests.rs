//! One scenario for each kind of protocol violation by a target.

use std::collections::VecDeque;
use std::time::Instant;

use isolane_memory::Buffer;
use isolane_wire::digest::crc32c;
use isolane_wire::pdu::{C2hData, CapsuleResp, FatalErrorStatus as Fes, R2t};
use isolane_wire::{CompletionEntry, Status, SubmissionEntry};
use proptest::prelude::*;

use super::*;
use crate::scenario_tests::pair::{fill, take};

/// A host, and a target that sends arbitrary bytes.
struct BadTarget {
    host: Connection,
    framing: Framing,
    now: Instant,
    stream: VecDeque<u8>,
    overflow: Vec<u8>,
    events: Vec<Event>,
}

impl BadTarget {
    fn new(options: ConnectionConfig) -> BadTarget {
        let now = Instant::now();
        let mut target = BadTarget {
            host: Connection::new(options, now),
            framing: Framing::default(),
            now,
            stream: VecDeque::new(),
            overflow: vec![0; 65536],
            events: Vec::new(),
        };
        target.output();
        target
    }

    /// Initialized and connected without flow control.
    fn connected(data_digest: bool) -> BadTarget {
        let mut target =
            BadTarget::new(ConnectionConfig { data_digest, maxr2t: 1, ..ConnectionConfig::default() });
        let digests = Digests::default().with_data(data_digest);
        target.feed(&IcResp { cpda: 0, digests, maxh2cdata: 4096 }.encode());
        target.framing = Framing { header_digest: false, data_digest, pda: 0 };
        target.host.set_connected(8, true);
        target.events.clear();
        target
    }

    /// With a read of 1,024 bytes in flight.
    fn reading() -> (BadTarget, u16) {
        let mut target = BadTarget::connected(false);
        let read = SubmissionEntry::new(0x02, 1);
        let cid = target.host.submit(read, Data::Read(Buffer::contiguous(1024)), 1).expect("capacity");
        target.output();
        (target, cid)
    }

    /// With a write of 16,384 bytes in flight, which is too long for its capsule.
    fn writing() -> (BadTarget, u16) {
        let mut target = BadTarget::connected(false);
        let write = SubmissionEntry::new(0x01, 1);
        let cid = target.host.submit(write, Data::Write(Buffer::contiguous(16384)), 1).expect("capacity");
        target.output();
        (target, cid)
    }

    fn feed(&mut self, bytes: &[u8]) {
        self.stream.extend(bytes);
        while !self.stream.is_empty() {
            let n = fill(&mut self.host.receive_plan(&mut self.overflow), usize::MAX, &mut self.stream);
            self.host.handle_received(n);
            self.poll();
        }
    }

    fn poll(&mut self) {
        while let Some(event) = self.host.poll_event(&self.overflow, self.now) {
            self.events.push(event);
        }
    }

    fn data(&mut self, data: C2hData) {
        let mut bytes = data.encode(&self.framing).to_vec();
        bytes.extend(vec![7; data.datal as usize]);
        self.feed(&bytes);
    }

    fn r2t(&mut self, cccid: u16, r2to: u32, r2tl: u32) {
        self.feed(&R2t { cccid, ttag: 3, r2to, r2tl }.encode(&Framing::default()));
    }

    fn respond(&mut self, cid: u16, status: Status) {
        let entry = CompletionEntry { cid, status, ..CompletionEntry::default() };
        self.feed(&CapsuleResp { entry }.encode(&self.framing));
    }

    fn output(&mut self) -> Vec<u8> {
        let mut stream = VecDeque::new();
        let n = take(&self.host.transmit_plan(), usize::MAX, &mut stream);
        self.host.handle_transmitted(n);
        stream.into()
    }

    /// Checks that the host sent a TermReq with this status.
    fn expect_term_req(mut self, fes: Fes, fei: u32) {
        let Some(Event::Fatal(error)) = self.events.pop() else { panic!("{:?}", self.events) };
        assert_eq!(error.status, Some(HeaderFault { fes, fei }), "{error}");
        let request = TermReq::decode(&self.output()).expect("a termination request");
        assert_eq!(
            (request.from, request.status(), request.fei),
            (Direction::HostToController, Some(fes), fei)
        );
        assert!(self.host.is_finished_sending() && !self.host.is_closed());
    }
}

fn part(cccid: u16, datao: u32, datal: u32) -> C2hData {
    C2hData { cccid, datao, datal, last: false, success: false }
}

#[test]
fn rejects_response_before_icresp() {
    let mut target = BadTarget::new(ConnectionConfig::default());
    target.respond(0, Status::SUCCESS);
    target.expect_term_req(Fes::PduSequenceError, 0);
}

#[test]
fn rejects_unrequested_digests() {
    let mut target = BadTarget::new(ConnectionConfig::default());
    target.feed(&IcResp { cpda: 0, digests: Digests::default().with_data(true), maxh2cdata: 4096 }.encode());
    target.expect_term_req(Fes::InvalidHeaderField, 11);
}

#[test]
fn rejects_small_maxh2cdata() {
    let mut target = BadTarget::new(ConnectionConfig::default());
    target.feed(&IcResp { cpda: 0, digests: Digests::default(), maxh2cdata: 4092 }.encode());
    target.expect_term_req(Fes::InvalidHeaderField, 12);
}

#[test]
fn handshake_times_out() {
    let mut target = BadTarget::new(ConnectionConfig::default());
    let deadline = target.host.poll_timeout().expect("there is one");
    target.host.handle_timeout(deadline);
    target.poll();
    let [Event::Fatal(error)] = &target.events[..] else { panic!("{:?}", target.events) };
    assert_eq!((error.violation, target.host.is_closed()), (Violation::HandshakeTimeout, true));
}

#[test]
fn rejects_data_for_non_read() {
    let (mut target, cid) = BadTarget::reading();
    target.data(part(cid ^ 1, 0, 512));
    target.expect_term_req(Fes::InvalidHeaderField, 8);
    let (mut target, cid) = BadTarget::writing();
    target.data(part(cid, 0, 512));
    target.expect_term_req(Fes::InvalidHeaderField, 8);
}

#[test]
fn rejects_gaps_and_duplicates() {
    let (mut target, cid) = BadTarget::reading();
    target.data(part(cid, 512, 512));
    target.expect_term_req(Fes::PduSequenceError, 0);
    let (mut target, cid) = BadTarget::reading();
    target.data(part(cid, 0, 512));
    target.data(part(cid, 0, 512));
    target.expect_term_req(Fes::PduSequenceError, 0);
}

#[test]
fn rejects_data_after_last() {
    let (mut target, cid) = BadTarget::reading();
    target.data(C2hData { last: true, ..part(cid, 0, 512) });
    target.data(part(cid, 512, 512));
    target.expect_term_req(Fes::PduSequenceError, 0);
}

#[test]
fn rejects_data_beyond_buffer() {
    let (mut target, cid) = BadTarget::reading();
    target.data(part(cid, 0, 1028));
    target.expect_term_req(Fes::DataTransferOutOfRange, 0);
    let (mut target, cid) = BadTarget::reading();
    target.data(part(cid, u32::MAX, 512));
    target.expect_term_req(Fes::DataTransferOutOfRange, 0);
}

#[test]
fn rejects_success_with_missing_data() {
    let (mut target, cid) = BadTarget::reading();
    target.data(part(cid, 0, 512));
    target.respond(cid, Status::SUCCESS);
    target.expect_term_req(Fes::PduSequenceError, 0);
    let (mut target, cid) = BadTarget::reading();
    target.data(C2hData { last: true, success: true, ..part(cid, 0, 512) });
    target.expect_term_req(Fes::PduSequenceError, 0);
    let (mut target, cid) = BadTarget::writing();
    target.r2t(cid, 0, 4096);
    target.output();
    target.respond(cid, Status::SUCCESS);
    target.expect_term_req(Fes::PduSequenceError, 0);
}

#[test]
fn accepts_less_data_if_the_command_does() {
    let (mut target, cid) = BadTarget::reading();
    target.host.accept_less(cid);
    target.data(C2hData { last: true, ..part(cid, 0, 512) });
    target.respond(cid, Status::SUCCESS);
    let (mut flagged, cid) = BadTarget::reading();
    flagged.host.accept_less(cid);
    flagged.data(C2hData { last: true, success: true, ..part(cid, 0, 512) });
    for target in [target, flagged] {
        let [Event::Completed(Completed { entry, buffer: Some(buffer), .. })] = &target.events[..] else {
            panic!("{:?}", target.events)
        };
        assert!(entry.status.is_success() && buffer.to_vec()[..512] == [7; 512]);
        assert_eq!(target.host.in_flight(), 0);
    }
}

#[test]
fn later_command_with_the_same_slot_accepts_no_less() {
    let (mut target, cid) = BadTarget::reading();
    target.host.accept_less(cid);
    target.respond(cid, Status::SUCCESS);
    let read = SubmissionEntry::new(0x02, 1);
    let cid = target.host.submit(read, Data::Read(Buffer::contiguous(1024)), 2).expect("capacity");
    target.output();
    target.data(part(cid, 0, 512));
    target.respond(cid, Status::SUCCESS);
    target.expect_term_req(Fes::PduSequenceError, 0);
}

#[test]
fn accepts_failure_without_data() {
    let (mut target, cid) = BadTarget::reading();
    target.respond(cid, Status::INTERNAL_ERROR);
    let [Event::Completed(Completed { tag: 1, entry, buffer: Some(_), .. })] = &target.events[..] else {
        panic!("{:?}", target.events)
    };
    assert_eq!(entry.status, Status::INTERNAL_ERROR);
}

#[test]
fn rejects_success_flag_with_flow_control() {
    let (mut target, cid) = BadTarget::reading();
    target.host.set_connected(8, false);
    target.data(C2hData { last: true, success: true, ..part(cid, 0, 1024) });
    target.expect_term_req(Fes::InvalidHeaderField, 1);
}

#[test]
fn rejects_second_response() {
    let (mut target, cid) = BadTarget::reading();
    target.respond(cid, Status::INTERNAL_ERROR);
    target.respond(cid, Status::INTERNAL_ERROR);
    target.expect_term_req(Fes::InvalidHeaderField, 20);
}

#[test]
fn late_response_misses_reused_slot() {
    let (mut target, cid) = BadTarget::reading();
    target.respond(cid, Status::INTERNAL_ERROR);
    let next = target.host.submit(SubmissionEntry::new(0, 1), Data::None, 2).expect("capacity");
    target.output();
    assert_ne!(next, cid);
    target.respond(cid, Status::SUCCESS);
    target.expect_term_req(Fes::InvalidHeaderField, 20);
}

#[test]
fn rejects_r2t_for_other_command() {
    let (mut target, cid) = BadTarget::reading();
    target.r2t(cid, 0, 512);
    target.expect_term_req(Fes::InvalidHeaderField, 8);
    let mut target = BadTarget::connected(false);
    let write = SubmissionEntry::new(0x01, 1);
    let cid = target.host.submit(write, Data::Write(Buffer::contiguous(512)), 1).expect("capacity");
    target.output();
    target.r2t(cid, 0, 512);
    target.expect_term_req(Fes::InvalidHeaderField, 8);
}

#[test]
fn rejects_r2t_beyond_command() {
    for (r2to, r2tl) in [(0, 16388), (16384, 4), (u32::MAX, 4)] {
        let (mut target, cid) = BadTarget::writing();
        target.r2t(cid, r2to, r2tl);
        target.expect_term_req(Fes::DataTransferOutOfRange, 0);
    }
}

#[test]
fn rejects_discontinuous_r2t() {
    let (mut target, cid) = BadTarget::writing();
    target.r2t(cid, 4096, 4096);
    target.expect_term_req(Fes::PduSequenceError, 0);
    let (mut target, cid) = BadTarget::writing();
    target.r2t(cid, 0, 4096);
    target.output();
    target.r2t(cid, 0, 4096);
    target.expect_term_req(Fes::PduSequenceError, 0);
}

#[test]
fn rejects_empty_r2t() {
    let (mut target, cid) = BadTarget::writing();
    let mut bytes = R2t { cccid: cid, ttag: 0, r2to: 0, r2tl: 4 }.encode(&Framing::default()).to_vec();
    bytes[16] = 0;
    target.feed(&bytes);
    target.expect_term_req(Fes::InvalidHeaderField, 16);
}

#[test]
fn rejects_r2ts_above_maxr2t() {
    let (mut target, cid) = BadTarget::writing();
    target.r2t(cid, 0, 4096);
    target.r2t(cid, 4096, 4096);
    assert!(target.events.is_empty(), "two were allowed");
    target.r2t(cid, 8192, 4096);
    let Some(Event::Fatal(error)) = target.events.pop() else { panic!("a third was not") };
    assert_eq!(error.status, Some(HeaderFault::limit_exceeded()));
}

#[test]
fn completion_reports_wrong_data_digest() {
    let mut target = BadTarget::connected(true);
    let read = SubmissionEntry::new(0x02, 1);
    let cid = target.host.submit(read, Data::Read(Buffer::contiguous(512)), 1).expect("capacity");
    target.output();
    target.data(C2hData { last: true, success: true, ..part(cid, 0, 512) });
    target.feed(&(!crc32c(&[7; 512])).to_le_bytes());
    let [Event::Completed(Completed { digest_ok, .. })] = &target.events[..] else {
        panic!("{:?}", target.events)
    };
    assert!(!digest_ok);
}

#[test]
fn early_failure_returns_buffer_after_send() {
    let (mut target, cid) = BadTarget::writing();
    target.r2t(cid, 0, 16384);
    target.respond(cid, Status::INTERNAL_ERROR);
    assert!(target.events.is_empty() && target.host.has_deferred_completions());
    target.host.handle_transmitted(100);
    target.poll();
    assert!(target.events.is_empty(), "most of it is still ours to send");
    target.output();
    target.poll();
    let [Event::Completed(Completed { buffer: Some(buffer), .. })] = &target.events[..] else {
        panic!("{:?}", target.events)
    };
    assert!(buffer.is_exclusive() && !target.host.has_deferred_completions());
}

#[test]
fn rejects_success_before_data_was_sent() {
    let (mut target, cid) = BadTarget::writing();
    target.r2t(cid, 0, 16384);
    target.respond(cid, Status::SUCCESS);
    let Some(Event::Fatal(error)) = target.events.pop() else { panic!("it was believed") };
    assert_eq!(error.violation, Violation::ShortTransfer(cid));
}

#[test]
fn accepts_term_req_of_target() {
    let (mut target, _) = BadTarget::reading();
    target.feed(&TermReq::new(Direction::ControllerToHost, HeaderFault::limit_exceeded(), &[]).encode());
    assert!(matches!(target.events[..], [Event::Terminated(_)]) && target.host.is_closed());
    assert_eq!(target.host.abandon_all().len(), 1);
}

#[test]
fn discards_input_after_end() {
    let (mut target, _) = BadTarget::reading();
    let mut bytes =
        TermReq::new(Direction::ControllerToHost, HeaderFault::limit_exceeded(), &[]).encode().to_vec();
    bytes.extend([7; 100]);
    target.feed(&bytes);
    target.feed(&[8; 100]);
    assert!(matches!(target.events[..], [Event::Terminated(_)]));
}

#[test]
fn connection_is_send() {
    fn is_send<T: Send>() {}
    is_send::<Connection>();
    is_send::<crate::target::Connection>();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_do_not_panic(
        data_digest: bool,
        changes in prop::collection::vec((0usize..4000, any::<u8>()), 0..6),
        tail in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut target = BadTarget::connected(data_digest);
        let mut bytes = Vec::new();
        for tag in 0..3 {
            let read = SubmissionEntry::new(0x02, 1);
            let cid = target.host.submit(read, Data::Read(Buffer::contiguous(512)), tag).expect("capacity");
            bytes.extend_from_slice(&part(cid, 0, 512).encode(&target.framing));
            bytes.extend([7; 512]);
            bytes.extend(data_digest.then(|| crc32c(&[7; 512]).to_le_bytes()).into_iter().flatten());
            let entry = CompletionEntry { cid, ..CompletionEntry::default() };
            bytes.extend_from_slice(&CapsuleResp { entry }.encode(&target.framing));
        }
        for (at, value) in changes {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        target.output();
        target.feed(&bytes);
        target.feed(&tail);
        target.host.abandon_all();
    }
}

//! One scenario for each kind of protocol violation by a host.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use isolane_memory::{Buffer, Pool};
use isolane_wire::digest::crc32c;
use isolane_wire::pdu::{CapsuleCmd, Digests, FatalErrorStatus as Fes, H2cData, IcReq, R2t, TermReq};
use isolane_wire::pdu::{CapsuleResp, ControllerPdu, HeaderFault};
use isolane_wire::{CompletionEntry, Direction, Framing, Sgl, Status, SubmissionEntry};
use proptest::prelude::*;

use super::*;
use crate::Completion;
use crate::connection::Step;
use crate::scenario_tests::pair::{fill, take};

const WRITE: u8 = 0x01;
const READ: u8 = 0x02;

/// A target, and a host that sends arbitrary bytes.
struct BadHost {
    target: Connection,
    framing: Framing,
    now: Instant,
    stream: VecDeque<u8>,
    overflow: Vec<u8>,
    events: Vec<Event>,
    /// Whether the target's driver provides memory for in-capsule data.
    takes_in_capsule: bool,
}

impl BadHost {
    /// A connection on which nothing was sent.
    fn new() -> BadHost {
        let now = Instant::now();
        let limits = ConnectionConfig {
            max_h2c_data_bytes: 4096,
            max_r2t_bytes: 16384,
            ..ConnectionConfig::default()
        };
        BadHost {
            target: Connection::new(limits, now),
            framing: Framing::default(),
            now,
            stream: VecDeque::new(),
            overflow: vec![0; 65536],
            events: Vec::new(),
            takes_in_capsule: false,
        }
    }

    /// Initialized and connected with a queue of 4 entries.
    fn connected(header_digest: bool, data_digest: bool) -> BadHost {
        let mut host = BadHost::new();
        let digests = Digests::default().with_header(header_digest).with_data(data_digest);
        host.feed(&IcReq { hpda: 0, digests, maxr2t: 0 }.encode());
        host.framing = Framing { header_digest, data_digest, pda: 0 };
        host.target.set_connected(1, 3, true);
        host.events.clear();
        host.output();
        host
    }

    fn feed(&mut self, bytes: &[u8]) {
        self.stream.extend(bytes);
        while !self.stream.is_empty() {
            let n = fill(&mut self.target.receive_plan(&mut self.overflow), usize::MAX, &mut self.stream);
            self.target.handle_received(n);
            while let Some(event) = self.target.poll_event(&self.overflow, self.now) {
                self.on_event(event);
            }
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Command {
                permit,
                transfer: Transfer::FromHost { len, place: DataLocation::InCapsule },
                ..
            } if self.takes_in_capsule => {
                self.target.receive_into(permit, Buffer::contiguous(len as usize));
            }
            other => self.events.push(other),
        }
    }

    fn command(&mut self, entry: SubmissionEntry, data: &[u8]) {
        let capsule = CapsuleCmd { entry, data_len: data.len() as u32 };
        let mut bytes = capsule.encode(&self.framing).to_vec();
        bytes.extend(data);
        if self.framing.data_digest && !data.is_empty() {
            bytes.extend(crc32c(data).to_le_bytes());
        }
        self.feed(&bytes);
    }

    fn data(&mut self, data: H2cData) {
        let mut bytes = data.encode(&self.framing).to_vec();
        bytes.extend(vec![7; data.datal as usize]);
        self.feed(&bytes);
    }

    /// A write of 8,192 bytes, for which the target has sent its R2T.
    fn granted() -> (BadHost, R2t) {
        let mut host = BadHost::connected(false, false);
        host.command(transport(WRITE, 5, 8192), &[]);
        let permit = host.permit();
        host.target.request_data(permit, Buffer::contiguous(8192));
        let output = host.output();
        match ControllerPdu::decode(&output, &Framing::default()) {
            Ok(ControllerPdu::R2t(r2t)) => (host, r2t),
            other => panic!("no R2T: {other:?}"),
        }
    }

    fn permit(&mut self) -> Permit {
        match self.events.remove(0) {
            Event::Command { permit, .. } | Event::Data { permit, .. } => permit,
            other => panic!("{other:?}"),
        }
    }

    fn transfer(&mut self) -> Transfer {
        let Event::Command { permit, transfer, .. } = self.events.remove(0) else { panic!("no command") };
        self.target.complete(permit, Completion::failed(Status::INVALID_FIELD));
        transfer
    }

    fn output(&mut self) -> Vec<u8> {
        let mut stream = VecDeque::new();
        let n = take(&self.target.transmit_plan(), usize::MAX, &mut stream);
        self.target.handle_transmitted(n, &mut Pool::new(0));
        stream.into()
    }

    /// Checks that the target sent a TermReq with this status and discards later input.
    fn expect_term_req(mut self, fes: Fes, fei: u32) {
        let Some(Event::Fatal(error)) = self.events.pop() else { panic!("{:?}", self.events) };
        assert_eq!(error.status, Some(HeaderFault { fes, fei }), "{error}");
        let request = TermReq::decode(&self.output()).expect("a termination request");
        assert_eq!(
            (request.from, request.status(), request.fei),
            (Direction::ControllerToHost, Some(fes), fei)
        );
        assert!(!request.offending_header().is_empty());
        assert!(!self.target.wants_transmit() && !self.target.is_closed());
        self.events.drain(..).for_each(forfeit);
        self.feed(&[0x47; 100]);
        assert!(self.events.is_empty(), "later input is discarded");
        assert_eq!(self.target.poll_timeout(), Some(self.now + ConnectionConfig::default().drain));
        self.target.handle_timeout(self.now + ConnectionConfig::default().drain);
        assert!(self.target.is_closed());
    }

    /// Checks that the connection accepts another command.
    fn expect_alive(mut self) {
        self.events.drain(..).for_each(forfeit);
        self.command(transport(READ, 0x7777, 512), &[]);
        assert_eq!(self.permit_and_forget(), 0x7777);
    }

    fn permit_and_forget(&mut self) -> u16 {
        let permit = self.permit();
        let cid = permit.cid();
        permit.forfeit();
        cid
    }
}

fn forfeit(event: Event) {
    if let Event::Command { permit, .. } | Event::Data { permit, .. } = event {
        permit.forfeit();
    }
}

/// A driver that stops between steps, because much output is queued, must know of the error.
#[test]
fn step_that_fails_the_connection_reports_it() {
    let mut host = BadHost::connected(false, false);
    host.stream.extend([0x47; 100]);
    let n = fill(&mut host.target.receive_plan(&mut host.overflow), usize::MAX, &mut host.stream);
    host.target.handle_received(n);
    loop {
        assert_eq!(host.target.poll_command(&host.overflow), None);
        match host.target.poll_other(&host.overflow, host.now) {
            Step::Event(event) => return assert!(matches!(event, Event::Fatal(_)), "{event:?}"),
            Step::Continue => assert!(host.target.phase.is_alive(), "the error was not reported"),
            Step::NeedMoreData => panic!("the error was not found"),
        }
    }
}

fn transport(opcode: u8, cid: u16, len: u32) -> SubmissionEntry {
    SubmissionEntry { cid, sgl: Sgl::Transport { len }, ..SubmissionEntry::new(opcode, 1) }
}

fn in_capsule(cid: u16, offset: u64, len: u32) -> SubmissionEntry {
    SubmissionEntry { cid, sgl: Sgl::InCapsule { offset, len }, ..SubmissionEntry::new(WRITE, 1) }
}

/// A host that sends an ICReq with one wrong byte.
fn bad_ic_req(offset: usize, value: u8) -> BadHost {
    let mut bytes = IcReq::default().encode().to_vec();
    bytes[offset] = value;
    let mut host = BadHost::new();
    host.feed(&bytes);
    host
}

/// A connected host that sends a capsule with one wrong byte.
fn bad_capsule(offset: usize, value: u8) -> BadHost {
    let capsule = CapsuleCmd { entry: in_capsule(1, 0, 512), data_len: 512 };
    let mut bytes = capsule.encode(&Framing::default()).to_vec();
    bytes[offset] = value;
    bytes.extend([0; 512]);
    let mut host = BadHost::connected(false, false);
    host.feed(&bytes);
    host
}

/// A host that sends wrong data for its R2T.
fn bad_data(change: impl FnOnce(&mut H2cData)) -> BadHost {
    let (mut host, r2t) = BadHost::granted();
    let mut data = H2cData { cccid: r2t.cccid, ttag: r2t.ttag, datao: 0, datal: 4096, last: false };
    change(&mut data);
    host.data(data);
    host
}

#[test]
fn rejects_http_request() {
    let mut host = BadHost::new();
    host.feed(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n");
    host.expect_term_req(Fes::InvalidHeaderField, 0);
}

#[test]
fn rejects_command_before_icreq() {
    let mut host = BadHost::new();
    host.command(transport(READ, 1, 512), &[]);
    host.expect_term_req(Fes::PduSequenceError, 0);
}

#[test]
fn rejects_second_icreq() {
    let mut host = BadHost::connected(false, false);
    host.feed(&IcReq::default().encode());
    host.expect_term_req(Fes::PduSequenceError, 0);
}

#[test]
fn reports_lowest_wrong_icreq_field() {
    bad_ic_req(2, 127).expect_term_req(Fes::InvalidHeaderField, 2);
    bad_ic_req(4, 127).expect_term_req(Fes::InvalidHeaderField, 4);
    bad_ic_req(8, 1).expect_term_req(Fes::UnsupportedParameter, 8);
    bad_ic_req(10, 32).expect_term_req(Fes::InvalidHeaderField, 10);
}

#[test]
fn rejects_pdu_of_other_direction() {
    let mut host = BadHost::connected(false, false);
    host.feed(&CapsuleResp { entry: CompletionEntry::default() }.encode(&Framing::default()));
    host.expect_term_req(Fes::InvalidHeaderField, 0);
}

#[test]
fn reports_lowest_wrong_capsule_field() {
    bad_capsule(1, 0b01).expect_term_req(Fes::InvalidHeaderField, 1);
    bad_capsule(1, 0b10).expect_term_req(Fes::InvalidHeaderField, 1);
    bad_capsule(2, 71).expect_term_req(Fes::InvalidHeaderField, 2);
    bad_capsule(3, 71).expect_term_req(Fes::InvalidHeaderField, 3);
    bad_capsule(3, 74).expect_term_req(Fes::InvalidHeaderField, 3);
    bad_capsule(6, 0xff).expect_term_req(Fes::InvalidHeaderField, 4);
}

#[test]
fn reports_wrong_header_digest() {
    let mut host = BadHost::connected(true, false);
    let mut bytes = CapsuleCmd { entry: transport(READ, 1, 512), data_len: 0 }.encode(&host.framing).to_vec();
    bytes[72..76].copy_from_slice(&[1, 2, 3, 4]);
    host.feed(&bytes);
    host.expect_term_req(Fes::HeaderDigestError, 0x0403_0201);
}

#[test]
fn checks_header_digest_of_repeated_headers() {
    let mut host = BadHost::connected(true, false);
    host.command(transport(READ, 1, 512), &[]);
    host.transfer();
    for (cid, wrong_bit) in [(2, 0), (3, 1)] {
        let mut bytes =
            CapsuleCmd { entry: transport(READ, cid, 512), data_len: 0 }.encode(&host.framing).to_vec();
        bytes[75] ^= wrong_bit;
        host.stream.extend(bytes);
        let n = fill(&mut host.target.receive_plan(&mut host.overflow), usize::MAX, &mut host.stream);
        host.target.handle_received(n);
        match host.target.poll_event(&host.overflow, host.now) {
            Some(Event::Command { permit, .. }) if wrong_bit == 0 => {
                host.target.complete(permit, Completion::success());
            }
            event => assert!(matches!(event, Some(Event::Fatal(_))) && wrong_bit != 0),
        }
    }
}

#[test]
fn wrong_data_digest_fails_one_command() {
    let mut host = BadHost::connected(true, true);
    host.takes_in_capsule = true;
    host.feed(&CapsuleCmd { entry: in_capsule(1, 0, 512), data_len: 512 }.encode(&host.framing.clone()));
    host.feed(&[0; 516]);
    let Some(Event::Data { permit, digest_ok, .. }) = host.events.pop() else { panic!("the data is there") };
    assert!(!digest_ok);
    host.target.complete(permit, Completion::failed(Status::TRANSIENT_TRANSPORT_ERROR));
    host.expect_alive();
}

#[test]
fn skips_unwanted_data_without_digest_check() {
    let mut host = BadHost::connected(true, true);
    host.feed(&CapsuleCmd { entry: in_capsule(1, 0, 512), data_len: 512 }.encode(&host.framing.clone()));
    let permit = host.permit();
    host.target.complete(permit, Completion::failed(Status::INVALID_FIELD));
    host.feed(&[0; 516]);
    assert!(host.events.is_empty());
    host.expect_alive();
}

#[test]
fn rejects_oversized_capsule() {
    let mut host = BadHost::connected(false, false);
    let capsule = CapsuleCmd { entry: in_capsule(1, 0, 16388), data_len: 16388 };
    host.feed(&capsule.encode(&Framing::default()));
    host.expect_term_req(Fes::InvalidHeaderField, 4);
}

#[test]
fn rejects_data_for_unknown_tag() {
    bad_data(|data| data.ttag ^= 1).expect_term_req(Fes::InvalidHeaderField, 10);
    bad_data(|data| data.ttag ^= 1 << 14).expect_term_req(Fes::InvalidHeaderField, 10);
    bad_data(|data| data.ttag = 0xffff).expect_term_req(Fes::InvalidHeaderField, 10);
}

#[test]
fn rejects_unexpected_data() {
    let mut host = BadHost::connected(false, false);
    host.command(transport(READ, 3, 512), &[]);
    host.data(H2cData { cccid: 3, ttag: 0, datao: 0, datal: 512, last: true });
    host.expect_term_req(Fes::InvalidHeaderField, 10);
}

#[test]
fn rejects_data_before_connect() {
    let mut host = BadHost::new();
    host.feed(&IcReq::default().encode());
    host.output();
    host.data(H2cData { cccid: 0, ttag: 0, datao: 0, datal: 512, last: true });
    host.expect_term_req(Fes::InvalidHeaderField, 10);
}

#[test]
fn rejects_data_with_mismatched_cid() {
    bad_data(|data| data.cccid += 1).expect_term_req(Fes::InvalidHeaderField, 8);
}

#[test]
fn rejects_discontinuous_data() {
    bad_data(|data| data.datao = 4).expect_term_req(Fes::PduSequenceError, 0);
}

#[test]
fn rejects_data_outside_r2t() {
    bad_data(|data| data.datao = 8192).expect_term_req(Fes::DataTransferOutOfRange, 0);
    bad_data(|data| data.datao = 6000).expect_term_req(Fes::DataTransferOutOfRange, 0);
    bad_data(|data| data.datao = u32::MAX).expect_term_req(Fes::DataTransferOutOfRange, 0);
}

#[test]
fn rejects_data_above_maxh2cdata() {
    bad_data(|data| data.datal = 4100).expect_term_req(Fes::LimitExceeded, 0);
}

#[test]
fn rejects_misplaced_last_flag() {
    bad_data(|data| data.last = true).expect_term_req(Fes::PduSequenceError, 0);
    let (mut host, r2t) = BadHost::granted();
    let first = H2cData { cccid: r2t.cccid, ttag: r2t.ttag, datao: 0, datal: 4096, last: false };
    host.data(first);
    host.data(H2cData { datao: 4096, ..first });
    host.expect_term_req(Fes::PduSequenceError, 0);
}

#[test]
fn rejects_data_after_transfer() {
    let (mut host, r2t) = BadHost::granted();
    let first = H2cData { cccid: r2t.cccid, ttag: r2t.ttag, datao: 0, datal: 4096, last: false };
    host.data(first);
    host.data(H2cData { datao: 4096, last: true, ..first });
    assert!(matches!(host.events[..], [Event::Data { digest_ok: true, .. }]));
    host.data(H2cData { datao: 4096, last: true, ..first });
    host.expect_term_req(Fes::InvalidHeaderField, 10);
}

#[test]
fn rejects_data_with_inconsistent_lengths() {
    let (mut host, r2t) = BadHost::granted();
    let data = H2cData { cccid: r2t.cccid, ttag: r2t.ttag, datao: 0, datal: 4096, last: false };
    let mut bytes = data.encode(&Framing::default()).to_vec();
    bytes[16..20].copy_from_slice(&4095u32.to_le_bytes());
    host.feed(&bytes);
    host.expect_term_req(Fes::InvalidHeaderField, 4);
}

#[test]
fn duplicate_cid_fails_second_command() {
    let mut host = BadHost::connected(false, false);
    host.command(transport(READ, 9, 512), &[]);
    host.command(transport(READ, 9, 512), &[]);
    let output = host.output();
    let Ok(ControllerPdu::CapsuleResp(CapsuleResp { entry })) =
        ControllerPdu::decode(&output, &Framing::default())
    else {
        panic!("no response");
    };
    assert_eq!((entry.cid, entry.status), (9, Status::COMMAND_ID_CONFLICT));
    assert_eq!(host.target.in_flight(), 1);
    host.expect_alive();
}

#[test]
fn rejects_more_commands_than_entries() {
    let mut host = BadHost::connected(false, false);
    (0..5).for_each(|cid| host.command(transport(READ, cid, 512), &[]));
    host.expect_term_req(Fes::PduSequenceError, 0);
}

#[test]
fn wrong_sgl_fails_one_command() {
    let keyed = SubmissionEntry { cid: 1, sgl: Sgl::Other([0x40; 16]), ..SubmissionEntry::new(WRITE, 1) };
    let prp = SubmissionEntry { flags: Default::default(), ..transport(READ, 1, 512) };
    let for_read = SubmissionEntry { opcode: READ, ..in_capsule(1, 0, 512) };
    let cases = [
        (keyed, 0, Status::SGL_TYPE_INVALID),
        (for_read, 512, Status::SGL_TYPE_INVALID),
        (in_capsule(1, 0, 1024), 512, Status::DATA_SGL_LENGTH_INVALID),
        (in_capsule(1, 0, 512), 0, Status::DATA_SGL_LENGTH_INVALID),
        (in_capsule(1, 8, 512), 512, Status::SGL_OFFSET_INVALID),
        (transport(WRITE, 1, 512), 512, Status::INVALID_FIELD),
        (prp, 0, Status::INVALID_FIELD),
    ];
    for (entry, data_len, status) in cases {
        let mut host = BadHost::connected(false, false);
        host.command(entry, &vec![1; data_len]);
        assert_eq!(host.transfer(), Transfer::Invalid(status.with_dnr(true)), "{entry:?}");
        host.expect_alive();
    }
}

#[test]
fn skips_unexpected_in_capsule_data() {
    let mut host = BadHost::connected(false, false);
    host.command(SubmissionEntry { cid: 1, ..SubmissionEntry::new(0x00, 1) }, &[1; 512]);
    assert_eq!(host.transfer(), Transfer::None);
    host.expect_alive();
}

#[test]
fn accepts_term_req_of_host() {
    let mut host = BadHost::connected(true, true);
    let request = TermReq::new(Direction::HostToController, HeaderFault::sequence(), &[1, 2, 3]);
    host.feed(&request.encode());
    assert!(matches!(&host.events[..], [Event::Terminated(told)] if **told == request));
    assert!(host.target.is_closed() && !host.target.wants_transmit());
}

#[test]
fn discards_input_after_end() {
    let mut host = BadHost::connected(false, false);
    let mut bytes = TermReq::new(Direction::HostToController, HeaderFault::sequence(), &[]).encode().to_vec();
    bytes.extend([7; 100]);
    host.feed(&bytes);
    host.feed(&[8; 100]);
    assert!(matches!(host.events[..], [Event::Terminated(_)]));
}

#[test]
fn ignores_term_req_of_invalid_length() {
    for plen in [23u32, 153] {
        let mut host = BadHost::connected(false, false);
        let request = TermReq::new(Direction::HostToController, HeaderFault::sequence(), &[]);
        let mut bytes = request.encode().to_vec();
        bytes[4..8].copy_from_slice(&plen.to_le_bytes());
        host.feed(&bytes);
        let [Event::Fatal(error)] = &host.events[..] else { panic!("{:?}", host.events) };
        assert_eq!((error.violation, error.status), (Violation::TermReq, None));
        assert!(host.target.is_closed() && !host.target.wants_transmit());
    }
}

#[test]
fn drops_responses_after_end() {
    let mut host = BadHost::connected(false, false);
    host.command(transport(READ, 1, 512), &[]);
    let permit = host.permit();
    host.feed(&[0xff; 8]);
    host.output();
    host.target.complete(permit, Completion::success());
    assert!(!host.target.wants_transmit());
    assert_eq!(host.target.in_flight(), 0);
}

#[test]
fn partial_pdu_has_deadline() {
    let mut host = BadHost::connected(false, false);
    host.feed(&[0x04, 0, 72]);
    let deadline = host.target.poll_timeout().expect("the rest is owed");
    host.target.handle_timeout(deadline);
    host.target.handle_timeout(deadline + Duration::from_secs(60));
    host.feed(&[0]);
    let [Event::Fatal(error)] = &host.events[..] else { panic!("{:?}", host.events) };
    assert_eq!(error.violation, Violation::Stalled);
}

#[test]
fn detects_stalled_transfer_during_other_traffic() {
    let (mut host, _) = BadHost::granted();
    for cid in 100..140 {
        host.now += Duration::from_secs(5);
        host.command(transport(READ, cid, 512), &[]);
        if !host.target.is_closed() {
            let permit = host.permit();
            host.target.complete(permit, Completion::success());
            host.output();
            host.target.handle_timeout(host.now);
        }
    }
    let [Event::Fatal(error)] = &host.events[..] else { panic!("{:?}", host.events) };
    assert_eq!(error.violation, Violation::Stalled);
}

#[test]
fn waiting_for_memory_extends_deadline() {
    let (mut host, _) = BadHost::granted();
    let deadline = host.target.poll_timeout().expect("data is owed");
    host.target.handle_timeout(deadline);
    host.target.extend_deadline(Duration::from_secs(600));
    host.target.handle_timeout(deadline + Duration::from_secs(600));
    assert!(!host.target.is_closed());
    host.target.handle_timeout(deadline + Duration::from_secs(630));
    assert!(host.target.is_closed());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_do_not_panic(
        digests: (bool, bool),
        changes in prop::collection::vec((0usize..4000, any::<u8>()), 0..6),
        tail in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut host = BadHost::connected(digests.0, digests.1);
        host.takes_in_capsule = true;
        let mut bytes = Vec::new();
        for cid in 0..3 {
            let capsule = CapsuleCmd { entry: in_capsule(cid, 0, 1024), data_len: 1024 };
            bytes.extend_from_slice(&capsule.encode(&host.framing));
            bytes.extend([cid as u8; 1024]);
            bytes.extend(crc32c(&[cid as u8; 1024]).to_le_bytes());
        }
        for (at, value) in changes {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        host.feed(&bytes);
        host.feed(&tail);
        host.events.drain(..).for_each(forfeit);
    }
}

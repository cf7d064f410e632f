//! Scenarios of a host and a target that both follow the protocol.

use std::time::Duration;

use isolane_memory::{Buffer, Payload};
use isolane_wire::digest::crc32c;
use isolane_wire::pdu::PduType;
use isolane_wire::{Status, SubmissionEntry};
use proptest::prelude::*;

use crate::Completion;
use crate::connection::Violation;
use crate::host::{self, Data, SubmitErrorKind};
use crate::scenario_tests::pair::{Pair, buffer_of, pattern};
use crate::target::{self, ConnectionConfig, Scheduling, Transfer};

mod async_events;
pub(crate) mod pair;
mod scheduling;

const READ: u8 = 0x02;
const WRITE: u8 = 0x01;
const FLUSH: u8 = 0x00;

fn command(opcode: u8, offset: u32) -> SubmissionEntry {
    SubmissionEntry { cdw10: offset, ..SubmissionEntry::new(opcode, 1) }
}

/// Types of the PDUs in a stream without digests.
fn types(stream: impl IntoIterator<Item = u8>) -> Vec<PduType> {
    let bytes: Vec<u8> = stream.into_iter().collect();
    let mut at = 0;
    let mut types = Vec::new();
    while at < bytes.len() {
        types.push(PduType::decode(bytes[at]).expect("a PDU header"));
        at += u32::from_le_bytes(bytes[at + 4..at + 8].try_into().expect("four bytes")) as usize;
    }
    types
}

#[test]
fn handshake_negotiates_options() {
    let options = host::ConnectionConfig {
        header_digest: true,
        data_digest: true,
        hpda: 3,
        maxr2t: 1,
        ..Default::default()
    };
    let limits = ConnectionConfig {
        data_digest: false,
        cpda: 1,
        max_h2c_data_bytes: 8192,
        ..ConnectionConfig::default()
    };
    let mut pair = Pair::new(options, limits);
    assert_eq!(
        pair.host.submit(command(READ, 0), Data::None, 1).map_err(|rejected| rejected.kind),
        Err(SubmitErrorKind::NotConnected)
    );
    pair.drive();
    let [target::Event::Connected(request)] = pair.target_ends[..] else { panic!("{:?}", pair.target_ends) };
    let [host::Event::Connected(response)] = pair.host_ends[..] else { panic!("{:?}", pair.host_ends) };
    assert_eq!((request.hpda, request.maxr2t), (3, 1));
    assert!(response.digests.header() && !response.digests.data());
    assert_eq!((response.cpda, response.maxh2cdata), (1, 8192));
}

#[test]
fn read_lands_in_buffer_with_success_flag() {
    let mut pair = Pair::connected();
    pair.submit(command(READ, 7), Data::Read(Buffer::contiguous(4096)), 42);
    pair.drive();
    let (permit, entry, transfer) = pair.command();
    assert_eq!((entry.cdw10, transfer), (7, Transfer::ToHost { len: 4096 }));
    pair.target.complete_with_data(permit, Payload::from(pattern(4096, 9)), Completion::success());
    pair.transmit_target();
    assert_eq!(types(pair.to_host.clone()), [PduType::C2hData]);
    pair.drive();
    let (tag, entry, buffer, digest_ok) = pair.completed();
    assert_eq!((tag, entry.status, digest_ok), (42, Status::SUCCESS, true));
    assert_eq!(buffer.expect("the buffer").to_vec(), pattern(4096, 9));
    assert_eq!((pair.host.in_flight(), pair.target.in_flight()), (0, 0));
}

#[test]
fn flow_control_reports_queue_head() {
    let mut pair = Pair::new(host::ConnectionConfig::default(), ConnectionConfig::default());
    pair.connect(3, false);
    for head in [2, 0, 1, 2] {
        pair.submit(command(READ, 0), Data::Read(Buffer::contiguous(512)), 0);
        pair.drive();
        let (permit, ..) = pair.command();
        pair.target.complete_with_data(permit, Payload::from(pattern(512, 1)), Completion::success());
        pair.transmit_target();
        assert_eq!(types(pair.to_host.clone()), [PduType::C2hData, PduType::CapsuleResp]);
        pair.drive();
        assert_eq!(pair.completed().1.sqhd, head);
    }
}

#[test]
fn result_requires_response() {
    let mut pair = Pair::connected();
    pair.submit(command(READ, 0), Data::Read(Buffer::contiguous(512)), 0);
    pair.drive();
    let (permit, ..) = pair.command();
    pair.target.complete_with_data(permit, Payload::from(pattern(512, 1)), Completion::with_dw0(5));
    pair.transmit_target();
    assert_eq!(types(pair.to_host.clone()), [PduType::C2hData, PduType::CapsuleResp]);
    pair.drive();
    assert_eq!((pair.completed().1.dw0, pair.host.in_flight()), (5, 0));
}

#[test]
fn sends_short_write_in_capsule() {
    let mut pair = Pair::connected();
    pair.submit(command(WRITE, 1), Data::Write(buffer_of(&pattern(4096, 3))), 5);
    pair.transmit_host();
    assert_eq!(types(pair.to_target.clone()), [PduType::CapsuleCmd]);
    pair.drive();
    let (permit, entry, buffer, digest_ok) = pair.write();
    assert_eq!((entry.cdw10, buffer.to_vec(), digest_ok), (1, pattern(4096, 3), true));
    pair.target.complete(permit, Completion::success());
    pair.drive();
    let (tag, _, buffer, _) = pair.completed();
    assert_eq!(tag, 5);
    assert!(buffer.expect("the buffer").is_exclusive());
}

#[test]
fn bounds_r2ts_and_pdus_of_long_write() {
    let limits = ConnectionConfig {
        max_r2t_bytes: 64 * 1024,
        max_h2c_data_bytes: 24 * 1024,
        ..ConnectionConfig::default()
    };
    let mut pair = Pair::new(host::ConnectionConfig::default(), limits);
    pair.connect(8, true);
    let data = pattern(150_016, 4);
    pair.submit(command(WRITE, 0), Data::Write(buffer_of(&data)), 1);
    while pair.transmit_host() > 0 {}
    pair.receive_target();
    pair.transmit_target();
    assert_eq!(types(pair.to_host.clone()), [PduType::R2t]);
    pair.receive_host();
    while pair.transmit_host() > 0 {}
    assert_eq!(types(pair.to_target.clone()), [PduType::H2cData; 3]);
    pair.drive();
    let (permit, _, buffer, digest_ok) = pair.write();
    assert!(digest_ok && buffer.to_vec() == data);
    pair.target.complete(permit, Completion::success());
    pair.drive();
    assert_eq!(pair.completed().1.status, Status::SUCCESS);
}

#[test]
fn respects_maxr2t() {
    for (maxr2t, expected) in [(0, 1), (1, 2), (3, 4)] {
        let limits = ConnectionConfig { max_r2t_bytes: 4096, ..ConnectionConfig::default() };
        let mut pair = Pair::new(host::ConnectionConfig { maxr2t, ..Default::default() }, limits);
        pair.connect(8, true);
        pair.submit(command(WRITE, 0), Data::Write(buffer_of(&pattern(65536, 4))), 1);
        while pair.transmit_host() > 0 {}
        pair.receive_target();
        pair.transmit_target();
        assert_eq!(types(pair.to_host.clone()).len(), expected);
        pair.drive();
        let (permit, _, buffer, _) = pair.write();
        assert_eq!(buffer.to_vec(), pattern(65536, 4));
        pair.target.complete(permit, Completion::success());
    }
}

#[test]
fn skips_data_of_refused_write() {
    let mut pair = Pair::connected();
    let too_long = SubmissionEntry { opcode: 0x03, ..command(WRITE, 0) };
    pair.submit(too_long, Data::Write(buffer_of(&pattern(8192, 1))), 1);
    pair.submit(command(FLUSH, 0), Data::None, 2);
    pair.drive();
    let (permit, _, transfer) = pair.command();
    assert_eq!(transfer, Transfer::Invalid(crate::Failure::Opcode.status()));
    pair.target.complete(permit, Completion::failed(Status::INVALID_OPCODE));
    let (permit, entry, transfer) = pair.command();
    assert_eq!((entry.opcode, transfer), (FLUSH, Transfer::None));
    pair.target.complete(permit, Completion::success());
    pair.drive();
    assert_eq!((pair.completed().0, pair.completed().0), (1, 2));
}

#[test]
fn rejects_commands_beyond_queue_size() {
    let mut pair = Pair::new(host::ConnectionConfig::default(), ConnectionConfig::default());
    pair.connect(4, true);
    (0..3).for_each(|tag| pair.submit(command(FLUSH, 0), Data::None, tag));
    let rejected = pair.host.submit(command(FLUSH, 0), Data::Read(Buffer::contiguous(512)), 3);
    let rejected = rejected.expect_err("the queue is full");
    assert_eq!(rejected.kind, SubmitErrorKind::Full);
    assert_eq!(rejected.data.into_buffer().map(|buffer| buffer.len()), Some(512));
    pair.drive();
    assert_eq!((pair.target.in_flight(), pair.host.capacity()), (3, 0));
}

#[test]
fn defers_input_without_memory() {
    let mut pair = Pair::connected();
    pair.submit(command(WRITE, 0), Data::Write(buffer_of(&pattern(4096, 8))), 1);
    pair.submit(command(FLUSH, 0), Data::None, 2);
    pair.transmit_host();
    let mut overflow = vec![0; 65536];
    let n = pair::fill(&mut pair.target.receive_plan(&mut overflow), usize::MAX, &mut pair.to_target);
    pair.target.handle_received(n);
    let Some(target::Event::Command { permit, .. }) = pair.target.poll_event(&overflow, pair.now) else {
        panic!("the write arrived")
    };
    pair.target.defer_input(&overflow);
    overflow.fill(0xee);
    assert!(
        pair.target.receive_plan(&mut overflow).is_empty(),
        "nothing is received while input is deferred"
    );
    pair.target.receive_into(permit, Buffer::contiguous(4096));
    pair.receive_target();
    assert!(!pair.target.receive_plan(&mut overflow).is_empty());
    let (permit, _, buffer, _) = pair.write();
    assert_eq!(buffer.to_vec(), pattern(4096, 8));
    pair.target.complete(permit, Completion::success());
    let (permit, entry, _) = pair.command();
    assert_eq!(entry.opcode, FLUSH, "the next command was kept");
    pair.target.complete(permit, Completion::success());
}

#[test]
fn places_large_payload_directly() {
    let mut pair = Pair::connected();
    pair.submit(command(WRITE, 0), Data::Write(buffer_of(&pattern(1 << 20, 8))), 1);
    while pair.transmit_host() > 0 {}
    pair.receive_target();
    pair.transmit_target();
    pair.receive_host();
    pair.transmit_host();
    let mut overflow = vec![0; 24];
    let n = pair::fill(&mut pair.target.receive_plan(&mut overflow), 24, &mut pair.to_target);
    pair.target.handle_received(n);
    assert!(pair.target.poll_event(&overflow, pair.now).is_none());
    {
        let plan = pair.target.receive_plan(&mut overflow);
        let bytes: usize = plan.iter().map(|slice| slice.len()).sum();
        assert_eq!(
            bytes,
            64 * 4096,
            "64 pages in any number of slices, without overflow before the remaining ones"
        );
    }
    pair.drive();
    let (permit, _, buffer, _) = pair.write();
    assert_eq!(buffer.to_vec(), pattern(1 << 20, 8));
    pair.target.complete(permit, Completion::success());
}

#[test]
fn sends_adjacent_headers_as_one_slice() {
    let mut pair = Pair::connected();
    (0..8).for_each(|tag| pair.submit(command(FLUSH, 0), Data::None, tag));
    assert_eq!(pair.host.transmit_plan().len(), 1);
    pair.drive();
    (0..8).for_each(|_| {
        let (permit, ..) = pair.command();
        pair.target.complete(permit, Completion::success());
    });
    let plan = pair.target.transmit_plan();
    assert_eq!((plan.len(), plan[0].len()), (1, 8 * 24));
}

#[test]
fn ended_connection_returns_buffers() {
    let mut pair = Pair::connected();
    pair.submit(command(READ, 0), Data::Read(Buffer::contiguous(512)), 1);
    while pair.transmit_host() > 0 {}
    pair.submit(command(WRITE, 0), Data::Write(buffer_of(&pattern(512, 1))), 2);
    let abandoned = pair.host.abandon_all();
    let tags: Vec<_> = abandoned.iter().map(|command| (command.tag, command.sent)).collect();
    assert_eq!(tags, [(1, true), (2, false)], "an unsent command cannot have been received");
    assert!(abandoned.iter().all(|command| command.buffer.as_ref().is_some_and(Buffer::is_exclusive)));
    assert_eq!(pair.host.in_flight(), 0);
}

#[test]
fn closes_silent_host() {
    let mut pair = Pair::new(host::ConnectionConfig::default(), ConnectionConfig::default());
    let deadline = pair.target.poll_timeout().expect("a deadline");
    assert_eq!(deadline, pair.now + ConnectionConfig::default().handshake);
    pair.pass(ConnectionConfig::default().handshake);
    assert!(pair.target.is_closed());
    let [target::Event::Fatal(error)] = &pair.target_ends[..] else { panic!("{:?}", pair.target_ends) };
    assert_eq!((error.violation, error.status), (Violation::HandshakeTimeout, None));
}

#[test]
fn only_stalled_transfers_have_deadline() {
    let mut pair = Pair::connected();
    assert_eq!((pair.target.poll_timeout(), pair.host.poll_timeout()), (None, None));
    pair.submit(command(WRITE, 0), Data::Write(buffer_of(&pattern(100_000, 8))), 1);
    while pair.transmit_host() > 0 {}
    pair.receive_target();
    pair.transmit_target();
    for _ in 0..2 {
        let deadline = pair.target.poll_timeout().expect("a deadline");
        pair.now = pair.now.max(deadline);
        pair.target.handle_timeout(pair.now);
    }
    pair.receive_target();
    let [target::Event::Fatal(error)] = &pair.target_ends[..] else { panic!("{:?}", pair.target_ends) };
    assert_eq!(error.violation, Violation::Stalled);
    assert_eq!(pair.target.take_buffers().map(|buffer| buffer.len()).sum::<usize>(), 100_000);
}

#[test]
fn slow_transfer_is_not_stalled() {
    let mut pair = Pair::connected();
    pair.submit(command(WRITE, 0), Data::Write(buffer_of(&pattern(100_000, 8))), 1);
    pair.cut_randomly(1, 5000, 5000);
    for _ in 0..100 {
        pair.turn();
        pair.pass(Duration::from_secs(2));
    }
    assert!(pair.target_ends.is_empty() && pair.host_ends.is_empty());
    let (permit, ..) = pair.write();
    pair.target.complete(permit, Completion::success());
}

#[test]
fn trickling_transfer_is_stalled() {
    let mut pair = Pair::connected();
    pair.submit(command(WRITE, 0), Data::Write(buffer_of(&pattern(100_000, 8))), 1);
    pair.cut_randomly(1, 10, 4096);
    for _ in 0..100 {
        pair.turn();
        pair.pass(Duration::from_secs(5));
    }
    let [target::Event::Fatal(error)] = &pair.target_ends[..] else { panic!("{:?}", pair.target_ends) };
    assert_eq!(error.violation, Violation::Stalled);
}

/// Runs a session with all kinds of commands, and returns the events of both sides.
fn run_session(
    options: host::ConnectionConfig,
    limits: ConnectionConfig,
    cut: Option<(u64, usize, usize)>,
) -> Vec<String> {
    let mut pair = Pair::new(options, limits);
    if let Some((seed, max_segment, overflow_len)) = cut {
        pair.cut_randomly(seed, max_segment, overflow_len);
    }
    pair.connect(32, true);
    let mut store = pattern(1 << 20, 77);
    for (tag, len) in [512, 4096, 16384, 16896, 33_280, 512].into_iter().enumerate() {
        let offset = (tag as u32) << 17;
        pair.submit(command(WRITE, offset), Data::Write(buffer_of(&pattern(len, tag as u8))), tag as u64);
        pair.submit(command(READ, 6 << 17), Data::Read(Buffer::contiguous(len)), 100 + tag as u64);
        pair.submit(command(FLUSH, 0), Data::None, 200 + tag as u64);
    }
    while pair.completions.len() < 18 {
        pair.turn();
        pair.serve(&mut store);
    }
    let mut ends: Vec<_> = pair.completions.drain(..).collect();
    ends.sort_by_key(|(tag, ..)| *tag);
    let mut transcript = std::mem::take(&mut pair.transcript);
    transcript.extend(ends.into_iter().map(|(tag, entry, buffer, digest_ok)| {
        format!("{tag} {entry:?} {digest_ok} {:?}", buffer.map(|buffer| crc32c(&buffer.to_vec())))
    }));
    transcript.push(format!("{:x}", crc32c(&store)));
    transcript
}

const TIGHT: Scheduling = Scheduling { chunk_bytes: 4096, ready_bytes: 4096, max_granted_bytes: 16384 };

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_split_gives_same_events(
        seed: u64,
        max_segment in prop_oneof![1usize..64, 64usize..4096, 4096usize..200_000],
        overflow_len in prop_oneof![1usize..200, 200usize..70_000],
        header_digest: bool,
        data_digest: bool,
        hpda in 0u8..32,
        cpda in 0u8..32,
        maxr2t in 0u32..4,
        scheduling in prop_oneof![Just(Scheduling::ON), Just(Scheduling::OFF), Just(TIGHT)],
    ) {
        let options = host::ConnectionConfig { header_digest, data_digest, hpda, maxr2t, ..Default::default() };
        let limits = ConnectionConfig { cpda, max_h2c_data_bytes: 8192, max_r2t_bytes: 16384, scheduling, ..ConnectionConfig::default() };
        let mut whole = run_session(options.clone(), limits.clone(), None);
        let mut cut = run_session(options, limits, Some((seed, max_segment, overflow_len)));
        if scheduling == TIGHT {
            // The order of the R2Ts depends on the arrival of data.
            whole.sort();
            cut.sort();
        }
        prop_assert_eq!(whole, cut);
    }
}

//! Scenarios of bulk transfers and short commands on one connection.

use isolane_wire::Framing;
use isolane_wire::pdu::{C2hData, ControllerPdu, R2t};

use super::*;
use crate::target::Scheduling;

const LONG: usize = 1 << 20;

/// Chunks of 16 KiB, 128 KiB ready or 32 KiB with short responses, 64 KiB granted in 16 KiB shares.
const SMALL_STEPS: Scheduling =
    Scheduling { chunk_bytes: 16 << 10, ready_bytes: 128 << 10, max_granted_bytes: 64 << 10 };

fn pair(scheduling: Scheduling) -> Pair {
    let mut pair = Pair::new(
        host::ConnectionConfig::default(),
        ConnectionConfig { scheduling, ..ConnectionConfig::default() },
    );
    pair.connect(64, true);
    pair
}

/// The PDUs of a stream without digests, each with its bytes.
fn pdus(stream: impl IntoIterator<Item = u8>) -> Vec<(PduType, Vec<u8>)> {
    let mut bytes: Vec<u8> = stream.into_iter().collect();
    let mut pdus = Vec::new();
    while !bytes.is_empty() {
        let len = u32::from_le_bytes(bytes[4..8].try_into().expect("four bytes")) as usize;
        let tail = bytes.split_off(len);
        pdus.push((PduType::decode(bytes[0]).expect("a PDU header"), std::mem::replace(&mut bytes, tail)));
    }
    pdus
}

fn decoded(stream: impl IntoIterator<Item = u8>) -> impl Iterator<Item = ControllerPdu> {
    let decode = |bytes: Vec<u8>| ControllerPdu::decode(&bytes, &Framing::default());
    pdus(stream).into_iter().map(move |(_, bytes)| decode(bytes).expect("a valid PDU"))
}

fn data_of(stream: impl IntoIterator<Item = u8>) -> Vec<C2hData> {
    let data = |pdu| if let ControllerPdu::C2hData(data) = pdu { Some(data) } else { None };
    decoded(stream).filter_map(data).collect()
}

fn r2ts(stream: impl IntoIterator<Item = u8>) -> Vec<R2t> {
    let r2t = |pdu| if let ControllerPdu::R2t(r2t) = pdu { Some(r2t) } else { None };
    decoded(stream).filter_map(r2t).collect()
}

impl Pair {
    /// Submits reads, which stay in flight.
    fn reads(&mut self, lens: &[usize]) {
        for (tag, len) in lens.iter().enumerate() {
            self.submit(command(READ, 0), Data::Read(Buffer::contiguous(*len)), tag as u64);
        }
        self.drive();
    }

    /// Completes the next command with a pattern of `seed`.
    fn respond(&mut self, seed: u8) {
        let (permit, _, transfer) = self.command();
        let Transfer::ToHost { len } = transfer else { panic!("{transfer:?}") };
        let payload = Payload::from(pattern(len as usize, seed));
        self.target.complete_with_data(permit, payload, Completion::success());
    }

    fn writes(&mut self, lens: &[usize]) {
        for (tag, len) in lens.iter().enumerate() {
            self.submit(command(WRITE, 0), Data::Write(buffer_of(&pattern(*len, tag as u8))), tag as u64);
        }
        while self.transmit_host() > 0 {}
        self.receive_target();
    }

    /// The R2Ts that the target sends to the host now.
    fn granted(&mut self) -> Vec<(u64, u32)> {
        while self.transmit_target() > 0 {}
        let grants = r2ts(self.to_host.clone());
        while self.receive_host() > 0 {}
        grants.into_iter().map(|r2t| (u64::from(r2t.cccid & 0xfff), r2t.r2tl)).collect()
    }

    /// Completes the writes whose data has arrived, and returns their slots.
    fn complete_writes(&mut self) -> Vec<u16> {
        let writes: Vec<_> = self.writes.drain(..).collect();
        writes
            .into_iter()
            .map(|(permit, entry, _, digest_ok)| {
                assert!(digest_ok);
                self.target.complete(permit, Completion::success());
                entry.cid & 0xfff
            })
            .collect()
    }
}

#[test]
fn small_read_overtakes_long_read() {
    let mut pair = pair(SMALL_STEPS);
    pair.reads(&[LONG, 4096]);
    pair.respond(1);
    pair.transmit_target();
    pair.respond(2);
    while pair.transmit_target() > 0 {}
    let data = data_of(pair.to_host.clone());
    assert_eq!(data.len(), LONG / (16 << 10) + 1);
    let small = data.iter().position(|data| data.datal == 4096).expect("the small read");
    assert_eq!(small, 8, "it waits only for the ready bytes");
    pair.drive();
    assert_eq!(pair.completed().2.expect("a buffer").to_vec(), pattern(4096, 2));
    assert_eq!(pair.completed().2.expect("a buffer").to_vec(), pattern(LONG, 1));
}

#[test]
fn short_reads_do_not_starve_long_read() {
    let mut pair = pair(SMALL_STEPS);
    let shorts = [4096; 32];
    pair.reads(&[&[65_536][..], &shorts].concat());
    (0..=32).for_each(|seed| pair.respond(seed));
    let mut sent = 0;
    pair.cut_randomly(1, 4096, 65536);
    for _ in 0..1000 {
        sent += pair.transmit_target();
        pair.receive_host();
        for (tag, ..) in pair.completions.drain(..).collect::<Vec<_>>() {
            if tag == 0 {
                assert!(sent < 65_536 * 8, "{sent} bytes were sent before it ended");
                return;
            }
            pair.submit(command(READ, 0), Data::Read(Buffer::contiguous(4096)), tag);
            while pair.transmit_host() > 0 {}
            while pair.receive_target() > 0 {}
            pair.respond(1);
        }
    }
    panic!("the long one never ended");
}

#[test]
fn recent_short_reads_limit_ready_bytes() {
    let mut pair = pair(SMALL_STEPS);
    pair.reads(&[LONG, 4096, 4096]);
    (1..=2).for_each(|seed| pair.respond(seed));
    let ready = |pair: &mut Pair| pair.target.transmit_plan().iter().map(|slice| slice.len()).sum::<usize>();
    assert!((32 << 10..64 << 10).contains(&ready(&mut pair)));
    pair.transmit_target();
    assert!((32 << 10..64 << 10).contains(&ready(&mut pair)), "another is expected");
    while pair.transmit_target() > 0 {}
    assert!(pair.target.transmit_pending_bytes() == 0);
    pair.respond(3);
}

#[test]
fn without_scheduling_sends_in_completion_order() {
    let mut pair = pair(Scheduling::OFF);
    pair.reads(&[LONG, 4096]);
    (1..=2).for_each(|seed| pair.respond(seed));
    while pair.transmit_target() > 0 {}
    let lens: Vec<_> = data_of(pair.to_host.clone()).iter().map(|data| data.datal as usize).collect();
    assert_eq!(lens, [LONG, 4096]);
    pair.drive();
    assert_eq!(pair.completions.len(), 2);
}

#[test]
fn long_read_data_is_contiguous() {
    let mut pair = pair(SMALL_STEPS);
    let lens = [100_000, 20_480, 65_536, 4608];
    pair.reads(&lens);
    (1..=4).for_each(|seed| pair.respond(seed));
    while pair.transmit_target() > 0 {}
    let data = data_of(pair.to_host.clone());
    let order: Vec<_> = data.iter().map(|data| data.cccid).collect();
    assert!(!order.is_sorted(), "they are mixed: {order:?}");
    for (cid, len) in lens.into_iter().enumerate() {
        let mut next = 0;
        for data in data.iter().filter(|data| usize::from(data.cccid & 0xfff) == cid) {
            assert_eq!(data.datao, next);
            next += data.datal;
            assert_eq!((data.last, data.success), (next as usize == len, next as usize == len));
        }
        assert_eq!(next as usize, len);
    }
}

#[test]
fn flow_control_sends_response_after_data() {
    let limits = ConnectionConfig { scheduling: SMALL_STEPS, ..ConnectionConfig::default() };
    let mut pair = Pair::new(host::ConnectionConfig::default(), limits);
    pair.connect(8, false);
    pair.reads(&[40_000, 512]);
    (1..=2).for_each(|seed| pair.respond(seed));
    while pair.transmit_target() > 0 {}
    use PduType::{C2hData as Data, CapsuleResp as Response};
    assert_eq!(types(pair.to_host.clone()), [Data, Response, Data, Data, Data, Response]);
    pair.drive();
    let heads: Vec<_> = pair.completions.iter().map(|(_, entry, ..)| entry.sqhd).collect();
    assert_eq!(heads, [2, 3], "the head of the queue rises on the wire");
}

#[test]
fn round_trips_long_reads_with_digests() {
    let options = host::ConnectionConfig { header_digest: true, data_digest: true, ..Default::default() };
    let mut pair =
        Pair::new(options, ConnectionConfig { scheduling: SMALL_STEPS, ..ConnectionConfig::default() });
    pair.connect(8, true);
    pair.cut_randomly(7, 30_000, 9_000);
    pair.reads(&[300_000, 200_000, 512]);
    (1..=3).for_each(|seed| pair.respond(seed));
    pair.drive();
    for (seed, len) in [(3, 512), (2, 200_000), (1, 300_000)] {
        let (_, entry, buffer, digest_ok) = pair.completed();
        assert_eq!((entry.status, digest_ok), (Status::SUCCESS, true));
        assert!(buffer.expect("a buffer").to_vec() == pattern(len, seed), "the one of {len} bytes");
    }
}

#[test]
fn sends_no_data_after_term_req() {
    let mut pair = pair(SMALL_STEPS);
    pair.reads(&[LONG]);
    pair.respond(1);
    pair.to_target.extend([0xff; 8]);
    pair.receive_target();
    while pair.transmit_target() > 0 {}
    assert_eq!(types(pair.to_host.clone()), [PduType::C2hTermReq]);
    assert!(!pair.target.wants_transmit());
    assert_eq!(pair.target.transmit_pending_bytes(), 0);
}

#[test]
fn requests_single_write_in_one_r2t() {
    let mut pair = pair(Scheduling::ON);
    pair.writes(&[LONG]);
    assert_eq!(pair.granted(), [(0, LONG as u32)]);
    pair.drive();
    assert_eq!(pair.complete_writes(), [0]);
}

#[test]
fn small_write_gets_r2t_immediately() {
    let mut pair = pair(Scheduling::ON);
    pair.writes(&[LONG; 8]);
    assert_eq!(pair.granted(), [(0, LONG as u32)]);
    pair.submit(command(WRITE, 0), Data::Write(buffer_of(&pattern(32768, 9))), 8);
    while pair.transmit_host() > 0 {}
    while pair.receive_target() > 0 {}
    let granted = pair.granted();
    let small = granted.iter().position(|(cid, _)| *cid == 8).expect("the small one");
    let before: u32 = granted[..small].iter().map(|(_, len)| *len).sum();
    assert!(before <= 1 << 20, "{granted:?}");
    pair.drive();
    assert_eq!(pair.complete_writes().len(), 9);
}

#[test]
fn bounds_outstanding_r2t_bytes() {
    let mut pair = pair(SMALL_STEPS);
    pair.writes(&[LONG; 4]);
    assert_eq!(pair.granted(), [(0, 65536)], "the first was alone");
    pair.cut_randomly(3, 5000, 5000);
    let (mut requested, mut sent, mut max) = (65536, 0, 0);
    for _ in 0..100_000 {
        sent += pair.transmit_host();
        pair.receive_target();
        requested += pair.granted().iter().map(|(_, len)| *len as usize).sum::<usize>();
        max = max.max(requested.saturating_sub(sent));
    }
    assert!(max <= (64 << 10), "{max} bytes were requested together");
    assert_eq!(requested, 4 * LONG);
    assert_eq!(pair.complete_writes().len(), 4);
}

#[test]
fn without_scheduling_requests_all_data_at_once() {
    let mut pair = pair(Scheduling::OFF);
    pair.writes(&[LONG; 8]);
    assert_eq!(pair.granted().len(), 8);
    pair.drive();
    assert_eq!(pair.complete_writes(), [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn short_writes_do_not_starve_long_write() {
    let mut pair = pair(SMALL_STEPS);
    pair.writes(&[LONG, 100_000, 100_000, 100_000]);
    let (mut long_after, mut shorter) = (None, 0);
    for _ in 0..400 {
        pair.turn();
        let ended = pair.complete_writes();
        long_after = long_after.or(ended.contains(&0).then_some(shorter));
        shorter += ended.iter().filter(|cid| **cid != 0).count();
        while let Some((tag, ..)) = pair.completions.pop_front().filter(|_| long_after.is_none()) {
            if tag != 0 {
                pair.submit(command(WRITE, 0), Data::Write(buffer_of(&pattern(100_000, 1))), tag);
            }
        }
    }
    let passed = long_after.expect("the long one ends");
    assert!((3..60).contains(&passed), "{passed} shorter ones passed it");
}

#[test]
fn short_writes_leave_space_for_long_write() {
    let mut pair = pair(SMALL_STEPS);
    let mut lens = vec![20_000; 40];
    lens.insert(0, LONG);
    pair.writes(&lens);
    pair.drive();
    assert_eq!(pair.complete_writes().len(), 41);
}

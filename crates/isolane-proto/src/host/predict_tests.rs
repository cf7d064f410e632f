//! Predictions do not change the results of receiving, for any behavior of the target.

use std::collections::VecDeque;
use std::time::Instant;

use isolane_memory::Buffer;
use isolane_shm::SharedMemory;
use isolane_wire::digest::crc32c;
use isolane_wire::pdu::{C2hData, CapsuleResp};
use isolane_wire::{CompletionEntry, Status, SubmissionEntry};
use proptest::prelude::*;

use super::*;
use crate::scenario_tests::pair::fill;

/// Response of the target to one command.
#[derive(Clone, Copy, Debug)]
enum ResponseKind {
    /// Data that also completes the command.
    Success,
    /// Data, then a response.
    Response,
    /// Data in two PDUs, then a response.
    Halves,
    /// Data, and a response only after the next command's data.
    Late,
    /// No data, but an error.
    Error,
}

/// Byte stream of the target for a list of commands.
struct Target {
    framing: Framing,
    stream: VecDeque<u8>,
    late: Vec<u16>,
}

impl Target {
    fn respond_to(&mut self, cid: u16, tag: u64, len: usize, kind: ResponseKind) {
        let late = std::mem::take(&mut self.late);
        match kind {
            ResponseKind::Success => self.data(cid, tag, 0..len, true, true),
            ResponseKind::Response | ResponseKind::Late => self.data(cid, tag, 0..len, true, false),
            ResponseKind::Halves => {
                self.data(cid, tag, 0..len / 2, false, false);
                self.data(cid, tag, len / 2..len, true, false);
            }
            ResponseKind::Error => self.respond(cid, Status::LBA_OUT_OF_RANGE),
        }
        late.into_iter().for_each(|cid| self.respond(cid, Status::SUCCESS));
        match kind {
            ResponseKind::Response | ResponseKind::Halves => self.respond(cid, Status::SUCCESS),
            ResponseKind::Late => self.late.push(cid),
            ResponseKind::Success | ResponseKind::Error => {}
        }
    }

    fn respond(&mut self, cid: u16, status: Status) {
        let entry = CompletionEntry { cid, status, ..CompletionEntry::default() };
        self.stream.extend(&*CapsuleResp { entry }.encode(&self.framing));
    }

    fn data(&mut self, cid: u16, tag: u64, range: std::ops::Range<usize>, last: bool, success: bool) {
        let (datao, datal) = (range.start as u32, range.len() as u32);
        self.stream.extend(&*C2hData { cccid: cid, datao, datal, last, success }.encode(&self.framing));
        let data: Vec<u8> = range.map(|at| pattern(tag, at)).collect();
        self.stream.extend(&data);
        if self.framing.data_digest {
            self.stream.extend(crc32c(&data).to_le_bytes());
        }
    }
}

fn pattern(tag: u64, at: usize) -> u8 {
    (tag as usize * 31 + at * 7 + at / 256) as u8
}

fn connected(digests: Digests, pda: u8, now: Instant) -> Connection {
    let (header_digest, data_digest) = (digests.header(), digests.data());
    let mut host = Connection::new(
        ConnectionConfig { header_digest, data_digest, hpda: pda, ..ConnectionConfig::default() },
        now,
    );
    let mut overflow = vec![0; 65536];
    let pending = host.transmit_plan().bytes();
    host.handle_transmitted(pending);
    let response = IcResp { cpda: 0, digests, maxh2cdata: 4096 }.encode();
    let mut stream: VecDeque<u8> = response.iter().copied().collect();
    let n = fill(&mut host.receive_plan(&mut overflow), usize::MAX, &mut stream);
    host.handle_received(n);
    assert!(matches!(host.poll_event(&overflow, now), Some(Event::Connected(_))));
    host.set_connected(65, true);
    host
}

/// Receives the whole stream in segments, and checks every completed command.
fn receive(host: &mut Connection, target: &mut Target, cuts: &[usize], now: Instant) -> Vec<u64> {
    let mut overflow = vec![0xee; 65536];
    let mut ended = Vec::new();
    let mut cuts = cuts.iter().cycle();
    while !target.stream.is_empty() {
        let cut = cuts.next().copied().unwrap_or(usize::MAX);
        let n = fill(&mut host.receive_plan(&mut overflow), cut, &mut target.stream);
        host.handle_received(n);
        while let Some(event) = host.poll_event(&overflow, now) {
            let Event::Completed(Completed { tag, entry, buffer, digest_ok }) = event else {
                panic!("{event:?}")
            };
            let bytes = buffer.expect("a read has a buffer").to_vec();
            assert!(digest_ok);
            let is_right = bytes.iter().enumerate().all(|(at, byte)| *byte == pattern(tag, at));
            assert!(is_right || !entry.status.is_success(), "wrong data of command {tag}");
            ended.push(tag);
        }
        // Another connection uses the same overflow.
        overflow.fill(0xdd);
    }
    ended
}

fn kind() -> impl Strategy<Value = ResponseKind> {
    prop_oneof![
        8 => Just(ResponseKind::Success),
        2 => Just(ResponseKind::Response),
        1 => Just(ResponseKind::Halves),
        1 => Just(ResponseKind::Late),
        1 => Just(ResponseKind::Error),
    ]
}

/// Commands of one burst: the response to each, and its distance from the front of the queue.
fn burst() -> impl Strategy<Value = Vec<(ResponseKind, usize)>> {
    let mostly_first = prop_oneof![6 => Just(0usize), 1 => 0usize..8];
    let orderly = prop::collection::vec((Just(ResponseKind::Success), Just(0usize)), 1..24);
    let responding = prop::collection::vec((Just(ResponseKind::Response), Just(0usize)), 1..24);
    let wild = prop::collection::vec((kind(), mostly_first), 1..24);
    prop_oneof![orderly, responding, wild]
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    let cut = prop_oneof![1usize..40, 500usize..3000, 3000usize..100_000];
    prop_oneof![Just(vec![usize::MAX]), prop::collection::vec(cut, 1..20)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_order_delivers_each_read_its_data(
        bursts in prop::collection::vec(burst(), 1..8),
        cuts in cuts(),
        header_digest: bool,
        data_digest: bool,
        pda in prop_oneof![Just(0u8), Just(15u8)],
        is_uniform: bool,
        shared in 0u64..3,
    ) {
        let now = Instant::now();
        let digests = Digests::default().with_header(header_digest).with_data(data_digest);
        let mut host = connected(digests, pda, now);
        let framing = Framing { header_digest, data_digest, pda };
        let mut target = Target { framing, stream: VecDeque::new(), late: Vec::new() };
        let memory = SharedMemory::create("isolane-test", 256 * 4096).expect("memory");
        let mut tag = 0;
        for burst in bursts {
            let mut line = VecDeque::new();
            for _ in &burst {
                tag += 1;
                let len = if is_uniform { 1024 } else { 512 * (1 + tag as usize % 5) };
                let read = SubmissionEntry::new(0x02, 1);
                let buffer = if tag % 3 < shared {
                    Buffer::in_shared_memory(&memory, tag * 4096, len).expect("a range")
                } else {
                    Buffer::contiguous(len)
                };
                let cid = host.submit(read, Data::Read(buffer), tag).expect("capacity");
                line.push_back((cid, tag, len));
            }
            let pending = host.transmit_plan().bytes();
            host.handle_transmitted(pending);
            let mut expected: Vec<u64> = line.iter().map(|(_, tag, _)| *tag).collect();
            for (kind, skip) in burst {
                let (cid, tag, len) = line.remove(skip.min(line.len() - 1)).expect("a command");
                target.respond_to(cid, tag, len, kind);
            }
            std::mem::take(&mut target.late).into_iter().for_each(|cid| target.respond(cid, Status::SUCCESS));
            let mut ended = receive(&mut host, &mut target, &cuts, now);
            ended.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(ended, expected);
        }
    }
}

#[test]
fn places_ordered_replies_without_copy() {
    let now = Instant::now();
    let mut host = connected(Digests::default(), 0, now);
    let mut target = Target { framing: Framing::default(), stream: VecDeque::new(), late: Vec::new() };
    let mut overflow = vec![0; 65536];
    let mut lens = Vec::new();
    for round in 0..4 {
        for tag in 0..4 {
            let read = SubmissionEntry::new(0x02, 1);
            let cid = host.submit(read, Data::Read(Buffer::contiguous(4096)), tag).expect("capacity");
            target.respond_to(cid, tag, 4096, ResponseKind::Success);
        }
        lens = host.receive_plan(&mut overflow).iter().map(|slice| slice.len()).collect();
        assert_eq!(receive(&mut host, &mut target, &[usize::MAX], now), [0, 1, 2, 3], "round {round}");
    }
    assert_eq!(lens, [24, 4096, 24, 4096, 24, 4096, 24, 4096, 65536 - 4 * 24]);
}

/// Another process could change the bytes in shared memory before they are verified.
#[test]
fn predicts_no_data_in_shared_memory() {
    let now = Instant::now();
    let mut host = connected(Digests::default(), 0, now);
    let mut target = Target { framing: Framing::default(), stream: VecDeque::new(), late: Vec::new() };
    let memory = SharedMemory::create("isolane-test", 16 * 4096).unwrap();
    let mut overflow = vec![0; 65536];
    for round in 0..4 {
        for tag in 0..4 {
            let read = SubmissionEntry::new(0x02, 1);
            let buffer = Buffer::in_shared_memory(&memory, tag * 4096, 4096).unwrap();
            let cid = host.submit(read, Data::Read(buffer), tag).expect("capacity");
            target.respond_to(cid, tag, 4096, ResponseKind::Success);
        }
        assert_eq!(host.receive_plan(&mut overflow).len(), 1, "round {round}");
        assert_eq!(receive(&mut host, &mut target, &[usize::MAX], now), [0, 1, 2, 3], "round {round}");
    }
}

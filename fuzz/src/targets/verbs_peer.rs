//! A reliable queue pair whose peer sends any segments, cut anywhere.
//!
//! Invariant: the queue pair does not panic, always reads, changes only memory that its registration opens to the
//! peer, and completes each request once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use isolane_connection::{ReceivePlan, TransmitPlan};
use isolane_memory::MemoryRegion;
use isolane_verbs::wire::{
    AtomicOperands, Extension, ExtensionKind, LaneReport, MAX_PREFIX_BYTES, Opcode, RemoteRange, Segment,
    SegmentFlags, SegmentHeader, Stage, Syndrome, checksum,
};
use isolane_verbs::{
    Access, ConnectionParameters, Limits, LocalData, ProtectionDomain, ReceiveAttributes, ReceiveQueue,
    ReceiveRequest, Received, Registration, ReliableConnection, SendAttributes, SendOperation, SendRequest,
    Sge,
};

use crate::input::Input;

const LANES: usize = 2;

/// Decisions of a peer and of the program.
pub(crate) fn verbs_peer(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut harness = Harness::new(input.u8());
    while !input.is_empty() && harness.posted < MAX_POSTS {
        harness.step(&mut input);
    }
    harness.end();
}

struct Harness {
    pair: ReliableConnection,
    /// Open to the peer.
    open: Arc<Registration>,
    /// Only the program's requests use it.
    local: Arc<Registration>,
    shared: Option<Arc<ReceiveQueue>>,
    now: Instant,
    posted: u64,
    completed: u64,
    message: u32,
}

fn lane_of(input: &mut Input<'_>) -> usize {
    usize::from(input.u8()) % LANES
}

impl Harness {
    /// The bits of `ends` tell which end has a shared receive queue, and whether lanes have checksums.
    fn new(ends: u8) -> Harness {
        let domain = Arc::new(ProtectionDomain::default());
        let register = |address, access| {
            let region = MemoryRegion::allocate(BYTES).expect("there is memory");
            domain.register(region, address, access).expect("the address does not wrap")
        };
        let (open, local) = (register(OPEN, Access(0xf)), register(LOCAL, Access(1)));
        let shared = ReceiveQueue::new(Arc::clone(&domain), 16, 4);
        let shared = (ends & 1 != 0).then(|| Arc::new(shared));
        let mut pair = ReliableConnection::new(domain, Limits::default(), shared.clone());
        let parameters = ConnectionParameters {
            first_message: 0,
            peer_first_message: 0,
            peer_segment_bytes: 64,
            peer_responder_resources: 2,
            peer_shares_receives: ends & 2 != 0,
            lanes: LANES as u8,
            checksums: ends & 0x80 != 0,
        };
        let send = SendAttributes { rnr_retries: ends >> 2 & 31, ..SendAttributes::default() };
        assert!(pair.initialize(Access::ALL) && pair.start_receiving(&ReceiveAttributes::default()));
        assert!(pair.start_sending(&send));
        pair.handle_parameters(&parameters);
        for lane in 0..LANES {
            pair.start_lane(lane);
            pair.handle_lane_open(lane, Received::default());
        }
        Harness { pair, open, local, shared, now: Instant::now(), posted: 0, completed: 0, message: 0 }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 11 {
            0 => self.post_receive(),
            1 => self.post_send(input),
            2 => self.transmit(input),
            3 => {
                let len = usize::from(input.u8());
                let bytes = input.bytes(len).to_vec();
                self.deliver(&bytes, input);
            }
            4 => {
                self.now += Duration::from_micros(input.u16().into());
                self.pair.handle_timeout(self.now);
            }
            5 => self.pair.handle_lane_closed(lane_of(input)),
            6 => self.open_lane(input),
            _ => self.deliver_segment(input),
        }
        while self.pair.poll_completion().is_some() {
            self.completed += 1;
        }
        while self.pair.poll_event().is_some() {}
    }

    /// Opens a lane again, with any report of the peer.
    fn open_lane(&mut self, input: &mut Input<'_>) {
        let lane = lane_of(input);
        let is_accepted = input.u8() & 1 != 0;
        let epoch = self.pair.lane_epoch(lane) + u32::from(input.u8() % 3);
        let is_started = if is_accepted {
            self.pair.accept_lane(lane, epoch).is_some()
        } else {
            self.pair.start_lane(lane).is_some()
        };
        if is_started {
            let (epoch, segments, bytes) =
                (epoch.wrapping_sub(input.u8().into()), input.u8().into(), input.u8().into());
            self.pair.handle_lane_open(lane, Received { epoch, segments, bytes });
        }
    }

    fn post_receive(&mut self) {
        let data = [Sge { address: LOCAL, length: RECEIVE_BYTES, lkey: self.local.key() }];
        let request = ReceiveRequest { id: self.posted, data: data.into_iter().collect() };
        let result = match &self.shared {
            Some(shared) => shared.post(request),
            None => self.pair.post_receive(request),
        };
        self.posted += u64::from(result.is_ok());
    }

    fn post_send(&mut self, input: &mut Input<'_>) {
        let (address, key) = (OPEN, self.open.key());
        let operation = input.pick(&[
            SendOperation::Send { immediate: None },
            SendOperation::Write { address, rkey: key, immediate: Some(1) },
            SendOperation::Read { address, rkey: key },
            SendOperation::FetchAdd { address, rkey: key, add: 1 },
        ]);
        let length = if matches!(operation, SendOperation::FetchAdd { .. }) { 8 } else { input.u8().into() };
        // Responses go to the start of the local memory, as receives do.
        let data = [Sge { address: LOCAL, length, lkey: self.local.key() }];
        let data = LocalData::Sges(data.into_iter().collect());
        let fenced = input.u8() & 1 != 0;
        let request =
            SendRequest { id: self.posted, operation, data, signaled: true, solicited: false, fenced };
        self.posted += u64::from(self.pair.post_send(request).is_ok());
    }

    fn transmit(&mut self, input: &mut Input<'_>) {
        let lane = lane_of(input);
        let mut plan = TransmitPlan::new();
        self.pair.fill_transmit_plan(lane, &mut plan);
        let sent = plan.bytes().min(usize::from(input.u16()));
        drop(plan);
        self.pair.handle_transmitted(lane, sent);
    }

    /// Delivers a segment that is valid but for some of its fields.
    fn deliver_segment(&mut self, input: &mut Input<'_>) {
        let opcode = input.pick(Opcode::ALL);
        let has_payload = opcode.operation().has_stages();
        let size = u32::from(input.u8());
        let length = if has_payload { size } else { 0 };
        let range =
            RemoteRange { address: OPEN + u64::from(input.u16()), key: self.open.key(), length: size };
        let immediate = opcode.has_immediate().then_some(5);
        let extension = match opcode.operation().extension() {
            ExtensionKind::None => immediate.map_or(Extension::None, Extension::Immediate),
            ExtensionKind::Range => Extension::Range(range, immediate),
            ExtensionKind::Atomic => {
                let address = OPEN + 8 * u64::from(input.u16());
                Extension::Atomic(AtomicOperands { address, key: range.key, swap_or_add: 1, compare: 0 })
            }
            ExtensionKind::Found => Extension::Found(7),
            ExtensionKind::Acknowledgment => {
                Extension::Acknowledgment(input.pick(Syndrome::ALL), 0, input.u8() % 4)
            }
            ExtensionKind::LaneReport => Extension::LaneReport(LaneReport {
                lane: input.u8() % 3,
                epoch: input.u8().into(),
                received_epoch: input.u8().into(),
                segments: input.u8().into(),
                bytes: input.u8().into(),
            }),
            ExtensionKind::Datagram => return,
        };
        let mut segment = Segment {
            opcode: Opcode::of(opcode.operation(), Stage::Only, immediate.is_some()),
            flags: SegmentFlags(input.u8() & 7),
            credits: input.pick(&[0, 1, 2, 100]),
            message: self.message,
            size,
            receive: input.u8() % 4,
            rnr_count: input.u8() % 3,
            offset: 0,
            length,
            acknowledged: u32::from(input.u8() % 4),
            extension,
        };
        let mut prefix = [0; MAX_PREFIX_BYTES];
        if input.u8() & 3 == 0 {
            segment.message = input.u32();
        } else if opcode.operation().is_request() {
            self.message = self.message.wrapping_add(1);
        }
        let len = segment.encode_to(&mut prefix);
        if input.u8() & 7 == 0 {
            prefix[usize::from(input.u8()) % len] = input.u8();
        }
        let payload = vec![0xa5; length as usize];
        let bytes = if self.pair.has_checksums() {
            let (header, extension) = prefix[..len].split_at(SegmentHeader::LEN);
            let content = [extension, &payload].concat();
            let last = if content.is_empty() { Vec::new() } else { checksum(&content).to_vec() };
            [header, &checksum(header), &content, &last].concat()
        } else {
            [&prefix[..len], &payload].concat()
        };
        self.deliver(&bytes, input);
    }

    /// Delivers bytes on a lane, some at a time.
    fn deliver(&mut self, mut bytes: &[u8], input: &mut Input<'_>) {
        let (lane, chunk) = (lane_of(input), 1 + usize::from(input.u8()));
        let mut overflow = [0; 4096];
        while !bytes.is_empty() && self.pair.is_lane_open(lane) {
            let mut plan = ReceivePlan::new();
            self.pair.fill_receive_plan(lane, &mut overflow, &mut plan);
            let mut count = 0;
            for slice in &mut plan {
                let len = slice.len().min(bytes.len()).min(chunk - count);
                slice[..len].copy_from_slice(&bytes[..len]);
                bytes = &bytes[len..];
                count += len;
            }
            drop(plan);
            assert!(count > 0, "the queue pair stopped reading");
            self.pair.handle_received(lane, count, &overflow, self.now);
        }
    }

    fn end(mut self) {
        self.pair.fail();
        while self.pair.poll_completion().is_some() {
            self.completed += 1;
        }
        let left = self.shared.as_ref().map_or(0, |shared| shared.len() as u64);
        assert_eq!(self.completed + left, self.posted, "each request completes once");
        let untouched = self.local.region().to_vec(RECEIVE_BYTES as usize, BYTES - RECEIVE_BYTES as usize);
        assert!(untouched.iter().all(|byte| *byte == 0), "the peer reached memory that no request named");
    }
}

const BYTES: usize = 4096;
const OPEN: u64 = 0x1_0000;
const LOCAL: u64 = 0x10_0000;
const RECEIVE_BYTES: u32 = 256;
const MAX_POSTS: u64 = 100;

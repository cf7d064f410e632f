//! Scenarios of two queue pairs over byte pipes that deliver any number of bytes at a time.

use isolane_connection::{ReceivePlan, TransmitPlan};
use isolane_memory::testing::guarded_region;
use proptest::prelude::*;

use super::*;
use crate::memory::{Access, Registration};
use crate::types::{CompletedOperation, ConnectionParameters, LocalData, SendOperation, Sge};
use crate::wire::{MAX_PREFIX_BYTES, RemoteRange};

mod answers;
mod checksums;
mod device;
mod hostile;
mod lifecycle;
mod not_ready;
mod oracle;
mod scenarios;
mod shared;

/// READs and atomic operations that each end executes at a time.
const RESOURCES: usize = 3;
const ALL: Access = Access(0xf);

impl ReliableConnection {
    /// Returns up to `max_bytes` of the bytes to send on a lane, as a socket takes them.
    pub(crate) fn transmit_to_pipe(&mut self, lane: usize, max_bytes: usize) -> Vec<u8> {
        let mut plan = TransmitPlan::new();
        self.fill_transmit_plan(lane, &mut plan);
        // As the kernel does, through addresses: slices may be in memory that others write.
        let bytes: Vec<u8> = plan.iter().flat_map(|slice| slice.to_vec()).take(max_bytes).collect();
        drop(plan);
        self.handle_transmitted(lane, bytes.len());
        bytes
    }

    /// Receives up to `max_bytes` of a pipe on a lane. Returns their number.
    pub(crate) fn receive_from_pipe(
        &mut self,
        lane: usize,
        pipe: &mut VecDeque<u8>,
        max_bytes: usize,
        now: Instant,
    ) -> usize {
        let mut overflow = [0; 4096];
        let mut plan = ReceivePlan::new();
        self.fill_receive_plan(lane, &mut overflow, &mut plan);
        let mut count = 0;
        for slice in &mut plan {
            let len = slice.len().min(pipe.len()).min(max_bytes - count);
            pipe.drain(..len).zip(slice.iter_mut()).for_each(|(byte, place)| *place = byte);
            count += len;
        }
        drop(plan);
        self.handle_received(lane, count, &overflow, now);
        count
    }
}

/// One end with 64 KiB of memory, which its requests address from 0.
struct End {
    pair: ReliableConnection,
    memory: Arc<Registration>,
    shared: Option<Arc<ReceiveQueue>>,
    sent: VecDeque<u8>,
    now: Instant,
}

impl End {
    fn new(access: Access, limits: Limits, shares_receives: bool) -> End {
        let domain = Arc::new(ProtectionDomain::default());
        let region = guarded_region(MEMORY_BYTES).unwrap();
        let memory = domain.register(region, 0, access).unwrap();
        let shared = ReceiveQueue::new(Arc::clone(&domain), limits.receives, limits.sges);
        End::over(domain, memory, limits, shares_receives.then(|| Arc::new(shared)))
    }

    fn over(
        domain: Arc<ProtectionDomain>,
        memory: Arc<Registration>,
        limits: Limits,
        shared: Option<Arc<ReceiveQueue>>,
    ) -> End {
        let pair = ReliableConnection::new(domain, limits, shared.clone());
        End { pair, memory, shared, sent: VecDeque::new(), now: Instant::now() }
    }

    /// Opens all lanes.
    fn open(&mut self, parameters: &ConnectionParameters) {
        self.pair.handle_parameters(parameters);
        for lane in 0..parameters.lanes.into() {
            self.pair.start_lane(lane).unwrap();
            self.pair.handle_lane_open(lane, Received::default());
        }
    }

    fn sge(&self, address: u64, length: u32) -> Sge {
        Sge { address, length, lkey: self.memory.key() }
    }

    fn fill(&self, address: usize, bytes: &[u8]) {
        self.memory.region().copy_in(address, bytes);
    }

    fn bytes(&self, address: usize, len: usize) -> Vec<u8> {
        self.memory.region().to_vec(address, len)
    }

    fn send(&mut self, id: u64, operation: SendOperation, sges: &[Sge]) -> Result<(), PostError> {
        let data = LocalData::Sges(sges.iter().copied().collect());
        let request = SendRequest { id, operation, data, signaled: true, solicited: false, fenced: false };
        self.pair.post_send(request)
    }

    fn receive(&mut self, id: u64, sges: &[Sge]) {
        let data = sges.iter().copied().collect();
        let request = ReceiveRequest { id, data };
        match &self.shared {
            Some(shared) => shared.post(request).unwrap(),
            None => self.pair.post_receive(request).unwrap(),
        }
    }

    fn events(&mut self) -> Vec<AsyncEvent> {
        std::iter::from_fn(|| self.pair.poll_event()).collect()
    }

    fn completions(&mut self) -> Vec<(Queue, u64, Status, u64)> {
        let next = || self.pair.poll_completion();
        std::iter::from_fn(next).map(|(queue, done)| (queue, done.id, done.status, done.length)).collect()
    }

    /// Moves up to `max_bytes` from the send queue to the pipe, as a socket does.
    fn transmit(&mut self, max_bytes: usize) {
        self.transmit_on(0, max_bytes);
    }

    fn transmit_on(&mut self, lane: usize, max_bytes: usize) {
        let bytes = self.pair.transmit_to_pipe(lane, max_bytes);
        self.sent.extend(bytes);
    }

    /// Receives up to `max_bytes` from a pipe.
    fn deliver(&mut self, pipe: &mut VecDeque<u8>, max_bytes: usize) {
        self.deliver_on(0, pipe, max_bytes);
    }

    fn deliver_on(&mut self, lane: usize, pipe: &mut VecDeque<u8>, max_bytes: usize) {
        self.pair.receive_from_pipe(lane, pipe, max_bytes, self.now);
    }
}

/// Two connected ends.
struct Pair {
    near: End,
    far: End,
}

impl Pair {
    fn new() -> Pair {
        Pair::with(ALL, Limits::default(), SEGMENT_BYTES)
    }

    /// Connects two ends; the far memory has the rights `access`.
    fn with(access: Access, limits: Limits, segment_bytes: u32) -> Pair {
        let ends = [End::new(ALL, limits, false), End::new(access, limits, false)];
        Pair::connect(ends, segment_bytes, RNR_FOREVER)
    }

    /// Connects two ends whose lane has checksums.
    fn with_checksums() -> Pair {
        let ends = [0; 2].map(|_| End::new(ALL, Limits::default(), false));
        Pair::connect_with(ends, SEGMENT_BYTES, RNR_FOREVER, 1, true)
    }

    /// Connects two ends by several lanes.
    fn with_lanes(lanes: u8) -> Pair {
        let ends = [0; 2].map(|_| End::new(ALL, Limits::default(), false));
        Pair::connect_with(ends, SEGMENT_BYTES, RNR_FOREVER, lanes, false)
    }

    /// Connects two ends, of which the far one has a shared receive queue.
    fn with_shared_receives(limits: Limits, segment_bytes: u32, rnr_retries: u8) -> Pair {
        let ends = [End::new(ALL, limits, false), End::new(ALL, limits, true)];
        Pair::connect(ends, segment_bytes, rnr_retries)
    }

    fn connect(ends: [End; 2], segment_bytes: u32, rnr_retries: u8) -> Pair {
        Pair::connect_with(ends, segment_bytes, rnr_retries, 1, false)
    }

    fn connect_with(
        [near, far]: [End; 2],
        segment_bytes: u32,
        rnr_retries: u8,
        lanes: u8,
        checksums: bool,
    ) -> Pair {
        let mut pair = Pair { near, far };
        let shares = [pair.near.shared.is_some(), pair.far.shared.is_some()];
        let ends = [(&mut pair.near, u32::MAX, 7, shares[1]), (&mut pair.far, 7, u32::MAX, shares[0])];
        for (end, first, peer_first, peer_shares_receives) in ends {
            let parameters = ConnectionParameters {
                first_message: first,
                peer_first_message: peer_first,
                peer_segment_bytes: segment_bytes,
                peer_responder_resources: RESOURCES,
                peer_shares_receives,
                lanes,
                checksums,
            };
            let receive = ReceiveAttributes { responder_resources: RESOURCES, rnr_timer: RNR_TIMER };
            let send = SendAttributes { rnr_retries, ..SendAttributes::default() };
            assert!(end.pair.initialize(ALL) && end.pair.start_receiving(&receive));
            assert!(end.pair.start_sending(&send));
            end.open(&parameters);
        }
        pair
    }

    /// Moves bytes, up to `chunk` at a time, until neither end has anything to send.
    fn run_in(&mut self, chunk: usize) {
        loop {
            exchange(&mut self.near, &mut self.far, chunk);
            exchange(&mut self.far, &mut self.near, chunk);
            if !self.near.pair.wants_transmit(0) && !self.far.pair.wants_transmit(0) {
                return;
            }
        }
    }

    fn run(&mut self) {
        self.run_in(usize::MAX);
    }
}

fn exchange(from: &mut End, to: &mut End, chunk: usize) {
    from.transmit(chunk);
    while !from.sent.is_empty() {
        to.deliver(&mut from.sent, chunk);
    }
}

const MEMORY_BYTES: usize = 64 * 1024;
const RNR_FOREVER: u8 = 7;
/// Code of 640 µs.
const RNR_TIMER: u8 = 12;
const SEND: SendOperation = SendOperation::Send { immediate: None };

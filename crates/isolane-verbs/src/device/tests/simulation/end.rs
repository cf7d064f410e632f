//! One end: its queue pair, and the program that uses it.

use std::sync::atomic::AtomicBool;

use super::super::super::context::QueuePairContext;
use super::super::super::handshake::{LaneAttempt, LocalHello, Offer};
use super::*;
use crate::connection::{ReceiveQueue, ReliableConnection};
use crate::fake_device::FakeDevice;
use crate::types::{Completion, ConnectionParameters, Queue, ReceiveAttributes, SendAttributes};
use crate::wire::{Hello, Role};

/// The memory of an end, of which each life of its queue pairs has an area.
#[derive(Clone)]
pub(super) struct Process {
    pub(super) domain: Arc<ProtectionDomain>,
    pub(super) memory: Arc<Registration>,
}

/// A life of a queue pair, and what its program has done.
pub(super) struct End {
    pub(super) context: QueuePairContext,
    pub(super) process: Process,
    /// Address of its area of the memory.
    pub(super) base: u64,
    pub(super) local_hello: LocalHello,
    nonce: [u8; 16],
    segment_bytes: u32,
    shared: Option<Arc<ReceiveQueue>>,
    /// Completions that the program has not taken, and the capacity of their queue.
    queued: VecDeque<(Queue, Completion)>,
    capacity: usize,
    pub(super) has_overrun: bool,
    /// Its program posts few receives.
    pub(super) is_slow: bool,
    /// It was killed or destroyed.
    pub(super) is_dead: bool,
    /// The area when the queue pair failed, and the number of requests that were posted before.
    pub(super) frozen: Option<Vec<u8>>,
    pub(super) posted_before: u64,
    pub(super) posted: u64,
    /// Whether each posted request consumes a receive, and whether it is signaled.
    pub(super) consumes: Vec<bool>,
    pub(super) signaled: Vec<bool>,
    pub(super) receives: u64,
    pub(super) sent: Vec<(u64, Status)>,
    pub(super) received: Vec<(u64, Status)>,
}

/// A lane whose bytes the simulation moves. It only records that the queue pair has dropped it.
pub(super) struct SimulatedLane(pub(super) Arc<AtomicBool>);

impl Lane for SimulatedLane {
    fn receive(&mut self, _: &mut [io::IoSliceMut<'_>]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn send(&mut self, _: &[io::IoSlice<'_>]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn shutdown(&mut self) {}

    fn descriptor(&self) -> BorrowedFd<'_> {
        unreachable!("a simulated device is not observed")
    }
}

impl Drop for SimulatedLane {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Process {
    /// The memory of a third of all processes is on a device with few streams.
    pub(super) fn new(areas: usize, rng: &mut Rng) -> Process {
        let domain = Arc::new(ProtectionDomain::default());
        let region = match rng.u8(0..3) {
            0 => FakeDevice::new(areas * AREA_BYTES, rng.usize(0..4)).region(),
            _ => guarded_region(areas * AREA_BYTES).unwrap(),
        };
        let memory = domain.register(region, 0, Access::ALL).unwrap();
        Process { domain, memory }
    }

    /// Registers the same memory again, so that it has another key.
    pub(super) fn register_again(&mut self) {
        self.domain.deregister(&self.memory);
        let region = Arc::clone(self.memory.region());
        self.memory = self.domain.register(region, 0, Access::ALL).unwrap();
    }
}

impl End {
    pub(super) fn new(
        process: &Process,
        area: usize,
        terms: &Terms,
        first_message: u32,
        rng: &mut Rng,
    ) -> End {
        let shared = rng
            .bool()
            .then(|| Arc::new(ReceiveQueue::new(Arc::clone(&process.domain), REQUESTS as usize, 1)));
        let connection =
            ReliableConnection::new(Arc::clone(&process.domain), Limits::default(), shared.clone());
        let mut context = QueuePairContext::new(1, connection, rng.bool());
        let receive = ReceiveAttributes { responder_resources: terms.resources, ..Default::default() };
        let send = SendAttributes { rnr_retries: terms.rnr_retries, ..Default::default() };
        assert!(context.connection.initialize(Access::ALL) && context.connection.start_receiving(&receive));
        assert!(context.connection.start_sending(&send));
        let offer =
            Offer { lanes: rng.u8(1..=4), checksums: terms.checksums, authenticated: terms.authenticated };
        let local_hello =
            LocalHello::new(1, first_message, terms.resources, shared.is_some(), offer).unwrap();
        let base = (area * AREA_BYTES) as u64;
        let seed = rng.u8(..);
        let source: Vec<u8> = (0..TARGET).map(|at| (at * 7 % 251) as u8 ^ seed | 1).collect();
        process.memory.region().copy_in((base + SOURCE) as usize, &source);
        End {
            context,
            process: process.clone(),
            base,
            local_hello,
            nonce: std::array::from_fn(|_| rng.u8(..)),
            segment_bytes: terms.segment_bytes,
            shared,
            queued: VecDeque::new(),
            capacity: if rng.u8(0..16) == 0 { rng.usize(2..40) } else { usize::MAX },
            has_overrun: false,
            is_slow: rng.u8(0..4) == 0,
            is_dead: false,
            frozen: None,
            posted_before: 0,
            posted: 0,
            consumes: Vec::new(),
            signaled: Vec::new(),
            receives: 0,
            sent: Vec::new(),
            received: Vec::new(),
        }
    }

    /// Returns the hello for an attempt to open a lane, or the reply to `hello`.
    pub(super) fn hello(&self, attempt: LaneAttempt, hello: Option<&Hello>) -> Hello {
        let role = if hello.is_some() { Role::Accepts } else { Role::Connects };
        let offer = hello.map_or(self.local_hello.offer(), |hello| self.local_hello.agreed(hello));
        let hello = self.local_hello.hello_between([[0; 16]; 2], role, attempt, offer, 1);
        Hello { max_segment_bytes: self.segment_bytes, nonce: self.nonce, ..hello }
    }

    pub(super) fn parameters(&self, peer: &Hello) -> ConnectionParameters {
        self.local_hello.parameters(peer)
    }

    pub(super) fn sge(&self, address: u64, length: u32) -> Sge {
        Sge { address: self.base + address, length, lkey: self.process.memory.key() }
    }

    pub(super) fn area(&self) -> Vec<u8> {
        self.process.memory.region().to_vec(self.base as usize, AREA_BYTES)
    }

    pub(super) fn bytes(&self, address: u64, length: u32) -> Vec<u8> {
        self.process.memory.region().to_vec((self.base + address) as usize, length as usize)
    }

    pub(super) fn post_receive(&mut self) {
        let sge = self.sge(receive_address(self.receives), RECEIVE_BYTES);
        let request = ReceiveRequest { id: self.receives, data: [sge].into_iter().collect() };
        self.receives += 1;
        match &self.shared {
            Some(shared) => shared.post(request).unwrap(),
            None => self.context.connection.post_receive(request).unwrap(),
        }
    }

    /// Moves completions to their queue, as a device does. An overrun fails the queue pair.
    pub(super) fn settle(&mut self) {
        if self.is_dead {
            return;
        }
        while let Some(completion) = self.context.connection.poll_completion() {
            if self.queued.len() < self.capacity && !self.has_overrun {
                self.queued.push_back(completion);
            } else {
                self.has_overrun = true;
                self.context.connection.fail();
            }
        }
        if self.has_failed() && self.frozen.is_none() {
            (self.frozen, self.posted_before) = (Some(self.area()), self.posted);
        }
    }

    /// The program takes a completion.
    pub(super) fn next_completion(&mut self) -> Option<(Queue, Completion)> {
        self.queued.pop_front()
    }

    /// The program writes to its memory.
    pub(super) fn write(&mut self, address: u64, bytes: &[u8]) {
        self.process.memory.region().copy_in((self.base + address) as usize, bytes);
        if let Some(frozen) = &mut self.frozen {
            frozen[address as usize..][..bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Requests without a lane fail, if the queue pair has none.
    pub(super) fn pass_lane_timeout(&mut self) {
        self.context.lane_timeout = Some(Duration::ZERO);
        self.context.deadline();
        self.context.check();
        self.context.lane_timeout = None;
    }

    pub(super) fn has_failed(&self) -> bool {
        self.context.connection.state() == QueuePairState::Error
    }

    /// Number of requests that are executed, as far as the program knows.
    pub(super) fn done(&self) -> u64 {
        let failed = self.sent.iter().find(|(_, status)| *status != Status::Success);
        let last = self.sent.last().map_or(0, |(id, _)| id + 1);
        let is_idle = !self.is_dead && !self.has_failed() && self.context.connection.outstanding_sends() == 0;
        failed.map_or(if is_idle { self.posted } else { last }, |(id, _)| *id)
    }
}

/// Returns the place of a receive.
pub(super) fn receive_address(number: u64) -> u64 {
    RECEIVES + u64::from(RECEIVE_BYTES) * number
}

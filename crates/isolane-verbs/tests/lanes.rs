//! Random programs over lanes that are cut, delayed, and opened again, and that change bytes, against a model that executes requests one after
//! the other. Programs are slow to take completions and to post receives; their completion queues can overrun, and
//! requests can fail for lack of a receive. The same seed repeats the same run.
//!
//! `ISOLANE_TEST_SEEDS=1000000 cargo test --release -p isolane-verbs --test lanes` runs more seeds, and
//! `ISOLANE_TEST_SEED=7` a single one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use isolane_connection::{ReceivePlan, TransmitPlan};
use isolane_memory::MemoryRegion;
use isolane_verbs::{
    Access, Completion, ConnectionParameters, Limits, LocalData, ProtectionDomain, Queue, ReceiveAttributes,
    ReceiveQueue, ReceiveRequest, Received, Registration, ReliableConnection, SendAttributes, SendOperation,
    SendRequest, Sge, State, Status,
};

#[expect(dead_code, reason = "other tests use all of it")]
mod device;
use device::FakeDevice;

// Places in the memory of each end.
const SOURCE: u64 = 0;
const TARGET: u64 = 16 * 1024;
const WORDS: u64 = 32 * 1024;
const RESULTS: u64 = 33 * 1024;
const RECEIVES: u64 = 50 * 1024;
const MEMORY_BYTES: usize = 64 * 1024;
const RECEIVE_BYTES: u32 = 300;
const RESULT_BYTES: u64 = 400;
/// Number of requests of each end.
const REQUESTS: u64 = 40;

/// One end: its queue pair, its program, and what the program has done.
struct End {
    pair: ReliableConnection,
    memory: Arc<Registration>,
    shared: Option<Arc<ReceiveQueue>>,
    /// Completions that the program has not taken, and the capacity of their queue.
    queued: VecDeque<(Queue, Completion)>,
    capacity: usize,
    has_overrun: bool,
    posted: u64,
    /// Whether each posted request consumes a receive.
    consumes: Vec<bool>,
    receives: u64,
    sent: Vec<(u64, Status)>,
    received: Vec<(u64, Status, u64, Option<u32>)>,
}

/// Expected memory and receives of an end.
struct Model {
    memory: Vec<u8>,
    /// Length and immediate data of each receive.
    received: Vec<(u64, Option<u32>)>,
}

/// A lane: the bytes that have not arrived at each end.
#[derive(Default)]
struct Wire {
    /// From the near end, and from the far end.
    pipes: [VecDeque<u8>; 2],
    is_open: [bool; 2],
    /// Nothing more enters the pipes.
    is_cut: bool,
    /// The answer to the near end, which opens the lane.
    reply: Option<Received>,
}

/// Number of runs in which something happened.
#[derive(Default)]
struct Statistics {
    cuts: AtomicU64,
    changes: AtomicU64,
    overruns: AtomicU64,
    lost_peers: AtomicU64,
    missing_receives: AtomicU64,
}

impl Statistics {
    fn count(counter: &AtomicU64, happened: bool) {
        counter.fetch_add(happened.into(), Ordering::Relaxed);
    }
}

struct Simulation {
    seed: u64,
    rng: Rng,
    now: Instant,
    cuts: u64,
    changes: u64,
    retries_forever: bool,
    ends: [End; 2],
    models: [Model; 2],
    wires: Vec<Wire>,
}

impl End {
    fn new(region: Arc<MemoryRegion>, shares_receives: bool, capacity: usize) -> End {
        let domain = Arc::new(ProtectionDomain::default());
        let memory = domain.register(region, 0, Access::ALL).unwrap();
        let shared =
            shares_receives.then(|| Arc::new(ReceiveQueue::new(Arc::clone(&domain), REQUESTS as usize, 1)));
        let pair = ReliableConnection::new(domain, Limits::default(), shared.clone());
        End {
            pair,
            memory,
            shared,
            queued: VecDeque::new(),
            capacity,
            has_overrun: false,
            posted: 0,
            consumes: Vec::new(),
            receives: 0,
            sent: Vec::new(),
            received: Vec::new(),
        }
    }

    fn post_receive(&mut self) {
        let address = RECEIVES + u64::from(RECEIVE_BYTES) * self.receives;
        let sge = Sge { address, length: RECEIVE_BYTES, lkey: self.memory.key() };
        let request = ReceiveRequest { id: self.receives, data: [sge].into_iter().collect() };
        self.receives += 1;
        match &self.shared {
            Some(shared) => shared.post(request).unwrap(),
            None => self.pair.post_receive(request).unwrap(),
        }
    }

    /// Moves completions to their queue, as a device does. An overrun fails the queue pair.
    fn settle(&mut self) {
        while let Some(completion) = self.pair.poll_completion() {
            if self.queued.len() < self.capacity && !self.has_overrun {
                self.queued.push_back(completion);
            } else {
                self.has_overrun = true;
                self.pair.fail();
            }
        }
    }

    /// The program takes its completions.
    fn take_completions(&mut self) {
        self.settle();
        for (queue, done) in self.queued.drain(..) {
            match queue {
                Queue::Send => self.sent.push((done.id, done.status)),
                Queue::Receive => self.received.push((done.id, done.status, done.length, done.immediate)),
            }
        }
    }

    fn has_failed(&self) -> bool {
        self.pair.state() == State::Error
    }
}

impl Simulation {
    fn new(seed: u64) -> Simulation {
        let mut rng = Rng::with_seed(seed);
        let (lanes, checksums) = (rng.u8(1..=4), rng.bool());
        // Of a third of the ends, the memory is on a device, with few streams.
        let mut region_rng = Rng::with_seed(!seed);
        let mut region = || match region_rng.u8(0..3) {
            0 => FakeDevice::new(MEMORY_BYTES, region_rng.usize(0..4)).region(),
            _ => MemoryRegion::allocate(MEMORY_BYTES).unwrap(),
        };
        let mut end = || {
            let capacity = if rng.u8(0..16) == 0 { rng.usize(2..40) } else { usize::MAX };
            End::new(region(), rng.bool(), capacity)
        };
        let mut ends = [end(), end()];
        let rnr_retries = if rng.u8(0..8) == 0 { rng.u8(0..7) } else { 7 };
        let first = [rng.u32(..), rng.u32(..)];
        let resources = rng.usize(1..4);
        let peer_segment_bytes = rng.u32(64..3000);
        let shares = [ends[0].shared.is_some(), ends[1].shared.is_some()];
        for (index, end) in ends.iter_mut().enumerate() {
            let receive = ReceiveAttributes { responder_resources: resources, ..Default::default() };
            assert!(end.pair.initialize(Access::ALL) && end.pair.start_receiving(&receive));
            assert!(end.pair.start_sending(&SendAttributes { rnr_retries, ..Default::default() }));
            end.pair.handle_parameters(&ConnectionParameters {
                first_message: first[index],
                peer_first_message: first[1 - index],
                peer_segment_bytes,
                peer_responder_resources: resources,
                peer_shares_receives: shares[1 - index],
                lanes,
                checksums,
            });
            let source: Vec<u8> = (0..TARGET).map(|at| (at * 7 % 251) as u8 ^ index as u8 | 1).collect();
            end.memory.region().copy_in(SOURCE as usize, &source);
        }
        let memory = |end: &End| end.memory.region().to_vec(0, MEMORY_BYTES);
        let models = [0, 1].map(|index| Model { memory: memory(&ends[index]), received: Vec::new() });
        let wires = (0..lanes).map(|_| Wire::default()).collect();
        Simulation {
            seed,
            rng,
            now: Instant::now(),
            cuts: 0,
            changes: 0,
            retries_forever: rnr_retries == 7,
            ends,
            models,
            wires,
        }
    }

    /// Posts the next request of an end, and executes it in the model.
    fn post(&mut self, index: usize) {
        let rng = &mut self.rng;
        let id = self.ends[index].posted;
        if id == REQUESTS {
            return;
        }
        let key = self.ends[1 - index].memory.key();
        let [near, far] = match &mut self.models {
            [first, second] if index == 0 => [first, second],
            [first, second] => [second, first],
        };
        let received_before = far.received.len();
        let (place, target) = (rng.u64(0..12 * 1024), TARGET + rng.u64(0..12 * 1024));
        let result = RESULTS + RESULT_BYTES * id;
        let copied = |from: &[u8], at: u64, len: u32| from[at as usize..][..len as usize].to_vec();
        let put =
            |to: &mut [u8], at: u64, bytes: &[u8]| to[at as usize..][..bytes.len()].copy_from_slice(bytes);
        let (operation, address, length) = match rng.u8(0..5) {
            0 => {
                let length = rng.u32(0..=RECEIVE_BYTES);
                let at = RECEIVES + u64::from(RECEIVE_BYTES) * far.received.len() as u64;
                put(&mut far.memory, at, &copied(&near.memory, place, length));
                far.received.push((length.into(), None));
                (SendOperation::Send { immediate: None }, place, length)
            }
            1 | 2 => {
                let (length, immediate) = (rng.u32(0..3000), rng.bool().then_some(id as u32));
                put(&mut far.memory, target, &copied(&near.memory, place, length));
                far.received.extend(immediate.map(|immediate| (length.into(), Some(immediate))));
                (SendOperation::Write { address: target, key, immediate }, place, length)
            }
            3 => {
                let length = rng.u32(0..RESULT_BYTES as u32);
                put(&mut near.memory, result, &copied(&far.memory, place, length));
                (SendOperation::Read { address: place, key }, result, length)
            }
            _ => {
                let (address, add) = (WORDS + 8 * rng.u64(0..4), rng.u64(1..4));
                let found = u64::from_le_bytes(copied(&far.memory, address, 8).try_into().unwrap());
                put(&mut far.memory, address, &(found + add).to_le_bytes());
                put(&mut near.memory, result, &found.to_le_bytes());
                (SendOperation::FetchAdd { address, key, add }, result, 8)
            }
        };
        let consumes = far.received.len() > received_before;
        let sge = Sge { address, length, lkey: self.ends[index].memory.key() };
        let request = SendRequest {
            id,
            operation,
            data: LocalData::Sges([sge].into_iter().collect()),
            signaled: true,
            solicited: false,
            fenced: self.rng.u8(0..8) == 0,
        };
        self.ends[index].consumes.push(consumes);
        self.ends[index].pair.post_send(request).unwrap();
        self.ends[index].posted += 1;
    }

    /// Moves bytes of an end to a lane, as a socket does.
    fn transmit(&mut self, index: usize, lane: usize, max_bytes: usize) -> usize {
        let wire = &mut self.wires[lane];
        if !wire.is_open[index] {
            return 0;
        }
        let pair = &mut self.ends[index].pair;
        let mut plan = TransmitPlan::new();
        pair.fill_transmit_plan(lane, &mut plan);
        let bytes: Vec<u8> = plan.iter().flat_map(|slice| slice.to_vec()).take(max_bytes).collect();
        drop(plan);
        pair.handle_transmitted(lane, bytes.len());
        if !wire.is_cut {
            wire.pipes[index].extend(&bytes);
        }
        bytes.len()
    }

    /// Delivers bytes of a lane to an end.
    fn deliver(&mut self, index: usize, lane: usize, max_bytes: usize) -> usize {
        let wire = &mut self.wires[lane];
        if !wire.is_open[index] || wire.pipes[1 - index].is_empty() {
            return 0;
        }
        let (pair, pipe) = (&mut self.ends[index].pair, &mut wire.pipes[1 - index]);
        let mut overflow = [0; 4096];
        let mut plan = ReceivePlan::new();
        pair.fill_receive_plan(lane, &mut overflow, &mut plan);
        let mut count = 0;
        for slice in &mut plan {
            let len = slice.len().min(pipe.len()).min(max_bytes - count);
            pipe.drain(..len).zip(slice.iter_mut()).for_each(|(byte, place)| *place = byte);
            count += len;
        }
        drop(plan);
        pair.handle_received(lane, count, &overflow, self.now);
        self.drop_closed();
        count
    }

    /// Closes the wires of the lanes that an end has ended because of a report.
    fn drop_closed(&mut self) {
        for (lane, wire) in self.wires.iter_mut().enumerate() {
            for index in 0..2 {
                if wire.is_open[index] && !self.ends[index].pair.is_lane_open(lane) {
                    (wire.is_open[index], wire.is_cut) = (false, true);
                }
            }
        }
    }

    /// Cuts a lane: only a part of the sent bytes arrives before the end.
    fn cut(&mut self, lane: usize) {
        let wire = &mut self.wires[lane];
        wire.is_cut = true;
        self.cuts += 1;
        for pipe in &mut wire.pipes {
            pipe.truncate(self.rng.usize(0..=pipe.len()));
        }
    }

    /// Changes a bit on its way, if that is detected.
    fn flip(&mut self, index: usize, lane: usize) {
        let pipe = &mut self.wires[lane].pipes[index];
        if self.ends[0].pair.has_checksums() && !pipe.is_empty() {
            let at = self.rng.usize(0..pipe.len());
            pipe[at] ^= 1 << self.rng.u8(0..8);
            self.changes += 1;
        }
    }

    /// An end notices that a lane is cut.
    fn notice(&mut self, index: usize, lane: usize) {
        let wire = &mut self.wires[lane];
        if wire.is_cut && wire.is_open[index] {
            wire.is_open[index] = false;
            self.ends[index].pair.handle_lane_closed(lane);
        }
    }

    /// The near end opens a lane; the hello or its answer can be lost.
    fn open(&mut self, lane: usize, is_lossy: bool) {
        let [near, far] = &mut self.ends;
        let wire = &mut self.wires[lane];
        let Some((epoch, received)) = near.pair.start_lane(lane) else { return };
        // It ends the attempt before.
        (wire.reply, wire.is_cut) = (None, true);
        if is_lossy && self.rng.u8(0..4) == 0 {
            return;
        }
        let reply = far.pair.accept_lane(lane, epoch).expect("a new epoch");
        far.pair.handle_lane_open(lane, received);
        *wire = Wire { is_open: [false, true], reply: Some(reply), ..Wire::default() };
        if is_lossy && self.rng.u8(0..4) == 0 {
            (wire.reply, wire.is_cut) = (None, true);
        }
    }

    /// The answer arrives at the near end.
    fn finish_opening(&mut self, lane: usize) {
        let wire = &mut self.wires[lane];
        if let Some(reply) = wire.reply.take().filter(|_| !wire.is_cut) {
            self.ends[0].pair.handle_lane_open(lane, reply);
            wire.is_open[0] = true;
        }
    }

    fn step(&mut self) {
        let (index, lane) = (self.rng.usize(0..2), self.rng.usize(0..self.wires.len()));
        let bytes = 1 << self.rng.u32(0..15);
        match self.rng.u8(0..46) {
            0..4 => self.post(index),
            4..7 if self.ends[index].receives < REQUESTS => self.ends[index].post_receive(),
            7..18 => drop(self.transmit(index, lane, bytes)),
            18..30 => drop(self.deliver(index, lane, bytes)),
            30 => self.cut(lane),
            40 => self.flip(index, lane),
            31..34 => self.notice(index, lane),
            34..37 => self.open(lane, true),
            37..40 => self.finish_opening(lane),
            41..44 => self.ends[index].take_completions(),
            44 => {
                let time = Duration::from_micros(self.rng.u64(0..2000));
                self.pass_time(time);
            }
            _ => {}
        }
        self.ends.iter_mut().for_each(End::settle);
    }

    fn pass_time(&mut self, time: Duration) {
        self.now += time;
        self.ends.iter_mut().for_each(|end| end.pair.handle_timeout(self.now));
    }

    /// Lets everything end without further cuts.
    fn drain(&mut self) {
        for index in 0..2 {
            while self.ends[index].receives < REQUESTS {
                self.ends[index].post_receive();
            }
        }
        let mut idle_rounds = 0;
        while idle_rounds < 3 {
            let mut moved = 0;
            self.pass_time(Duration::from_millis(1));
            for lane in 0..self.wires.len() {
                (0..2).for_each(|index| self.notice(index, lane));
                self.finish_opening(lane);
                if !self.wires[lane].is_open[0] && self.wires[lane].reply.is_none() {
                    self.open(lane, false);
                    moved += 1;
                }
                for index in 0..2 {
                    moved += self.transmit(index, lane, usize::MAX) + self.deliver(index, lane, usize::MAX);
                }
            }
            self.ends.iter_mut().for_each(End::take_completions);
            idle_rounds = if moved > 0 { 0 } else { idle_rounds + 1 };
        }
        self.ends.iter_mut().for_each(End::take_completions);
    }

    fn check(&self) {
        for (index, (end, model)) in self.ends.iter().zip(&self.models).enumerate() {
            let context = format!("seed {}, end {index}", self.seed);
            assert_eq!(end.pair.state(), State::ReadyToSend, "{context}");
            let sent: Vec<_> = (0..end.posted).map(|id| (id, Status::Success)).collect();
            assert_eq!(end.sent, sent, "{context}");
            let received: Vec<_> = (0..)
                .zip(&model.received)
                .map(|(id, (length, immediate))| (id, Status::Success, *length, *immediate))
                .collect();
            assert_eq!(end.received, received, "{context}");
            let memory = end.memory.region().to_vec(0, MEMORY_BYTES);
            let wrong = memory.iter().zip(&model.memory).position(|(found, expected)| found != expected);
            assert_eq!(wrong, None, "{context}: a byte of the memory differs");
        }
    }

    /// A queue pair has failed: each request completes once and in order, and one that has succeeded has had its effect.
    fn check_failed(&mut self) {
        for end in &mut self.ends {
            // An end that has not heard of it finds no peer any longer.
            end.pair.handle_lanes_lost();
            end.take_completions();
        }
        let has_overrun = self.ends.iter().any(|end| end.has_overrun);
        for index in 0..2 {
            let (end, peer, context) =
                (&self.ends[index], &self.ends[1 - index], format!("seed {}, end {index}", self.seed));
            let done = end.sent.iter().take_while(|(_, status)| *status == Status::Success).count();
            assert!(
                end.sent.iter().map(|(id, _)| *id).eq(0..end.sent.len() as u64),
                "{context}: {:?}",
                end.sent
            );
            assert!(
                end.has_overrun || end.sent.len() as u64 == end.posted,
                "{context}: a request is missing"
            );
            let flushed = end.sent.iter().skip(done + 1);
            assert!(
                flushed.clone().all(|(_, status)| *status == Status::Flushed),
                "{context}: {:?}",
                end.sent
            );
            if let Some((_, status)) = end.sent.get(done) {
                let expected = [Status::Flushed, Status::RetryExceeded, Status::RnrRetryExceeded];
                assert!(expected.contains(status), "{context}: {status:?}");
                assert!(*status != Status::RnrRetryExceeded || !self.retries_forever, "{context}");
            }
            let received = end.received.iter().take_while(|(_, status, ..)| *status == Status::Success);
            let received: Vec<_> =
                received.map(|(id, _, length, immediate)| (*id, *length, *immediate)).collect();
            let expected = (0..).zip(&self.models[index].received);
            let expected = expected.map(|(id, (length, immediate))| (id, *length, *immediate));
            assert_eq!(received, expected.take(received.len()).collect::<Vec<_>>(), "{context}");
            let consumed = peer.consumes.iter().zip(&peer.sent);
            let consumed =
                consumed.filter(|(consumes, (_, status))| **consumes && *status == Status::Success);
            assert!(has_overrun || consumed.count() <= received.len(), "{context}: a receive is missing");
        }
    }

    /// The peer is lost for good: complete requests have succeeded, all others fail in order.
    fn lose_peer(&mut self) {
        let end = &mut self.ends[0];
        // All flushed requests fit.
        end.capacity = usize::MAX;
        end.take_completions();
        let done = end.sent.len();
        (0..self.wires.len()).for_each(|lane| end.pair.handle_lane_closed(lane));
        end.pair.handle_lanes_lost();
        end.take_completions();
        let expected = (0..end.posted).map(|id| match (id as usize).cmp(&done) {
            std::cmp::Ordering::Less => (id, Status::Success),
            std::cmp::Ordering::Equal => (id, Status::RetryExceeded),
            std::cmp::Ordering::Greater => (id, Status::Flushed),
        });
        assert_eq!(end.sent, expected.collect::<Vec<_>>(), "seed {}", self.seed);
    }
}

fn run(seed: u64, statistics: &Statistics) {
    let mut simulation = Simulation::new(seed);
    for _ in 0..simulation.rng.u32(100..1500) {
        simulation.step();
    }
    let has_failed = |simulation: &Simulation| simulation.ends.iter().any(End::has_failed);
    let is_lost = simulation.rng.u8(0..16) == 0;
    if is_lost && !has_failed(&simulation) {
        simulation.lose_peer();
    } else {
        simulation.drain();
        if has_failed(&simulation) {
            let has_overrun = simulation.ends.iter().any(|end| end.has_overrun);
            assert!(has_overrun || !simulation.retries_forever, "seed {seed} has failed");
            simulation.check_failed();
        } else {
            simulation.check();
        }
    }
    let Simulation { cuts, changes, ends, .. } = &simulation;
    let has_failed_for_receive =
        |end: &End| end.sent.iter().any(|(_, status)| *status == Status::RnrRetryExceeded);
    Statistics::count(&statistics.cuts, *cuts > 0);
    Statistics::count(&statistics.changes, *changes > 0);
    Statistics::count(&statistics.overruns, ends.iter().any(|end| end.has_overrun));
    Statistics::count(&statistics.lost_peers, is_lost);
    Statistics::count(&statistics.missing_receives, ends.iter().any(has_failed_for_receive));
}

/// `ISOLANE_TEST_SEEDS` has the number of seeds, and `ISOLANE_TEST_SEED` a single one.
#[test]
fn every_byte_and_completion_survives_cut_lanes() {
    let variable = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let (statistics, next) = (Statistics::default(), AtomicU64::new(0));
    if let Some(seed) = variable("ISOLANE_TEST_SEED") {
        return run(seed, &statistics);
    }
    let seeds = variable("ISOLANE_TEST_SEEDS").unwrap_or(2000);
    let work = || {
        while let Some(seed) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|seed| *seed < seeds) {
            run(seed, &statistics);
        }
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no seed fails"));
    });
    let Statistics { cuts, changes, overruns, lost_peers, missing_receives } = statistics;
    let counts = [cuts, changes, overruns, lost_peers, missing_receives].map(AtomicU64::into_inner);
    println!("runs with cuts, changed bits, overruns, lost peers, missing receives: {counts:?} of {seeds}");
    // Each kind of event occurs.
    assert!(seeds < 1000 || counts.iter().all(|count| *count > seeds / 1000), "{counts:?}");
}

//! Stages of the requests of an observed device.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use isolane_memory::MemoryRegion;
use isolane_observe::observable::Observable;
use isolane_observe::snapshot::{Series, Snapshot};
use isolane_observe::stage::{Operation, Side, SizeClass, Stage};
use isolane_verbs::{
    Access, Device, DeviceConfig, LocalData, ProtectionDomain, QueuePair, QueuePairConfig, ReceiveRequest,
    Registration, SendOperation, SendRequest, Sge, Status,
};

/// Longer than any step takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
const BYTES: u32 = 64;

struct End {
    pair: QueuePair,
    config: QueuePairConfig,
    memory: Arc<Registration>,
    device: Device,
}

/// Connects an end of an observed device with one of another device.
fn connect(is_observed: bool, lanes: u8, shares_receives: bool) -> [End; 2] {
    let open = |observed| Device::open(DeviceConfig { observed, lanes, ..DeviceConfig::default() }).unwrap();
    let (near, far) = (open(is_observed), open(false));
    let config = |device: &Device| {
        let domain = Arc::new(ProtectionDomain::default());
        let memory = domain.register(MemoryRegion::allocate(1 << 20).unwrap(), 0, Access::ALL).unwrap();
        (QueuePairConfig::new(domain, device.completion_queue(256)), memory)
    };
    let ((near_config, near_memory), (mut far_config, far_memory)) = (config(&near), config(&far));
    if shares_receives {
        let shared = far.shared_receive_queue(Arc::clone(&far_config.domain), 64, 1);
        far_config.shared_receive_queue = Some(shared);
    }
    let listener = far.listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (near_pair, far_pair) = thread::scope(|scope| {
        let accepted = scope.spawn(|| listener.accept(&far_config).unwrap());
        (near.connect(address, &near_config).unwrap(), accepted.join().unwrap())
    });
    drop(listener);
    let end = |pair, config, memory, device| End { pair, config, memory, device };
    [end(near_pair, near_config, near_memory, near), end(far_pair, far_config, far_memory, far)]
}

impl End {
    fn post(&self, operation: SendOperation, length: u32, signaled: bool) {
        let data = LocalData::Sges([self.sge(length)].into_iter().collect());
        let request = SendRequest { id: 1, operation, data, signaled, solicited: false, fenced: false };
        self.pair.post_send(request).unwrap();
    }

    fn sge(&self, length: u32) -> Sge {
        Sge { address: 0, length, lkey: self.memory.key() }
    }

    fn receive(&self) {
        let request = ReceiveRequest { id: 2, data: [self.sge(BYTES)].into_iter().collect() };
        match &self.config.shared_receive_queue {
            Some(shared) => shared.post(request).unwrap(),
            None => self.pair.post_receive(request).unwrap(),
        }
    }

    fn done(&self) -> Status {
        self.config.send_queue.wait(TIMEOUT).expect("a completion").completion.status
    }

    fn snapshot(&self) -> Snapshot {
        self.pair.source().snapshot().expect("an observed queue pair")
    }

    /// Returns the numbers of the short requests of a kind.
    fn series(&self, operation: Operation) -> Option<Series> {
        let mut series = self.snapshot().numbers.series.into_iter();
        series.find(|series| series.operation == operation && series.size == SizeClass::Small)
    }
}

const SEND: SendOperation = SendOperation::Send { immediate: None };

#[test]
fn stages_of_each_request_add_up_to_its_total() {
    let [near, far] = connect(true, 1, false);
    let key = far.memory.key();
    let write = SendOperation::Write { address: 0, rkey: key, immediate: None };
    let started = Instant::now();
    for _ in 0..50 {
        far.receive();
        near.post(SEND, BYTES, true);
        near.post(write, BYTES, false);
        near.post(SendOperation::Read { address: 0, rkey: key }, BYTES, true);
        near.post(SendOperation::FetchAdd { address: 0, rkey: key, add: 1 }, 8, true);
        near.post(write, 1 << 20, true);
        (0..4).for_each(|_| assert_eq!(near.done(), Status::Success));
        assert!(far.config.receive_queue.wait(TIMEOUT).is_some());
    }
    let elapsed_ns = started.elapsed().as_nanos() as u64;
    let snapshot = near.snapshot();
    let kinds = [Operation::Read, Operation::Write, Operation::Send, Operation::Atomic];
    let small = kinds.map(|kind| near.series(kind).unwrap_or_else(|| panic!("no {}", kind.name())));
    for series in &snapshot.numbers.series {
        let sums: u64 = Side::Verbs.stages().iter().map(|stage| series.stage_sum_ns(*stage)).sum();
        assert_eq!((series.side, series.total.count(), series.total.sum_ns()), (Side::Verbs, 50, sums));
        // A request can be answered while the kernel has not accepted bytes that were queued with it.
        let travels = series.stage_sum_ns(Stage::Send) + series.stage_sum_ns(Stage::Ack);
        assert!(series.max_ns <= elapsed_ns && travels > 0, "{series:?}");
        assert_eq!(series.errors, 0);
    }
    assert_eq!(snapshot.numbers.series.len(), small.len() + 1, "long WRITEs are a class of their own");
    assert_eq!(small.map(|series| series.bytes), [BYTES, BYTES, BYTES, 8].map(|bytes| u64::from(bytes) * 50));
    let unsignaled = near.series(Operation::Write).unwrap();
    assert_eq!(unsignaled.stage_sum_ns(Stage::Poll), 0, "no completion");
    let [lane] = &snapshot.numbers.connections[..] else { panic!("{:?}", snapshot.numbers.connections) };
    assert_eq!((&*lane.host, lane.queue, lane.queue_pair), ("127.0.0.1", 0, Some(0)));
    assert!(lane.sent_bytes > 50 << 20, "{lane:?}");
    let [volume] = &snapshot.volumes[..] else { panic!("{:?}", snapshot.volumes) };
    assert_eq!(volume.name, format!("queue pair {} to 127.0.0.1", near.pair.number()));
    assert_eq!(volume.oldest_ms, None, "nothing is outstanding");
}

#[test]
fn wait_for_a_receive_is_a_stage() {
    for shares_receives in [false, true] {
        let [near, far] = connect(true, 1, shares_receives);
        // A busy machine can notice late that the peer has no receive.
        let waits = (0..8).map(|doublings| Duration::from_millis(50 << doublings));
        let mut before = [0, 0];
        let is_seen = waits.into_iter().any(|wait| {
            near.post(SEND, BYTES, true);
            let posted = Instant::now();
            while posted.elapsed() < wait {
                thread::sleep(Duration::from_millis(1));
            }
            far.receive();
            assert_eq!(near.done(), Status::Success);
            assert!(far.config.receive_queue.wait(TIMEOUT).is_some());
            let series = near.series(Operation::Send).unwrap();
            let sums = [series.stage_sum_ns(Stage::ReceiverNotReady), series.total.sum_ns()];
            let [not_ready, total] = [sums[0] - before[0], sums[1] - before[1]];
            before = sums;
            assert!(u128::from(total) >= wait.as_nanos(), "{total} ns");
            not_ready * 10 >= total * 6
        });
        assert!(is_seen, "shared receives: {shares_receives}, {before:?}");
    }
}

#[test]
fn fetching_late_is_a_stage() {
    let [near, far] = connect(true, 1, false);
    far.receive();
    near.post(SEND, BYTES, true);
    // The library's thread takes the acknowledgment.
    near.config.send_queue.request_notice(false);
    while near.config.send_queue.is_empty() {
        thread::yield_now();
    }
    let arrived = Instant::now();
    while arrived.elapsed() < Duration::from_millis(20) {
        thread::yield_now();
    }
    assert_eq!(near.done(), Status::Success);
    let poll = near.series(Operation::Send).unwrap().stage_sum_ns(Stage::Poll);
    assert!(poll >= 20_000_000, "{poll} ns");
}

#[test]
fn failed_requests_are_errors() {
    let [near, far] = connect(true, 1, false);
    let write = |key| SendOperation::Write { address: 0, rkey: key, immediate: None };
    near.post(write(far.memory.key()), BYTES, true);
    assert_eq!(near.done(), Status::Success);
    near.post(write(far.memory.key().wrapping_add(1)), BYTES, true);
    assert_eq!(near.done(), Status::RemoteAccess);
    let series = near.series(Operation::Write).unwrap();
    assert_eq!((series.total.count(), series.errors), (1, 1));
}

#[test]
fn idle_lanes_are_probed() {
    let [near, far] = connect(true, 4, false);
    far.receive();
    near.post(SEND, BYTES, true);
    assert_eq!(near.done(), Status::Success);
    let started = Instant::now();
    loop {
        let connections = near.snapshot().numbers.connections;
        let probes = |count| move |times: &isolane_observe::histogram::Histogram| times.count() >= count;
        let probed =
            connections.iter().filter_map(|lane| lane.peer_times.as_ref()).filter(|at| probes(3)(at));
        if probed.count() == 4 {
            break;
        }
        assert!(started.elapsed() < TIMEOUT, "{connections:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn numbers_end_with_the_queue_pair() {
    let [near, far] = connect(true, 1, false);
    let source = near.pair.source();
    assert!(source.snapshot().is_some() && source.process() == std::process::id());
    assert!(far.pair.source().snapshot().is_none(), "its device is not observed");
    drop((near.pair, near.device));
    assert!(source.snapshot().is_none());
}

//! Two devices of one process, over TCP on loopback and over memory.

use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use isolane_memory::testing::guarded_region;

use super::*;
use crate::memory::{Access, Registration};
use crate::types::{
    Limits, LocalData, QueuePairState, ReceiveRequest, SendOperation, SendRequest, Sge, Status,
};

mod by_number;
mod datagrams;
mod keys;
mod program;
mod simulation;

const ALL: Access = Access::ALL;
const SEND: SendOperation = SendOperation::Send { immediate: None };
/// Longer than any step takes on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// One end: a device with a queue pair and 1 MiB of memory, which its requests address from 0.
struct End {
    // Before the device, whose lanes it uses.
    pair: QueuePair,
    completions: Arc<CompletionQueue>,
    memory: Arc<Registration>,
    _device: Arc<Device>,
}

struct Parts {
    device: Arc<Device>,
    memory: Arc<Registration>,
    config: QueuePairConfig,
}

fn parts(config: DeviceConfig, limits: Limits) -> Parts {
    let device = Arc::new(Device::open(config).unwrap());
    let domain = Arc::new(ProtectionDomain::default());
    let memory = domain.register(guarded_region(MEMORY_BYTES).unwrap(), 0, ALL).unwrap();
    let queue = device.completion_queue(COMPLETIONS);
    let config = QueuePairConfig { limits, ..QueuePairConfig::new(domain, queue) };
    Parts { device, memory, config }
}

impl Parts {
    fn end(self, pair: QueuePair) -> End {
        End { pair, completions: self.config.send_queue, memory: self.memory, _device: self.device }
    }
}

/// Connects two ends over TCP.
fn connected(near: DeviceConfig, far: DeviceConfig, limits: Limits) -> (End, End) {
    connect_parts(parts(near, limits), parts(far, limits))
}

fn connect_parts(near: Parts, far: Parts) -> (End, End) {
    let listener = far.device.listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (connected, accepted) = std::thread::scope(|scope| {
        let accepted = scope.spawn(|| listener.accept(&far.config).unwrap());
        (near.device.connect(address, &near.config).unwrap(), accepted.join().unwrap())
    });
    drop(listener);
    (near.end(connected), far.end(accepted))
}

fn tcp_pair() -> (End, End) {
    connected(DeviceConfig::default(), DeviceConfig::default(), Limits::default())
}

impl End {
    fn sge(&self, address: u64, length: u32) -> Sge {
        Sge { address, length, lkey: self.memory.key() }
    }

    fn send(&self, id: u64, operation: SendOperation, address: u64, length: u32) {
        let data = LocalData::Sges([self.sge(address, length)].into_iter().collect());
        let request = SendRequest { id, operation, data, signaled: true, solicited: false, fenced: false };
        self.pair.post_send(request).unwrap();
    }

    fn receive(&self, id: u64, address: u64, length: u32) {
        let data = [self.sge(address, length)].into_iter().collect();
        self.pair.post_receive(ReceiveRequest { id, data }).unwrap();
    }

    fn next(&self) -> (u64, Status) {
        let done = self.completions.wait(TEST_TIMEOUT).expect("a completion").completion;
        (done.id, done.status)
    }

    /// Waits for bytes in memory without a call of the library.
    fn wait_for_bytes(&self, at: usize, bytes: &[u8]) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        while self.memory.region().to_vec(at, bytes.len()) != bytes {
            assert!(Instant::now() < deadline, "the bytes did not arrive");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Executes one request of each kind and checks the memory of both ends.
fn run_each_operation(near: &End, far: &End) {
    let key = far.memory.key();
    let data: Vec<u8> = (0..300_000_u32).map(|at| (at % 251) as u8).collect();
    near.memory.region().copy_in(0, &data);
    far.memory.region().copy_in(1_000_000, &[0; 8]);
    far.receive(1, 0, 300_000);
    near.send(2, SEND, 0, 300_000);
    near.send(3, SendOperation::Write { address: 400_000, rkey: key, immediate: None }, 0, 300_000);
    near.send(4, SendOperation::FetchAdd { address: 1_000_000, rkey: key, add: 7 }, 900_000, 8);
    near.send(5, SendOperation::Read { address: 400_000, rkey: key }, 400_000, 300_000);
    // The far end polls too: its memory answers either way.
    assert_eq!(far.next(), (1, Status::Success));
    for id in 2..=5 {
        assert_eq!(near.next(), (id, Status::Success));
    }
    assert!(far.memory.region().to_vec(0, 300_000) == data);
    assert!(far.memory.region().to_vec(400_000, 300_000) == data);
    assert!(near.memory.region().to_vec(400_000, 300_000) == data);
    assert_eq!(far.memory.region().to_vec(1_000_000, 8), 7_u64.to_le_bytes());
}

#[test]
fn executes_each_operation_over_tcp() {
    let (near, far) = tcp_pair();
    run_each_operation(&near, &far);
}

#[test]
fn executes_each_operation_with_dedicated_threads() {
    let core = isolane_reactor::cpu::allowed().unwrap()[0];
    let config = || DeviceConfig { progress: ProgressMode::Dedicated { core }, ..DeviceConfig::default() };
    let (near, far) = connected(config(), config(), Limits::default());
    run_each_operation(&near, &far);
}

#[test]
fn executes_each_operation_over_memory() {
    let (near, far) = (
        parts(DeviceConfig::default(), Limits::default()),
        parts(DeviceConfig::default(), Limits::default()),
    );
    let (near_lane, far_lane) = MemoryLane::pair().unwrap();
    let parameters = ConnectionParameters {
        first_message: 1,
        peer_first_message: 1,
        peer_segment_bytes: 1 << 20,
        peer_responder_resources: 16,
        peer_shares_receives: false,
        lanes: 1,
        checksums: false,
    };
    let near_pair = near.device.queue_pair(Box::new(near_lane), 1, &parameters, &near.config).unwrap();
    let far_pair = far.device.queue_pair(Box::new(far_lane), 2, &parameters, &far.config).unwrap();
    let (near, far) = (near.end(near_pair), far.end(far_pair));
    run_each_operation(&near, &far);
}

#[test]
fn memory_is_served_without_polling() {
    let (near, far) = tcp_pair();
    let key = far.memory.key();
    near.memory.region().copy_in(0, b"data");
    for round in 0..3 {
        near.send(round, SendOperation::Write { address: 8 * round, rkey: key, immediate: None }, 0, 4);
        // Neither end polls: the threads of the library send, place, and answer.
        far.wait_for_bytes(8 * round as usize, b"data");
        assert_eq!(near.next(), (round, Status::Success));
    }
}

#[test]
fn completes_requests_while_polls_sleep() {
    let (near, far) = tcp_pair();
    let (key, count) = (far.memory.key(), 200);
    let found = AtomicU64::new(0);
    let deadline = Instant::now() + TEST_TIMEOUT;
    std::thread::scope(|scope| {
        // One of them waits for the lane, and the other one for a completion.
        for _ in 0..2 {
            scope.spawn(|| {
                contention::sleep_in_polls(u32::MAX);
                while found.load(Ordering::Relaxed) < count && Instant::now() < deadline {
                    found.fetch_add(near.completions.poll().iter().len() as u64, Ordering::Relaxed);
                }
            });
        }
        for id in 0..count {
            near.send(id, SendOperation::Write { address: id, rkey: key, immediate: None }, id, 1);
            while id > found.load(Ordering::Relaxed) + 10 && Instant::now() < deadline {
                std::thread::yield_now();
            }
        }
    });
    assert_eq!(found.into_inner(), count);
}

#[test]
fn request_is_sent_while_the_program_polls_nothing() {
    let (near, far) = tcp_pair();
    let key = far.memory.key();
    near.memory.region().copy_in(0, b"abcd");
    // Posted right after a poll, behind others, and never polled for.
    assert!(near.completions.poll().is_none());
    for id in 0..4 {
        near.send(id, SendOperation::Write { address: id, rkey: key, immediate: None }, id, 1);
    }
    far.wait_for_bytes(0, b"abcd");
}

#[test]
fn task_awaits_completions() {
    let (near, far) = tcp_pair();
    far.receive(1, 0, 100);
    near.send(2, SEND, 0, 100);
    let received = pollster::block_on(far.completions.next());
    assert_eq!((received.completion.id, received.completion.length), (1, 100));
    assert_eq!(received.queue_pair, far.pair.number());
    assert_eq!(pollster::block_on(near.completions.next()).completion.id, 2);
}

#[test]
fn lost_peer_fails_requests() {
    let (near, far) = tcp_pair();
    near.receive(1, 0, 10);
    near.send(2, SEND, 0, 10);
    drop(far);
    let (first, second) = (near.next(), near.next());
    assert_eq!([first, second], [(2, Status::RetryExceeded), (1, Status::Flushed)]);
    assert_eq!(near.pair.state(), QueuePairState::Error);
}

#[test]
fn failed_queue_pair_fails_its_peer() {
    let (near, far) = tcp_pair();
    near.send(1, SEND, 0, 10);
    far.pair.fail();
    assert_eq!(near.next(), (1, Status::RetryExceeded));
    far.receive(2, 0, 10);
    assert_eq!(far.next(), (2, Status::Flushed));
}

#[test]
fn completions_arrive_after_the_device_is_gone() {
    let (near, far) = tcp_pair();
    let End { pair, completions, memory, _device } = near;
    drop(_device);
    drop(far);
    let data = [Sge { address: 0, length: 8, lkey: memory.key() }].into_iter().collect();
    pair.post_receive(ReceiveRequest { id: 3, data }).unwrap();
    assert_eq!(completions.wait(TEST_TIMEOUT).unwrap().completion.status, Status::Flushed);
}

#[test]
fn full_completion_queue_fails_its_queue_pair() {
    let (near, far) = tcp_pair();
    let count = COMPLETIONS as u64 + 1;
    // The program takes no completions of the far end.
    for id in 0..count {
        far.receive(id, 0, 8);
        near.send(id, SEND, 0, 8);
        assert_eq!(near.next(), (id, Status::Success));
    }
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !far.completions.has_overrun() || far.pair.state() != QueuePairState::Error {
        assert!(Instant::now() < deadline, "the queue has not overrun");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn silent_and_wrong_peers_hold_up_nobody() {
    use std::io::{Read, Write};
    let (near, far) = (
        parts(DeviceConfig::default(), Limits::default()),
        parts(DeviceConfig::default(), Limits::default()),
    );
    let listener = far.device.listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let _silent: Vec<TcpStream> = (0..5).map(|_| TcpStream::connect(address).unwrap()).collect();
    // A valid hello, and a reset right after it.
    let mut gone = TcpStream::connect(address).unwrap();
    gone.write_all(&first_hello()).unwrap();
    rustix::net::sockopt::set_socket_linger(&gone, Some(Duration::ZERO)).unwrap();
    drop(gone);
    let mut wrong = TcpStream::connect(address).unwrap();
    wrong.write_all(&[0x47; 200]).unwrap();
    std::thread::scope(|scope| {
        let accepted = scope.spawn(|| listener.accept(&far.config).unwrap());
        let connected = near.device.connect(address, &near.config).unwrap();
        assert_eq!(
            (connected.state(), accepted.join().unwrap().state()),
            (QueuePairState::ReadyToSend, QueuePairState::ReadyToSend)
        );
    });
    // The wrong peer is closed, at the latest when the next one is accepted.
    std::thread::scope(|scope| {
        let accepted = scope.spawn(|| listener.accept(&far.config).unwrap());
        drop(near.device.connect(address, &near.config).unwrap());
        drop(accepted.join().unwrap());
    });
    wrong.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    assert!(matches!(wrong.read(&mut [0; 1]), Ok(0) | Err(_)));
}

/// Returns a valid hello that names no queue pair.
fn first_hello() -> [u8; 128] {
    let mut hello = [0; 128];
    hello[..16].copy_from_slice(&[b'I', b'S', b'L', b'V', 2, 0, 1, 0, 0, 0, 0, 0, 1, 16, 0, 0]);
    hello[16] = 1;
    hello[20..24].copy_from_slice(&65_536_u32.to_le_bytes());
    hello
}

#[test]
fn accepts_peers_that_have_connected_before() {
    use std::io::Write;
    let far = parts(DeviceConfig::default(), Limits::default());
    let listener = far.device.listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // More than the listener takes from the kernel before they are accepted.
    let connect = || {
        let mut peer = TcpStream::connect(address).unwrap();
        peer.write_all(&first_hello()).unwrap();
        peer
    };
    let peers: Vec<TcpStream> = (0..100).map(|_| connect()).collect();
    let accepted: Vec<QueuePair> = peers.iter().map(|_| listener.accept(&far.config).unwrap()).collect();
    assert!(accepted.iter().all(|pair| pair.state() == QueuePairState::ReadyToSend));
}

#[test]
fn connect_reports_refusals() {
    use std::io::{ErrorKind, Read, Write};
    let near = parts(DeviceConfig::default(), Limits::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 128]).unwrap();
            stream.write_all(&[0x47; 128]).unwrap();
        });
        near.device.connect(address, &near.config).err().unwrap()
    });
    assert!(matches!(error, ConnectError::Hello(_)), "{error}");
    drop(listener);
    let error = near.device.connect(address, &near.config).err().unwrap();
    let is_refused =
        matches!(&error, ConnectError::Io(error) if error.kind() == ErrorKind::ConnectionRefused);
    assert!(is_refused, "{error}");
}

#[test]
fn lane_of_another_peer_does_not_join() {
    use std::io::{Read, Write};

    use crate::wire::Hello;
    let config = || DeviceConfig { lanes: 2, ..DeviceConfig::default() };
    let (near, far) = connected(config(), config(), Limits::default());
    run_each_operation(&near, &far);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, (far.pair.number() >> 8) as u16));
    let hello = Hello {
        lane: 1,
        lanes: 2,
        epoch: u32::MAX,
        source_gid: gid(Ipv4Addr::LOCALHOST.into()),
        destination_gid: gid(Ipv4Addr::LOCALHOST.into()),
        source_qpn: near.pair.number(),
        destination_qpn: far.pair.number(),
        nonce: [7; 16],
        ..Hello::example()
    };
    // Everything is right but the nonce, which only the peer knows; or the number of a queue pair.
    let wrong =
        [hello.clone(), Hello { source_qpn: 1, ..hello.clone() }, Hello { lane: 7, lanes: 8, ..hello }];
    for hello in wrong {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&hello.encode()).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        assert!(matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_)), "the lane was accepted");
    }
    run_each_operation(&near, &far);
}

#[test]
fn many_queue_pairs_share_a_device() {
    let (near, far) = (
        parts(DeviceConfig::default(), Limits::default()),
        parts(DeviceConfig::default(), Limits::default()),
    );
    let listener = far.device.listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let count = 40;
    let (senders, receivers): (Vec<QueuePair>, Vec<QueuePair>) = std::thread::scope(|scope| {
        let accepted = scope.spawn(|| (0..count).map(|_| listener.accept(&far.config).unwrap()).collect());
        let connected = (0..count).map(|_| near.device.connect(address, &near.config).unwrap()).collect();
        (connected, accepted.join().unwrap())
    });
    let sge_list = |memory: &Registration| {
        [Sge { address: 0, length: 8, lkey: memory.key() }].into_iter().collect::<crate::types::SgeList>()
    };
    let numbers = |pairs: &[QueuePair]| -> Vec<u32> { pairs.iter().map(QueuePair::number).collect() };
    for round in 0..50 {
        for pair in &receivers {
            pair.post_receive(ReceiveRequest { id: round, data: sge_list(&far.memory) }).unwrap();
        }
        for pair in &senders {
            let data = LocalData::Sges(sge_list(&near.memory));
            let (signaled, solicited, fenced) = (true, false, false);
            pair.post_send(SendRequest { id: round, operation: SEND, data, signaled, solicited, fenced })
                .unwrap();
        }
        // Polled without a pause, so that the threads of the library and this one compete for the lanes.
        for (queue, expected) in
            [(&far.config.send_queue, numbers(&receivers)), (&near.config.send_queue, numbers(&senders))]
        {
            let (mut found, deadline) = (Vec::new(), Instant::now() + TEST_TIMEOUT);
            while found.len() < count {
                assert!(
                    Instant::now() < deadline,
                    "round {round}: {} completions are missing",
                    count - found.len()
                );
                let other = if Arc::ptr_eq(queue, &far.config.send_queue) { &near } else { &far };
                other.device.progress.drive();
                found.extend(queue.poll().map(|done| {
                    assert_eq!((done.completion.id, done.completion.status), (round, Status::Success));
                    done.queue_pair
                }));
            }
            found.sort_unstable();
            assert_eq!(found, expected);
        }
    }
}

/// A listener that shares its device waits for peers until a deadline.
#[test]
fn accept_ends_at_its_deadline() {
    let (near, far) = (
        parts(DeviceConfig::default(), Limits::default()),
        parts(DeviceConfig::default(), Limits::default()),
    );
    let listener = Listener::new(Arc::clone(&far.device), "127.0.0.1:0").unwrap();
    let start = Instant::now();
    let deadline = start + Duration::from_millis(20);
    assert!(listener.accept_before(Some(deadline), &far.config).unwrap().is_none());
    assert!(start.elapsed() >= Duration::from_millis(20));
    let address = listener.local_addr().unwrap();
    let (connected, accepted) = std::thread::scope(|scope| {
        let accepted =
            scope.spawn(|| listener.accept_before(Some(start + TEST_TIMEOUT), &far.config).unwrap());
        (near.device.connect(address, &near.config).unwrap(), accepted.join().unwrap())
    });
    let (near, far) =
        (near.end(connected), far.end(accepted.expect("the peer connects before the deadline")));
    far.receive(1, 0, 8);
    near.send(2, SEND, 0, 8);
    assert_eq!((far.next(), near.next()), ((1, Status::Success), (2, Status::Success)));
}

const MEMORY_BYTES: usize = 1 << 20;
const COMPLETIONS: usize = 256;

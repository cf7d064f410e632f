//! Requests of mixed size and kind over four TCP lanes through a proxy that delays, cuts, and stalls them,
//! or changes their bits. Every byte is
//! right, and every completion arrives in order and once.
//!
//! `ISOLANE_REQUESTS=10000000 cargo test --release -p isolane-verbs --test proxy` sends more.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use isolane_memory::MemoryRegion;
use isolane_verbs::{
    Access, CompletionQueue, Device, DeviceConfig, Limits, LocalData, ProtectionDomain, QueuePair,
    QueuePairConfig, ReceiveRequest, Registration, SendOperation, SendRequest, Sge, State, Status,
};

/// Address of the proxy, which has the ports of the far end.
const PROXY: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3));
/// Longer than any step takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
const LANES: u8 = 4;
/// Requests in flight, each with its own memory at both ends.
const DEPTH: u64 = 32;
/// Length of the hello of each end.
const HELLO_BYTES: u64 = 128;
const MAX_BYTES: u32 = 300_000;
const SLOT_BYTES: u64 = 320 * 1024;

/// Faults of the proxy's connections.
#[derive(Default)]
struct Faults {
    /// Bytes after which a connection is cut or stalled, on average; 0 for never.
    interval: AtomicU64,
    /// A bit is changed instead of a cut or a stall.
    flips: AtomicBool,
    cuts: AtomicU64,
    changes: AtomicU64,
    stalls: AtomicU64,
    has_ended: AtomicBool,
}

/// Forwards connections from a port of the proxy to the same port of `target`.
fn start_proxy(target: SocketAddr, faults: &Arc<Faults>) {
    let listener = TcpListener::bind((PROXY, target.port())).unwrap();
    let faults = Arc::clone(faults);
    thread::spawn(move || {
        for (number, near) in listener.incoming().map_while(Result::ok).enumerate() {
            let Ok(far) = TcpStream::connect(target) else { continue };
            for stream in [&near, &far] {
                stream.set_nodelay(true).unwrap();
            }
            let directions = [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)];
            for (from, to) in directions {
                let (faults, rng) = (Arc::clone(&faults), Rng::with_seed(number as u64));
                thread::spawn(move || forward(from, to, &faults, rng));
            }
        }
    });
}

/// Forwards one direction until a fault or its end.
fn forward(mut from: TcpStream, mut to: TcpStream, faults: &Faults, mut rng: Rng) {
    let mut buffer = vec![0; 64 * 1024];
    let interval = faults.interval.load(Ordering::Relaxed);
    let mut left = if interval > 0 { rng.u64(0..2 * interval) } else { u64::MAX };
    // A hello has no checksum.
    let flips = faults.flips.load(Ordering::Relaxed);
    left = if flips { left.max(HELLO_BYTES) } else { left };
    while let Ok(count) = from.read(&mut buffer) {
        if flips && count as u64 > left {
            buffer[left as usize] ^= 1 << rng.u8(0..8);
            faults.changes.fetch_add(1, Ordering::Relaxed);
            left = u64::MAX;
        }
        let passed = (count as u64).min(left) as usize;
        if count == 0 || to.write_all(&buffer[..passed]).is_err() {
            break;
        }
        left -= passed as u64;
        if left == 0 && rng.u8(0..4) == 0 && !faults.has_ended.load(Ordering::Relaxed) {
            // It stays open without data until the ends close it.
            faults.stalls.fetch_add(1, Ordering::Relaxed);
            while from.read(&mut buffer).is_ok_and(|count| count > 0) {}
            break;
        }
        if left == 0 {
            faults.cuts.fetch_add(1, Ordering::Relaxed);
            break;
        }
        if rng.u8(0..64) == 0 {
            thread::sleep(Duration::from_micros(rng.u64(0..500)));
        }
    }
    for stream in [&from, &to] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// One end: memory with a slot for each request in flight.
struct End {
    pair: QueuePair,
    completions: Arc<CompletionQueue>,
    memory: Arc<Registration>,
    _device: Device,
}

fn config(device: &Device) -> (QueuePairConfig, Arc<Registration>) {
    let domain = Arc::new(ProtectionDomain::default());
    let region = MemoryRegion::allocate((SLOT_BYTES * DEPTH) as usize).unwrap();
    let memory = domain.register(region, 0, Access::ALL).unwrap();
    let limits = Limits { send_requests: DEPTH as usize, receives: DEPTH as usize, ..Limits::default() };
    let queue = device.completion_queue(4 * DEPTH as usize);
    (QueuePairConfig { limits, ..QueuePairConfig::new(domain, queue) }, memory)
}

fn device(checksums: bool) -> Device {
    Device::open(DeviceConfig { lanes: LANES, checksums, ..DeviceConfig::default() }).unwrap()
}

/// Connects two ends through a proxy.
fn connect(faults: &Arc<Faults>) -> [End; 2] {
    // One end requests checksums.
    let (near_device, far_device) = (device(faults.flips.load(Ordering::Relaxed)), device(false));
    let ((near_config, near_memory), (far_config, far_memory)) = (config(&near_device), config(&far_device));
    let listener = far_device.listen("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap();
    start_proxy(target, faults);
    let address = SocketAddr::new(PROXY, target.port());
    let (near, far) = thread::scope(|scope| {
        let accepted = scope.spawn(|| listener.accept(&far_config).unwrap());
        (near_device.connect(address, &near_config).unwrap(), accepted.join().unwrap())
    });
    drop(listener);
    // Further lanes connect to the port of the far queue pair.
    let port = (far.number() >> 8) as u16;
    start_proxy(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port), faults);
    let end = |pair, config: QueuePairConfig, memory, device| {
        let completions = config.send_queue;
        End { pair, completions, memory, _device: device }
    };
    [end(near, near_config, near_memory, near_device), end(far, far_config, far_memory, far_device)]
}

impl End {
    fn sge(&self, slot: u64, length: u32) -> Sge {
        Sge { address: SLOT_BYTES * slot, length, lkey: self.memory.key() }
    }

    fn send(&self, id: u64, operation: SendOperation, length: u32) {
        let data = LocalData::Sges([self.sge(id % DEPTH, length)].into_iter().collect());
        let request = SendRequest { id, operation, data, signaled: true, solicited: false, fenced: false };
        self.pair.post_send(request).unwrap();
    }

    fn receive(&self, id: u64) {
        let data = [self.sge(id % DEPTH, MAX_BYTES)].into_iter().collect();
        self.pair.post_receive(ReceiveRequest { id, data }).unwrap();
    }

    fn next(&self, id: u64) -> u64 {
        let done = self.completions.wait(TIMEOUT).expect("a completion").completion;
        assert_eq!((done.id, done.status), (id, Status::Success));
        done.length
    }

    fn fill(&self, id: u64, bytes: &[u8]) {
        self.memory.region().copy_in((SLOT_BYTES * (id % DEPTH)) as usize, bytes);
    }

    fn bytes(&self, id: u64, length: u32) -> Vec<u8> {
        self.memory.region().to_vec((SLOT_BYTES * (id % DEPTH)) as usize, length as usize)
    }
}

/// A request and its bytes.
struct Sent {
    kind: u8,
    bytes: Vec<u8>,
}

fn requests() -> u64 {
    std::env::var("ISOLANE_REQUESTS").map_or(3000, |count| count.parse().expect("a number"))
}

#[test]
fn requests_survive_a_proxy_with_faults() {
    let faults = Faults::default();
    let [cuts, changes] = run(faults, requests());
    assert!(cuts > 0 && changes == 0, "the proxy cut nothing");
}

#[test]
fn requests_survive_a_proxy_that_changes_bits() {
    let faults = Faults { flips: AtomicBool::new(true), ..Faults::default() };
    let [cuts, changes] = run(faults, requests());
    assert!(cuts == 0 && changes > 0, "the proxy changed nothing");
}

/// Sends requests through a proxy with faults. Returns the numbers of cut connections and of changed bits.
fn run(faults: Faults, count: u64) -> [u64; 2] {
    let faults = Arc::new(faults);
    let is_long = count > 100_000;
    let interval = if faults.flips.load(Ordering::Relaxed) { 64 << 10 } else { 256 << 10 };
    let interval = if is_long { 16 << 20 } else { interval };
    faults.interval.store(interval, Ordering::Relaxed);
    let [near, far] = connect(&faults);
    let (key, mut rng) = (far.memory.key(), Rng::with_seed(1));
    let (mut posted, mut done, mut received) = (0, 0, 0);
    let mut sent: Vec<Sent> = Vec::new();
    while done < count {
        while posted < count && posted < done + DEPTH {
            let length = match rng.u16(0..500) {
                0 => rng.u32(1..=MAX_BYTES),
                1..20 => rng.u32(1..=20_000),
                _ => rng.u32(1..=512),
            };
            let (kind, first) = (rng.u8(0..3), rng.u8(..));
            let bytes: Vec<u8> = (0..length).map(|at| first.wrapping_add((at % 251) as u8)).collect();
            let address = SLOT_BYTES * (posted % DEPTH);
            match kind {
                0 => {
                    // Receives take the slot of their request.
                    far.receive(posted);
                    near.fill(posted, &bytes);
                    near.send(posted, SendOperation::Send { immediate: None }, length);
                }
                1 => {
                    near.fill(posted, &bytes);
                    near.send(posted, SendOperation::Write { address, key, immediate: None }, length);
                }
                _ => {
                    far.fill(posted, &bytes);
                    near.send(posted, SendOperation::Read { address, key }, length);
                }
            }
            sent.push(Sent { kind, bytes });
            posted += 1;
        }
        near.next(done);
        let Sent { kind, bytes } =
            std::mem::replace(&mut sent[done as usize], Sent { kind: 0, bytes: Vec::new() });
        let reader = if kind == 2 { &near } else { &far };
        if kind == 0 {
            assert_eq!(far.next(done), bytes.len() as u64);
            received += 1;
        }
        assert!(reader.bytes(done, bytes.len() as u32) == bytes, "request {done} has wrong bytes");
        done += 1;
    }
    faults.has_ended.store(true, Ordering::Relaxed);
    let (cuts, stalls) = (faults.cuts.load(Ordering::Relaxed), faults.stalls.load(Ordering::Relaxed));
    let changes = faults.changes.load(Ordering::Relaxed);
    println!("{done} requests, {received} received, {cuts} cuts, {stalls} stalls, {changes} changed bits");
    assert_eq!((near.pair.state(), far.pair.state()), (State::ReadyToSend, State::ReadyToSend));
    [cuts, changes]
}

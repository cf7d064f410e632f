//! Queue pairs over TCP with memory of GPUs: every byte is right, over several lanes that are cut, and when more payloads
//! arrive than there are streams.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use fastrand::Rng;
use isolane_memory::MemoryRegion;
use isolane_verbs::{
    Access, CompletionQueue, Device, DeviceConfig, LocalData, ProtectionDomain, QueuePair, QueuePairConfig,
    QueuePairState, ReceiveRequest, Registration, SendOperation, SendRequest, Sge, Status,
};

mod driver;

use driver::{Driver, Place};

/// Address of the proxy, which has the port of the far end.
const PROXY: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 4));
/// Longer than any step takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
const LEN: usize = 1 << 20;

/// One end, with memory of the host and of a GPU.
struct End {
    pair: QueuePair,
    completions: Arc<CompletionQueue>,
    memory: Memory,
    domain: Arc<ProtectionDomain>,
    // After the queue pair, which uses it.
    device: Arc<Device>,
}

#[derive(Clone)]
struct Memory {
    host: Arc<Registration>,
    gpu: Arc<Registration>,
}

impl Memory {
    /// Returns SGEs of half of `length` bytes each, from the same offset on.
    fn halves(&self, offset: u64, length: u32) -> [Sge; 2] {
        let sge = |memory: &Registration, length| Sge {
            address: memory.address() + offset,
            length,
            lkey: memory.key(),
        };
        [sge(&self.gpu, length - length / 2), sge(&self.host, length / 2)]
    }

    fn put(&self, driver: &Driver, offset: u64, bytes: &[u8]) {
        let (gpu, host) = bytes.split_at(bytes.len() - bytes.len() / 2);
        driver.put(self.gpu.address() + offset, gpu);
        self.host.region().copy_in(offset as usize, host);
    }

    fn bytes(&self, driver: &Driver, offset: u64, length: u32) -> Vec<u8> {
        let [gpu, host] = self.halves(offset, length);
        let gpu = driver.bytes(gpu.address, gpu.length as usize);
        [gpu, self.host.region().to_vec(offset as usize, host.length as usize)].concat()
    }
}

/// Makes memory and a queue pair's configuration.
fn config(driver: &Driver, device: &Device, place: Place) -> (Memory, QueuePairConfig) {
    let domain = Arc::new(ProtectionDomain::default());
    let host = MemoryRegion::allocate(LEN).unwrap();
    let address = driver.allocate(&[(LEN / 3, place), (LEN - LEN / 3, place)]);
    let start = NonNull::new(std::ptr::without_provenance_mut(address as usize)).unwrap();
    // SAFETY: the memory is not freed.
    let gpu = unsafe { isolane_cuda::find(start, LEN) }.unwrap().expect("GPU memory");
    let memory = Memory {
        host: domain.register(host, 0, Access::ALL).unwrap(),
        gpu: domain.register(Arc::new(gpu), address, Access::ALL).unwrap(),
    };
    (memory, QueuePairConfig::new(domain, device.completion_queue(64)))
}

fn device(config: &DeviceConfig) -> Arc<Device> {
    Arc::new(Device::open(config.clone()).unwrap())
}

/// Connects two ends, through a proxy if there are cuts.
fn connect(driver: &Driver, device_config: &DeviceConfig, cuts: Option<&Arc<Cuts>>) -> [End; 2] {
    let places = [Place::Primary(0), Place::Pool];
    let devices = [device(device_config), device(device_config)];
    let [near, far] = [0, 1].map(|index| config(driver, &devices[index], places[index]));
    let listener = devices[1].listen("127.0.0.1:0").unwrap();
    let mut address = listener.local_addr().unwrap();
    if let Some(cuts) = cuts {
        start_proxy(address, cuts);
        address.set_ip(PROXY);
    }
    let pairs = std::thread::scope(|scope| {
        let accepted = scope.spawn(|| listener.accept(&far.1).unwrap());
        [devices[0].connect(address, &near.1).unwrap(), accepted.join().unwrap()]
    });
    drop(listener);
    if let Some(cuts) = cuts {
        // Further lanes connect to the port of the far queue pair.
        let port = (pairs[1].number() >> 8) as u16;
        start_proxy(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port), cuts);
    }
    let mut ends =
        pairs.into_iter().zip([near, far]).zip(devices).map(|((pair, (memory, config)), device)| End {
            pair,
            completions: config.send_queue,
            memory,
            domain: config.domain,
            device,
        });
    [ends.next().unwrap(), ends.next().unwrap()]
}

impl End {
    fn send(&self, id: u64, operation: SendOperation, sges: impl IntoIterator<Item = Sge>) {
        let data = LocalData::Sges(sges.into_iter().collect());
        let request = SendRequest { id, operation, data, signaled: true, solicited: false, fenced: false };
        self.pair.post_send(request).unwrap();
    }

    fn next(&self) -> (u64, Status) {
        let done = self.completions.wait(TIMEOUT).expect("a completion").completion;
        (done.id, done.status)
    }
}

/// Cuts of connections, after a random number of bytes.
#[derive(Default)]
struct Cuts {
    count: AtomicU32,
    has_ended: AtomicBool,
}

/// Forwards connections to the same port of `target`.
fn start_proxy(target: SocketAddr, cuts: &Arc<Cuts>) {
    let listener = TcpListener::bind((PROXY, target.port())).unwrap();
    let cuts = Arc::clone(cuts);
    std::thread::spawn(move || {
        for (number, near) in listener.incoming().map_while(Result::ok).enumerate() {
            let Ok(far) = TcpStream::connect(target) else { continue };
            let directions = [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)];
            for (from, to) in directions {
                let (cuts, rng) = (Arc::clone(&cuts), Rng::with_seed(number as u64));
                std::thread::spawn(move || forward(from, to, &cuts, rng));
            }
        }
    });
}

fn forward(mut from: TcpStream, mut to: TcpStream, cuts: &Cuts, mut rng: Rng) {
    let (mut buffer, mut left) = (vec![0; 64 * 1024], rng.usize(1000..3_000_000));
    while let Ok(count) = from.read(&mut buffer) {
        let is_cut = count > left && !cuts.has_ended.load(Ordering::Relaxed);
        let passed = if is_cut { left } else { count };
        if count == 0 || to.write_all(&buffer[..passed]).is_err() || is_cut {
            cuts.count.fetch_add(u32::from(is_cut), Ordering::Relaxed);
            break;
        }
        left = left.saturating_sub(count);
    }
    for stream in [&from, &to] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// Executes requests of each kind and of many lengths, one after the other.
fn exchange(driver: &Driver, [near, far]: &[End; 2], rng: &mut Rng, rounds: usize) {
    for round in 0..rounds {
        let length = [rng.u32(1..200), rng.u32(1..70_000), rng.u32(1..LEN as u32)][round % 3];
        let [from, to] = [0; 2].map(|_| rng.u64(0..=(LEN as u64 - u64::from(length))));
        let bytes: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(length as usize).collect();
        let context = format!("round {round}, {length} bytes from {from} to {to}");
        let key = far.memory.gpu.key();
        let address = far.memory.gpu.address();
        match round / 3 % 3 {
            0 => {
                near.memory.put(driver, from, &bytes);
                let data = far.memory.halves(to, length);
                far.pair.post_receive(ReceiveRequest { id: 1, data: data.into_iter().collect() }).unwrap();
                near.send(2, SendOperation::Send { immediate: None }, near.memory.halves(from, length));
                assert_eq!(
                    (near.next(), far.next()),
                    ((2, Status::Success), (1, Status::Success)),
                    "{context}"
                );
                assert!(far.memory.bytes(driver, to, length) == bytes, "{context}");
            }
            1 => {
                near.memory.put(driver, from, &bytes);
                let operation = SendOperation::Write { address: address + to, rkey: key, immediate: None };
                near.send(3, operation, near.memory.halves(from, length));
                assert_eq!(near.next(), (3, Status::Success), "{context}");
                assert!(driver.bytes(address + to, bytes.len()) == bytes, "{context}");
            }
            _ => {
                driver.put(address + to, &bytes);
                let operation = SendOperation::Read { address: address + to, rkey: key };
                near.send(4, operation, near.memory.halves(from, length));
                assert_eq!(near.next(), (4, Status::Success), "{context}");
                assert!(near.memory.bytes(driver, from, length) == bytes, "{context}");
            }
        }
        assert_eq!(driver.counts().pending, 0, "{context}");
    }
}

#[test]
fn every_byte_arrives_over_lanes_that_are_cut() {
    let driver = Driver::load();
    let mut rng = Rng::with_seed(1);
    for (lanes, checksums) in [(1, false), (4, false), (2, true)] {
        let config = DeviceConfig { lanes, checksums, ..DeviceConfig::default() };
        let cuts = Arc::new(Cuts::default());
        let ends = connect(&driver, &config, Some(&cuts));
        let mut rounds = 0;
        while rounds < 18 || cuts.count.load(Ordering::Relaxed) < 3 {
            exchange(&driver, &ends, &mut rng, 18);
            rounds += 18;
            assert!(rounds < 10_000, "nothing is cut");
        }
        cuts.has_ended.store(true, Ordering::Relaxed);
        assert!(ends.iter().all(|end| end.pair.state() == QueuePairState::ReadyToSend));
        drop(ends);
        driver.assert_idle();
    }
}

#[test]
fn more_payloads_arrive_than_there_are_streams() {
    const PAIRS: u64 = 12;
    let driver = Driver::load();
    let config = DeviceConfig::default();
    let pairs: Vec<[End; 2]> = (0..PAIRS).map(|_| connect(&driver, &config, None)).collect();
    let bytes: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
    for [near, far] in &pairs {
        driver.put(near.memory.gpu.address(), &bytes);
        let (address, key) = (far.memory.gpu.address(), far.memory.gpu.key());
        for id in 0..4 {
            let data =
                [Sge { address: near.memory.gpu.address(), length: LEN as u32, lkey: near.memory.gpu.key() }];
            near.send(id, SendOperation::Write { address, rkey: key, immediate: None }, data);
        }
    }
    for [near, far] in &pairs {
        for id in 0..4 {
            assert_eq!(near.next(), (id, Status::Success));
        }
        assert!(driver.bytes(far.memory.gpu.address(), LEN) == bytes);
    }
    drop(pairs);
    driver.assert_idle();
}

#[test]
fn deregistration_in_the_middle_of_traffic_leaves_no_copy() {
    let driver = Driver::load();
    for round in 0..6 {
        let [near, far] = connect(&driver, &DeviceConfig::default(), None);
        let (address, key) = (far.memory.gpu.address(), far.memory.gpu.key());
        for id in 0..16 {
            let sge =
                Sge { address: near.memory.gpu.address(), length: LEN as u32, lkey: near.memory.gpu.key() };
            near.send(id, SendOperation::Write { address, rkey: key, immediate: None }, [sge]);
        }
        for _ in 0..round {
            assert_eq!(near.next().1, Status::Success);
        }
        far.device.deregister(&far.domain, &far.memory.gpu);
        // The driver ends the program if a copy is in progress. The range has two allocations.
        driver.free(address);
        driver.free(address + LEN as u64 / 3);
        let statuses: Vec<Status> = (round..16).map(|_| near.next().1).collect();
        assert_eq!(statuses.last(), Some(&Status::Flushed), "{statuses:?}");
    }
}

#[test]
fn write_to_a_context_that_is_destroyed_fails() {
    let driver = Driver::load();
    for length in [1, 5000, LEN as u32] {
        let [near, far] = connect(&driver, &DeviceConfig::default(), None);
        let (address, key) = (far.memory.gpu.address(), far.memory.gpu.key());
        driver.destroy(Place::Pool);
        let sge = Sge { address: 0, length, lkey: near.memory.host.key() };
        near.send(1, SendOperation::Write { address, rkey: key, immediate: None }, [sge]);
        let (_, status) = near.next();
        assert!(
            [Status::RemoteOperation, Status::RemoteAccess].contains(&status),
            "{length} bytes: {status:?}"
        );
        drop((near, far));
        driver.assert_idle();
    }
}

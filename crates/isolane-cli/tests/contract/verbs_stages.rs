//! `isolane explain` of a program with verbs.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use isolane_memory::MemoryRegion;
use isolane_observe::snapshot::Snapshot;
use isolane_verbs::{
    Access, Device, DeviceConfig, Listener, LocalData, ProtectionDomain, QueuePair, QueuePairConfig,
    ReceiveRequest, Registration, SendOperation, SendRequest, Sge, Status,
};
use serde_json::Value;

use super::host_control::{Observed, operations};
use super::verbs::VerbsServer;
use super::{succeed, text};

/// Longer than any step takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Delay of the proxy in each direction: longer than a program waits for a core.
const DELAY: Duration = Duration::from_millis(50);
/// Time without a receive.
const PAUSE: Duration = Duration::from_millis(50);
/// Receives that the peer has posted.
const RECEIVES: usize = 8;

/// Returns the first finding, once it is of a kind.
fn finding(bench: &Observed, kind: &str) -> Value {
    let started = Instant::now();
    loop {
        let verdict = succeed(&["explain", text(&bench.socket), "--window", "60s", "--json"]);
        let verdict: Value = serde_json::from_str(&verdict).unwrap();
        if verdict["findings"][0]["kind"] == kind {
            assert_eq!((&verdict["queue_pairs"], &verdict["volumes"]), (&1.into(), &0.into()));
            return verdict["findings"][0].clone();
        }
        assert!(started.elapsed() < TIMEOUT, "{verdict:#}");
        thread::sleep(Duration::from_millis(100));
    }
}

/// Forwards connections to `target` with a delay in both directions. The threads end with the connections.
fn start_proxy(target: SocketAddr) -> SocketAddr {
    // Another address of this machine, because the other lanes go there, past the proxy.
    let listener = TcpListener::bind("127.0.0.3:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let Ok(far) = TcpStream::connect(target) else { continue };
            let directions = [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)];
            for (from, to) in directions {
                to.set_nodelay(true).unwrap();
                let (sender, delayed) = channel();
                thread::spawn(move || forward(&delayed, to));
                thread::spawn(move || {
                    let mut from = from;
                    let mut buffer = vec![0; 64 * 1024];
                    while let Ok(count @ 1..) = from.read(&mut buffer)
                        && sender.send((Instant::now() + DELAY, buffer[..count].to_vec())).is_ok()
                    {
                    }
                });
            }
        }
    });
    address
}

fn forward(delayed: &Receiver<(Instant, Vec<u8>)>, mut to: TcpStream) {
    for (at, bytes) in delayed {
        thread::sleep(at.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// Returns the number of lanes whose round trip is known.
fn probed(snapshot: &Snapshot) -> usize {
    let times = snapshot.numbers.connections.iter().filter_map(|lane| lane.peer_times.as_ref());
    times.filter(|times| times.count() >= 5).count()
}

#[test]
fn explain_names_the_lane_that_a_proxy_delays() {
    let server = VerbsServer::start_at("0.0.0.0:0");
    let port = server.address.parse::<SocketAddr>().unwrap().port();
    let proxy = start_proxy(SocketAddr::from(([127, 0, 0, 1], port))).to_string();
    let load = ["--lanes", "4", "--operation", "write", "--depth", "16", "--time", "10m"];
    let mut bench = Observed::start(&[&["verbs", "bench", &proxy], &load[..]].concat());
    bench.until(|snapshot| operations(snapshot) >= 400 && probed(snapshot) == 4);
    let found = finding(&bench, "path");
    assert_eq!((&found["stage"], &found["cause"]), (&"ack".into(), &"lane".into()), "{found:#}");
    let name = found["name"].as_str().unwrap();
    assert!(name.starts_with("lane 0 of queue pair ") && name.ends_with(&format!(" to {proxy})")), "{name}");
    let evidence = &found["evidence"][0];
    assert!(evidence["ratio"].as_f64() >= Some(2.0), "{evidence:#}");
}

/// A peer that has no receive from time to time.
struct Peer {
    config: QueuePairConfig,
    memory: Arc<Registration>,
}

impl Peer {
    fn new(device: &Device) -> Peer {
        let domain = Arc::new(ProtectionDomain::default());
        let memory = domain.register(MemoryRegion::allocate(4096).unwrap(), 0, Access::ALL).unwrap();
        Peer { config: QueuePairConfig::new(domain, device.completion_queue(256)), memory }
    }

    fn receive(&self, pair: &QueuePair) {
        let data = [Sge { address: 0, length: 64, lkey: self.memory.key() }].into_iter().collect();
        pair.post_receive(ReceiveRequest { id: 1, data }).unwrap();
    }

    /// Waits for a completion. Returns `false` once the client has gone.
    fn wait(&self) -> bool {
        let done = self.config.receive_queue.wait(TIMEOUT).expect("a completion");
        done.completion.status == Status::Success
    }

    /// Serves a client of `isolane verbs bench` until it is gone.
    fn serve(&self, listener: &Listener<&Device>) {
        let pair = listener.accept(&self.config).unwrap();
        self.receive(&pair);
        assert!(self.wait(), "the first message of the client");
        (0..RECEIVES).for_each(|_| self.receive(&pair));
        // The memory that it offers is not used by SENDs.
        let (data, operation) = (LocalData::Inline(vec![0; 16]), SendOperation::Send { immediate: None });
        let request =
            SendRequest { id: 2, operation, data, signaled: false, solicited: false, fenced: false };
        pair.post_send(request).unwrap();
        for count in 1.. {
            if !self.wait() {
                return;
            }
            if count % 1000 == 0 {
                thread::sleep(PAUSE);
            }
            self.receive(&pair);
        }
    }
}

#[test]
fn explain_names_the_peer_without_a_receive() {
    let device = Device::open(DeviceConfig::default()).unwrap();
    let peer = Peer::new(&device);
    let listener = device.listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::scope(|scope| {
        scope.spawn(|| peer.serve(&listener));
        let load = ["--operation", "send", "--depth", "32", "--time", "10m"];
        let mut bench = Observed::start(&[&["verbs", "bench", &address], &load[..]].concat());
        bench.until(|snapshot| operations(snapshot) >= 4000 && !snapshot.steps.is_empty());
        let found = finding(&bench, "host");
        assert_eq!(found["name"], "127.0.0.1", "{found:#}");
        assert_eq!(found["stage"], "receiver-not-ready", "{found:#}");
        assert_eq!(found["cause"], "receiver-not-ready", "{found:#}");
        // The peer ends with the client.
    });
}

//! Measures authentication with both sides of this repository, in one process:
//!
//! * the time that each queue takes longer to connect, for each hash function and group;
//! * reads of a host that has authenticated, while another address floods the target with handshakes.
//!
//! `cargo run --release -p isolane-target --example handshakes -- connect|flood`; prints JSON lines. The target has the
//! first core of the process, and the host the last.

use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use isolane_host::{Buffer, Client, Cores, Mode, Options, Request, Uri, Wait};
use isolane_proto::auth::{ExchangeConfig, HostNegotiating, Nonces, Parties};
use isolane_reactor::cpu;
use isolane_target::{AuthConfig, HostKeys, Key, KeyPair, Policy, RequiredAuth, Target, TargetConfig};
use isolane_wire::auth::{
    AuthenticationReceiveCommand, AuthenticationSendCommand, DhGroup, Hash, MessageId, Reply,
};
use isolane_wire::fabrics::{ConnectCommand, ConnectData};
use isolane_wire::pdu::{CapsuleCmd, IcReq};
use isolane_wire::{Framing, Nqn, Sgl, SubmissionEntry};

const NQN: &str = "nqn.2014-08.org.example:locked";
const HOST: &str = "nqn.2014-08.org.example:host";
const STRANGER: &str = "nqn.2014-08.org.example:stranger";
const KEY: &str = "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";
const LANES: usize = 4;
const ROUNDS: usize = 15;

/// Requires a proof of one host.
#[derive(Debug)]
struct OneHost(Key);

impl HostKeys for OneHost {
    fn required(&self, host: Option<&Nqn>, _: &Nqn) -> Option<RequiredAuth> {
        let pair = KeyPair { host: self.0.clone(), controller: Some(self.0.clone()) };
        host.filter(|host| host.as_str() == HOST).map(|_| RequiredAuth { keys: vec![pair], is_mutual: false })
    }
}

fn main() {
    let cores = cpu::allowed().expect("the kernel lists the cores");
    let (first, last) = (cores[0], cores[cores.len() - 1]);
    let directory = std::env::temp_dir().join(format!("isolane-handshakes-{}", std::process::id()));
    fs::create_dir(&directory).expect("a directory for the key");
    let key = directory.join("key");
    fs::write(&key, KEY).expect("the key");
    fs::set_permissions(&key, Permissions::from_mode(0o600)).expect("the mode of the key");
    match std::env::args().nth(1).as_deref() {
        Some("connect") => connect(first, last, &key),
        Some("flood") => flood(first, last, &key),
        _ => eprintln!("usage: handshakes connect|flood"),
    }
    fs::remove_dir_all(directory).expect("the directory is removed");
}

/// Starts a target on one core, whose side threads run on the same one.
fn start(core: usize, policy: Policy) -> Target {
    cpu::pin(core).expect("the core is allowed");
    let mut config = TargetConfig::new(NQN.parse().expect("a name"));
    config.listen.push("127.0.0.1:0".parse().expect("an address"));
    config.subsystems[0].volumes =
        vec![(1, isolane_volume::open(&"mem:64M".parse().expect("a volume")).expect("memory"))];
    (config.cores, config.mode) = (vec![core], Mode::Adaptive);
    let keys = Arc::new(OneHost(Key::parse(KEY).expect("a key")));
    config.auth = Some(AuthConfig { policy, ..AuthConfig::new(keys) });
    Target::start(config).expect("the target starts")
}

fn uri(target: &Target) -> Uri {
    format!("nvme+tcp://{}/{NQN}", target.local_addrs()[0]).parse().expect("a URI")
}

fn options(host: &str, keys: (Option<PathBuf>, Option<PathBuf>), lanes: usize) -> Options {
    let host_nqn = host.parse().expect("a name");
    Options { host_nqn, key: keys.0, ctrl_key: keys.1, lanes, depth: 32, ..Options::default() }
}

/// Prints the additional time of each queue, in milliseconds.
fn connect(first: usize, last: usize, key: &Path) {
    for &hash in Hash::ALL {
        for &group in DhGroup::ALL {
            let target = start(first, Policy { hashes: vec![hash], groups: vec![group] });
            let uri = uri(&target);
            cpu::pin(last).expect("the core is allowed");
            for (name, controller) in [("one way", None), ("both ways", Some(key.to_path_buf()))] {
                let keys = (Some(key.to_path_buf()), controller);
                let (mut without, mut with) = (Vec::new(), Vec::new());
                for _ in 0..ROUNDS {
                    without.push(time(&uri, options(STRANGER, (None, None), LANES)));
                    with.push(time(&uri, options(HOST, keys.clone(), LANES)));
                }
                let more = |value: fn(&mut [f64]) -> f64, with: &mut [f64], without: &mut [f64]| {
                    (value(with) - value(without)) / (LANES + 1) as f64
                };
                println!(
                    "{{\"measurement\":\"connect\",\"hash\":\"{hash}\",\"group\":\"{group}\",\"direction\":\"{name}\",\
                     \"queues\":{},\"rounds\":{ROUNDS},\"without_ms\":{:.3},\"with_ms\":{:.3},\
                     \"more_per_queue_ms\":{:.3},\"fastest_more_per_queue_ms\":{:.3}}}",
                    LANES + 1,
                    median(&mut without),
                    median(&mut with),
                    more(median, &mut with, &mut without),
                    more(fastest, &mut with, &mut without),
                );
            }
        }
    }
}

/// Returns the time to connect, in milliseconds.
fn time(uri: &Uri, options: Options) -> f64 {
    let started = Instant::now();
    let client = Client::connect(uri, options).expect("the host connects");
    let elapsed = started.elapsed();
    client.close();
    elapsed.as_secs_f64() * 1e3
}

/// On a busy machine, the only value without the time of other programs.
fn fastest(values: &mut [f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Prints the speed of reads with a flood in relation to the speed without, in windows that alternate.
fn flood(first: usize, last: usize, key: &Path) {
    let policy = Policy { hashes: vec![Hash::Sha256], groups: vec![DhGroup::Ffdhe3072] };
    let target = start(first, policy.clone());
    cpu::pin(last).expect("the core is allowed");
    let rate = AtomicU64::new(0);
    let done = AtomicU64::new(0);
    let options = Options { cores: Cores::default(), ..options(HOST, (Some(key.to_path_buf()), None), 1) };
    let mut client = Client::connect(&uri(&target), options).expect("the host connects");
    let address = target.local_addrs()[0];
    std::thread::scope(|scope| {
        for _ in 0..FLOODERS {
            scope.spawn(|| attack_at(&rate, &done, address, &policy));
        }
        measure_cost((&rate, &done));
        for depth in [1, 32] {
            for per_second in [100, 300, 1000] {
                measure_flood(&target, &mut client, depth, per_second, (&rate, &done));
            }
        }
        rate.store(STOP, Ordering::Relaxed);
    });
}

/// Prints the processor time that handshakes need, which other programs do not change.
fn measure_cost((rate, done): (&AtomicU64, &AtomicU64)) {
    let (before, reactor, auth) =
        (done.load(Ordering::Relaxed), ticks("isolane-core"), ticks("isolane-auth"));
    rate.store(100, Ordering::Relaxed);
    std::thread::sleep(20 * WINDOW);
    rate.store(0, Ordering::Relaxed);
    std::thread::sleep(WINDOW);
    let count = (done.load(Ordering::Relaxed) - before) as f64;
    let us = |ticks: u64| ticks as f64 * 1e4 / count;
    println!(
        "{{\"measurement\":\"cost\",\"group\":\"FFDHE3072\",\"handshakes\":{count},\"reactor_us\":{:.0},\
         \"auth_threads_us\":{:.0}}}",
        us(ticks("isolane-core") - reactor),
        us(ticks("isolane-auth") - auth)
    );
}

/// Returns the processor time of all threads whose name contains `name`, in hundredths of a second.
fn ticks(name: &str) -> u64 {
    let tasks = fs::read_dir("/proc/self/task").expect("the kernel lists the threads").flatten();
    let stats = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    let used = stats.filter_map(|stat| {
        let (command, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        let mut times = rest.split_whitespace().skip(11).map(str::parse::<u64>);
        let used = times.next()?.ok()? + times.next()?.ok()?;
        command.contains(name).then_some(used)
    });
    used.sum()
}

fn measure_flood(
    target: &Target,
    client: &mut Client,
    depth: usize,
    per_second: u64,
    (rate, done): (&AtomicU64, &AtomicU64),
) {
    let (mut ratios, before) = (Vec::new(), done.load(Ordering::Relaxed));
    let refused = target.counters().authentication_refused;
    for _ in 0..WINDOWS {
        rate.store(0, Ordering::Relaxed);
        let quiet = reads(client, depth);
        rate.store(per_second, Ordering::Relaxed);
        ratios.push(reads(client, depth) / quiet);
    }
    rate.store(0, Ordering::Relaxed);
    let reached = (done.load(Ordering::Relaxed) - before) as f64 / (WINDOW.as_secs_f64() * WINDOWS as f64);
    let refused = target.counters().authentication_refused - refused;
    println!(
        "{{\"measurement\":\"flood\",\"group\":\"FFDHE3072\",\"depth\":{depth},\"handshakes_per_second\":{per_second},\
         \"reached_per_second\":{reached:.0},\"refused\":{refused},\"windows\":{WINDOWS},\"relative_speed\":{:.3},\
         \"memory_kib\":{}}}",
        median(&mut ratios),
        resident_kib()
    );
}

/// Returns the reads of one window per second.
fn reads(client: &mut Client, depth: usize) -> f64 {
    let (started, mut completions, mut count) = (Instant::now(), Vec::new(), 0);
    let read = || Request::Read { lba: 8 * fastrand::u64(0..1000), buffer: Buffer::contiguous(4096) };
    (0..depth).for_each(|_| client.submit(0, read(), 0));
    while started.elapsed() < WINDOW {
        client.turn(&mut completions, Wait::Until(started + 10 * WINDOW));
        for completion in completions.drain(..) {
            assert!(completion.result.is_ok(), "{completion:?}");
            count += 1;
            client.submit(0, read(), 0);
        }
    }
    let elapsed = started.elapsed().as_secs_f64();
    let mut rest = depth;
    while rest > 0 {
        client.turn(&mut completions, Wait::Until(Instant::now() + WINDOW));
        rest -= completions.drain(..).count();
    }
    f64::from(count) / elapsed
}

/// Starts handshakes at a rate that can change, each after the end of the one before.
fn attack_at(rate: &AtomicU64, done: &AtomicU64, address: SocketAddr, policy: &Policy) {
    let mut next = Instant::now();
    for round in 0.. {
        let interval = loop {
            match rate.load(Ordering::Relaxed) {
                STOP => return,
                0 => std::thread::sleep(Duration::from_millis(5)),
                rate => break Duration::from_secs_f64(FLOODERS as f64 / rate as f64),
            }
        };
        next = (next + interval).max(Instant::now());
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        // The target may refuse it in the middle.
        let _ = attack(address, policy, round % 2 == 0);
        done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Makes the target compute, and computes nothing: one handshake ends in the middle, or has a wrong response.
fn attack(address: SocketAddr, policy: &Policy, is_aborted: bool) -> io::Result<()> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::new(127, 0, 0, 9), 0)).into())?;
    socket.connect(&address.into())?;
    let mut stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(&IcReq::default().encode())?;
    receive(&mut stream, IC_RESP)?;
    let (host, subsystem): (Nqn, Nqn) = (HOST.parse().expect("a name"), NQN.parse().expect("a name"));
    let data =
        ConnectData { hostid: [9; 16], cntlid: 0xffff, subnqn: subsystem.into(), hostnqn: host.into() };
    let connect = ConnectCommand { sqsize: 31, kato_ms: 30_000, ..ConnectCommand::default() };
    send(&mut stream, connect.entry(), &data.encode())?;
    receive(&mut stream, CAPSULE_RESP)?;
    let key = Key::parse(KEY).expect("a key");
    let config = ExchangeConfig {
        parties: Parties { host, subsystem },
        keys: vec![KeyPair { host: key, controller: None }],
        policy: policy.clone(),
        is_mutual: false,
    };
    let nonces = Nonces::generate().map_err(io::Error::other)?;
    let (_, negotiate) = HostNegotiating::start(config, 1, nonces).expect("it has a key");
    send(&mut stream, AuthenticationSendCommand::new(negotiate.len() as u32).entry(), &negotiate)?;
    if is_aborted {
        return Ok(());
    }
    receive(&mut stream, CAPSULE_RESP)?;
    let entry = SubmissionEntry {
        sgl: Sgl::Transport { len: 4096 },
        ..AuthenticationReceiveCommand::new(4096).entry()
    };
    stream.write_all(&CapsuleCmd { entry, data_len: 0 }.encode(&Framing::default()))?;
    receive(&mut stream, C2H_DATA + 4096 + CAPSULE_RESP)?;
    let dh_len = DhGroup::Ffdhe3072.len_bytes();
    let header =
        Reply { id: MessageId::Reply.codes(), t_id: 1, hl: 32, cvalid: 0, dhvlen: dh_len as u16, seqnum: 0 };
    let mut reply = [&header.encode()[..], &[0; 64], &vec![0; dh_len]].concat();
    *reply.last_mut().expect("it has bytes") = 2;
    send(&mut stream, AuthenticationSendCommand::new(reply.len() as u32).entry(), &reply)?;
    receive(&mut stream, CAPSULE_RESP)
}

fn send(stream: &mut TcpStream, entry: SubmissionEntry, data: &[u8]) -> io::Result<()> {
    let entry = SubmissionEntry { sgl: Sgl::InCapsule { offset: 0, len: data.len() as u32 }, ..entry };
    let header = CapsuleCmd { entry, data_len: data.len() as u32 }.encode(&Framing::default());
    stream.write_all(&[&header[..], data].concat())
}

fn receive(stream: &mut TcpStream, len: usize) -> io::Result<()> {
    stream.read_exact(&mut vec![0; len])
}

fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}

/// Lengths of PDUs without digests.
const IC_RESP: usize = 128;
const CAPSULE_RESP: usize = 24;
const C2H_DATA: usize = 24;
const FLOODERS: usize = 8;
const WINDOW: Duration = Duration::from_millis(500);
const WINDOWS: usize = 11;
/// Rate that ends the flood.
const STOP: u64 = u64::MAX;

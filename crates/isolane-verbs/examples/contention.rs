//! Latency of a 4 KiB READ, next to a round trip of 4 KiB over plain TCP, while threads of both programs spin.
//!
//! `cargo run --release --example contention -- [SPINNERS] [poll|spin]`: the number of threads in both programs
//! together (default: 2, 4, and 8), and whether they poll completion queues or only spin. Both kinds of round trip
//! alternate in one run, so that their ratio can be repeated on a loaded machine.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use isolane_memory::MemoryRegion;
use isolane_verbs::{
    Access, Device, DeviceConfig, LocalData, ProtectionDomain, QueuePair, QueuePairConfig, Registration,
    SendOperation, SendRequest, Sge, Status,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|argument| argument == "server") {
        return serve(arguments[1].parse()?, &arguments[2]);
    }
    let counts: Vec<usize> = match arguments.first() {
        Some(count) => vec![count.parse()?],
        None => vec![2, 4, 8],
    };
    let kinds = arguments.get(1).map_or(vec!["poll", "spin"], |kind| vec![kind.as_str()]);
    println!(
        "spinners  kind   READ us: p50     p99    mean   TCP us: p50     p99    mean   ratios: p50    mean"
    );
    for count in counts {
        for kind in &kinds {
            measure(count, kind)?;
        }
    }
    Ok(())
}

/// Memory and completions of one end.
struct End {
    device: Device,
    memory: Arc<Registration>,
    config: QueuePairConfig,
}

fn end() -> Result<End> {
    let device = Device::open(DeviceConfig::default())?;
    let domain = Arc::new(ProtectionDomain::default());
    let access = Access(0).with_local_write(true).with_remote_read(true);
    let memory = domain.register(MemoryRegion::allocate(BYTES)?, 0, access)?;
    let queue = device.completion_queue(16);
    Ok(End { memory, config: QueuePairConfig::new(domain, queue), device })
}

/// Runs threads that spin while `body` runs.
fn with_spinners<T>(end: &End, count: usize, kind: &str, body: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| {
                let queue = end.device.completion_queue(16);
                while !is_over.load(Ordering::Relaxed) {
                    if kind == "poll" {
                        assert!(queue.poll().is_none());
                    } else {
                        std::hint::spin_loop();
                    }
                }
            });
        }
        let result = body();
        is_over.store(true, Ordering::Relaxed);
        result
    })
}

fn serve(spinners: usize, kind: &str) -> Result<()> {
    let end = end()?;
    let (listener, plain) = (end.device.listen("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?);
    println!("{} {} {}", listener.local_addr()?, plain.local_addr()?, end.memory.key());
    let _pair = listener.accept(&end.config)?;
    let (mut stream, _) = plain.accept()?;
    stream.set_nodelay(true)?;
    with_spinners(&end, spinners, kind, || {
        let (mut request, response) = ([0; 64], [0; BYTES]);
        while stream.read_exact(&mut request).is_ok() && stream.write_all(&response).is_ok() {}
    });
    Ok(())
}

/// A server process, which ends with its client.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn measure(spinners: usize, kind: &str) -> Result<()> {
    let (here, there) = (spinners / 2, spinners - spinners / 2);
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["server", &there.to_string(), kind]).stdout(Stdio::piped());
    let mut server = Server(command.spawn()?);
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().ok_or("no output")?).read_line(&mut line)?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let (address, plain, key) = (words[0].parse::<SocketAddr>()?, words[1], words[2].parse()?);
    let end = end()?;
    let pair = end.device.connect(address, &end.config)?;
    let mut stream = TcpStream::connect(plain)?;
    stream.set_nodelay(true)?;
    let (mut reads, mut plain) = (Vec::new(), Vec::new());
    with_spinners(&end, here, kind, || -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < TIME {
            reads.push(read(&end, &pair, key)?);
            plain.push(round_trip(&mut stream)?);
        }
        Ok(())
    })?;
    let (read, plain) = (statistics(&mut reads), statistics(&mut plain));
    let ratio = |at: usize| read[at] / plain[at];
    println!(
        "{spinners:>8}  {kind}  {:>12.1} {:>7.0} {:>7.1} {:>13.1} {:>7.0} {:>7.1} {:>13.2} {:>7.2}",
        read[0],
        read[1],
        read[2],
        plain[0],
        plain[1],
        plain[2],
        ratio(0),
        ratio(2)
    );
    Ok(())
}

/// Reads the peer's memory, and polls for the completion.
fn read(end: &End, pair: &QueuePair, key: u32) -> Result<Duration> {
    let sge = Sge { address: end.memory.address(), length: BYTES as u32, lkey: end.memory.key() };
    let operation = SendOperation::Read { address: 0, rkey: key };
    let data = LocalData::Sges([sge].into_iter().collect());
    let start = Instant::now();
    pair.post_send(SendRequest { id: 1, operation, data, signaled: true, solicited: false, fenced: false })?;
    loop {
        if let Some(done) = end.config.send_queue.poll() {
            return match done.completion.status {
                Status::Success => Ok(start.elapsed()),
                status => Err(status.name().into()),
            };
        }
    }
}

/// Receives as many bytes over plain TCP.
fn round_trip(stream: &mut TcpStream) -> Result<Duration> {
    let start = Instant::now();
    stream.write_all(&[0; 64])?;
    stream.read_exact(&mut [0; BYTES])?;
    Ok(start.elapsed())
}

/// Returns median, 99th percentile, and mean in microseconds.
fn statistics(times: &mut [Duration]) -> [f64; 3] {
    times.sort_unstable();
    let mean = times.iter().sum::<Duration>() / times.len() as u32;
    [times[times.len() / 2], times[times.len() * 99 / 100], mean].map(|time| time.as_secs_f64() * 1e6)
}

const BYTES: usize = 4096;
const TIME: Duration = Duration::from_secs(3);

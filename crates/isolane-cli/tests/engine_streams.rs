//! Streams whose engine is killed and replaced during transfers.
//!
//! Invariant: no byte is lost, duplicated, or reordered, and no peer sees an error.

mod program;
mod stop;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use isolane_attach::stream::{Interest, Poller, ReadHalf, Stream, StreamOptions, WriteHalf};
use isolane_attach::{Session, SessionOptions};
use isolane_shm::testing;

use program::Engine;
use stop::stop;

impl Engine {
    fn start() -> Engine {
        Engine::start_by(Command::new(env!("CARGO_BIN_EXE_isolane")), &[])
    }

    fn attach(&self) -> Session {
        attach(&self.path())
    }

    /// Kills the engine, and waits for the next. The supervisor delays the restart of an engine that ran for less than
    /// a second.
    fn kill(&self) {
        let pid = self.pid();
        // Another thread may have killed this engine.
        signal(pid, "KILL");
        while self.pid() == pid {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn signal(pid: u32, signal: &str) {
    let result = Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status();
    assert!(result.is_ok());
}

fn attach(path: &Path) -> Session {
    Session::open(&SessionOptions {
        path: path.to_owned(),
        memory_bytes: 64 << 20,
        spawn_engine: false,
        ..SessionOptions::default()
    })
    .unwrap()
}

/// Byte sequence in which each byte depends on its position.
struct Pattern {
    seed: u64,
    position: u64,
}

impl Pattern {
    fn new(seed: u64) -> Pattern {
        Pattern { seed, position: 0 }
    }

    fn byte(&self, position: u64) -> u8 {
        ((position ^ self.seed << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
    }

    fn write(&mut self, target: &mut impl Write, len: usize) -> std::io::Result<()> {
        let bytes: Vec<u8> = (self.position..).take(len).map(|position| self.byte(position)).collect();
        target.write_all(&bytes)?;
        self.position += len as u64;
        Ok(())
    }

    fn check(&mut self, bytes: &[u8]) {
        for byte in bytes {
            assert_eq!(*byte, self.byte(self.position), "byte {} of stream {}", self.position, self.seed);
            self.position += 1;
        }
    }

    /// Checks all data up to the end of the stream.
    fn check_all(&mut self, source: &mut impl Read) {
        let mut bytes = vec![0; 30_000];
        loop {
            match source.read(&mut bytes).unwrap() {
                0 => return,
                count => self.check(&bytes[..count]),
            }
        }
    }
}

/// Writes until `ends` is set, then calls `end`. Returns the number of bytes.
fn writer<W: Write + Send + 'static>(
    mut target: W,
    seed: u64,
    ends: &'static AtomicBool,
    moved: &'static AtomicU64,
    end: impl FnOnce(W) + Send + 'static,
) -> JoinHandle<u64> {
    std::thread::spawn(move || {
        let mut pattern = Pattern::new(seed);
        for round in 0usize.. {
            // Small writes, and some that bypass the ring.
            let len = [64, 1000, 5000, 1, 40_000, 300][round % 6];
            pattern.write(&mut target, len).unwrap();
            moved.fetch_add(len as u64, Ordering::Relaxed);
            if ends.load(Ordering::Acquire) {
                break;
            }
        }
        end(target);
        pattern.position
    })
}

fn reader(mut source: impl Read + Send + 'static, seed: u64) -> JoinHandle<u64> {
    std::thread::spawn(move || {
        let mut pattern = Pattern::new(seed);
        pattern.check_all(&mut source);
        pattern.position
    })
}

fn shut(socket: TcpStream) {
    socket.shutdown(Shutdown::Write).unwrap();
}

/// Transfers data in both directions of several streams while `disturb` is called `times` times. `disturb` returns once
/// another engine runs.
fn under_traffic(times: usize, disturb: impl Fn(&Engine)) {
    let engine = Engine::start();
    let session = engine.attach();
    let ends: &'static AtomicBool = Box::leak(Box::default());
    let moved: &'static AtomicU64 = Box::leak(Box::default());
    let mut threads = Vec::new();
    for index in 0..4 {
        let (socket, peer) = testing::connection().unwrap();
        let bytes = [4096, 256 << 10, 16 << 10, 64 << 10][index];
        let options = StreamOptions { rx_bytes: bytes, tx_bytes: bytes, ..Default::default() };
        let (read, write): (ReadHalf, WriteHalf) = options.adopt(&session, socket).unwrap().split();
        let (up, down) = (2 * index as u64, 2 * index as u64 + 1);
        let peer_writer = peer.try_clone().unwrap();
        threads.push((writer(write, up, ends, moved, |mut write| write.shut().unwrap()), reader(peer, up)));
        threads.push((writer(peer_writer, down, ends, moved, shut), reader(read, down)));
    }
    for time in 0..times {
        let (before, start) = (moved.load(Ordering::Relaxed), Instant::now());
        // The phase differs each time.
        std::thread::sleep(Duration::from_micros(1_000_000 + time as u64 * 977 % 20_000));
        disturb(&engine);
        while moved.load(Ordering::Relaxed) < before + 400_000 {
            assert!(start.elapsed() < Duration::from_secs(60), "no progress\n{}", engine.log());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    ends.store(true, Ordering::Release);
    for (writer, reader) in threads {
        assert_eq!(writer.join().unwrap(), reader.join().unwrap());
    }
    assert!(session.epoch() > times as u64 / 2, "{} engines", session.epoch());
}

#[test]
fn streams_survive_engine_kills_under_traffic() {
    // More in long runs.
    let kills = std::env::var("ISOLANE_TEST_KILLS").map_or(6, |kills| kills.parse().unwrap());
    under_traffic(kills, Engine::kill);
}

#[test]
fn streams_survive_an_upgrade() {
    under_traffic(3, |engine| {
        let pid = engine.pid();
        signal(engine.supervisor.id(), "HUP");
        while engine.pid() == pid {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

#[test]
fn adopted_sockets_survive_engine_kills() {
    let engine = Engine::start();
    let session = engine.attach();
    let (mut socket, peer) = testing::connection().unwrap();
    let seen = reader(peer, 7);
    let mut pattern = Pattern::new(7);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Acquire) {
                engine.kill();
                std::thread::sleep(Duration::from_millis(1010));
            }
        });
        let start = Instant::now();
        for round in 0.. {
            if start.elapsed() > Duration::from_secs(5) {
                break;
            }
            let mut stream = Stream::adopt(&session, socket.try_clone().unwrap()).unwrap();
            pattern.write(&mut stream, 1 + round * 131 % 20_000).unwrap();
            socket = stream.into_std().unwrap();
            pattern.write(&mut socket, 1 + round % 100).unwrap();
        }
        ended.store(true, Ordering::Release);
    });
    shut(socket);
    assert_eq!(seen.join().unwrap(), pattern.position);
}

/// Each interrupted adoption is requested again from the next engine, and takes effect once.
#[test]
fn concurrent_adoptions_survive_engine_kills() {
    let engine = Engine::start();
    let session = engine.attach();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Acquire) {
                engine.kill();
                std::thread::sleep(Duration::from_millis(1010));
            }
        });
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(4) {
            let (sockets, peers): (Vec<_>, Vec<_>) = (0..100).map(|_| testing::connection().unwrap()).unzip();
            let adopted: Vec<_> = std::thread::scope(|scope| {
                let adopt = |socket| scope.spawn(|| Stream::adopt(&session, socket));
                let threads: Vec<_> = sockets.into_iter().map(adopt).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            for (seed, (stream, peer)) in (0..).zip(adopted.into_iter().zip(peers)) {
                let seen = reader(peer, seed);
                let mut pattern = Pattern::new(seed);
                pattern.write(&mut stream.unwrap(), 1000).unwrap();
                assert_eq!(seen.join().unwrap(), 1000);
            }
        }
        ended.store(true, Ordering::Release);
    });
}

fn stream(engine: &Engine) -> (Stream, TcpStream) {
    let (socket, peer) = testing::connection().unwrap();
    (Stream::adopt(&engine.attach(), socket).unwrap(), peer)
}

#[test]
fn ring_bypass_survives_engine_kills() {
    const TOTAL: u64 = 100 << 20;
    const KILLS: u64 = 5;
    let engine = Engine::start();
    let (mut stream, mut peer) = stream(&engine);
    let writer = std::thread::spawn(move || {
        let mut pattern = Pattern::new(1);
        while pattern.position < TOTAL {
            let len = (1 + pattern.position % 130_001).min(TOTAL - pattern.position);
            pattern.write(&mut peer, len as usize).unwrap();
        }
    });
    let (mut pattern, mut bytes) = (Pattern::new(1), vec![0; 1 << 16]);
    let (mut reads, mut kills) = (0, 0);
    loop {
        // Alternates between a few long and a few short reads.
        let len = [1 << 16, 20, 1 << 14, 3000, 1 << 12, 1][reads / 9 % 6];
        let count = stream.read(&mut bytes[..len]).unwrap();
        pattern.check(&bytes[..count]);
        reads += 1;
        if kills < KILLS && pattern.position > (kills + 1) * (TOTAL / (KILLS + 1)) {
            // The next engine starts while the reads continue.
            signal(engine.pid(), "KILL");
            kills += 1;
        }
        if count == 0 {
            break;
        }
    }
    assert_eq!((pattern.position, kills), (TOTAL, KILLS));
    writer.join().unwrap();
}

#[test]
fn long_reads_need_no_engine() {
    let engine = Engine::start();
    let (mut stream, mut peer) = stream(&engine);
    let (mut sent, mut seen, mut bytes) = (Pattern::new(1), Pattern::new(1), vec![0; 1 << 16]);
    let mut read_long = |stream: &mut Stream, peer: &mut TcpStream, times: usize| {
        for _ in 0..times {
            std::thread::scope(|scope| {
                scope.spawn(|| sent.write(peer, 1 << 16).unwrap());
                stream.read_exact(&mut bytes).unwrap();
            });
            seen.check(&bytes);
        }
    };
    read_long(&mut stream, &mut peer, 10);
    let pid = engine.pid();
    // It would replace a stopped engine.
    stop(engine.supervisor.id());
    stop(pid);
    read_long(&mut stream, &mut peer, 100);

    stream.set_read_timeout(Some(Duration::from_millis(100)));
    peer.write_all(&[1; 10]).unwrap();
    let mut count = 0;
    let error = loop {
        match stream.read(&mut [0]) {
            Ok(more) => count += more,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    signal(pid, "CONT");
    stream.set_read_timeout(None);
    while count < 10 {
        count += stream.read(&mut [0]).unwrap();
    }

    read_long(&mut stream, &mut peer, 10);
    stop(pid);
    peer.write_all(&[1; 10]).unwrap();
    assert_eq!(stream.try_read(&mut [0; 10]).unwrap_err().kind(), ErrorKind::WouldBlock);
    signal(pid, "CONT");
    stream.read_exact(&mut [0; 10]).unwrap();
    signal(engine.supervisor.id(), "CONT");
    drop(stream);
    assert_eq!(peer.read(&mut [0]).unwrap(), 0);
}

#[test]
fn stopped_engine_is_replaced() {
    let engine = Engine::start();
    let (mut stream, mut peer) = stream(&engine);
    stop(engine.pid());
    stream.write_all(b"written").unwrap();
    peer.write_all(b"read").unwrap();
    // All three wait for the next engine.
    let session = engine.attach();
    stream.read_exact(&mut [0; 4]).unwrap();
    let mut socket = stream.into_std().unwrap();
    socket.write_all(b" directly").unwrap();
    drop((socket, session));
    let mut seen = String::new();
    peer.read_to_string(&mut seen).unwrap();
    assert_eq!(seen, "written directly");
}

fn fill(stream: &mut Stream, pattern: &mut Pattern) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(300) {
        let bytes: Vec<u8> = (pattern.position..).take(5000).map(|position| pattern.byte(position)).collect();
        match stream.try_write(&bytes) {
            Ok(count) => pattern.position += count as u64,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

#[test]
fn data_of_closed_stream_survives_engine_kill() {
    let engine = Engine::start();
    let session = engine.attach();
    for leaves in [false, true] {
        let (socket, mut peer) = testing::connection().unwrap();
        let mut pattern = Pattern::new(9);
        let own = engine.attach();
        let mut stream = Stream::adopt(if leaves { &own } else { &session }, socket).unwrap();
        fill(&mut stream, &mut pattern);
        drop(stream);
        drop(own);
        let mut seen = Pattern::new(9);
        for _ in 0..3 {
            engine.kill();
            let mut bytes = vec![0; 50_000];
            peer.read_exact(&mut bytes).unwrap();
            seen.check(&bytes);
        }
        seen.check_all(&mut peer);
        assert_eq!(seen.position, pattern.position);
    }
    assert!(session.epoch() > 1);
}

/// Not a test: the application of the next test, in a separate process.
#[test]
fn killed_application() {
    let Ok(path) = std::env::var("ISOLANE_TEST_ENGINE") else { return };
    let address = std::env::var("ISOLANE_TEST_PEER").unwrap();
    let mut stream = Stream::connect(&attach(Path::new(&path)), address).unwrap();
    let mut pattern = Pattern::new(11);
    fill(&mut stream, &mut pattern);
    println!("written: {}", pattern.position);
    std::thread::sleep(Duration::from_secs(600));
}

#[test]
fn data_of_killed_application_survives_engine_kill() {
    let engine = Engine::start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut application = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed_application", "--nocapture"])
        .env("ISOLANE_TEST_ENGINE", engine.path())
        .env("ISOLANE_TEST_PEER", listener.local_addr().unwrap().to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut peer = listener.accept().unwrap().0;
    let lines = BufReader::new(application.stdout.take().unwrap()).lines();
    let written: u64 = lines
        .map(|line| line.unwrap())
        .find_map(|line| line.split_once("written: ").map(|(_, count)| count.parse().unwrap()))
        .unwrap();
    application.kill().unwrap();
    application.wait().unwrap();
    engine.kill();
    let mut seen = Pattern::new(11);
    seen.check_all(&mut peer);
    assert_eq!(seen.position, written);
}

/// Writes and reads until the session is closed, then continues with the plain socket. Returns the numbers of bytes
/// written and read.
fn outlive(mut stream: Stream, up: u64, down: u64, ends: &'static AtomicBool) -> (u64, u64) {
    let (mut written, mut seen, mut bytes) = (Pattern::new(up), Pattern::new(down), vec![0; 30_000]);
    let error = (0usize..).find_map(|round| {
        let len = [64, 1000, 40_000, 1, 300][round % 5];
        let chunk: Vec<u8> = (written.position..).take(len).map(|at| written.byte(at)).collect();
        let moved = stream.write(&chunk).and_then(|count| {
            written.position += count as u64;
            // Each seventh round waits for data, and bypasses the ring if many reads were long.
            let count = if round % 7 == 0 { stream.read(&mut bytes) } else { stream.try_read(&mut bytes) }?;
            seen.check(&bytes[..count]);
            Ok(())
        });
        moved.err().filter(|error| error.kind() != ErrorKind::WouldBlock)
    });
    assert_eq!(error.unwrap().kind(), ErrorKind::ConnectionAborted);
    let mut socket = stream.into_std().unwrap();
    written.write(&mut socket, 200_000).unwrap();
    shut(socket.try_clone().unwrap());
    ends.store(true, Ordering::Release);
    seen.check_all(&mut socket);
    (written.position, seen.position)
}

#[test]
fn reclaims_streams_after_supervisor_death() {
    for (time, end) in ["KILL", "KILL", "TERM", "KILL"].into_iter().enumerate() {
        let engine = Engine::start();
        let session = engine.attach();
        let ends: &'static AtomicBool = Box::leak(Box::default());
        let moved: &'static AtomicU64 = Box::leak(Box::default());
        let mut threads = Vec::new();
        for index in 0..4 {
            let (socket, peer) = testing::connection().unwrap();
            let bytes = [4096, 256 << 10, 16 << 10, 64 << 10][index];
            let options = StreamOptions { rx_bytes: bytes, tx_bytes: bytes, ..Default::default() };
            let stream = options.adopt(&session, socket).unwrap();
            let (up, down) = (2 * index as u64, 2 * index as u64 + 1);
            let peer_writer = peer.try_clone().unwrap();
            threads.push((
                std::thread::spawn(move || outlive(stream, up, down, ends)),
                reader(peer, up),
                writer(peer_writer, down, ends, moved, shut),
            ));
        }
        while moved.load(Ordering::Relaxed) < 1_000_000 {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(time as u64 * 3977));
        signal(engine.supervisor.id(), end);
        for (application, reader, writer) in threads {
            assert_eq!(application.join().unwrap(), (reader.join().unwrap(), writer.join().unwrap()));
        }
    }
}

/// The peers neither read nor write, so every call waits.
#[test]
fn supervisor_death_wakes_all_waiters() {
    let mut engine = Engine::start();
    let session = engine.attach();
    let (sender, errors) = std::sync::mpsc::channel();
    let mut peers = Vec::new();
    // Six waiting threads and this one.
    let all_begin = Arc::new(Barrier::new(7));
    let mut wait = |what: &'static str,
                    wait: fn(&Session, TcpStream, TcpStream, &Barrier) -> std::io::Error| {
        let (socket, peer) = testing::connection().unwrap();
        peers.push(peer.try_clone().unwrap());
        let (sender, session, all_begin) = (sender.clone(), session.clone(), Arc::clone(&all_begin));
        std::thread::spawn(move || sender.send((what, wait(&session, socket, peer, &all_begin).kind())));
    };
    wait("a read", |session, socket, _, all_begin| {
        let mut stream = Stream::adopt(session, socket).unwrap();
        all_begin.wait();
        stream.read(&mut [0]).unwrap_err()
    });
    wait("a read around the ring", |session, socket, mut peer, all_begin| {
        let mut stream = Stream::adopt(session, socket).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| peer.write_all(&vec![1; 20 << 16]).unwrap());
            (0..20).for_each(|_| stream.read_exact(&mut [0; 1 << 16]).unwrap());
        });
        all_begin.wait();
        stream.read(&mut [0; 1 << 16]).unwrap_err()
    });
    wait("a write", |session, socket, _, all_begin| {
        let mut stream = Stream::adopt(session, socket).unwrap();
        all_begin.wait();
        (0..).find_map(|_| stream.write(&[1; 1000]).err()).unwrap()
    });
    wait("a write around the ring", |session, socket, _, all_begin| {
        let mut stream = Stream::adopt(session, socket).unwrap();
        all_begin.wait();
        (0..).find_map(|_| stream.write(&[1; 1 << 20]).err()).unwrap()
    });
    wait("a poller", |session, socket, _, all_begin| {
        let mut poller = Poller::new(session, 4).unwrap();
        let mut stream = poller.adopt(socket, StreamOptions::default()).unwrap();
        assert!(!stream.arm(Interest::Read).unwrap());
        all_begin.wait();
        loop {
            if let Err(error) = poller.next(None) {
                return error.into();
            }
        }
    });
    wait("a task", |session, socket, _, all_begin| {
        struct Unparks(std::thread::Thread);
        impl Wake for Unparks {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        let mut stream = Stream::adopt(session, socket).unwrap();
        let waker = Waker::from(Arc::new(Unparks(std::thread::current())));
        let mut context = Context::from_waker(&waker);
        all_begin.wait();
        loop {
            match stream.poll_read(&mut context, &mut [0]) {
                Poll::Ready(result) => return result.unwrap_err(),
                Poll::Pending => std::thread::park(),
            }
        }
    });
    all_begin.wait();
    // Most threads wait after this time.
    std::thread::sleep(Duration::from_millis(100));
    engine.supervisor.kill().unwrap();
    let mut remaining =
        vec!["a read", "a read around the ring", "a write", "a write around the ring", "a poller", "a task"];
    while !remaining.is_empty() {
        let received = errors.recv_timeout(Duration::from_secs(20));
        let (what, kind) = received.unwrap_or_else(|_| panic!("no error of {remaining:?}"));
        assert_eq!(kind, ErrorKind::ConnectionAborted, "{what}");
        remaining.retain(|other| *other != what);
    }
}

/// The supervisor cannot announce its death; a waiting thread wakes anyway.
#[test]
fn supervisor_death_is_an_error() {
    let mut engine = Engine::start();
    let session = engine.attach();
    let (socket, _peer) = testing::connection().unwrap();
    let mut stream = Stream::adopt(&session, socket).unwrap();
    let reader = std::thread::spawn(move || stream.read(&mut [0; 1]).unwrap_err().kind());
    std::thread::sleep(Duration::from_millis(50));
    engine.supervisor.kill().unwrap();
    assert_eq!(reader.join().unwrap(), ErrorKind::ConnectionAborted);
}

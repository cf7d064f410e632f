//! Many streams, and many changes of hands.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use isolane_attach::stream::{Listener, Stream, StreamOptions};
use isolane_shm::testing;
use rustix::net::sockopt;
use rustix::process::{Resource, Rlimit, setrlimit};

use super::fixture::{Fixture, Pattern};
use super::tasks;

/// A peer that writes and checks until the other end is done.
fn peer(
    socket: TcpStream,
    up: u64,
    down: u64,
) -> (std::thread::JoinHandle<u64>, std::thread::JoinHandle<u64>) {
    let mut reading = socket.try_clone().unwrap();
    let reader = std::thread::spawn(move || {
        let (mut pattern, mut bytes) = (Pattern::new(up), vec![0; 20_000]);
        loop {
            match reading.read(&mut bytes).unwrap() {
                0 => return pattern.position,
                count => pattern.check(&bytes[..count]),
            }
        }
    });
    let mut writing = socket;
    let writer = std::thread::spawn(move || {
        let (mut pattern, mut bytes) = (Pattern::new(down), vec![0; 3000]);
        loop {
            let before = pattern.clone();
            pattern.fill(&mut bytes);
            match writing.write(&bytes) {
                Ok(count) => pattern.position = before.position + count as u64,
                Err(_) => return before.position,
            }
        }
    });
    (reader, writer)
}

#[test]
fn handovers_under_traffic_are_invisible_to_peer() {
    // The variable sets more rounds.
    let rounds = std::env::var("ISOLANE_TEST_HANDOVERS").map_or(1000, |rounds| rounds.parse().unwrap());
    let fixture = Fixture::new();
    let session = fixture.attach();
    let (mut socket, far) = testing::connection().unwrap();
    let (reader, writer) = peer(far, 1, 2);
    let (mut up, mut down) = (Pattern::new(1), Pattern::new(2));
    let mut bytes = vec![0; 50_000];
    for round in 0..rounds {
        let options = StreamOptions {
            rx_bytes: 4096 << (round % 5),
            tx_bytes: 4096 << (round % 7),
            ..Default::default()
        };
        let mut stream = options.adopt(&session, socket).unwrap();
        for step in 0..round % 4 {
            let len = 1 + round * 37 % 9000 + step * 11_000;
            up.fill(&mut bytes[..len]);
            stream.write_all(&bytes[..len]).unwrap();
            let count = stream.read(&mut bytes[..1 + round * 17 % 5000]).unwrap();
            down.check(&bytes[..count]);
        }
        socket = stream.into_std().unwrap();
        if round % 3 == 0 {
            let len = round % 10_000;
            up.fill(&mut bytes[..len]);
            socket.write_all(&bytes[..len]).unwrap();
            let count = socket.read(&mut bytes[..1 + len]).unwrap();
            down.check(&bytes[..count]);
        }
    }
    socket.shutdown(Shutdown::Write).unwrap();
    assert_eq!(reader.join().unwrap(), up.position);
    drop(socket);
    assert!(writer.join().unwrap() >= down.position);
}

/// Each is the only stream of its session, and has unsent data when it is dropped: it stays open, and the queue of
/// its tasks is closed first.
#[test]
fn short_streams_leak_nothing() {
    let fixture = Fixture::of(|config| config.limits.queues = 2);
    let session = fixture.attach_with(4 << 20);
    let options = StreamOptions { rx_bytes: 4096, tx_bytes: 4096, ..Default::default() };
    // Their queues alone would take twice the memory.
    let peers: Vec<TcpStream> = (0..120)
        .map(|round| {
            let (socket, peer) = testing::connection().unwrap();
            sockopt::set_socket_send_buffer_size(&socket, 4096).unwrap();
            sockopt::set_socket_recv_buffer_size(&peer, 4096).unwrap();
            let mut stream =
                options.adopt(&session, socket).unwrap_or_else(|error| panic!("{round}: {error}"));
            stream.set_write_timeout(Some(Duration::from_millis(5)));
            while stream.write(&[0; 4096]).is_ok() {}
            peer
        })
        .collect();
    drop(peers);
}

#[test]
fn session_serves_thousands_of_streams() {
    let fixture = Fixture::new();
    let session = fixture.attach_with(64 << 20);
    let options = StreamOptions { rx_bytes: 4096, tx_bytes: 4096, ..Default::default() };
    let (count, _turn) = streams_max(2000);
    let mut streams: Vec<(Stream, TcpStream)> = (0..count)
        .map(|_| {
            let (socket, peer) = testing::connection().unwrap();
            (options.adopt(&session, socket).unwrap(), peer)
        })
        .collect();
    for round in 0..3u64 {
        for (index, (stream, _)) in streams.iter_mut().enumerate() {
            let mut bytes = [0; 300];
            Pattern::new(index as u64 + round).fill(&mut bytes);
            stream.write_all(&bytes).unwrap();
        }
        for (stream, peer) in &mut streams {
            let mut bytes = [0; 300];
            peer.read_exact(&mut bytes).unwrap();
            peer.write_all(&bytes).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60)));
        }
        for (index, (stream, _)) in streams.iter_mut().enumerate() {
            let mut bytes = [0; 300];
            stream.read_exact(&mut bytes).unwrap();
            Pattern::new(index as u64 + round).check(&bytes);
        }
    }
}

/// Descriptors for 10,000 streams and for other tests.
const WANTED: u64 = 51_000;
const OTHERS: u64 = 500;
/// Minimum number of streams of a useful test.
const STREAMS_MIN: usize = 100;

/// At most `wanted` streams, or as many as this process may have descriptors for, at five each. For one test at a time.
fn streams_max(wanted: usize) -> (usize, MutexGuard<'static, ()>) {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut limit = isolane_reactor::cpu::raise_fd_limit().unwrap();
    // Root may have more.
    let more = Rlimit { current: Some(WANTED), maximum: Some(WANTED) };
    if limit < WANTED && setrlimit(Resource::Nofile, more).is_ok() {
        limit = WANTED;
    }
    // Other tests of this process have some at the same time.
    let free = limit.saturating_sub(OTHERS);
    let streams = usize::try_from(free / 5).unwrap_or(usize::MAX).min(wanted);
    if streams < wanted {
        eprintln!("only {streams} streams: the limit of descriptors is {limit}");
    }
    (streams, turn)
}

fn exchange(stream: &mut Stream, peer: &mut TcpStream, seed: u64) {
    exchange_bytes(stream, peer, seed, 100);
}

/// Sends `len` bytes through both rings.
fn exchange_bytes(stream: &mut Stream, peer: &mut TcpStream, seed: u64, len: usize) {
    let (mut sent, mut seen) = (vec![0; len], vec![0; len]);
    Pattern::new(seed).fill(&mut sent);
    stream.set_read_timeout(Some(Duration::from_secs(60)));
    stream.write_all(&sent).unwrap();
    peer.read_exact(&mut seen).unwrap();
    Pattern::new(seed).check(&seen);
    peer.write_all(&seen).unwrap();
    stream.read_exact(&mut seen).unwrap();
    Pattern::new(seed).check(&seen);
}

/// With the default memory, rings and limits; and their memory goes back to the system.
#[test]
fn session_has_ten_thousand_streams_by_default() {
    let fixture = Fixture::new();
    let session = fixture.attach();
    let blocks = || rustix::fs::fstat(session.memory().memfd()).unwrap().st_blocks as u64 * 512;
    let (count, _turn) = streams_max(10_000);
    if count < STREAMS_MIN {
        return eprintln!(
            "skipped: {count} streams are too few; raise the limit of descriptors (`ulimit -n 1024`)"
        );
    }
    // Few streams take as much memory as many: each sends more, through its rings.
    let bytes = (USED_MIN / 2 / count).max(100);
    let options =
        StreamOptions { bypass_write_min: usize::MAX, bypass_read_min: usize::MAX, ..Default::default() };
    let mut streams: Vec<(Stream, TcpStream)> = (0..count)
        .map(|index| {
            let (socket, peer) = testing::connection().unwrap();
            let stream = options.adopt(&session, socket);
            (stream.unwrap_or_else(|error| panic!("stream {index}: {error}")), peer)
        })
        .collect();
    for (seed, (stream, peer)) in (0..).zip(&mut streams) {
        exchange_bytes(stream, peer, seed, bytes);
    }
    let used = blocks();
    assert!(used >= USED_MIN as u64, "{count} streams used only {used} bytes");
    drop(streams);
    let start = std::time::Instant::now();
    while blocks() > LEFT_MAX {
        assert!(start.elapsed() < Duration::from_secs(60), "{} of {used} bytes are still used", blocks());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Memory that the rings of all streams have touched, in bytes: more than twice of what may be left.
const USED_MIN: usize = 48 << 20;
/// Pages go back in steps of 16 MiB.
const LEFT_MAX: u64 = 20 << 20;

/// A session does not stay without its engine: neither at the limit of streams nor out of memory.
#[test]
fn new_streams_are_adopted_after_the_limit() {
    let limited = Fixture::of(|config| config.limits.streams = 2);
    let small = Fixture::new();
    let ring = StreamOptions { rx_bytes: 1 << 20, tx_bytes: 1 << 20, ..Default::default() };
    let sessions =
        [(limited.attach(), StreamOptions::default()), (small.attach_with((4 << 20) + (256 << 10)), ring)];
    for (session, options) in sessions {
        let listener = Listener::bind_with(&session, "127.0.0.1:0", options).unwrap();
        let connect = || {
            let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut stream = listener.accept().unwrap().0;
            exchange(&mut stream, &mut peer, 7);
            (stream, peer)
        };
        let mut streams: Vec<_> = (0..4).map(|_| connect()).collect();
        let adopted: Vec<_> = streams.iter().map(|(stream, _)| stream.is_adopted()).collect();
        assert!(adopted[0] && !adopted[3], "{adopted:?}");
        streams.remove(0);
        let start = std::time::Instant::now();
        while !connect().0.is_adopted() {
            assert!(start.elapsed() < Duration::from_secs(60), "the session stays without its engine");
        }
    }
}

#[test]
fn streams_past_the_limit_work_on_their_sockets() {
    let fixture = Fixture::of(|config| config.limits.streams = 3);
    let session = fixture.attach();
    let listener = Listener::bind(&session, "127.0.0.1:0").unwrap();
    let mut streams: Vec<(Stream, TcpStream)> = (0..6)
        .map(|_| {
            let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (listener.accept().unwrap().0, peer)
        })
        .collect();
    assert_eq!(streams.iter().filter(|(stream, _)| stream.is_adopted()).count(), 3);
    for (seed, (stream, peer)) in (0..).zip(&mut streams) {
        exchange(stream, peer, seed);
    }
    let (mut stream, mut peer) = streams.pop().unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(10)));
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(stream.try_read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    peer.write_all(b"x").unwrap();
    peer.shutdown(Shutdown::Write).unwrap();
    assert!(stream.write(&[7; 1000]).unwrap() > 0);
    // What its session comes to is nothing to it.
    drop(fixture);
    while session.check().is_ok() {
        std::thread::yield_now();
    }
    stream.set_read_timeout(None);
    let mut socket = stream.into_std().unwrap();
    assert_eq!(socket.read(&mut [0; 9]).unwrap(), 1);
    let (mut stream, mut peer) = streams.pop().unwrap();
    exchange(&mut stream, &mut peer, 9);
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.write(&[0]).unwrap_err().kind(), ErrorKind::BrokenPipe);
    assert_eq!(peer.read(&mut [0]).unwrap(), 0);
}

/// Also while, and after, its session ends.
#[test]
fn tasks_wait_for_streams_past_the_limit() {
    let fixture = Fixture::of(|config| config.limits.streams = 0);
    let session = fixture.attach();
    let (near, mut peer) = testing::connection().unwrap();
    let mut stream = StreamOptions::default().adopt_if_possible(&session, near).unwrap();
    assert!(!stream.is_adopted());
    let mut fixture = Some(fixture);
    for round in 0..3u8 {
        let (waits, has_waited) = std::sync::mpsc::channel();
        let task = std::thread::spawn(move || {
            let mut bytes = [0; 8];
            let count = tasks::block_on(async {
                waits.send(()).unwrap();
                stream.read_async(&mut bytes).await.unwrap()
            });
            tasks::block_on(stream.write_all_async(&bytes[..count])).unwrap();
            stream
        });
        has_waited.recv().unwrap();
        if round == 1 {
            fixture.take();
        }
        peer.write_all(&[round]).unwrap();
        let mut seen = [9];
        peer.read_exact(&mut seen).unwrap();
        assert_eq!(seen, [round]);
        stream = task.join().unwrap();
    }
}

#[test]
fn concurrent_adoptions_are_refused_individually() {
    let (count, _turn) = streams_max(300);
    let fixture = Fixture::of(|config| config.limits.streams = count as u32);
    let session = fixture.attach();
    let (sockets, peers): (Vec<_>, Vec<_>) = (0..count + 3).map(|_| testing::connection().unwrap()).unzip();
    let adopted: Vec<_> = std::thread::scope(|scope| {
        let adopt = |socket| scope.spawn(|| StreamOptions::default().adopt(&session, socket));
        let threads: Vec<_> = sockets.into_iter().map(adopt).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(adopted.iter().filter(|stream| stream.is_ok()).count(), count);
    for (index, (stream, mut peer)) in adopted.into_iter().zip(peers).enumerate() {
        match stream {
            Ok(mut stream) => exchange(&mut stream, &mut peer, index as u64),
            Err(error) => {
                assert!(error.to_string().contains("limit"), "{error}");
                (&error.socket).write_all(b"it is its own").unwrap();
                peer.read_exact(&mut [0; 13]).unwrap();
            }
        }
    }
}

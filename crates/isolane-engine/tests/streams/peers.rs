//! Peers and clients of all manners.

use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use isolane_attach::stream::{Stream, StreamOptions};
use isolane_shm::testing::{self, Corruptor};
use rustix::net::sockopt;

use super::fixture::{Fixture, Pattern};

#[test]
fn stalled_peer_blocks_only_its_stream() {
    let fixture = Fixture::new();
    let session = fixture.attach();
    let mut streams: Vec<_> = (0..2)
        .map(|_| {
            let (socket, peer) = testing::connection().unwrap();
            (Stream::adopt(&session, socket).unwrap(), peer)
        })
        .collect();
    let (mut slow, mut slow_peer) = streams.pop().unwrap();
    let (mut quick, mut quick_peer) = streams.pop().unwrap();
    slow.set_write_timeout(Some(Duration::from_millis(50)));
    let (mut pattern, mut bytes, mut written) = (Pattern::new(3), vec![0; 5000], 0);
    while written < 100_000_000 {
        let before = pattern.position;
        pattern.fill(&mut bytes);
        match slow.write(&bytes) {
            Ok(count) => pattern.position = before + count as u64,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                pattern.position = before;
                break;
            }
        }
        written += bytes.len();
    }
    for _ in 0..100 {
        quick.write_all(&[1; 1000]).unwrap();
        quick_peer.read_exact(&mut [0; 1000]).unwrap();
        quick_peer.write_all(&[1; 1000]).unwrap();
        quick.read_exact(&mut [0; 1000]).unwrap();
    }
    drop(slow);
    let mut seen = Pattern::new(3);
    loop {
        match slow_peer.read(&mut bytes).unwrap() {
            0 => break,
            count => seen.check(&bytes[..count]),
        }
    }
    assert_eq!(seen.position, pattern.position);
}

/// Reads 1 KB/s for as many seconds as `ISOLANE_TEST_SLOW_READER` says, after the stream was dropped, and then at full speed.
#[test]
fn slow_reader_receives_everything_after_close() {
    let seconds = std::env::var("ISOLANE_TEST_SLOW_READER").map_or(1, |seconds| seconds.parse().unwrap());
    let fixture = Fixture::new();
    let (socket, mut peer) = testing::connection().unwrap();
    sockopt::set_socket_send_buffer_size(&socket, 1 << 16).unwrap();
    sockopt::set_socket_recv_buffer_size(&peer, 1 << 16).unwrap();
    let mut stream = Stream::adopt(&fixture.attach(), socket).unwrap();
    let (mut pattern, mut bytes) = (Pattern::new(5), vec![0; 1024]);
    // Until the kernel and the ring are full, which they are once nothing more fits for a while.
    stream.set_write_timeout(Some(Duration::from_millis(200)));
    loop {
        let before = pattern.position;
        pattern.fill(&mut bytes);
        match stream.write(&bytes) {
            Ok(count) => pattern.position = before + count as u64,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                pattern.position = before;
                break;
            }
        }
    }
    drop(stream);
    let mut seen = Pattern::new(5);
    for _ in 0..seconds {
        peer.read_exact(&mut bytes).unwrap();
        seen.check(&bytes);
        std::thread::sleep(Duration::from_secs(1));
    }
    loop {
        match peer.read(&mut bytes).unwrap() {
            0 => break,
            count => seen.check(&bytes[..count]),
        }
    }
    assert_eq!(seen.position, pattern.position);
}

/// Flow control of the kernel: unread data fills the ring and the kernel, then the peer blocks.
#[test]
fn stalled_application_blocks_only_its_peer() {
    let fixture = Fixture::new();
    let (mut stream, mut peer) = fixture.stream_with(StreamOptions { rx_bytes: 4096, ..Default::default() });
    peer.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    let (mut pattern, mut bytes) = (Pattern::new(4), vec![0; 10_000]);
    let error = loop {
        let before = pattern.position;
        pattern.fill(&mut bytes);
        match peer.write(&bytes) {
            Ok(count) => pattern.position = before + count as u64,
            Err(error) => {
                pattern.position = before;
                break error;
            }
        }
        assert!(pattern.position < 100_000_000, "nothing stops it");
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    drop(peer);
    let mut seen = Pattern::new(4);
    loop {
        match stream.read(&mut bytes).unwrap() {
            0 => break,
            count => seen.check(&bytes[..count]),
        }
    }
    assert_eq!(seen.position, pattern.position);
}

/// Lines of the cache before a session's first stream: a port of 4096 doorbells, a page that is unused, and a queue of
/// 1024 notices, in whole pages.
const BLOCK_LINES: usize = 0x53000 / 128;

/// All words of a session are overwritten while its streams are active; other sessions continue.
#[test]
fn hostile_client_affects_only_itself() {
    let fixture = Fixture::new();
    let (mut good, mut good_peer) = fixture.stream();
    for round in 0..20u64 {
        let session = fixture.attach_with(4 << 20);
        let (socket, mut peer) = testing::connection().unwrap();
        let options = StreamOptions { rx_bytes: 4096, tx_bytes: 4096, ..Default::default() };
        let Ok(mut stream) = options.adopt(&session, socket) else { continue };
        let corruptor = Corruptor::new(session.memory());
        // The count of written data.
        stream.write_all(&[1; 100]).unwrap();
        let mut produced = [0; 8];
        session.memory().copy_out(128 * (BLOCK_LINES as u64 + 2), &mut produced).unwrap();
        assert_eq!(u64::from_ne_bytes(produced), 100);
        let mut seed = round + 1;
        peer.set_nonblocking(true).unwrap();
        for _ in 0..2000 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // Words start at cache lines; the stream follows doorbells and a queue.
            let line = (seed >> 33) as usize % ((512 << 10) / 128);
            let place =
                16 * if seed & 15 == 0 { line } else { BLOCK_LINES + line % 16 } + (seed >> 7) as usize % 2;
            match (seed >> 8) & 3 {
                0 => corruptor.scribble(place, seed),
                1 => corruptor.nudge(place, seed >> 50),
                _ => corruptor.nudge(place, (seed >> 50).wrapping_neg()),
            }
            let _ = (stream.try_write(&[1; 100]), stream.try_read(&mut [0; 100]), peer.write(&[1; 100]));
        }
        drop((stream, session));
        good.write_all(&[2; 1000]).unwrap();
        good_peer.read_exact(&mut [0; 1000]).unwrap();
    }
    assert!(fixture.engine.is_healthy());
}

//! Long reads, which go past the ring, and what leads back to it.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use isolane_attach::stream::{Interest, Poller, Stream, StreamOptions};
use isolane_shm::testing;

use super::fixture::{Fixture, Pattern};
use super::tasks::block_on;

/// Reads enough at once that the next read bypasses the ring.
fn read_long(stream: &mut Stream, peer: &mut TcpStream, pattern: &mut (Pattern, Pattern)) {
    let mut bytes = vec![0; 1 << 16];
    for _ in 0..8 {
        pattern.0.fill(&mut bytes);
        let sent = bytes.clone();
        // Together: the kernel may not hold all of it.
        std::thread::scope(|scope| {
            scope.spawn(|| peer.write_all(&sent).unwrap());
            stream.read_exact(&mut bytes).unwrap();
        });
        pattern.1.check(&bytes);
    }
}

#[test]
fn every_other_way_to_read_follows_long_reads() {
    let fixture = Fixture::new();
    let session = fixture.attach();
    let mut poller = Poller::new(&session, 1).unwrap();
    let (socket, mut polled_peer) = testing::connection().unwrap();
    let mut polled = poller.adopt(socket, StreamOptions::default()).unwrap();
    let (mut stream, mut peer) = fixture.stream();
    let (mut one, mut other) = ((Pattern::new(1), Pattern::new(1)), (Pattern::new(2), Pattern::new(2)));
    let mut bytes = [0; 100];
    for _ in 0..30 {
        read_long(&mut stream, &mut peer, &mut one);
        one.0.fill(&mut bytes);
        peer.write_all(&bytes).unwrap();
        let mut count = 0;
        while count < 50 {
            match stream.try_read(&mut bytes[..50 - count]) {
                Ok(more) => {
                    one.1.check(&bytes[..more]);
                    count += more;
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        stream.read_exact(&mut bytes[..50]).unwrap();
        one.1.check(&bytes[..50]);

        read_long(&mut stream, &mut peer, &mut one);
        one.0.fill(&mut bytes);
        let writer = std::thread::spawn({
            let mut peer = peer.try_clone().unwrap();
            move || {
                std::thread::sleep(Duration::from_millis(1));
                peer.write_all(&bytes).unwrap();
            }
        });
        let mut count = 0;
        while count < 100 {
            let more = block_on(stream.read_async(&mut bytes[..100 - count])).unwrap();
            one.1.check(&bytes[..more]);
            count += more;
        }
        writer.join().unwrap();

        read_long(&mut polled, &mut polled_peer, &mut other);
        while poller.try_next().unwrap().is_some() {}
        if !polled.arm(Interest::Read).unwrap() {
            other.0.fill(&mut bytes);
            polled_peer.write_all(&bytes).unwrap();
            assert_eq!(poller.next(Some(Duration::from_secs(30))).unwrap(), Some(polled.id()));
            polled.read_exact(&mut bytes).unwrap();
            other.1.check(&bytes);
        }
    }
}

#[test]
fn bypassing_read_times_out() {
    let fixture = Fixture::new();
    let (mut stream, mut peer) = fixture.stream();
    let mut pattern = (Pattern::new(1), Pattern::new(1));
    read_long(&mut stream, &mut peer, &mut pattern);
    stream.set_read_timeout(Some(Duration::from_millis(20)));
    for _ in 0..10 {
        assert_eq!(stream.read(&mut [0; 9]).unwrap_err().kind(), ErrorKind::WouldBlock);
    }
    read_long(&mut stream, &mut peer, &mut pattern);
}

#[test]
fn bypassing_read_fails_at_session_end() {
    let fixture = Fixture::new();
    let (mut stream, mut peer) = fixture.stream();
    read_long(&mut stream, &mut peer, &mut (Pattern::new(1), Pattern::new(1)));
    let ender = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        drop(fixture);
    });
    assert_eq!(stream.read(&mut [0; 9]).unwrap_err().kind(), ErrorKind::ConnectionAborted);
    ender.join().unwrap();
}

#[test]
fn ends_are_told_past_the_ring() {
    let fixture = Fixture::new();
    for resets in [false, true] {
        let (mut stream, mut peer) = fixture.stream();
        read_long(&mut stream, &mut peer, &mut (Pattern::new(1), Pattern::new(1)));
        if resets {
            stream.write_all(b"never read").unwrap();
            peer.read_exact(&mut [0; 1]).unwrap();
        }
        drop(peer);
        for _ in 0..3 {
            match stream.read(&mut [0; 1 << 14]) {
                Ok(count) => assert_eq!((count, resets), (0, false)),
                Err(error) => assert_eq!((error.kind(), resets), (ErrorKind::ConnectionReset, true)),
            }
        }
    }
}

#[test]
fn stream_is_returned_after_bypassing_reads() {
    let fixture = Fixture::new();
    let (mut stream, mut peer) = fixture.stream();
    let mut pattern = (Pattern::new(1), Pattern::new(1));
    for _ in 0..20 {
        read_long(&mut stream, &mut peer, &mut pattern);
        let mut bytes = [0; 3000];
        pattern.0.fill(&mut bytes);
        peer.write_all(&bytes).unwrap();
        stream.read_exact(&mut bytes[..1000]).unwrap();
        pattern.1.check(&bytes[..1000]);
        let mut socket = stream.into_std().unwrap();
        socket.read_exact(&mut bytes[..2000]).unwrap();
        pattern.1.check(&bytes[..2000]);
        stream = Stream::adopt(&fixture.attach(), socket).unwrap();
    }
}

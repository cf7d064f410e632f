//! Streams through a running engine: the application's side, as an application sees it.

mod bypass;
mod fixture;
mod many;
mod peers;
mod tasks;
mod times;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use fixture::{Fixture, Pattern};
use isolane_attach::stream::{AdoptError, Interest, Listener, Poller, Stream, StreamOptions};
use isolane_attach::{AttachError, Session, SessionOptions};
use isolane_shm::testing;
use rustix::net::sockopt;

#[test]
fn bytes_go_both_ways_and_ends_are_told() {
    let fixture = Fixture::new();
    let (mut stream, mut peer) = fixture.stream();
    for size in [1usize, 64, 1000, 4096, 100_000, 1_000_000] {
        let mut bytes = vec![0; size];
        Pattern::new(size as u64).fill(&mut bytes);
        let echo = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut seen = vec![0; size];
                peer.read_exact(&mut seen).unwrap();
                peer.write_all(&seen).unwrap();
            });
            stream.write_all(&bytes).unwrap();
            let mut echo = vec![0; size];
            stream.read_exact(&mut echo).unwrap();
            echo
        });
        assert!(echo == bytes, "{size}");
    }
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0);
    assert_eq!(stream.write(&[0]).unwrap_err().kind(), ErrorKind::BrokenPipe);
    peer.write_all(b"last").unwrap();
    drop(peer);
    let mut tail = Vec::new();
    stream.read_to_end(&mut tail).unwrap();
    assert_eq!(tail, b"last");
}

#[test]
fn listener_and_connection_exchange_data() {
    let fixture = Fixture::new();
    let session = fixture.attach();
    let listener = Listener::bind(&session, "127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut near = Stream::connect(&session, address).unwrap();
    let (mut far, from) = listener.accept().unwrap();
    assert_eq!(from, near.local_addr().unwrap());
    assert_eq!(far.peer_addr().unwrap(), from);
    near.write_all(b"ping").unwrap();
    let mut seen = [0; 4];
    far.read_exact(&mut seen).unwrap();
    assert_eq!(&seen, b"ping");
}

#[test]
fn probe_needs_engine() {
    let fixture = Fixture::new();
    let options = SessionOptions { path: fixture.path(), spawn_engine: false, ..SessionOptions::default() };
    Session::probe(&options).unwrap();
    let path = fixture.path().with_file_name("none");
    let error = Session::probe(&SessionOptions { path, ..options }).unwrap_err();
    assert!(matches!(error, AttachError::NoEngine { .. }), "{error}");
}

#[test]
fn reads_and_writes_time_out() {
    let fixture = Fixture::new();
    let (mut stream, peer) = fixture.stream();
    stream.set_read_timeout(Some(Duration::from_millis(20)));
    stream.set_write_timeout(Some(Duration::from_millis(20)));
    assert_eq!(stream.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(stream.try_read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
    for size in [1000, 100_000] {
        let error = loop {
            if let Err(error) = stream.write(&vec![0; size]) {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    }
    drop(peer);
}

#[test]
fn unadoptable_socket_is_refused_unchanged() {
    let fixture = Fixture::new();
    let session = fixture.attach();
    let (socket, mut peer) = testing::connection().unwrap();
    let twice = socket.try_clone().unwrap();
    let stream = Stream::adopt(&session, socket).unwrap();
    let error = Stream::adopt(&session, twice).unwrap_err();
    assert!(error.to_string().contains("adopted already"), "{error}");
    let mut socket = stream.into_std().unwrap();
    socket.shutdown(Shutdown::Both).unwrap();
    let error = Stream::adopt(&session, socket).unwrap_err();
    assert!(error.to_string().contains("not connected"), "{error}");
    socket = error.socket;
    assert_eq!((peer.read(&mut [0; 1]).unwrap(), socket.read(&mut [0; 1]).unwrap()), (0, 0));
}

#[test]
fn refused_connection_is_returned() {
    let fixture = Fixture::new();
    let session = fixture.attach_with(1 << 20);
    let goes_on = |socket: &mut TcpStream, peer: &mut TcpStream| {
        peer.write_all(b"ping").unwrap();
        let mut seen = [0; 4];
        socket.read_exact(&mut seen).unwrap();
        assert_eq!(&seen, b"ping");
    };
    let (socket, mut peer) = testing::connection().unwrap();
    let options = StreamOptions { rx_bytes: 4 << 20, ..StreamOptions::default() };
    let AdoptError { error, mut socket } = options.adopt(&session, socket).unwrap_err();
    assert!(matches!(error, AttachError::OutOfMemory { .. }), "{error}");
    goes_on(&mut socket, &mut peer);
    drop(fixture);
    while session.check().is_ok() {
        std::thread::yield_now();
    }
    let error = Stream::adopt(&session, socket).unwrap_err();
    assert!(matches!(error.error, AttachError::SessionClosed(_)), "{error}");
    socket = error.socket;
    goes_on(&mut socket, &mut peer);
    assert_eq!(
        std::io::Error::from(Stream::adopt(&session, socket).unwrap_err()).kind(),
        ErrorKind::ConnectionAborted
    );
}

#[test]
fn parts_finish_without_data_loss() {
    const BYTES: usize = 200_000;
    let fixture = Fixture::new();
    let (socket, mut peer) = testing::narrow_connection().unwrap();
    let mut stream = Stream::adopt(&fixture.attach(), socket).unwrap();
    let mut bytes = vec![0; BYTES];
    Pattern::new(9).fill(&mut bytes);
    let mut written = 0;
    while written < BYTES {
        // In small pieces: long ones would go past the ring.
        written += stream.write(&bytes[written..BYTES.min(written + 1000)]).unwrap();
    }
    stream.shutdown(Shutdown::Write).unwrap();
    let parts = stream.into_parts().unwrap();
    assert!(parts.shut_down && bytes.ends_with(&parts.unsent) && !parts.unsent.is_empty());
    let finishing = std::thread::spawn(move || parts.finish(Some(Duration::from_secs(60))).unwrap());
    let mut seen = Vec::new();
    peer.read_to_end(&mut seen).unwrap();
    assert!(seen == bytes, "{} of {BYTES}", seen.len());
    drop(finishing.join().unwrap());
}

/// More than there are requests in flight.
#[test]
fn releases_of_many_streams_wait_for_each_other() {
    let fixture = Fixture::new();
    let session = fixture.attach();
    let mut streams: Vec<_> = (0..50u8)
        .map(|number| {
            let (socket, mut peer) = testing::connection().unwrap();
            let mut stream = Stream::adopt(&session, socket).unwrap();
            stream.write_all(&[number; 100]).unwrap();
            peer.write_all(&[number; 50]).unwrap();
            (stream, peer)
        })
        .collect();
    streams.iter_mut().for_each(|(stream, _)| stream.start_release().unwrap());
    // The connection of a dropped one ends, with an error if the engine had not sent everything.
    let (dropped, mut peer) = streams.remove(0);
    drop(dropped);
    while peer.read(&mut [0; 100]).is_ok_and(|count| count > 0) {}
    for (number, (stream, mut peer)) in (1..).zip(streams) {
        let mut socket = stream.into_std().unwrap();
        let (mut sent, mut received) = ([0; 100], [0; 50]);
        peer.read_exact(&mut sent).unwrap();
        socket.read_exact(&mut received).unwrap();
        assert_eq!((sent, received), ([number; 100], [number; 50]));
    }
}

#[test]
fn stream_is_behind_until_it_is_readable() {
    let fixture = Fixture::new();
    let (mut stream, mut peer) = fixture.stream();
    let mut byte = [0];
    for round in 0..500u32 {
        peer.write_all(&[round as u8]).unwrap();
        assert!(stream.is_behind().unwrap() || stream.readiness().unwrap().readable, "{round}");
        stream.read_exact(&mut byte).unwrap();
        assert!(!stream.is_behind().unwrap(), "{round}");
        // Acknowledges the byte, so that the peer's kernel sends the next.
        stream.write_all(&byte).unwrap();
        peer.read_exact(&mut byte).unwrap();
    }
    peer.shutdown(Shutdown::Write).unwrap();
    assert!(stream.is_behind().unwrap() || stream.readiness().unwrap().finished);
}

#[test]
fn reunited_parts_continue_the_stream() {
    let fixture = Fixture::new();
    let (mut stream, mut pattern, mut peer) = full(&fixture);
    stream.set_write_timeout(Some(Duration::from_millis(10)));
    let unfinished = stream.into_std().unwrap_err();
    assert_eq!(unfinished.error().kind(), ErrorKind::WouldBlock);
    let parts = unfinished.into_parts().expect("the engine has released it");
    let unfinished = parts.finish(Some(Duration::from_millis(1))).unwrap_err();
    let parts = unfinished.into_parts().unwrap();
    let unsent = parts.unsent.clone();
    let finishing = std::thread::spawn(move || drop(parts.finish(None).unwrap()));
    let mut seen = Vec::new();
    peer.read_to_end(&mut seen).unwrap();
    assert!(seen.ends_with(&unsent) && !unsent.is_empty(), "{} of {}", seen.len(), unsent.len());
    pattern.check(&seen);
    finishing.join().unwrap();
}

#[test]
fn abandoned_data_resets_the_peer() {
    let fixture = Fixture::new();
    let (mut stream, _, mut peer) = full(&fixture);
    stream.set_write_timeout(Some(Duration::from_millis(10)));
    assert_eq!(std::io::Error::from(stream.into_std().unwrap_err()).kind(), ErrorKind::WouldBlock);
    let error = peer.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn returned_socket_keeps_linger() {
    let fixture = Fixture::new();
    let (socket, _peer) = testing::connection().unwrap();
    let linger = Some(Duration::from_secs(7));
    sockopt::set_socket_linger(&socket, linger).unwrap();
    let stream = Stream::adopt(&fixture.attach(), socket).unwrap();
    let socket = stream.into_std().unwrap();
    drop(fixture);
    assert_eq!(sockopt::socket_linger(&socket).unwrap(), linger);
}

#[test]
fn reset_fails_reads_and_writes() {
    let fixture = Fixture::new();
    let (mut stream, mut peer) = fixture.stream();
    stream.write_all(b"never read").unwrap();
    peer.read_exact(&mut [0; 1]).unwrap();
    drop(peer);
    assert_eq!(stream.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    let error = loop {
        if let Err(error) = stream.write(b"more") {
            break error.kind();
        }
    };
    assert!(matches!(error, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{error:?}");
}

#[test]
fn data_written_before_drop_arrives() {
    let fixture = Fixture::new();
    for size in [10, 200_000] {
        let (mut stream, mut peer) = fixture.stream();
        let mut bytes = vec![0; size];
        Pattern::new(1).fill(&mut bytes);
        for part in bytes.chunks(5000) {
            stream.write_all(part).unwrap();
        }
        drop(stream);
        let mut seen = Vec::new();
        peer.read_to_end(&mut seen).unwrap();
        assert!(seen == bytes);
    }
}

const RING_BYTES: usize = 256 << 10;

/// A stream that was given as many bytes as its ring holds, the pattern of these, and its peer, which reads
/// nothing. The kernel takes a few KiB at most, so most of the bytes stay in the ring.
fn full(fixture: &Fixture) -> (Stream, Pattern, TcpStream) {
    let (socket, peer) = testing::narrow_connection().unwrap();
    let options = StreamOptions { tx_bytes: RING_BYTES, ..StreamOptions::default() };
    let mut stream = options.adopt(&fixture.attach(), socket).unwrap();
    let mut bytes = vec![0; RING_BYTES];
    Pattern::new(1).fill(&mut bytes);
    // Short writes: long ones bypass the ring.
    bytes.chunks(4096).for_each(|chunk| stream.write_all(chunk).unwrap());
    (stream, Pattern::new(1), peer)
}

#[test]
fn drop_waits_for_lingering_socket() {
    let fixture = Fixture::new();
    let (stream, mut pattern, mut peer) = full(&fixture);
    let socket = stream.socket().try_clone().unwrap();
    sockopt::set_socket_linger(&socket, Some(Duration::from_secs(3600))).unwrap();
    let dropping = std::thread::spawn(move || {
        drop(stream);
        assert!(isolane_tcp::all_acked(socket.as_fd()).unwrap(), "it did not wait for its peer");
    });
    std::thread::sleep(Duration::from_millis(100));
    assert!(!dropping.is_finished(), "its peer has read nothing");
    let mut bytes = vec![0; 65_536];
    loop {
        match peer.read(&mut bytes).unwrap() {
            0 => break,
            count => pattern.check(&bytes[..count]),
        }
    }
    dropping.join().unwrap();
}

#[test]
fn drop_waits_at_most_the_linger_time() {
    let fixture = Fixture::new();
    let (stream, mut pattern, mut peer) = full(&fixture);
    sockopt::set_socket_linger(stream.socket(), Some(Duration::from_secs(1))).unwrap();
    let start = Instant::now();
    drop(stream);
    assert!(start.elapsed() >= Duration::from_secs(1));
    let mut seen = Vec::new();
    peer.read_to_end(&mut seen).unwrap();
    pattern.check(&seen);
}

#[test]
fn resetting_drop_does_not_wait() {
    let fixture = Fixture::new();
    let (stream, _, mut peer) = full(&fixture);
    sockopt::set_socket_linger(stream.socket(), Some(Duration::from_secs(3600))).unwrap();
    peer.write_all(b"unread").unwrap();
    drop(stream);
}

#[test]
fn drop_with_unread_bytes_resets() {
    let fixture = Fixture::new();
    let (mut stream, mut peer) = fixture.stream();
    peer.write_all(b"two").unwrap();
    stream.read_exact(&mut [0; 1]).unwrap();
    drop(stream);
    assert_eq!(peer.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn memory_of_closed_stream_is_reused() {
    let fixture = Fixture::new();
    let session = fixture.attach_with(4 << 20);
    let (mut stuck, peer) = {
        let (socket, peer) = testing::narrow_connection().unwrap();
        (Stream::adopt(&session, socket).unwrap(), peer)
    };
    while stuck.try_write(&[7; 10_000]).is_ok() || stuck.try_write(&[7]).is_ok() {}
    drop(stuck);
    for _ in 0..50 {
        // The memory of the previous stream is freed shortly after its close.
        let start = Instant::now();
        loop {
            let (socket, _peer) = testing::connection().unwrap();
            match Stream::adopt(&session, socket) {
                Ok(_) => break,
                Err(AdoptError { error: AttachError::OutOfMemory { .. }, .. }) => {
                    assert!(start.elapsed() < Duration::from_secs(30))
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    drop(peer);
}

#[test]
fn engine_end_is_an_error() {
    let fixture = Fixture::new();
    let (mut stream, mut peer) = fixture.stream();
    let reader = std::thread::spawn(move || {
        let error = stream.read(&mut [0; 1]).unwrap_err();
        (stream, error.kind())
    });
    std::thread::sleep(Duration::from_millis(50));
    drop(fixture);
    let (mut stream, error) = reader.join().unwrap();
    assert_eq!(error, ErrorKind::ConnectionAborted);
    assert_eq!(stream.write(&[1]).unwrap_err().kind(), ErrorKind::ConnectionAborted);
    assert_eq!(stream.try_read(&mut [1]).unwrap_err().kind(), ErrorKind::ConnectionAborted);
    // It works without an engine.
    stream.into_std().unwrap().write_all(&[7]).unwrap();
    let mut came = [0];
    peer.read_exact(&mut came).unwrap();
    assert_eq!(came, [7]);
}

/// A clean shutdown releases all sockets; the application notices the end as well.
#[test]
fn engine_shutdown_restores_sockets() {
    let fixture = Fixture::new();
    let (stream, mut peer) = fixture.stream();
    let mut socket = stream.socket().try_clone().unwrap();
    peer.write_all(b"unread").unwrap();
    assert!(fixture.engine.stop(Duration::from_secs(60)));
    let mut seen = [0; 6];
    socket.read_exact(&mut seen).unwrap();
    assert_eq!(&seen, b"unread");
    drop(stream);
}

/// The two ways in which an engine ends.
const ENDS: [fn(Fixture); 2] = [drop, |fixture| assert!(fixture.engine.stop(Duration::from_secs(60)))];

#[test]
fn close_after_engine_end_resets_with_unsent_data() {
    for end in ENDS {
        let fixture = Fixture::new();
        let (stream, _, mut peer) = full(&fixture);
        end(fixture);
        drop(stream);
        let error = peer.read_to_end(&mut Vec::new()).expect_err("the peer takes a part for all");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
}

#[test]
fn clean_close_after_engine_end() {
    for end in ENDS {
        let fixture = Fixture::new();
        let (mut stream, mut peer) = fixture.stream();
        stream.write_all(b"all").unwrap();
        let mut seen = [0; 3];
        peer.read_exact(&mut seen).unwrap();
        end(fixture);
        drop(stream);
        assert_eq!((seen, peer.read(&mut [0; 1]).unwrap()), (*b"all", 0));
    }
}

/// The kernel closes the sockets of a program that exits or is killed: the option that decides the outcome is set without any
/// call of the program.
#[test]
fn exit_after_engine_end_resets_unreturned_stream() {
    for end in ENDS {
        let fixture = Fixture::new();
        let (stream, mut pattern, mut peer) = full(&fixture);
        let linger = Some(Duration::from_secs(7));
        sockopt::set_socket_linger(stream.socket(), linger).unwrap();
        end(fixture);
        let start = Instant::now();
        while sockopt::socket_linger(stream.socket()).unwrap() != Some(Duration::ZERO) {
            assert!(start.elapsed() < Duration::from_secs(60), "an exit ends the connection in order");
            std::thread::yield_now();
        }
        let reading = std::thread::spawn(move || {
            let mut seen = Vec::new();
            peer.read_to_end(&mut seen).map(|_| seen)
        });
        let socket = stream.into_std().unwrap();
        assert_eq!(sockopt::socket_linger(&socket).unwrap(), linger);
        drop(socket);
        let seen = reading.join().unwrap().unwrap();
        pattern.check(&seen);
        assert_eq!(seen.len(), RING_BYTES);
    }
}

#[test]
fn poller_reports_each_stream_once() {
    let fixture = Fixture::new();
    let session = fixture.attach_with(16 << 20);
    let mut poller = Poller::new(&session, 64).unwrap();
    let options = StreamOptions { rx_bytes: 4096, tx_bytes: 4096, ..StreamOptions::default() };
    let mut streams: Vec<(Stream, TcpStream)> = (0..50)
        .map(|_| {
            let (socket, peer) = testing::connection().unwrap();
            (poller.adopt(socket, options).unwrap(), peer)
        })
        .collect();
    // The first notification of a new stream is spurious.
    while poller.next(Some(Duration::from_millis(100))).unwrap().is_some() {}
    for (stream, _) in &mut streams {
        assert!(!stream.arm(Interest::Read).unwrap());
    }
    assert_eq!(poller.next(Some(Duration::ZERO)).unwrap(), None);
    // Space is not an event of a reader.
    streams[1].0.write_all(b"x").unwrap();
    while streams[1].0.unsent_bytes().unwrap() > 0 {
        std::thread::yield_now();
    }
    assert_eq!(poller.next(Some(Duration::ZERO)).unwrap(), None);
    for (_, peer) in streams.iter_mut().step_by(3) {
        peer.write_all(b"x").unwrap();
    }
    let mut notified: Vec<u32> = (0..17).map(|_| poller.next(None).unwrap().unwrap()).collect();
    notified.sort_unstable();
    let meant: Vec<u32> = streams.iter().step_by(3).map(|(stream, _)| stream.id()).collect();
    assert_eq!(notified, meant);
    for (stream, _) in streams.iter_mut().step_by(3) {
        assert!(stream.arm(Interest::Read).unwrap());
        assert_eq!(stream.try_read(&mut [0; 9]).unwrap(), 1);
    }
    let (stream, peer) = &mut streams[1];
    while stream.try_write(&[0; 4096]).is_ok()
        || stream.try_write(&[0]).is_ok()
        || stream.arm(Interest::Write).unwrap()
    {}
    let id = stream.id();
    peer.set_nonblocking(true).unwrap();
    let mut bytes = vec![0; 1 << 20];
    loop {
        while peer.read(&mut bytes).is_ok_and(|count| count > 0) {}
        if poller.next(Some(Duration::from_millis(1))).unwrap() == Some(id) {
            break;
        }
    }
    assert!(stream.try_write(&[0]).is_ok());
}

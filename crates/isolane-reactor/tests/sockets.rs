//! Sockets.

mod common;

use common::*;
use isolane_reactor::{Event, Reactor, Token};
use std::io::{IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

#[test]
fn accepts_and_echoes() {
    with_each(|config| {
        let mut reactor = reactor(&config);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let address = listener.local_addr().expect("an address");
        let token = reactor.listen(listener).expect("listening");
        let mut peer = TcpStream::connect(address).expect("connected");
        let conn = turn_until(&mut reactor, |reactor, event| match event {
            Event::Accepted { listener, socket, .. } if listener == token => reactor.add(socket).ok(),
            _ => None,
        });
        for round in 0..3u8 {
            peer.write_all(&[round; 100]).expect("written");
            let bytes = receive(&mut reactor, conn);
            assert_eq!(bytes, [round; 100]);
            assert_eq!(
                reactor.send(conn, &[IoSlice::new(&bytes[..40]), IoSlice::new(&bytes[40..])]).expect("sent"),
                100
            );
            let mut back = [0; 100];
            peer.read_exact(&mut back).expect("read");
            assert_eq!(back, [round; 100]);
        }
    });
}

#[test]
fn closed_listener_refuses_while_another_accepts() {
    with_each(|config| {
        let mut reactor = reactor(&config);
        let listen = |reactor: &mut Reactor| {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
            let address = listener.local_addr().expect("an address");
            (reactor.listen(listener).expect("listening"), address)
        };
        let (first, first_address) = listen(&mut reactor);
        let (second, second_address) = listen(&mut reactor);
        // Both wait for connections now.
        assert_eq!(turn_for(&mut reactor, Duration::from_millis(10)), 0);
        let mut waiting = TcpStream::connect(first_address).expect("connected");
        let mut returned = reactor.close_listener(first);
        assert_eq!(returned.len(), 1, "it is not reset");
        returned.remove(0).0.write_all(&[1]).expect("written");
        let mut byte = [0];
        waiting.read_exact(&mut byte).expect("read");
        assert!(TcpStream::connect(first_address).is_err());
        let (third, third_address) = listen(&mut reactor);
        assert!(third != first && third != second);
        for (expected, address) in [(second, second_address), (third, third_address)] {
            let _peer = TcpStream::connect(address).expect("connected");
            let accepted = turn_until(&mut reactor, |_, event| match event {
                Event::Accepted { listener, .. } => Some(listener),
                _ => None,
            });
            assert_eq!(accepted, expected);
        }
    });
}

#[test]
fn reports_bytes_after_idle_period() {
    with_each(|config| {
        let mut reactor = reactor(&config);
        let (mut peer, socket) = pair();
        let conn = reactor.add(socket).expect("added");
        for round in 0..5u8 {
            assert_eq!(turn_for(&mut reactor, Duration::from_millis(10)), 0);
            peer.write_all(&[round]).expect("written");
            assert_eq!(receive(&mut reactor, conn), [round]);
        }
    });
}

#[test]
fn reports_unread_bytes_again() {
    with_each(|config| {
        let mut reactor = reactor(&config);
        let (mut peer, socket) = pair();
        let conn = reactor.add(socket).expect("added");
        peer.write_all(&[7; 10]).expect("written");
        // The driver ignores three reports, then reads one byte at a time.
        let mut reports = 0;
        turn_until(&mut reactor, |_, event| {
            reports += usize::from(matches!(event, Event::Readable(token) if token == conn));
            (reports == 3).then_some(())
        });
        for _ in 0..10 {
            turn_until(&mut reactor, |reactor, event| match event {
                Event::Readable(_) => {
                    let mut byte = [0];
                    reactor
                        .receive(conn, &mut [std::io::IoSliceMut::new(&mut byte)])
                        .ok()
                        .filter(|_| byte == [7])
                }
                _ => None,
            });
        }
    });
}

#[test]
fn reports_eof_after_last_bytes() {
    with_each(|config| {
        for quiet in [Duration::ZERO, Duration::from_millis(3)] {
            let mut reactor = reactor(&config);
            let (mut peer, socket) = pair();
            let conn = reactor.add(socket).expect("added");
            turn_for(&mut reactor, quiet);
            peer.write_all(b"last").expect("written");
            drop(peer);
            assert_eq!(receive(&mut reactor, conn), b"last");
            assert_eq!(receive(&mut reactor, conn), b"");
        }
    });
}

#[test]
fn reports_writable_after_short_send() {
    with_each(|config| {
        let mut reactor = reactor(&config);
        let (mut peer, socket) = pair();
        let conn = reactor.add(socket).expect("added");
        let (start, started) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            started.recv().expect("the word to start");
            let mut all = Vec::new();
            peer.read_to_end(&mut all).map(|_| all)
        });
        let bytes: Vec<u8> = (0..32 << 20).map(|index: u32| (index % 251) as u8).collect();
        let mut sent = 0;
        while sent < bytes.len() {
            let chunk = &bytes[sent..bytes.len().min(sent + (1 << 20))];
            let count = reactor.send(conn, &[IoSlice::new(chunk)]).expect("sent");
            sent += count;
            if count < chunk.len() {
                start.send(()).expect("a reader");
                let is_writable =
                    |_: &mut Reactor, event| matches!(event, Event::Writable(it) if it == conn).then_some(());
                turn_until(&mut reactor, is_writable);
            }
        }
        drop(start);
        reactor.shutdown_write(conn).expect("shut down");
        assert!(reader.join().expect("a reader").expect("all read") == bytes);
    });
}

#[test]
fn paused_socket_resumes_without_loss() {
    with_each(|config| {
        let mut reactor = reactor(&config);
        let (mut peer, socket) = pair();
        let conn = reactor.add(socket).expect("added");
        turn_for(&mut reactor, Duration::from_millis(2));
        reactor.pause(conn);
        peer.write_all(b"wait").expect("written");
        assert_eq!(turn_for(&mut reactor, Duration::from_millis(20)), 0);
        reactor.resume(conn);
        assert_eq!(receive(&mut reactor, conn), b"wait");
    });
}

#[test]
fn remove_closes_an_armed_socket() {
    with_each(|config| {
        let mut reactor = reactor(&config);
        let (mut peer, socket) = pair();
        let conn = reactor.add(socket).expect("added");
        turn_for(&mut reactor, Duration::from_millis(5));
        drop(reactor.remove(conn).expect("present"));
        assert!(reactor.remove(conn).is_none() && reactor.socket(conn).is_none());
        turn_for(&mut reactor, Duration::from_millis(5));
        peer.set_read_timeout(Some(Duration::from_secs(2))).expect("set");
        assert_eq!(peer.read(&mut [0; 8]).expect("the end"), 0);
    });
}

/// The pending notification finds no bytes.
#[test]
fn remove_closes_socket_with_pending_notification() {
    with_each(|config| {
        let mut reactor = reactor(&config);
        let (mut peer, socket) = pair();
        let mut other = socket.try_clone().expect("cloned");
        let conn = reactor.add(socket).expect("added");
        turn_for(&mut reactor, Duration::from_millis(5));
        peer.write_all(b"gone").expect("written");
        let mut bytes = [0; 4];
        while other.peek(&mut bytes).is_err() {}
        other.read_exact(&mut bytes).expect("read");
        drop((reactor.remove(conn).expect("present"), other));
        turn_for(&mut reactor, Duration::from_millis(5));
        peer.set_read_timeout(Some(TEST_TIMEOUT)).expect("set");
        assert_eq!(peer.read_to_end(&mut Vec::new()).expect("the end"), 0);
    });
}

#[test]
fn reactor_moves_between_threads() {
    with_each(|config| {
        let mut reactor = reactor(&config);
        let (mut peer, socket) = pair();
        let conn = reactor.add(socket).expect("added");
        turn_for(&mut reactor, Duration::from_millis(5));
        for round in 0..4u8 {
            peer.write_all(&[round]).expect("written");
            let there = std::thread::spawn(move || {
                let received = receive(&mut reactor, conn);
                let waker = reactor.waker();
                let waking = std::thread::spawn(move || waker.wake());
                turn_until(&mut reactor, |_, event| matches!(event, Event::Woken).then_some(()));
                waking.join().expect("woken");
                (reactor, received)
            });
            let received;
            (reactor, received) = there.join().expect("a thread");
            assert_eq!(received, [round]);
        }
        std::thread::spawn(move || drop(reactor)).join().expect("dropped");
        peer.set_read_timeout(Some(TEST_TIMEOUT)).expect("set");
        // The abandoned ring may interrupt system calls on this thread.
        assert_eq!(peer.read_to_end(&mut Vec::new()).expect("the end"), 0);
    });
}

#[test]
fn drop_closes_sockets() {
    with_each(|config| {
        let mut reactor = reactor(&config);
        let (mut peer, socket) = pair();
        reactor.add(socket).expect("added");
        turn_for(&mut reactor, Duration::from_millis(5));
        drop(reactor);
        peer.set_nonblocking(true).expect("set");
        assert_eq!(peer.read(&mut [0; 8]).expect("the end"), 0);
    });
}

#[test]
fn reports_every_one_of_many_sockets() {
    with_each(|config| {
        let mut reactor = reactor(&config);
        let (mut peers, mut conns): (Vec<TcpStream>, Vec<Token>) = (0..200)
            .map(|_| {
                let (peer, socket) = pair();
                (peer, reactor.add(socket).expect("added"))
            })
            .unzip();
        for round in 0..3u8 {
            for (index, peer) in peers.iter_mut().enumerate() {
                peer.write_all(&[index as u8, round]).expect("written");
            }
            let mut missing = peers.len();
            turn_until(&mut reactor, |reactor, event| {
                let Event::Readable(token) = event else { return None };
                if let Some(bytes) = receive_now(reactor, token) {
                    assert_eq!(bytes, [conns.iter().position(|&it| it == token)? as u8, round]);
                    missing -= 1;
                }
                (missing == 0).then_some(())
            });
            replace_some(&mut reactor, &mut peers, &mut conns);
        }
    });
}

/// Replaces every seventh connection, so that slots are reused.
fn replace_some(reactor: &mut Reactor, peers: &mut [TcpStream], conns: &mut [Token]) {
    for index in (0..conns.len()).step_by(7) {
        drop(reactor.remove(conns[index]));
        let (peer, socket) = pair();
        peers[index] = peer;
        conns[index] = reactor.add(socket).expect("added");
    }
}

#[test]
fn idle_turn_ends_at_its_deadline() {
    with_each(|config| {
        let mut reactor = reactor(&config);
        let end = Instant::now() + Duration::from_millis(30);
        let mut events = Vec::new();
        while Instant::now() < end {
            reactor.turn(Some(end), &mut events).expect("a turn");
        }
        assert!(events.is_empty());
    });
}

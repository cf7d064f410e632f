//! Stories of sockets.

mod common;

use common::*;
use isolane_reactor::{Event, Reactor, Token};
use std::io::{IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

#[test]
fn a_connection_comes_in_and_its_bytes_come_back() {
    with_each(|config| {
        let mut reactor = reactor(&config);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let address = listener.local_addr().expect("an address");
        let token = reactor.listen(listener).expect("listening");
        let mut peer = TcpStream::connect(address).expect("connected");
        let lane = turn_until(&mut reactor, |reactor, event| match event {
            Event::Accepted { listener, socket, .. } if listener == token => reactor.add(socket).ok(),
            _ => None,
        });
        for round in 0..3u8 {
            peer.write_all(&[round; 100]).expect("written");
            let bytes = receive(&mut reactor, lane);
            assert_eq!(bytes, [round; 100]);
            assert_eq!(
                reactor.send(lane, &[IoSlice::new(&bytes[..40]), IoSlice::new(&bytes[40..])]).expect("sent"),
                100
            );
            let mut back = [0; 100];
            peer.read_exact(&mut back).expect("read");
            assert_eq!(back, [round; 100]);
        }
    });
}

#[test]
fn bytes_that_come_after_a_long_quiet_are_noticed() {
    with_each(|config| {
        let mut reactor = reactor(&config);
        let (mut peer, socket) = pair();
        let lane = reactor.add(socket).expect("added");
        for round in 0..5u8 {
            assert_eq!(turn_for(&mut reactor, Duration::from_millis(10)), 0);
            peer.write_all(&[round]).expect("written");
            assert_eq!(receive(&mut reactor, lane), [round]);
        }
    });
}

#[test]
fn bytes_that_are_left_unread_are_reported_again() {
    with_each(|config| {
        let mut reactor = reactor(&config);
        let (mut peer, socket) = pair();
        let lane = reactor.add(socket).expect("added");
        peer.write_all(&[7; 10]).expect("written");
        // A driver without time ignores three reports, then takes one byte at a time.
        let mut reports = 0;
        turn_until(&mut reactor, |_, event| {
            reports += usize::from(matches!(event, Event::Readable(token) if token == lane));
            (reports == 3).then_some(())
        });
        for _ in 0..10 {
            turn_until(&mut reactor, |reactor, event| match event {
                Event::Readable(_) => {
                    let mut byte = [0];
                    reactor
                        .receive(lane, &mut [std::io::IoSliceMut::new(&mut byte)])
                        .ok()
                        .filter(|_| byte == [7])
                }
                _ => None,
            });
        }
    });
}

#[test]
fn the_end_is_noticed_also_right_behind_the_last_bytes() {
    with_each(|config| {
        for quiet in [Duration::ZERO, Duration::from_millis(3)] {
            let mut reactor = reactor(&config);
            let (mut peer, socket) = pair();
            let lane = reactor.add(socket).expect("added");
            turn_for(&mut reactor, quiet);
            peer.write_all(b"last").expect("written");
            drop(peer);
            assert_eq!(receive(&mut reactor, lane), b"last");
            assert_eq!(receive(&mut reactor, lane), b"");
        }
    });
}

#[test]
fn a_full_socket_says_when_it_has_room_and_no_byte_is_lost() {
    with_each(|config| {
        let mut reactor = reactor(&config);
        let (mut peer, socket) = pair();
        let lane = reactor.add(socket).expect("added");
        let (go, gone) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            gone.recv().expect("the word to go");
            let mut all = Vec::new();
            peer.read_to_end(&mut all).map(|_| all)
        });
        let bytes: Vec<u8> = (0..32 << 20).map(|index: u32| (index % 251) as u8).collect();
        let mut sent = 0;
        while sent < bytes.len() {
            let rest = &bytes[sent..bytes.len().min(sent + (1 << 20))];
            let count = reactor.send(lane, &[IoSlice::new(rest)]).expect("sent");
            sent += count;
            if count < rest.len() {
                go.send(()).expect("a reader");
                let has_room =
                    |_: &mut Reactor, event| matches!(event, Event::Writable(it) if it == lane).then_some(());
                turn_until(&mut reactor, has_room);
            }
        }
        drop(go);
        reactor.shutdown_write(lane).expect("shut down");
        assert!(reader.join().expect("a reader").expect("all read") == bytes);
    });
}

#[test]
fn a_paused_lane_is_silent_and_a_resumed_one_has_lost_nothing() {
    with_each(|config| {
        let mut reactor = reactor(&config);
        let (mut peer, socket) = pair();
        let lane = reactor.add(socket).expect("added");
        turn_for(&mut reactor, Duration::from_millis(2));
        reactor.pause(lane);
        peer.write_all(b"wait").expect("written");
        assert_eq!(turn_for(&mut reactor, Duration::from_millis(20)), 0);
        reactor.resume(lane);
        assert_eq!(receive(&mut reactor, lane), b"wait");
    });
}

#[test]
fn a_removed_lane_is_closed_at_once_though_the_kernel_watched_it() {
    with_each(|config| {
        let mut reactor = reactor(&config);
        let (mut peer, socket) = pair();
        let lane = reactor.add(socket).expect("added");
        turn_for(&mut reactor, Duration::from_millis(5));
        drop(reactor.remove(lane).expect("present"));
        assert!(reactor.remove(lane).is_none() && reactor.socket(lane).is_none());
        turn_for(&mut reactor, Duration::from_millis(5));
        peer.set_read_timeout(Some(Duration::from_secs(2))).expect("set");
        assert_eq!(peer.read(&mut [0; 8]).expect("the end"), 0);
    });
}

/// The kernel was about to say that there are bytes, and now there are none.
#[test]
fn a_lane_that_somebody_emptied_and_removed_is_closed_at_once_though_the_kernel_watched_it() {
    with_each(|config| {
        let mut reactor = reactor(&config);
        let (mut peer, socket) = pair();
        let mut other = socket.try_clone().expect("cloned");
        let lane = reactor.add(socket).expect("added");
        turn_for(&mut reactor, Duration::from_millis(5));
        peer.write_all(b"gone").expect("written");
        let mut bytes = [0; 4];
        while other.peek(&mut bytes).is_err() {}
        other.read_exact(&mut bytes).expect("read");
        drop((reactor.remove(lane).expect("present"), other));
        turn_for(&mut reactor, Duration::from_millis(5));
        peer.set_read_timeout(Some(PATIENCE)).expect("set");
        assert_eq!(peer.read_to_end(&mut Vec::new()).expect("the end"), 0);
    });
}

#[test]
fn a_reactor_goes_on_in_another_thread() {
    with_each(|config| {
        let mut reactor = reactor(&config);
        let (mut peer, socket) = pair();
        let lane = reactor.add(socket).expect("added");
        turn_for(&mut reactor, Duration::from_millis(5));
        for round in 0..4u8 {
            peer.write_all(&[round]).expect("written");
            let there = std::thread::spawn(move || {
                let received = receive(&mut reactor, lane);
                let waker = reactor.waker();
                let ringer = std::thread::spawn(move || waker.wake());
                turn_until(&mut reactor, |_, event| matches!(event, Event::Woken).then_some(()));
                ringer.join().expect("rung");
                (reactor, received)
            });
            let received;
            (reactor, received) = there.join().expect("a thread");
            assert_eq!(received, [round]);
        }
        std::thread::spawn(move || drop(reactor)).join().expect("dropped");
        peer.set_read_timeout(Some(PATIENCE)).expect("set");
        // What is left of a ring in this thread may interrupt its calls.
        assert_eq!(peer.read_to_end(&mut Vec::new()).expect("the end"), 0);
    });
}

#[test]
fn a_dropped_reactor_closes_its_sockets() {
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
fn of_many_lanes_none_is_forgotten() {
    with_each(|config| {
        let mut reactor = reactor(&config);
        let (mut peers, mut lanes): (Vec<TcpStream>, Vec<Token>) = (0..200)
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
                    assert_eq!(bytes, [lanes.iter().position(|&it| it == token)? as u8, round]);
                    missing -= 1;
                }
                (missing == 0).then_some(())
            });
            replace_some(&mut reactor, &mut peers, &mut lanes);
        }
    });
}

/// Connections come and go, and slots get new lives.
fn replace_some(reactor: &mut Reactor, peers: &mut [TcpStream], lanes: &mut [Token]) {
    for index in (0..lanes.len()).step_by(7) {
        drop(reactor.remove(lanes[index]));
        let (peer, socket) = pair();
        peers[index] = peer;
        lanes[index] = reactor.add(socket).expect("added");
    }
}

#[test]
fn a_turn_without_events_ends_at_its_deadline() {
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

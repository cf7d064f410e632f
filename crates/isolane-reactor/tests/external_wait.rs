//! A thread that drives several reactors and sleeps for all of them at once.

mod common;

use common::*;
use isolane_reactor::{Event, IoChoice, Mode, Reactor, ReactorConfig, Token, mailbox};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

fn sleepy() -> ReactorConfig {
    ReactorConfig { io: IoChoice::Epoll, mode: Mode::Sleep, ..ReactorConfig::default() }
}

fn turn(reactor: &mut Reactor) -> Vec<Event> {
    let mut events = Vec::new();
    reactor.turn(Some(Instant::now()), &mut events).expect("a turn");
    events
}

/// Turns all reactors until none has work, then sleeps until one of them has an event. Passes each
/// event with the number of its reactor to `on_event`.
fn serve(reactors: &mut [Reactor], on_event: &mut impl FnMut(usize, &mut Reactor, Event)) {
    for (number, reactor) in reactors.iter_mut().enumerate() {
        turn(reactor).into_iter().for_each(|event| on_event(number, reactor, event));
    }
    if reactors.iter_mut().all(|reactor| reactor.prepare_wait().is_some()) {
        let mut watched: Vec<_> = reactors.iter().filter_map(Reactor::wait_fd).collect::<Vec<_>>();
        let mut watched: Vec<_> = watched.iter_mut().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let timeout = Timespec::try_from(LONG).expect("a time");
        assert!(poll(&mut watched, Some(&timeout)).expect("a poll") > 0, "the poll timed out");
    }
    reactors.iter_mut().for_each(Reactor::finish_wait);
}

#[test]
fn events_end_external_wait() {
    const ROUNDS: u64 = 3000;
    let mut reactors = [reactor(&sleepy()), reactor(&sleepy())];
    let (sender, messages) = mailbox::unbounded(reactors[0].waker());
    let (near, mut far) = pair();
    let conn: Token = reactors[1].add(near).expect("a conn");
    let (acknowledge, acknowledged) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        for round in 0..ROUNDS {
            if round % 3 == 0 {
                sender.send(round).expect("sent")
            } else {
                ping(&mut far, round)
            }
            assert_eq!(acknowledged.recv(), Ok(round));
        }
    });
    let mut received = 0;
    while received < ROUNDS {
        serve(&mut reactors, &mut |number, reactor, event| {
            let round = match event {
                Event::Woken if number == 0 => messages.poll(),
                Event::Readable(token) if token == conn => {
                    let bytes = receive_now(reactor, conn).unwrap_or_default();
                    bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
                }
                _ => None,
            };
            if let Some(round) = round {
                assert_eq!(round, received);
                received += 1;
                acknowledge.send(round).expect("received");
            }
        });
    }
    thread.join().expect("the other side");
}

fn ping(far: &mut TcpStream, round: u64) {
    far.write_all(&round.to_le_bytes()).expect("written");
}

#[test]
fn prepare_wait_fails_with_pending_work() {
    let mut reactor = reactor(&sleepy());
    let (near, mut far) = pair();
    far.write_all(b"unread").expect("written");
    let conn = reactor.add(near).expect("a conn");
    assert!(reactor.prepare_wait().is_none(), "a new connection must be polled");
    while turn(&mut reactor).is_empty() {}
    assert!(reactor.prepare_wait().is_none(), "unread bytes");
    assert_eq!(receive_now(&mut reactor, conn).as_deref(), Some(&b"unread"[..]));
    assert!(turn(&mut reactor).is_empty());
    assert!(reactor.prepare_wait().is_some());
    reactor.finish_wait();
    reactor.waker().wake();
    assert!(reactor.prepare_wait().is_none(), "a notification is pending");
    assert!(matches!(turn(&mut reactor)[..], [Event::Woken]));
    assert!(reactor.prepare_wait().is_some());
}

#[test]
fn prepare_wait_fails_in_poll_mode() {
    let mut reactor = reactor(&ReactorConfig { mode: Mode::Poll, ..sleepy() });
    let (near, _far) = pair();
    reactor.add(near).expect("a conn");
    for _ in 0..100 {
        turn(&mut reactor);
        assert!(reactor.prepare_wait().is_none());
    }
}

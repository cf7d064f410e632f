//! Stories of a thread that turns several reactors and sleeps for all of them at once.

mod common;

use common::*;
use isolane_reactor::{Config, Event, IoChoice, Mode, Reactor, Token, mailbox};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

fn sleepy() -> Config {
    Config { io: IoChoice::Epoll, mode: Mode::Sleep, ..Config::default() }
}

fn turn(reactor: &mut Reactor) -> Vec<Event> {
    let mut events = Vec::new();
    reactor.turn(Some(Instant::now()), &mut events).expect("a turn");
    events
}

/// Turns all until all rest, and sleeps until one of them has something to do. What their turns brought is
/// handed to `on_event` with their number.
fn serve(reactors: &mut [Reactor], on_event: &mut impl FnMut(usize, &mut Reactor, Event)) {
    for (number, reactor) in reactors.iter_mut().enumerate() {
        turn(reactor).into_iter().for_each(|event| on_event(number, reactor, event));
    }
    if reactors.iter_mut().all(|reactor| reactor.try_rest().is_some()) {
        let mut watched: Vec<_> = reactors.iter().filter_map(Reactor::descriptor).collect::<Vec<_>>();
        let mut watched: Vec<_> = watched.iter_mut().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let timeout = Timespec::try_from(LONG).expect("a time");
        assert!(poll(&mut watched, Some(&timeout)).expect("a poll") > 0, "nobody was woken");
    }
    reactors.iter_mut().for_each(Reactor::end_rest);
}

#[test]
fn whatever_comes_while_they_rest_is_noticed() {
    const ROUNDS: u64 = 3000;
    let mut reactors = [reactor(&sleepy()), reactor(&sleepy())];
    let (sender, messages) = mailbox::unbounded(reactors[0].waker());
    let (near, mut far) = pair();
    let lane: Token = reactors[1].add(near).expect("a lane");
    let (told, tell) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        for round in 0..ROUNDS {
            if round % 3 == 0 {
                sender.send(round).expect("sent")
            } else {
                ping(&mut far, round)
            }
            assert_eq!(tell.recv(), Ok(round));
        }
    });
    let mut heard = 0;
    while heard < ROUNDS {
        serve(&mut reactors, &mut |number, reactor, event| {
            let round = match event {
                Event::Woken if number == 0 => messages.poll(),
                Event::Readable(token) if token == lane => {
                    let bytes = receive_now(reactor, lane).unwrap_or_default();
                    bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
                }
                _ => None,
            };
            if let Some(round) = round {
                assert_eq!(round, heard);
                heard += 1;
                told.send(round).expect("heard");
            }
        });
    }
    thread.join().expect("the other side");
}

fn ping(far: &mut TcpStream, round: u64) {
    far.write_all(&round.to_le_bytes()).expect("written");
}

#[test]
fn who_has_something_to_do_does_not_rest() {
    let mut reactor = reactor(&sleepy());
    let (near, mut far) = pair();
    far.write_all(b"unread").expect("written");
    let lane = reactor.add(near).expect("a lane");
    assert!(reactor.try_rest().is_none(), "a fresh lane has to be looked at");
    while turn(&mut reactor).is_empty() {}
    assert!(reactor.try_rest().is_none(), "it has bytes that nobody has read");
    assert_eq!(receive_now(&mut reactor, lane).as_deref(), Some(&b"unread"[..]));
    assert!(turn(&mut reactor).is_empty());
    assert!(reactor.try_rest().is_some());
    reactor.end_rest();
    reactor.waker().wake();
    assert!(reactor.try_rest().is_none(), "somebody called");
    assert!(matches!(turn(&mut reactor)[..], [Event::Woken]));
    assert!(reactor.try_rest().is_some());
}

#[test]
fn who_spins_does_not_rest() {
    let mut reactor = reactor(&Config { mode: Mode::Poll, ..sleepy() });
    let (near, _far) = pair();
    reactor.add(near).expect("a lane");
    for _ in 0..100 {
        turn(&mut reactor);
        assert!(reactor.try_rest().is_none());
    }
}

//! What the stories share: a reactor of every kind, and a driver that turns until something happened.
#![allow(dead_code)]

use isolane_reactor::{Config, Event, IoChoice, Mode, Reactor, Received, Token};
use std::io::IoSliceMut;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Runs a story with every back end (where this machine has it) and mode.
pub fn with_each(story: impl Fn(Config)) {
    for io in back_ends() {
        for mode in [Mode::Poll, Mode::Adaptive, Mode::Sleep] {
            story(Config { io, mode, ..Config::default() });
        }
    }
}

pub fn back_ends() -> Vec<IoChoice> {
    let uring = Reactor::new(Config { io: IoChoice::Uring, ..Config::default() });
    match uring {
        Ok(_) => vec![IoChoice::Uring, IoChoice::Epoll],
        Err(reason) => {
            eprintln!("only epoll is tested here: {reason}");
            vec![IoChoice::Epoll]
        }
    }
}

pub fn reactor(config: &Config) -> Reactor {
    Reactor::new(config.clone()).expect("a reactor")
}

/// A connected pair over loopback.
pub fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let one = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
    (one, listener.accept().expect("accepted").0)
}

/// Turns until `wanted` takes something out of an event.
pub fn turn_until<T>(reactor: &mut Reactor, mut wanted: impl FnMut(&mut Reactor, Event) -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    let mut events = Vec::new();
    loop {
        reactor.turn(Some(end), &mut events).expect("a turn");
        let mut found = None;
        for event in events.drain(..) {
            found = found.or(wanted(reactor, event));
        }
        if let Some(found) = found {
            return found;
        }
        assert!(Instant::now() < end, "nothing came within {PATIENCE:?}");
    }
}

/// Turns until bytes of this lane came, and returns them.
pub fn receive(reactor: &mut Reactor, lane: Token) -> Vec<u8> {
    turn_until(reactor, |reactor, event| match event {
        Event::Readable(token) if token == lane => receive_now(reactor, lane),
        Event::Readable(token) => receive_now(reactor, token).map(|_| None)?,
        _ => None,
    })
}

pub fn receive_now(reactor: &mut Reactor, lane: Token) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 1 << 16];
    match reactor.receive(lane, &mut [IoSliceMut::new(&mut bytes)]).expect("received") {
        Received::Bytes(count) => Some(bytes[..count].to_vec()),
        Received::Nothing => None,
        Received::End => Some(Vec::new()),
    }
}

/// Turns for a while, receives whatever is reported, and counts the events that were not in vain.
pub fn turn_for(reactor: &mut Reactor, time: Duration) -> usize {
    let end = Instant::now() + time;
    let (mut events, mut count) = (Vec::new(), 0);
    while Instant::now() < end {
        reactor.turn(Some(end), &mut events).expect("a turn");
        for event in events.drain(..) {
            count += match event {
                Event::Readable(token) => usize::from(receive_now(reactor, token).is_some()),
                _ => 1,
            };
        }
    }
    count
}

/// Far beyond what anything takes, also on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

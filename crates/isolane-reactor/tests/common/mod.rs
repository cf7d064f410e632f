//! Shared helpers: a reactor for each configuration, and a driver that turns until an event.
#![allow(dead_code)]

use isolane_reactor::{Event, IoChoice, Mode, Reactor, ReactorConfig, Received, Token};
use std::io::IoSliceMut;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Runs a test with every available backend and every mode.
pub fn with_each(test: impl Fn(ReactorConfig)) {
    for io in backends() {
        for mode in [Mode::Poll, Mode::Adaptive, Mode::Sleep] {
            test(ReactorConfig { io, mode, ..ReactorConfig::default() });
        }
    }
}

pub fn backends() -> Vec<IoChoice> {
    let uring = Reactor::new(ReactorConfig { io: IoChoice::Uring, ..ReactorConfig::default() });
    match uring {
        Ok(_) => vec![IoChoice::Uring, IoChoice::Epoll],
        Err(reason) => {
            eprintln!("only epoll is tested here: {reason}");
            vec![IoChoice::Epoll]
        }
    }
}

pub fn reactor(config: &ReactorConfig) -> Reactor {
    Reactor::new(config.clone()).expect("a reactor")
}

/// Returns a connected pair over loopback.
pub fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let client = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
    (client, listener.accept().expect("accepted").0)
}

/// Turns until `select` returns a value for an event.
pub fn turn_until<T>(reactor: &mut Reactor, mut select: impl FnMut(&mut Reactor, Event) -> Option<T>) -> T {
    let end = Instant::now() + TEST_TIMEOUT;
    let mut events = Vec::new();
    loop {
        reactor.turn(Some(end), &mut events).expect("a turn");
        let mut found = None;
        for event in events.drain(..) {
            found = found.or(select(reactor, event));
        }
        if let Some(found) = found {
            return found;
        }
        assert!(Instant::now() < end, "nothing came within {TEST_TIMEOUT:?}");
    }
}

/// Turns until bytes arrive on this connection and returns them.
pub fn receive(reactor: &mut Reactor, conn: Token) -> Vec<u8> {
    turn_until(reactor, |reactor, event| match event {
        Event::Readable(token) if token == conn => receive_now(reactor, conn),
        Event::Readable(token) => receive_now(reactor, token).map(|_| None)?,
        _ => None,
    })
}

pub fn receive_now(reactor: &mut Reactor, conn: Token) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 1 << 16];
    match reactor.receive(conn, &mut [IoSliceMut::new(&mut bytes)]).expect("received") {
        Received::Bytes(count) => Some(bytes[..count].to_vec()),
        Received::WouldBlock => None,
        Received::Eof => Some(Vec::new()),
    }
}

/// Turns for `time`, receives on readable sockets, and counts all events except empty reads.
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

/// Long enough for a busy machine.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);

//! A process that runs out of descriptors. In its own test binary, because the limit is per
//! process.

mod common;

use common::*;
use isolane_reactor::{Event, Mode, Reactor, ReactorConfig, cpu};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

#[test]
fn listener_backs_off_when_out_of_fds() {
    for io in backends() {
        for mode in [Mode::Adaptive, Mode::Sleep] {
            run_out_of_fds(&ReactorConfig { io, mode, ..ReactorConfig::default() });
        }
    }
}

fn run_out_of_fds(config: &ReactorConfig) {
    let mut reactor = reactor(config);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let peer = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
    reactor.listen(listener).expect("listening");
    let limit = getrlimit(Resource::Nofile);
    set_limit(Some(128), limit.maximum);
    let plugs: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    let turns = turns_without_event(&mut reactor, Duration::from_millis(350));
    drop(plugs);
    set_limit(limit.current, limit.maximum);
    assert!(turns < 30, "{turns} turns");
    let accepted = turn_until(&mut reactor, |_, event| match event {
        Event::Accepted { peer, .. } => Some(peer),
        _ => None,
    });
    assert_eq!(accepted, peer.local_addr().expect("an address"));
    assert!(cpu::raise_fd_limit().expect("a limit") >= limit.current.unwrap_or(u64::MAX));
}

fn turns_without_event(reactor: &mut Reactor, time: Duration) -> usize {
    let (end, mut events, mut turns) = (Instant::now() + time, Vec::new(), 0);
    // Skip the first turns, which spin.
    let start_of_count = Instant::now() + Duration::from_millis(10);
    while Instant::now() < end {
        reactor.turn(Some(end), &mut events).expect("a turn");
        turns += usize::from(Instant::now() > start_of_count);
        assert!(events.is_empty());
    }
    turns
}

fn set_limit(current: Option<u64>, maximum: Option<u64>) {
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).expect("set");
}

//! CPU cost of an idle reactor: the CPU time of its thread with 1,000 connections in adaptive mode,
//! first silent, then with 200 keep-alives per second in total.
//!
//! `cargo run --release -p isolane-reactor --example idle`

use isolane_reactor::{Event, IoChoice, Mode, Reactor, ReactorConfig, cpu};
use rustix::time::{ClockId, clock_gettime};
use std::io::{IoSliceMut, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

const CONNS: usize = 1000;
const TIME: Duration = Duration::from_secs(3);

fn main() {
    cpu::raise_fd_limit().expect("a limit");
    for io in [IoChoice::Uring, IoChoice::Epoll] {
        let mut reactor =
            Reactor::new(ReactorConfig { io, mode: Mode::Adaptive, ..ReactorConfig::default() })
                .expect("a reactor");
        let peers = connect(&mut reactor);
        run_for(&mut reactor, Duration::from_millis(200));
        println!("{io:?} silent: {:.3} % of a core", run_for(&mut reactor, TIME));
        let sender = std::thread::spawn(move || send_keep_alives(&peers));
        println!("{io:?} with 200 keep-alives a second: {:.3} % of a core", run_for(&mut reactor, TIME));
        sender.join().expect("a sender");
    }
}

fn connect(reactor: &mut Reactor) -> Vec<TcpStream> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = listener.local_addr().expect("an address");
    let one = |_| {
        let peer = TcpStream::connect(address).expect("connected");
        reactor.add(listener.accept().expect("accepted").0).expect("added");
        peer
    };
    (0..CONNS).map(one).collect()
}

fn send_keep_alives(peers: &[TcpStream]) {
    let start = Instant::now();
    for mut peer in peers.iter().cycle() {
        peer.write_all(&[0; 72]).expect("written");
        std::thread::sleep(Duration::from_millis(5));
        if start.elapsed() > TIME + Duration::from_millis(100) {
            return;
        }
    }
}

/// Runs turns for `time` and returns the CPU time used, in percent.
fn run_for(reactor: &mut Reactor, time: Duration) -> f64 {
    let (start, used) = (Instant::now(), thread_time());
    let (mut events, mut bytes) = (Vec::new(), [0; 4096]);
    while start.elapsed() < time {
        reactor.turn(Some(start + time), &mut events).expect("a turn");
        for event in events.drain(..) {
            if let Event::Readable(token) = event {
                reactor.receive(token, &mut [IoSliceMut::new(&mut bytes)]).expect("received");
            }
        }
    }
    (thread_time() - used).as_secs_f64() / start.elapsed().as_secs_f64() * 100.0
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

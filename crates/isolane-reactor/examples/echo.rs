//! Round-trip cost of a reactor: one request at a time over loopback (72 bytes there, 4,120 back).
//! The client is a busy loop of plain calls on core 0; the server on core 1 is either the same
//! plain loop or a reactor. Rounds are interleaved. Prints the best and the median round trip of
//! each, and the difference to the plain loop.
//!
//! Then measures one turn without traffic: an empty receive by a plain call, and a turn with a
//! receive of a spinning reactor.
//!
//! `cargo run --release -p isolane-reactor --example echo`

use isolane_reactor::{Event, IoChoice, Mode, Reactor, ReactorConfig, Received, cpu, socket};
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

const REQUEST: usize = 72;
const RESPONSE: usize = 4120;
const TRIPS: u32 = 5_000;
const ROUNDS: usize = 20;
const EMPTY_RECEIVES: u32 = 100_000;

type Server = fn(TcpStream, Option<ReactorConfig>);

fn main() {
    let with = |io, mode| Some(ReactorConfig { io, mode, core: Some(1), ..ReactorConfig::default() });
    let cases: [(&str, Server, Option<ReactorConfig>); 7] = [
        ("plain busy loop", serve_plainly, None),
        ("io_uring poll", serve, with(IoChoice::Uring, Mode::Poll)),
        ("io_uring adaptive", serve, with(IoChoice::Uring, Mode::Adaptive)),
        ("io_uring sleep", serve, with(IoChoice::Uring, Mode::Sleep)),
        ("epoll poll", serve, with(IoChoice::Epoll, Mode::Poll)),
        ("epoll adaptive", serve, with(IoChoice::Epoll, Mode::Adaptive)),
        ("epoll sleep", serve, with(IoChoice::Epoll, Mode::Sleep)),
    ];
    let mut trips: Vec<Vec<Duration>> = vec![Vec::new(); cases.len()];
    for _ in 0..ROUNDS {
        for ((_, server, config), trips) in cases.iter().zip(&mut trips) {
            trips.push(measure(*server, config.clone()));
        }
    }
    trips.iter_mut().for_each(|trips| trips.sort());
    for ((name, ..), trip) in cases.iter().zip(&trips) {
        let (best, median) = (trip[0], trip[ROUNDS / 2]);
        let more = best.as_nanos() as i64 - trips[0][0].as_nanos() as i64;
        println!("{name:20} best {best:>9.2?}  median {median:>9.2?}  best over plain {more:>6} ns");
    }
    println!("plain empty receive: {:?}", measure_empty_receive(None));
    for (name, io) in [("io_uring", IoChoice::Uring), ("epoll", IoChoice::Epoll)] {
        println!("{name} turn with it: {:?}", measure_empty_receive(with(io, Mode::Poll)));
    }
}

/// Returns the best of several runs of one empty receive, or of one turn with it.
fn measure_empty_receive(config: Option<ReactorConfig>) -> Duration {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let _peer = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
    let (socket, _) = listener.accept().expect("accepted");
    socket.set_nonblocking(true).expect("set");
    let (mut request, mut events) = ([0; REQUEST], Vec::new());
    let mut reactor = config.map(|config| Reactor::new(config).expect("a reactor"));
    let conn =
        reactor.as_mut().map(|reactor| reactor.add(socket.try_clone().expect("cloned")).expect("added"));
    let mut run = || {
        let start = Instant::now();
        for _ in 0..EMPTY_RECEIVES {
            let mut plan = [IoSliceMut::new(&mut request)];
            match (&mut reactor, conn) {
                (Some(reactor), Some(conn)) => {
                    reactor.turn(None, &mut events).expect("a turn");
                    assert!(matches!(events[..], [Event::Readable(_)]));
                    events.clear();
                    assert!(matches!(reactor.receive(conn, &mut plan), Ok(Received::WouldBlock)));
                }
                _ => assert!(socket::receive(&socket, &mut plan).is_err()),
            }
        }
        start.elapsed() / EMPTY_RECEIVES
    };
    (0..10).map(|_| run()).min().unwrap_or_default()
}

fn measure(server: Server, config: Option<ReactorConfig>) -> Duration {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let client = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
    let (served, _) = listener.accept().expect("accepted");
    for socket in [&client, &served] {
        socket.set_nodelay(true).expect("set");
        socket.set_nonblocking(true).expect("set");
    }
    let server = std::thread::spawn(move || server(served, config));
    cpu::pin(0).expect("pinned");
    let mut start = Instant::now();
    let mut response = [0; RESPONSE];
    for trip in 0..TRIPS {
        if trip == TRIPS / 10 {
            start = Instant::now();
        }
        socket::send(&client, &[IoSlice::new(&[1; REQUEST])]).expect("sent");
        receive_plainly(&client, &mut response);
    }
    let trip = start.elapsed() / (TRIPS - TRIPS / 10);
    drop(client);
    server.join().expect("the server");
    trip
}

fn receive_plainly(socket: &TcpStream, bytes: &mut [u8]) -> bool {
    let mut done = 0;
    while done < bytes.len() {
        match socket::receive(socket, &mut [IoSliceMut::new(&mut bytes[done..])]) {
            Ok(0) => return false,
            Ok(count) => done += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return false,
        }
    }
    true
}

fn serve_plainly(socket: TcpStream, _: Option<ReactorConfig>) {
    cpu::pin(1).expect("pinned");
    let mut request = [0; REQUEST];
    while receive_plainly(&socket, &mut request) {
        socket::send(&socket, &[IoSlice::new(&[2; RESPONSE])]).expect("sent");
    }
}

fn serve(socket: TcpStream, config: Option<ReactorConfig>) {
    let mut reactor = Reactor::new(config.unwrap_or_default()).expect("a reactor");
    let conn = reactor.add(socket).expect("added");
    let (mut events, mut request) = (Vec::new(), [0; REQUEST]);
    loop {
        reactor.turn(None, &mut events).expect("a turn");
        for event in events.drain(..) {
            let Event::Readable(_) = event else { continue };
            match reactor.receive(conn, &mut [IoSliceMut::new(&mut request)]) {
                Ok(Received::Bytes(_)) => {
                    reactor.send(conn, &[IoSlice::new(&[2; RESPONSE])]).expect("sent");
                }
                Ok(Received::WouldBlock) => {}
                Ok(Received::Eof) | Err(_) => return,
            }
        }
    }
}

//! `silent`: many connections that send nothing, or one byte per second, and are reopened when closed. Measures
//! the time that a new host needs to connect.

#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use isolane_host::{Client, Options, Uri};
use rustix::event::epoll;
use rustix::fd::OwnedFd;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};

/// Keep many silent connections to a target open, and measure how long a new host takes to connect
#[derive(Parser)]
struct Arguments {
    /// nvme+tcp:// URI of the target, with its subsystem
    uri: String,
    /// Connections to keep open; 0 only measures
    #[arg(long, default_value_t = 10_000)]
    connections: usize,
    /// Seconds to continue
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Local address of the connections
    #[arg(long, default_value = "127.0.0.2")]
    from: Ipv4Addr,
    /// Send one byte a second on each
    #[arg(long)]
    trickle: bool,
}

/// State shared with the measuring thread.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    ready: AtomicBool,
    opened: AtomicU64,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("silent: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let uri: Uri = arguments.uri.parse()?;
    let address = arguments.uri.trim_start_matches("nvme+tcp://").split('/').next().unwrap_or_default();
    let (address, shared): (SocketAddr, _) = (address.parse()?, Shared::default());
    thread::scope(|scope| {
        let crowd = scope.spawn(|| keep_open(arguments, address, &shared));
        while !shared.ready.load(Ordering::Acquire) && !crowd.is_finished() {
            thread::sleep(Duration::from_millis(10));
        }
        let (start, opened) = (Instant::now(), shared.opened.load(Ordering::Relaxed));
        let times = measure(&uri, Duration::from_secs(arguments.seconds));
        let reopened = shared.opened.load(Ordering::Relaxed) - opened;
        let rate = reopened as f64 / start.elapsed().as_secs_f64();
        shared.stop.store(true, Ordering::Release);
        crowd.join().map_err(|_| "the crowd panicked")??;
        let mut sorted: Vec<_> = times.iter().filter_map(|time| *time).collect();
        sorted.sort();
        let failed = times.len() - sorted.len();
        let ms = |time: Option<&Duration>| time.map_or(f64::NAN, |time| time.as_secs_f64() * 1e3);
        println!(
            "{} connections, {rate:.0} reopened/s; new host: {} connects, {failed} failed, median {:.1} ms, max {:.1} ms",
            arguments.connections,
            times.len(),
            ms(sorted.get(sorted.len() / 2)),
            ms(sorted.last()),
        );
        Ok(())
    })
}

/// Connects a new host ten times per second; `None` for a failure.
fn measure(uri: &Uri, time: Duration) -> Vec<Option<Duration>> {
    let deadline = Instant::now() + time;
    let mut times = Vec::new();
    while Instant::now() < deadline {
        let start = Instant::now();
        let client = Client::connect(uri, Options::default());
        times.push(client.is_ok().then(|| start.elapsed()));
        thread::sleep(Duration::from_millis(100).saturating_sub(start.elapsed()));
    }
    times
}

/// Opens all connections, and reopens closed ones.
fn keep_open(arguments: &Arguments, to: SocketAddr, shared: &Shared) -> io::Result<()> {
    raise_limit(arguments.connections)?;
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut sockets: Vec<Option<TcpStream>> = (0..arguments.connections).map(|_| None).collect();
    let mut to_open: Vec<usize> = (0..arguments.connections).collect();
    let mut events = Vec::with_capacity(1024);
    let mut trickled = Instant::now();
    while !shared.stop.load(Ordering::Acquire) {
        while let Some(index) = to_open.pop() {
            sockets[index] = Some(open(arguments.from, to, &poll, index)?);
            shared.opened.fetch_add(1, Ordering::Relaxed);
        }
        shared.ready.store(true, Ordering::Release);
        events.clear();
        let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), Some(&timeout))?;
        for event in &events {
            let index = event.data.u64() as usize;
            sockets[index] = None;
            to_open.push(index);
        }
        if arguments.trickle && trickled.elapsed() >= Duration::from_secs(1) {
            trickled = Instant::now();
            // The next wait reports errors.
            sockets.iter_mut().flatten().for_each(|socket| _ = socket.write(&[0]));
        }
    }
    Ok(())
}

/// Starts to connect; an event reports the end of the connection.
fn open(from: Ipv4Addr, to: SocketAddr, poll: &OwnedFd, index: usize) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::from((from, 0)).into())?;
    match socket.connect(&to.into()) {
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {}
        result => result?,
    }
    let (data, flags) = (epoll::EventData::new_u64(index as u64), epoll::EventFlags::RDHUP);
    epoll::add(poll, &socket, data, flags | epoll::EventFlags::ONESHOT)?;
    Ok(socket.into())
}

/// Raises the limit of open files, and checks that it is high enough.
fn raise_limit(connections: usize) -> io::Result<()> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    let needed = connections as u64 + 64;
    match maximum.filter(|limit| *limit < needed) {
        Some(limit) => {
            Err(io::Error::other(format!("{limit} open files allowed; run with `ulimit -n {needed}`")))
        }
        None => Ok(()),
    }
}

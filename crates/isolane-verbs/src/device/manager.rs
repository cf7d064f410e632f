//! Lane manager: opens lanes between queue pairs that name each other, and checks deadlines.
//!
//! The number of a queue pair is `port << 8 | index`, where `port` is a TCP port at which its device listens. The end
//! with the smaller GID and number connects; the other accepts exactly that peer.
//!
//! Invariant: a connection becomes a lane only if its addresses, both numbers, and both first messages are the ones
//! that the queue pair expects.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::iter;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use isolane_reactor::SocketOptions;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::DeviceConfig;
use super::handshake::{self, Greeting, Identity, LaneAttempt, TIMEOUT, gid};
use super::lane::{Lane, TcpLane};
use super::progress::timespec;
use crate::connection::Agreement;
use crate::wire::{Hello, Role};

/// A queue pair, as the manager sees it.
pub(super) trait Managed: Send + Sync {
    /// Starts to open a lane. `None` if it is not needed.
    fn start_lane(&self, lane: u8) -> Option<LaneAttempt>;

    /// The peer opens a lane. `None` if it must not.
    fn accept_lane(&self, hello: &Hello, agreement: &Agreement) -> Option<LaneAttempt>;

    /// Takes a lane that connects it with its peer.
    fn open_lane(&self, lane: Box<dyn Lane>, hello: &Hello, agreement: &Agreement);

    /// Handles the deadlines that have passed.
    fn check_deadline(&self);
}

/// The other end of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Address of its device.
    pub address: IpAddr,
    /// Number of its queue pair.
    pub number: u32,
}

/// A queue pair whose lanes the manager opens.
pub(super) struct Opening {
    pub(super) member: Weak<dyn Managed>,
    pub(super) identity: Identity,
    pub(super) peer: Peer,
    /// Whether this end connects or accepts.
    pub(super) role: Role,
    /// It has connected to an address, and has its first lane.
    pub(super) has_lane: bool,
}

impl Opening {
    /// Whether a hello from this address is the one of the peer.
    fn accepts(&self, hello: &Hello, source: IpAddr) -> bool {
        // A router can translate the address of a peer that has connected to an address.
        gid(source) == gid(self.peer.address)
            && (self.has_lane || hello.source_gid == gid(source))
            && hello.source_qpn == self.peer.number
            && hello.destination_qpn == self.identity.number
    }

    fn open(&self, stream: TcpStream, hello: &Hello) {
        if let Some(member) = self.member.upgrade() {
            member.open_lane(Box::new(TcpLane(stream)), hello, &self.identity.agreement(hello));
        }
    }
}

/// Opens the lanes of a device.
pub(super) struct Manager {
    address: IpAddr,
    ports: RangeInclusive<u16>,
    options: SocketOptions,
    lanes: u8,
    state: Mutex<State>,
    wake: OwnedFd,
    is_stopping: AtomicBool,
}

#[derive(Default)]
struct State {
    ports: Vec<Port>,
    /// New queue pairs, which the thread takes.
    openings: Vec<Opening>,
    /// Numbers of queue pairs, and their lanes to open.
    missing: Vec<(u32, u8)>,
    /// Numbers whose opening ends.
    canceled: Vec<u32>,
    deadlines: Vec<(Instant, Weak<dyn Managed>)>,
}

/// A port with the numbers of 256 queue pairs.
struct Port {
    listener: Arc<TcpListener>,
    /// For datagrams, with the same number.
    datagrams: Arc<UdpSocket>,
    number: u16,
    used: [bool; NUMBERS_PER_PORT],
    /// Index after the last one used, so that numbers return late.
    next: usize,
}

impl Port {
    fn allocate(&mut self) -> Option<u32> {
        let indices = (self.next..NUMBERS_PER_PORT).chain(0..self.next);
        let index = indices.into_iter().find(|index| !self.used[*index])?;
        self.used[index] = true;
        self.next = (index + 1) % NUMBERS_PER_PORT;
        Some(u32::from(self.number) << 8 | index as u32)
    }
}

impl Manager {
    pub(super) fn new(config: &DeviceConfig) -> io::Result<Manager> {
        Ok(Manager {
            address: config.address,
            ports: config.ports.clone(),
            options: config.socket.clone(),
            lanes: config.lanes.clamp(1, Hello::MAX_LANES),
            state: Mutex::default(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            is_stopping: AtomicBool::new(false),
        })
    }

    /// Maximum number of lanes of a queue pair.
    pub(super) fn lanes(&self) -> u8 {
        self.lanes
    }

    pub(super) fn address(&self) -> IpAddr {
        self.address
    }

    /// Starts the thread.
    pub(super) fn start(self: &Arc<Self>) -> io::Result<JoinHandle<()>> {
        let manager = Arc::clone(self);
        thread::Builder::new().name("isolane-lanes".into()).spawn(move || manager.run())
    }

    /// Ends the thread.
    pub(super) fn stop(&self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Returns an unused number for a queue pair, at a port where the device listens.
    ///
    /// # Errors
    /// If there is no free port.
    pub(super) fn allocate(&self) -> io::Result<u32> {
        let mut state = self.state.lock();
        if let Some(number) = state.ports.iter_mut().find_map(Port::allocate) {
            return Ok(number);
        }
        let mut port = self.new_port()?;
        let number = port.allocate().ok_or(io::ErrorKind::AddrNotAvailable)?;
        state.ports.push(port);
        drop(state);
        self.wake();
        Ok(number)
    }

    fn new_port(&self) -> io::Result<Port> {
        // A port that the system chooses can be in use for datagrams.
        let attempts = self.ports.clone().flat_map(|port| iter::repeat_n(port, PORT_ATTEMPTS));
        let bound = attempts.map(|port| self.bind(port)).find_map(Result::ok);
        let (listener, datagrams) = bound.ok_or_else(|| {
            let (low, high) = (self.ports.start(), self.ports.end());
            let text = format!("no free port in {low}-{high} at {}", self.address);
            io::Error::new(io::ErrorKind::AddrInUse, text)
        })?;
        let number = listener.local_addr()?.port();
        let (listener, datagrams) = (Arc::new(listener), Arc::new(datagrams));
        Ok(Port { listener, datagrams, number, used: [false; NUMBERS_PER_PORT], next: 0 })
    }

    /// Binds a port for connections and for datagrams.
    fn bind(&self, port: u16) -> io::Result<(TcpListener, UdpSocket)> {
        let listener = listen((self.address, port))?;
        let datagrams = UdpSocket::bind(listener.local_addr()?)?;
        listener.set_nonblocking(true)?;
        datagrams.set_nonblocking(true)?;
        Ok((listener, datagrams))
    }

    /// Returns the socket for datagrams of a queue pair, and its port.
    pub(super) fn datagram_socket(&self, number: u32) -> Option<(Arc<UdpSocket>, u16)> {
        let state = self.state.lock();
        let port = state.ports.iter().find(|port| u32::from(port.number) == number >> 8)?;
        Some((Arc::clone(&port.datagrams), port.number))
    }

    /// Releases a number.
    pub(super) fn release(&self, number: u32) {
        let mut state = self.state.lock();
        if let Some(port) = state.ports.iter_mut().find(|port| u32::from(port.number) == number >> 8) {
            port.used[number as usize % NUMBERS_PER_PORT] = false;
        }
    }

    /// Opens the lanes of a queue pair in the background.
    pub(super) fn open(&self, opening: Opening) {
        self.state.lock().openings.push(opening);
        self.wake();
    }

    /// Opens a lane in the background, unless the peer does that.
    pub(super) fn open_lane(&self, number: u32, lane: u8) {
        self.state.lock().missing.push((number, lane));
        self.wake();
    }

    /// Ends the opening of lanes.
    pub(super) fn cancel(&self, number: u32) {
        let mut state = self.state.lock();
        state.openings.retain(|opening| opening.identity.number != number);
        state.missing.retain(|(missing, _)| *missing != number);
        state.canceled.push(number);
        drop(state);
        self.wake();
    }

    /// Calls [`Managed::check_deadline`] at a time.
    pub(super) fn arm(&self, deadline: Instant, member: Weak<dyn Managed>) {
        let mut state = self.state.lock();
        let is_covered =
            |(at, other): &(Instant, Weak<dyn Managed>)| *at <= deadline && other.ptr_eq(&member);
        if state.deadlines.iter().any(is_covered) {
            // It is armed again when that one is checked.
            return;
        }
        state.deadlines.push((deadline, member));
        drop(state);
        self.wake();
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn run(&self) {
        let mut lanes = Lanes::default();
        while !self.is_stopping.load(Ordering::SeqCst) {
            let next_deadline = self.check_deadlines();
            let listeners = self.take_openings(&mut lanes);
            lanes.accept(&listeners, self);
            lanes.connect(self);
            let deadline = next_deadline.into_iter().chain(lanes.deadline()).min();
            let mut descriptors = vec![PollFd::new(&self.wake, PollFlags::IN)];
            descriptors.extend(listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN)));
            descriptors.extend(lanes.descriptors().map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)));
            let timeout = deadline.map(|deadline| {
                timespec(deadline.saturating_duration_since(Instant::now()) + Duration::from_micros(1))
            });
            let _ = poll(&mut descriptors, timeout.as_ref());
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
    }

    /// Checks the deadlines that have passed. Returns the next one.
    fn check_deadlines(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut state = self.state.lock();
        let (due, later) = std::mem::take(&mut state.deadlines).into_iter().partition(|(at, _)| *at <= now);
        let (due, later): (Vec<_>, Vec<_>) = (due, later);
        state.deadlines = later;
        let next = state.deadlines.iter().map(|(at, _)| *at).min();
        drop(state);
        due.iter().filter_map(|(_, member)| member.upgrade()).for_each(|member| member.check_deadline());
        next
    }

    /// Moves new openings to the thread. Returns the listeners.
    fn take_openings(&self, lanes: &mut Lanes) -> Vec<Arc<TcpListener>> {
        let mut state = self.state.lock();
        for number in state.canceled.drain(..) {
            lanes.openings.remove(&number);
            lanes.connecting.retain(|connecting| connecting.opening.identity.number != number);
        }
        for opening in state.openings.drain(..) {
            let opening = Arc::new(opening);
            if opening.role == Role::Connects && !opening.has_lane {
                lanes.connecting.push(Connecting::new(Arc::clone(&opening), 0));
            }
            lanes.openings.insert(opening.identity.number, opening);
        }
        for (number, lane) in state.missing.drain(..) {
            let is_same = |connecting: &Connecting| {
                connecting.opening.identity.number == number && connecting.lane == lane
            };
            if let Some(opening) = lanes.openings.get(&number)
                && opening.role == Role::Connects
                && !lanes.connecting.iter().any(is_same)
            {
                lanes.connecting.push(Connecting::new(Arc::clone(opening), lane));
            }
        }
        state.ports.iter().map(|port| Arc::clone(&port.listener)).collect()
    }

    /// Starts a connection to the peer: from the address of the device, by which a peer knows it that it names.
    fn start_connecting(&self, opening: &Opening) -> io::Result<TcpStream> {
        let peer = opening.peer;
        let family = if peer.address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        self.options.apply(&socket).map_err(io::Error::other)?;
        if !opening.has_lane {
            rustix::net::bind(&socket, &SocketAddr::new(self.address, 0))?;
        }
        let port = (peer.number >> 8) as u16;
        match rustix::net::connect(&socket, &SocketAddr::new(peer.address, port)) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// Listens with the longest queue of connections that the system grants. Beyond it, a connection takes 1 s more.
pub(super) fn listen(address: impl ToSocketAddrs) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    rustix::net::listen(&listener, i32::MAX)?;
    Ok(listener)
}

/// Answers the hello of a peer, and opens the lane.
///
/// # Errors
/// If the queue pair does not take the lane now, or the peer has gone. The peer tries again.
pub(super) fn accept(
    member: &dyn Managed,
    identity: &Identity,
    stream: TcpStream,
    hello: &Hello,
) -> io::Result<()> {
    let agreement = identity.agreement(hello);
    let refused = || io::Error::other("the queue pair does not take the lane");
    let attempt = member.accept_lane(hello, &agreement).ok_or_else(refused)?;
    let reply = identity.hello(Role::Accepts, attempt, agreement.lanes, hello.source_qpn, &stream)?;
    handshake::write_hello(&stream, &reply)?;
    member.open_lane(Box::new(TcpLane(stream)), hello, &agreement);
    Ok(())
}

/// Lanes that are being opened; the manager's thread owns them.
#[derive(Default)]
struct Lanes {
    /// Queue pairs by number.
    openings: HashMap<u32, Arc<Opening>>,
    connecting: Vec<Connecting>,
    waiting: VecDeque<Waiting>,
}

/// A connection that a peer has opened.
struct Waiting {
    stream: TcpStream,
    greeting: Greeting,
    /// The complete hello; its queue pair does not expect it yet.
    hello: Option<Hello>,
    deadline: Instant,
}

/// A connection to a peer.
struct Connecting {
    opening: Arc<Opening>,
    lane: u8,
    /// `None` until the next attempt.
    attempt: Option<Attempt>,
    retry_at: Instant,
    delay: Duration,
}

struct Attempt {
    stream: TcpStream,
    lane: LaneAttempt,
    /// The hello of this end is sent.
    is_greeted: bool,
    greeting: Greeting,
}

impl Lanes {
    /// Accepts connections, and opens the lanes of expected peers.
    fn accept(&mut self, listeners: &[Arc<TcpListener>], manager: &Manager) {
        for listener in listeners {
            while let Ok((stream, peer)) = listener.accept() {
                match handshake::prepare(&stream, &manager.options) {
                    Ok(()) => self.waiting.push_back(Waiting {
                        stream,
                        greeting: Greeting::default(),
                        hello: None,
                        deadline: Instant::now() + TIMEOUT,
                    }),
                    Err(error) => log::limited!(Warn, "{peer} is refused: {error}"),
                }
                if self.waiting.len() > MAX_WAITING {
                    // The peer tries again.
                    self.waiting.pop_front();
                }
            }
        }
        let waiting = std::mem::take(&mut self.waiting);
        self.waiting = waiting.into_iter().filter_map(|peer| self.admit(peer)).collect();
    }

    /// Opens the lane of a peer if its queue pair expects it. Returns a peer that must wait.
    fn admit(&mut self, mut peer: Waiting) -> Option<Waiting> {
        if peer.hello.is_none() {
            peer.hello = match peer.greeting.receive(&peer.stream, Role::Connects) {
                Ok(hello) => hello,
                Err(error) => {
                    log::debug!("a peer is refused: {error}");
                    return None;
                }
            };
        }
        let opening = peer.hello.as_ref().and_then(|hello| self.openings.get(&hello.destination_qpn));
        let (Some(hello), Some(opening)) = (&peer.hello, opening) else {
            return (Instant::now() < peer.deadline).then_some(peer);
        };
        let source = peer.stream.peer_addr().ok()?;
        if opening.role != Role::Accepts || !opening.accepts(hello, source.ip()) {
            log::limited!(Warn, "{source}: queue pair {} expects another peer", hello.destination_qpn);
            return None;
        }
        if peer.stream.peek(&mut [0]).err().map(|error| error.kind()) != Some(io::ErrorKind::WouldBlock) {
            // The peer has gone, and connects again if it needs to.
            return None;
        }
        let member = opening.member.upgrade()?;
        if let Err(error) = accept(&*member, &opening.identity, peer.stream, hello) {
            log::debug!("{source}: {error}");
        }
        None
    }

    /// Continues the connections to peers.
    fn connect(&mut self, manager: &Manager) {
        self.connecting.retain(|connecting| connecting.opening.member.strong_count() > 0);
        self.connecting.retain_mut(|connecting| !connecting.advance(manager));
    }

    fn deadline(&self) -> Option<Instant> {
        let retries = self.connecting.iter().filter(|connecting| connecting.attempt.is_none());
        let retries = retries.map(|connecting| connecting.retry_at);
        retries.chain(self.waiting.iter().map(|peer| peer.deadline)).min()
    }

    /// Returns the sockets and the readiness that each waits for.
    fn descriptors(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let unread = self.waiting.iter().filter(|peer| peer.hello.is_none());
        let attempts = self.connecting.iter().filter_map(|connecting| connecting.attempt.as_ref());
        let attempts = attempts.map(|attempt| {
            (attempt.stream.as_fd(), if attempt.is_greeted { PollFlags::IN } else { PollFlags::OUT })
        });
        unread.map(|peer| (peer.stream.as_fd(), PollFlags::IN)).chain(attempts)
    }
}

impl Connecting {
    fn new(opening: Arc<Opening>, lane: u8) -> Connecting {
        Connecting { opening, lane, attempt: None, retry_at: Instant::now(), delay: MIN_RETRY_DELAY }
    }

    /// Continues. Returns `true` once the lane is open, or not needed. A failed attempt is repeated after a delay: the peer can be
    /// slower.
    fn advance(&mut self, manager: &Manager) -> bool {
        if self.attempt.is_none() {
            if Instant::now() < self.retry_at {
                return false;
            }
            let member = self.opening.member.upgrade();
            let Some(lane) = member.and_then(|member| member.start_lane(self.lane)) else { return true };
            match manager.start_connecting(&self.opening) {
                Ok(stream) => {
                    let greeting = Greeting::default();
                    self.attempt = Some(Attempt { stream, lane, is_greeted: false, greeting });
                }
                Err(error) => return self.retry(&error),
            }
        }
        let Some(attempt) = &mut self.attempt else { return false };
        match attempt.advance(&self.opening, &manager.options) {
            Ok(None) => false,
            Ok(Some(hello)) => {
                if let Some(attempt) = self.attempt.take() {
                    self.opening.open(attempt.stream, &hello);
                }
                true
            }
            Err(error) => self.retry(&error),
        }
    }

    fn retry(&mut self, error: &io::Error) -> bool {
        log::debug!("{}: {error}, trying again", self.opening.peer.address);
        self.attempt = None;
        self.retry_at = Instant::now() + self.delay;
        // No program listens at the port of a peer that has ended.
        let is_refused = error.kind() == io::ErrorKind::ConnectionRefused;
        let max_delay = if is_refused { MAX_REFUSED_DELAY } else { MAX_RETRY_DELAY };
        self.delay = (2 * self.delay).min(max_delay);
        false
    }
}

impl Attempt {
    /// Sends and receives hellos. Returns the valid hello of the peer.
    fn advance(&mut self, opening: &Opening, options: &SocketOptions) -> io::Result<Option<Hello>> {
        if !self.is_greeted {
            if let Some(error) = self.stream.take_error()? {
                return Err(error);
            }
            if self.stream.peer_addr().is_err() {
                return Ok(None);
            }
            handshake::tune(&self.stream, options);
            let (identity, number) = (&opening.identity, opening.peer.number);
            let hello = identity.hello(Role::Connects, self.lane, identity.lanes(), number, &self.stream)?;
            handshake::write_hello(&self.stream, &hello)?;
            self.is_greeted = true;
        }
        let hello = self.greeting.receive(&self.stream, Role::Accepts).map_err(io::Error::other)?;
        match hello {
            Some(hello)
                if !opening.accepts(&hello, opening.peer.address)
                    || (hello.lane, hello.epoch) != (self.lane.lane, self.lane.epoch) =>
            {
                Err(io::Error::other("the hello names another queue pair"))
            }
            hello => Ok(hello),
        }
    }
}

/// Number of attempts to bind a port.
const PORT_ATTEMPTS: usize = 8;
/// Number of queue pairs that a port serves.
const NUMBERS_PER_PORT: usize = 256;
/// Maximum number of accepted connections without a lane; the oldest ends for a further one.
const MAX_WAITING: usize = 256;
/// Delay before the second attempt to connect; it doubles with each attempt.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(1);
const MAX_RETRY_DELAY: Duration = Duration::from_millis(64);
/// Maximum delay between attempts that the peer's system refuses.
const MAX_REFUSED_DELAY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_as_many_connections_as_the_system_grants() {
        let granted = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
        let count = granted.trim().parse::<usize>().unwrap().min(400);
        let listener = listen("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // None is accepted. One more than the queue has space for would time out.
        let connect = || TcpStream::connect_timeout(&address, TIMEOUT);
        let connected = (0..count).map(|_| connect()).collect::<io::Result<Vec<TcpStream>>>();
        assert_eq!(connected.unwrap().len(), count);
    }
}

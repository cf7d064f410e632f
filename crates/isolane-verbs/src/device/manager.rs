//! Lane manager: opens lanes between queue pairs that name each other, and checks deadlines.
//!
//! The number of a queue pair is `port << 8 | index`, where `port` is a TCP port at which its device listens. The end
//! with the smaller GID and number connects; the other accepts exactly that peer.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::iter;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use isolane_tcp::SocketOptions;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::DeviceConfig;
use super::handshake::{self, ConnectError, Offer, TIMEOUT};
use super::lane_opener::{Attempt, FirstLane, FirstLanes, LaneOpener, LaneOwner, OfferedQueuePair};
use super::port::{NUMBERS_PER_PORT, Port};
use super::progress::timespec;
use super::reserved_number::ReservedNumber;
use super::waiting::Waiting;
use crate::shared_key::SharedKey;
use crate::types::Peer;
use crate::wire::{Hello, Role};

/// Opens the lanes of a device.
pub(super) struct Manager {
    address: IpAddr,
    ports: RangeInclusive<u16>,
    options: SocketOptions,
    is_observed: bool,
    offer: Offer,
    key: Option<Arc<SharedKey>>,
    state: Mutex<State>,
    wake: OwnedFd,
    is_stopping: AtomicBool,
}

#[derive(Default)]
struct State {
    ports: Vec<Port>,
    /// Sockets of [`Device::listen`](super::Device::listen).
    listeners: Vec<ListeningSocket>,
    /// New queue pairs, which the thread takes.
    openers: Vec<Arc<LaneOpener>>,
    /// Numbers of queue pairs, and their lanes to open.
    missing: Vec<(u32, u8)>,
    /// Peers to which a queue pair was offered.
    offered: Vec<Waiting>,
    /// Numbers whose opening ends.
    canceled: Vec<u32>,
    deadlines: Vec<(Instant, Weak<dyn LaneOwner>)>,
}

/// A socket that accepts lanes.
#[derive(Clone)]
struct ListeningSocket {
    socket: Arc<TcpListener>,
    /// Takes lanes for queue pairs that connect to its address; other lanes name their queue pair.
    first_lanes: Option<Arc<FirstLanes>>,
}

impl Manager {
    pub(super) fn new(config: &DeviceConfig) -> io::Result<Manager> {
        Ok(Manager {
            address: config.address,
            ports: config.ports.clone(),
            options: config.socket.clone(),
            is_observed: config.observed,
            offer: Offer {
                lanes: config.lanes.clamp(1, Hello::MAX_LANES),
                checksums: config.checksums,
                authenticated: config.key.is_some(),
            },
            key: config.key.clone(),
            state: Mutex::default(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            is_stopping: AtomicBool::new(false),
        })
    }

    /// Whether the stages of requests are recorded.
    pub(super) fn is_observed(&self) -> bool {
        self.is_observed
    }

    /// Features of the lanes of a queue pair.
    pub(super) fn offer(&self) -> Offer {
        self.offer
    }

    /// The key that both ends of a lane have.
    pub(super) fn key(&self) -> Option<&SharedKey> {
        self.key.as_deref()
    }

    pub(super) fn shared_key(&self) -> Option<Arc<SharedKey>> {
        self.key.clone()
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
        use io::ErrorKind::{AddrInUse, PermissionDenied};
        // A port that the system chooses can be in use for datagrams.
        let mut attempts = self.ports.clone().flat_map(|port| iter::repeat_n(port, PORT_ATTEMPTS));
        let bound = attempts.find_map(|port| match self.bind(port) {
            Err(error) if matches!(error.kind(), AddrInUse | PermissionDenied) => None,
            bound => Some(bound),
        });
        let (listener, datagrams) = bound.unwrap_or_else(|| {
            let (low, high, address) = (self.ports.start(), self.ports.end(), self.address);
            let text = format!(
                "no free port in {low}-{high} at {address} for this user; each opened device needs one"
            );
            Err(io::Error::new(AddrInUse, text))
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

    /// Reserves a number for a queue pair that is perhaps created.
    ///
    /// # Errors
    /// If there is no free port.
    pub(super) fn reserve(self: &Arc<Self>) -> io::Result<ReservedNumber> {
        let manager = Arc::clone(self);
        Ok(ReservedNumber::new(self.allocate()?, move |number| manager.release(number)))
    }

    /// Waits for the proof of a peer to which a queue pair was offered.
    pub(super) fn await_proof(
        &self,
        stream: TcpStream,
        hello: Hello,
        to: &Arc<FirstLanes>,
        offered: OfferedQueuePair,
    ) {
        let reply = offered.reply.clone();
        let mut waiting = Waiting::new(stream, Some(Arc::clone(to)));
        (waiting.hello, waiting.reply, waiting.offered) = (Some(hello), Some(reply), Some(offered));
        self.state.lock().offered.push(waiting);
        self.wake();
    }

    /// Releases a number.
    pub(super) fn release(&self, number: u32) {
        let mut state = self.state.lock();
        if let Some(port) = state.ports.iter_mut().find(|port| u32::from(port.number) == number >> 8) {
            port.used[number as usize % NUMBERS_PER_PORT] = false;
        }
    }

    /// Opens the lanes of a queue pair in the background.
    pub(super) fn open(&self, opener: LaneOpener) {
        let number = opener.local_hello.number;
        self.keep_open(Arc::new(opener));
        self.open_lane(number, 0);
    }

    /// Opens lanes of a queue pair again when they have ended.
    pub(super) fn keep_open(&self, opener: Arc<LaneOpener>) {
        self.state.lock().openers.push(opener);
        self.wake();
    }

    /// Opens the first lane of a queue pair to an address, and its other lanes in the background.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub(super) fn connect(&self, mut opener: LaneOpener, address: SocketAddr) -> Result<(), ConnectError> {
        let deadline = Instant::now() + TIMEOUT;
        let gone = || ConnectError::Io(io::ErrorKind::ConnectionAborted.into());
        let lane = opener.owner.upgrade().and_then(|owner| owner.start_lane(0)).ok_or_else(gone)?;
        let mut attempt = Attempt::start(&opener, lane, &self.options, address)?;
        let hello = loop {
            if let Some(hello) = attempt.advance(&opener, &self.options, self.key())? {
                break hello;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ConnectError::Timeout);
            }
            let (socket, flags) = attempt.descriptor();
            let _ = poll(&mut [PollFd::from_borrowed_fd(socket, flags)], Some(&timespec(left)));
        };
        opener.peer.number = hello.source_qpn;
        let opener = Arc::new(opener);
        self.keep_open(Arc::clone(&opener));
        opener.open(attempt.stream, &hello);
        Ok(())
    }

    /// Accepts queue pairs that connect to the address of a socket.
    pub(super) fn listen(&self, socket: &Arc<TcpListener>, first_lanes: &Arc<FirstLanes>) {
        let listener =
            ListeningSocket { socket: Arc::clone(socket), first_lanes: Some(Arc::clone(first_lanes)) };
        self.state.lock().listeners.push(listener);
        self.wake();
    }

    pub(super) fn stop_listening(&self, socket: &Arc<TcpListener>) {
        self.state.lock().listeners.retain(|listener| !Arc::ptr_eq(&listener.socket, socket));
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
        state.openers.retain(|opener| opener.local_hello.number != number);
        state.missing.retain(|(missing, _)| *missing != number);
        state.canceled.push(number);
        drop(state);
        self.wake();
    }

    /// Calls [`LaneOwner::check_deadline`] at a time.
    pub(super) fn arm(&self, deadline: Instant, owner: Weak<dyn LaneOwner>) {
        let mut state = self.state.lock();
        let is_covered =
            |(at, other): &(Instant, Weak<dyn LaneOwner>)| *at <= deadline && other.ptr_eq(&owner);
        if state.deadlines.iter().any(is_covered) {
            // It is armed again when that one is checked.
            return;
        }
        state.deadlines.push((deadline, owner));
        drop(state);
        self.wake();
    }

    pub(super) fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn run(&self) {
        let mut lanes = Lanes::default();
        while !self.is_stopping.load(Ordering::SeqCst) {
            let next_deadline = self.check_deadlines();
            let mut listeners = self.take_openers(&mut lanes);
            lanes.accept(&listeners, self);
            if lanes.accepts_at.is_some() {
                listeners.clear();
            }
            lanes.connect(self);
            let deadline = next_deadline.into_iter().chain(lanes.deadline()).min();
            let mut descriptors = vec![PollFd::new(&self.wake, PollFlags::IN)];
            descriptors.extend(listeners.iter().map(|listener| PollFd::new(&listener.socket, PollFlags::IN)));
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
        due.iter().filter_map(|(_, owner)| owner.upgrade()).for_each(|owner| owner.check_deadline());
        next
    }

    /// Moves new openers to the thread. Returns the listeners.
    fn take_openers(&self, lanes: &mut Lanes) -> Vec<ListeningSocket> {
        let mut state = self.state.lock();
        lanes.waiting.extend(state.offered.drain(..));
        for number in state.canceled.drain(..) {
            lanes.openers.remove(&number);
            // What its opener has offered to a peer is void. The peer of a listener can name any number in its hello, and
            // the number that it was offered is released with this lock.
            let is_for = |hello: &Hello| hello.destination_qpn == number;
            let is_void = |peer: &Waiting| {
                peer.reply.is_some() && peer.offered.is_none() && peer.hello.as_ref().is_some_and(is_for)
            };
            lanes.waiting.retain(|peer| !is_void(peer));
            lanes.connecting.retain(|connecting| connecting.opener.local_hello.number != number);
        }
        for opener in state.openers.drain(..) {
            lanes.openers.insert(opener.local_hello.number, opener);
        }
        for (number, lane) in state.missing.drain(..) {
            let is_same = |connecting: &Connecting| {
                connecting.opener.local_hello.number == number && connecting.lane == lane
            };
            if let Some(opener) = lanes.openers.get(&number)
                && opener.role == Role::Connects
                && !lanes.connecting.iter().any(is_same)
            {
                lanes.connecting.push(Connecting::new(Arc::clone(opener), lane));
            }
        }
        let ports = state
            .ports
            .iter()
            .map(|port| ListeningSocket { socket: Arc::clone(&port.listener), first_lanes: None });
        let is_full =
            |listener: &&ListeningSocket| listener.first_lanes.as_ref().is_some_and(|lanes| lanes.is_full());
        ports.chain(state.listeners.iter().filter(|listener| !is_full(listener)).cloned()).collect()
    }
}

/// Listens with the longest queue of connections that the system grants. Beyond it, a connection takes 1 s more.
pub(super) fn listen(address: impl ToSocketAddrs) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    rustix::net::listen(&listener, i32::MAX)?;
    Ok(listener)
}

/// Lanes that are being opened; the manager's thread owns them.
#[derive(Default)]
struct Lanes {
    /// Queue pairs by number.
    openers: HashMap<u32, Arc<LaneOpener>>,
    connecting: Vec<Connecting>,
    waiting: VecDeque<Waiting>,
    /// The system cannot accept connections until then.
    accepts_at: Option<Instant>,
}

/// A connection to a peer.
struct Connecting {
    opener: Arc<LaneOpener>,
    lane: u8,
    /// `None` until the next attempt.
    attempt: Option<Attempt>,
    retry_at: Instant,
    delay: Duration,
}

impl Lanes {
    /// Accepts connections, and opens the lanes of expected peers.
    fn accept(&mut self, listeners: &[ListeningSocket], manager: &Manager) {
        self.accepts_at.take_if(|at| *at <= Instant::now());
        for listener in listeners {
            if self.accepts_at.is_some() {
                break;
            }
            if let Err(error) = self.accept_all(listener, manager)
                && !is_transient(&error)
            {
                log::limited!(Warn, "no connection is accepted for {} ms: {error}", ACCEPT_PAUSE.as_millis());
                self.accepts_at = Some(Instant::now() + ACCEPT_PAUSE);
                if let Some(first_lanes) = &listener.first_lanes {
                    first_lanes.fail(error);
                }
            }
        }
        self.limit_offers();
        let waiting = std::mem::take(&mut self.waiting);
        self.waiting = waiting.into_iter().filter_map(|peer| self.admit(peer, manager.key())).collect();
    }

    /// Closes the oldest peers without a proof to which queue pairs were offered, so that numbers are left for others.
    fn limit_offers(&mut self) {
        let offers = self.waiting.iter().filter(|peer| peer.offered.is_some()).count();
        let mut excess = offers.saturating_sub(MAX_OFFERS);
        self.waiting.retain(|peer| {
            let is_over = excess > 0 && peer.offered.is_some();
            excess -= usize::from(is_over);
            !is_over
        });
    }

    /// Accepts connections until an error, which is `WouldBlock` once none waits.
    fn accept_all(&mut self, listener: &ListeningSocket, manager: &Manager) -> io::Result<Infallible> {
        loop {
            let (stream, peer) = listener.socket.accept()?;
            match handshake::prepare(&stream, &manager.options) {
                Ok(()) => self.waiting.push_back(Waiting::new(stream, listener.first_lanes.clone())),
                Err(error) => log::limited!(Warn, "{peer} is refused: {error}"),
            }
            if self.waiting.len() > MAX_WAITING {
                // The peer tries again.
                self.waiting.pop_front();
            }
        }
    }

    /// Opens the lane of a peer if its queue pair expects it. Returns a peer that must wait.
    fn admit(&mut self, mut peer: Waiting, key: Option<&SharedKey>) -> Option<Waiting> {
        if peer.hello.is_none() && !peer.greet(key) {
            return None;
        }
        let is_proven = match key {
            Some(key) => peer.has_proved(key)?,
            None => false,
        };
        let is_late = Instant::now() >= peer.deadline;
        let Some(hello) = peer.hello.clone() else { return (!is_late).then_some(peer) };
        let must_prove = key.is_some() && peer.reply.is_some() && !is_proven;
        if must_prove {
            return (!is_late).then_some(peer);
        }
        if let Some(first_lanes) = &peer.first_lanes {
            first_lanes.add(FirstLane { stream: peer.stream, hello, proven: peer.offered });
            return None;
        }
        let Some(opener) = self.openers.get(&hello.destination_qpn) else {
            return (!is_late).then_some(peer);
        };
        let source = peer.stream.peer_addr().ok()?;
        if opener.role != Role::Accepts || !opener.accepts(&hello, source.ip()) {
            log::limited!(Warn, "{source}: queue pair {} expects another peer", hello.destination_qpn);
            return None;
        }
        let accepted = match (key, &peer.reply) {
            (None, _) => opener.accept(peer.stream, &hello),
            (Some(_), Some(reply)) => opener.accept_proven(peer.stream, &hello, reply),
            (Some(key), None) => match opener.offer(&peer.stream, &hello, key) {
                Ok(reply) => {
                    peer.reply = Some(reply);
                    return Some(peer);
                }
                Err(error) => Err(error),
            },
        };
        if let Err(error) = accepted {
            log::debug!("{source}: {error}");
        }
        None
    }

    /// Continues the connections to peers.
    fn connect(&mut self, manager: &Manager) {
        self.connecting.retain(|connecting| connecting.opener.owner.strong_count() > 0);
        self.connecting.retain_mut(|connecting| !connecting.advance(manager));
    }

    fn deadline(&self) -> Option<Instant> {
        let retries = self.connecting.iter().filter(|connecting| connecting.attempt.is_none());
        let retries = retries.map(|connecting| connecting.retry_at);
        retries.chain(self.waiting.iter().map(|peer| peer.deadline)).chain(self.accepts_at).min()
    }

    /// Returns the sockets and the readiness that each waits for.
    fn descriptors(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let unread = self.waiting.iter().filter(|peer| peer.hello.is_none() || peer.reply.is_some());
        let attempts = self.connecting.iter().filter_map(|connecting| connecting.attempt.as_ref());
        let attempts = attempts.map(Attempt::descriptor);
        unread.map(|peer| (peer.stream.as_fd(), PollFlags::IN)).chain(attempts)
    }
}

impl Connecting {
    fn new(opener: Arc<LaneOpener>, lane: u8) -> Connecting {
        Connecting { opener, lane, attempt: None, retry_at: Instant::now(), delay: MIN_RETRY_DELAY }
    }

    /// Continues. Returns `true` once the lane is open, or not needed. A failed attempt is repeated after a delay: the peer can be
    /// slower.
    fn advance(&mut self, manager: &Manager) -> bool {
        if self.attempt.is_none() {
            if Instant::now() < self.retry_at {
                return false;
            }
            let owner = self.opener.owner.upgrade();
            let Some(lane) = owner.and_then(|owner| owner.start_lane(self.lane)) else { return true };
            let Peer { address, number } = self.opener.peer;
            let address = SocketAddr::new(address, (number >> 8) as u16);
            match Attempt::start(&self.opener, lane, &manager.options, address) {
                Ok(attempt) => self.attempt = Some(attempt),
                Err(error) => return self.retry(&error),
            }
        }
        let Some(attempt) = &mut self.attempt else { return false };
        match attempt.advance(&self.opener, &manager.options, manager.key()) {
            Ok(None) => false,
            Ok(Some(hello)) => {
                if let Some(attempt) = self.attempt.take() {
                    self.opener.open(attempt.stream, &hello);
                }
                true
            }
            Err(error) => self.retry(&error),
        }
    }

    fn retry(&mut self, error: &ConnectError) -> bool {
        if error.concerns_key() {
            log::limited!(Warn, "{}: {error}", self.opener.peer.address);
        } else {
            log::debug!("{}: {error}, trying again", self.opener.peer.address);
        }
        self.attempt = None;
        self.retry_at = Instant::now() + self.delay;
        // No program listens at the port of a peer that has ended.
        let is_refused =
            matches!(error, ConnectError::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused);
        let max_delay = if is_refused { MAX_REFUSED_DELAY } else { MAX_RETRY_DELAY };
        self.delay = (2 * self.delay).min(max_delay);
        false
    }
}

/// Whether an error concerns one connection, or only reports that no connection waits.
fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    matches!(error.kind(), ConnectionAborted | Interrupted | WouldBlock)
}

/// Pause after the system could not accept a connection: its socket stays readable.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// Number of attempts to bind a port.
const PORT_ATTEMPTS: usize = 8;
/// Maximum number of accepted connections without a lane; the oldest ends for a further one.
const MAX_WAITING: usize = 256;
/// Maximum number of queue pairs that are offered to peers without a proof.
const MAX_OFFERS: usize = 64;
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

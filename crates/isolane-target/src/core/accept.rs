//! Accepts connections on the first core and hands each to the core that [`Placer`] chooses.
//!
//! One core accepts for all. With one listener per core (`SO_REUSEPORT`), the kernel would choose by a hash
//! or by the incoming core, without regard to the number of connections.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use isolane_proto::subsystem::{ConnectionInfo, ListenerId};
use isolane_reactor::topology::Topology;
use isolane_reactor::{SocketOptions, Token, socket};
use socket2::{SockRef, TcpKeepalive};

use super::{Core, Driver};
use crate::config::TargetConfig;
use crate::lane::Lane;
use crate::listen::canonical;
use crate::placement::Placer;
use crate::port::NewListener;
use crate::shared::{Message, Shared};
use crate::slab::{LaneId, SlabKey};

/// State of the core that accepts.
pub(crate) struct Acceptor {
    /// The listeners, with their indexes in the reactor.
    listeners: Vec<Accepting>,
    placer: Placer,
    /// Number of connections assigned to each core.
    assigned: Vec<u64>,
}

/// One listener.
struct Accepting {
    /// Its index in the reactor.
    index: usize,
    id: ListenerId,
    /// Socket options of its connections.
    options: SocketOptions,
}

impl Acceptor {
    pub(crate) fn new(config: &TargetConfig) -> Acceptor {
        let listeners = config.listen.iter().enumerate().map(|(index, port)| Accepting {
            index,
            id: ListenerId::at(index),
            options: port.listen.options.clone(),
        });
        Acceptor {
            listeners: listeners.collect(),
            placer: Placer::new(config.placement, &config.cores, &Topology::read()),
            assigned: vec![0; config.cores.len().max(1)],
        }
    }

    /// Returns the number of connections of a core, including connections that are being handed to it.
    fn load(&self, shared: &Shared, core: usize) -> u64 {
        let counters = &shared.counters[core];
        let in_transit = self.assigned[core].saturating_sub(counters.connections_total.value());
        counters.connections_open.value() + in_transit
    }

    /// Returns the number of sockets of connections: open, being handed over, and closed with zero-copy sends
    /// in flight.
    fn descriptors(&self, shared: &Shared) -> u64 {
        let open: u64 = (0..self.assigned.len()).map(|core| self.load(shared, core)).sum();
        open + shared.lingering()
    }

    fn place(&mut self, shared: &Shared, socket: &TcpStream, peer: SocketAddr) -> usize {
        let incoming = incoming_cpu(socket, peer);
        let loads: Vec<u64> = (0..self.assigned.len()).map(|core| self.load(shared, core)).collect();
        let core = self.placer.place(incoming, |core| loads[core]);
        self.assigned[core] += 1;
        match incoming {
            Some(cpu) => log::debug!("{peer}: given to reactor {core}; its packets arrive on core {cpu}"),
            None => log::debug!("{peer}: given to reactor {core}"),
        }
        core
    }
}

impl Driver {
    /// Places a connection that this core has accepted.
    pub(super) fn handle_accepted(&mut self, listener: usize, socket: TcpStream, peer: SocketAddr) {
        let listeners = self.acceptor.iter().flat_map(|acceptor| &acceptor.listeners);
        // It can have been closed after it had accepted the connection.
        let id = listeners.into_iter().find(|it| it.index == listener).map_or(ListenerId::NONE, |it| it.id);
        self.place(id, socket, peer);
    }

    /// Places an accepted connection on a core.
    pub(super) fn place(&mut self, listener: ListenerId, socket: TcpStream, peer: SocketAddr) {
        let peer = canonical(peer);
        let (Some(acceptor), shared) = (&mut self.acceptor, &self.core.shared) else { return };
        // A newcomer mostly displaces another one, but displaced connections may close late.
        if acceptor.descriptors(shared) >= shared.max_descriptors() {
            reset(&socket);
            return shared.log_refusal(&self.core.counters, peer, "too many connections are open");
        }
        if let Some(Accepting { options, .. }) = acceptor.listeners.iter().find(|it| it.id == listener) {
            if let Err(error) = options.apply(&socket) {
                return log::limited!(Warn, "{peer}: cannot serve the connection: {error}");
            }
            if is_local_peer(&socket, peer) {
                options.tune_for_loopback(&socket, LOCAL_SEND_BUFFER_BYTES);
            }
        }
        let core = acceptor.place(shared, &socket, peer);
        if core == self.core.index {
            self.adopt(socket, peer, listener);
        } else {
            self.core.shared.post(core, Message::Adopt { socket, peer, listener });
        }
    }

    /// Accepts connections at another listener. Called on the first core only.
    pub(super) fn listen(&mut self, listener: NewListener) {
        let NewListener { socket, id, options, result } = listener;
        let Some(acceptor) = self.acceptor.as_mut().filter(|_| self.shutdown.is_none()) else { return };
        let listening = self.core.reactor.listen(socket);
        let listening = listening.map(|index| acceptor.listeners.push(Accepting { index, id, options }));
        // The caller may have given up.
        let _ = result.send(listening);
    }

    /// Returns copies of the listeners at these addresses.
    pub(super) fn copy_listeners(&self, addresses: &[SocketAddr]) -> Vec<TcpListener> {
        let is_there =
            |socket: &&TcpListener| socket.local_addr().is_ok_and(|address| addresses.contains(&address));
        let found = self.core.reactor.listeners().filter(is_there);
        found.filter_map(|socket| socket.try_clone().ok()).collect()
    }

    /// Closes a listener. The connections that wait there are at the listener that has its address when they connect;
    /// without one, their Connect is refused.
    pub(super) fn close_listener(&mut self, id: ListenerId) {
        let Some(acceptor) = &mut self.acceptor else { return };
        let mut waiting = Vec::new();
        for closed in acceptor.listeners.extract_if(.., |it| it.id == id) {
            waiting.append(&mut self.core.reactor.close_listener(closed.index));
        }
        waiting.into_iter().for_each(|(socket, peer)| self.place(ListenerId::NONE, socket, peer));
    }

    /// Adds a connection to this core.
    pub(super) fn adopt(&mut self, socket: TcpStream, peer: SocketAddr, listener: ListenerId) {
        self.core.counters.connections_total.add(1);
        if self.shutdown.is_some() {
            return;
        }
        match self.prepare(socket) {
            Ok((token, local)) => {
                self.core.counters.connections_open.add(1);
                self.insert(token, ConnectionInfo { listener, local, remote: peer });
            }
            Err(error) => self.core.shared.log_refusal(&self.core.counters, peer, &error.to_string()),
        }
    }

    fn prepare(&mut self, socket: TcpStream) -> std::io::Result<(Token, SocketAddr)> {
        let local = canonical(socket.local_addr()?);
        socket.set_nodelay(true)?;
        Ok((self.core.reactor.add(socket)?, local))
    }

    /// Adds a new lane, which may displace an older newcomer.
    fn insert(&mut self, token: Token, connection: ConnectionInfo) {
        let limits = self.limits.clone();
        let now = self.core.now;
        let name = |lane| LaneId { core: self.core.index, lane };
        let newcomers = &self.core.shared.newcomers;
        let mut displaced = None;
        let key = self.lanes.insert_with_key(|key| {
            let (arrival, other) = newcomers.enter(connection.remote.ip(), name(key));
            displaced = other;
            Lane { newcomer: Some(arrival), ..Lane::new(name(key), token, connection, limits, now) }
        });
        self.bind_token(token, key);
        self.pause_if_frozen(token);
        match displaced {
            Some(lane) if lane.core == self.core.index => self.displace(lane),
            Some(lane) => self.core.shared.post(lane.core, Message::Displace { lane }),
            None => {}
        }
    }

    /// Closes a newcomer, or a queue whose host has not authenticated, that another has displaced.
    pub(super) fn displace(&mut self, lane: LaneId) {
        let Some(lane) = self.lanes.get_mut(lane.lane) else { return };
        if lane.unauthenticated.is_some() {
            return self.core.displace_unauthenticated(lane);
        }
        if lane.newcomer.is_none() {
            return;
        }
        let peer = lane.peer();
        if let Some(socket) = lane.token.and_then(|token| self.core.reactor.socket(token)) {
            reset(&socket);
        }
        self.core.close(lane, "another connection displaced it before Connect");
        self.core.shared.log_refusal(
            &self.core.counters,
            peer,
            "others connected before it sent its Connect",
        );
    }

    /// Assigns the events of this socket to the lane.
    pub(super) fn bind_token(&mut self, token: Token, key: SlabKey) {
        if self.by_token.len() <= token.index() {
            self.by_token.resize(token.index() + 1, None);
        }
        self.by_token[token.index()] = Some((token, key));
    }
}

impl Core {
    /// Prepares the socket of a connected queue: from now on the kernel probes whether its host is alive.
    pub(super) fn configure_socket(&mut self, token: Token) -> std::io::Result<()> {
        if let Some(socket) = self.reactor.socket(token) {
            let socket = SockRef::from(&socket);
            socket.set_tcp_user_timeout(Some(self.stall))?;
            let probes = TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_INTERVAL);
            socket.set_tcp_keepalive(&probes.with_retries(PROBES))?;
        }
        if self.sends.zerocopy_threshold.is_some() {
            self.reactor.enable_zerocopy(token)?;
        }
        Ok(())
    }
}

/// Makes the close of the socket reset the connection, so that the kernel keeps no state of it.
pub(super) fn reset(socket: &impl AsFd) {
    // If this fails, the socket closes without a reset.
    let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
}

/// Returns the core on which the packets of the connection arrive. Packets of local peers arrive on the core
/// of their sender, which would compete with a reactor there.
fn incoming_cpu(socket: &TcpStream, peer: SocketAddr) -> Option<usize> {
    if is_local_peer(socket, peer) { None } else { socket::incoming_cpu(socket) }
}

fn is_local_peer(socket: &TcpStream, peer: SocketAddr) -> bool {
    socket.local_addr().is_ok_and(|local| socket::is_local(canonical(local).ip(), peer.ip()))
}

/// Send buffer of local connections: four responses of 128 KiB.
const LOCAL_SEND_BUFFER_BYTES: usize = 512 * 1024;

/// TCP keep-alive: idle time before the first probe, interval, and number of probes.
const PROBE_AFTER: Duration = Duration::from_secs(60);
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
const PROBES: u32 = 3;

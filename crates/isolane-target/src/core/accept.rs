//! Accepts connections on the first core and hands each to the core that [`Placer`] chooses.
//!
//! One core accepts for all. With one listener per core (`SO_REUSEPORT`), the kernel would choose by a hash
//! or by the incoming core, without regard to the number of connections.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use isolane_proto::subsystem::ConnectionInfo;
use isolane_reactor::{ListenerToken, SocketOptions, Token, socket};
use socket2::{SockRef, TcpKeepalive};

use super::lane::Lane;
use super::{Core, Driver};
use crate::placement::Placer;
use crate::shared::Message;
use crate::slab::LaneId;
use crate::slab::SlabKey;

/// Listeners and placement rule of the core that accepts.
pub(crate) struct Acceptor {
    pub listeners: Vec<(TcpListener, SocketOptions)>,
    pub placer: Placer,
}

/// The listeners of a core, and the number of connections it has assigned to each core.
pub(super) struct Listeners {
    /// Socket options of the connections of each listener, by the index of its token.
    options: Vec<SocketOptions>,
    placer: Option<Placer>,
    assigned: Vec<u64>,
}

impl Listeners {
    pub(super) fn new(cores: usize) -> Listeners {
        Listeners { options: Vec::new(), placer: None, assigned: vec![0; cores] }
    }

    /// Returns `true` if this core accepts no connections.
    pub(super) fn is_empty(&self) -> bool {
        self.options.is_empty()
    }
}

impl Driver {
    /// Accepts connections for all cores.
    ///
    /// # Errors
    /// The error of the kernel.
    pub(crate) fn listen(&mut self, acceptor: Acceptor) -> std::io::Result<()> {
        self.listeners.placer = Some(acceptor.placer);
        for (listener, options) in acceptor.listeners {
            self.core.reactor.listen(listener)?;
            self.listeners.options.push(options);
        }
        Ok(())
    }

    /// Places an accepted connection on a core.
    pub(super) fn handle_accepted(&mut self, listener: ListenerToken, socket: TcpStream, peer: SocketAddr) {
        // A newcomer mostly displaces another one, but displaced connections may close late.
        if self.descriptors() >= self.core.shared.max_descriptors() {
            reset(&socket);
            return self.core.shared.log_refusal(&self.core.counters, peer, "too many connections are open");
        }
        let options = &self.listeners.options[listener.index()];
        if let Err(error) = options.apply(&socket) {
            return log::warn!("{peer}: cannot serve the connection: {error}");
        }
        if is_local_peer(&socket, peer) {
            options.tune_for_loopback(&socket, LOCAL_SEND_BUFFER_BYTES);
        }
        let core = self.place(&socket, peer);
        self.listeners.assigned[core] += 1;
        if core == self.core.index {
            self.adopt(socket, peer);
        } else {
            self.core.shared.post(core, Message::Adopt { socket, peer });
        }
    }

    /// Adds a connection to this core.
    pub(super) fn adopt(&mut self, socket: TcpStream, peer: SocketAddr) {
        self.core.counters.connections_total.add(1);
        if self.shutdown.is_some() {
            return;
        }
        match self.prepare(socket) {
            Ok((token, local)) => {
                self.core.counters.connections_open.add(1);
                self.insert(token, ConnectionInfo { local, remote: peer });
            }
            Err(error) => self.core.shared.log_refusal(&self.core.counters, peer, &error.to_string()),
        }
    }

    fn prepare(&mut self, socket: TcpStream) -> std::io::Result<(Token, SocketAddr)> {
        let local = socket.local_addr()?;
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
        let key = self.lanes.insert_with(|key| {
            let (arrival, other) = newcomers.enter(connection.remote.ip(), name(key));
            displaced = other;
            Lane { newcomer: Some(arrival), ..Lane::new(name(key), token, connection, limits, now) }
        });
        self.bind_token(token, key);
        match displaced {
            Some(lane) if lane.core == self.core.index => self.displace(lane),
            Some(lane) => self.core.shared.post(lane.core, Message::Displace { lane }),
            None => {}
        }
    }

    /// Closes a newcomer that another has displaced.
    pub(super) fn displace(&mut self, lane: LaneId) {
        let Some(lane) = self.lanes.get_mut(lane.lane).filter(|lane| lane.newcomer.is_some()) else { return };
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

    /// Returns the number of connections of a core, including connections that are being handed to it.
    fn load(&self, core: usize) -> u64 {
        let counters = &self.core.shared.counters[core];
        let in_transit = self.listeners.assigned[core].saturating_sub(counters.connections_total.value());
        counters.connections_open.value() + in_transit
    }

    /// Returns the number of sockets of connections: open, being handed over, and closed with zero-copy sends
    /// in flight.
    fn descriptors(&self) -> u64 {
        let open: u64 = (0..self.listeners.assigned.len()).map(|core| self.load(core)).sum();
        open + self.core.shared.lingering()
    }

    fn place(&mut self, socket: &TcpStream, peer: SocketAddr) -> usize {
        let incoming = incoming_cpu(socket, peer);
        let Some(mut placer) = self.listeners.placer.take() else { return self.core.index };
        let core = placer.place(incoming, |core| self.load(core));
        self.listeners.placer = Some(placer);
        match incoming {
            Some(cpu) => log::debug!("{peer}: given to reactor {core}; its packets arrive on core {cpu}"),
            None => log::debug!("{peer}: given to reactor {core}"),
        }
        core
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
        if self.zerocopy_threshold != usize::MAX {
            self.reactor.enable_zerocopy(token)?;
        }
        Ok(())
    }
}

/// Makes the close of the socket reset the connection, so that the kernel keeps no state of it.
fn reset(socket: &impl AsFd) {
    // If this fails, the socket closes without a reset.
    let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
}

/// Returns the core on which the packets of the connection arrive. Packets of local peers arrive on the core
/// of their sender, which would compete with a reactor there.
fn incoming_cpu(socket: &TcpStream, peer: SocketAddr) -> Option<usize> {
    if is_local_peer(socket, peer) { None } else { socket::incoming_cpu(socket) }
}

fn is_local_peer(socket: &TcpStream, peer: SocketAddr) -> bool {
    socket.local_addr().is_ok_and(|local| socket::is_local(local.ip(), peer.ip()))
}

/// Send buffer of local connections: four responses of 128 KiB.
const LOCAL_SEND_BUFFER_BYTES: usize = 512 * 1024;

/// TCP keep-alive: idle time before the first probe, interval, and number of probes.
const PROBE_AFTER: Duration = Duration::from_secs(60);
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
const PROBES: u32 = 3;

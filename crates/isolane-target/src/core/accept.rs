//! Connections come in on the first core and go to the core that [`Placer`] chooses.
//!
//! One core accepts for all, not one listener for each core (`SO_REUSEPORT`): then the kernel would choose by
//! a hash, or by the incoming core alone, without a look at how crowded the cores are.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use isolane_proto::subsystem::ConnectionInfo;
use isolane_reactor::{ListenerToken, SocketOptions, Token, socket};

use super::lane::Lane;
use super::{Core, Driver};
use crate::placement::Placer;
use crate::shared::Message;
use crate::slab::LaneId;
use crate::slab::SlabKey;

/// What the core that accepts needs for it.
pub(crate) struct Acceptor {
    pub listeners: Vec<(TcpListener, SocketOptions)>,
    pub placer: Placer,
}

/// The listeners of a core, and how many connections it has given to each core.
pub(super) struct Listeners {
    tokens: Vec<ListenerToken>,
    /// What connections of each listener are like, by the index of its token.
    options: Vec<SocketOptions>,
    placer: Option<Placer>,
    given: Vec<u64>,
}

impl Listeners {
    pub(super) fn new(cores: usize) -> Listeners {
        Listeners { tokens: Vec::new(), options: Vec::new(), placer: None, given: vec![0; cores] }
    }

    /// Whether this core accepts nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

impl Driver {
    /// Accepts connections for all cores.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn listen(&mut self, acceptor: Acceptor) -> std::io::Result<()> {
        self.listeners.placer = Some(acceptor.placer);
        for (listener, options) in acceptor.listeners {
            let token = self.core.reactor.listen(listener)?;
            self.listeners.tokens.push(token);
            self.listeners.options.push(options);
        }
        Ok(())
    }

    pub(super) fn stop_listening(&mut self) {
        for token in self.listeners.tokens.drain(..) {
            self.core.reactor.stop_listening(token);
        }
    }

    /// A connection came in.
    pub(super) fn handle_accepted(&mut self, listener: ListenerToken, socket: TcpStream, peer: SocketAddr) {
        // Mostly the newcomer takes the place of another, but those that move aside may take their time.
        if self.descriptors() >= self.core.shared.max_descriptors() {
            reset(&socket);
            return self.core.shared.log_refusal(&self.core.counters, peer, "too many connections are open");
        }
        let options = &self.listeners.options[listener.index()];
        if let Err(error) = options.apply(&socket) {
            return log::warn!("{peer}: cannot be served: {error}");
        }
        if is_local_peer(&socket, peer) {
            options.tune_for_loopback(&socket, LOCAL_SEND_BUFFER_BYTES);
        }
        let core = self.place(&socket, peer);
        self.listeners.given[core] += 1;
        if core == self.core.index {
            self.adopt(socket, peer);
        } else {
            self.core.shared.post(core, Message::Adopt { socket, peer });
        }
    }

    /// The connection is this core's own from now on.
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
        socket::set_nodelay(&socket)?;
        Ok((self.core.reactor.add(socket)?, local))
    }

    /// A new lane, which may take the place of an older newcomer.
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

    /// Closes a newcomer whose place another has taken.
    pub(super) fn displace(&mut self, lane: LaneId) {
        let Some(lane) = self.lanes.get_mut(lane.lane).filter(|lane| lane.newcomer.is_some()) else { return };
        let peer = lane.peer();
        if let Some(socket) = lane.token.and_then(|token| self.core.reactor.socket(token)) {
            reset(&socket);
        }
        self.core.close(lane, "another connection took its place before Connect");
        self.core.shared.log_refusal(
            &self.core.counters,
            peer,
            "others connected before it sent its Connect",
        );
    }

    /// From now on events of this socket are the lane's.
    pub(super) fn bind_token(&mut self, token: Token, key: SlabKey) {
        if self.by_token.len() <= token.index() {
            self.by_token.resize(token.index() + 1, None);
        }
        self.by_token[token.index()] = Some((token, key));
    }

    /// Connections that a core has, those on their way to it included.
    fn load(&self, core: usize) -> u64 {
        let counters = &self.core.shared.counters[core];
        let on_the_way = self.listeners.given[core].saturating_sub(counters.connections_total.value());
        counters.connections_open.value() + on_the_way
    }

    /// Sockets of connections: open ones, those on their way to a core, and closed ones that linger for their
    /// last bytes.
    fn descriptors(&self) -> u64 {
        let open: u64 = (0..self.listeners.given.len()).map(|core| self.load(core)).sum();
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
    /// A socket whose queue is connected: from now on the kernel finds out whether its host is still there.
    pub(super) fn keep_socket(&mut self, token: Token) -> std::io::Result<()> {
        if let Some(socket) = self.reactor.socket(token) {
            socket::set_user_timeout(&socket, self.stall)?;
            socket::set_keepalive(&socket, PROBE_AFTER, PROBE_INTERVAL, PROBES)?;
        }
        if self.zerocopy_threshold != usize::MAX {
            self.reactor.enable_zerocopy(token)?;
        }
        Ok(())
    }
}

/// Has the close of a socket reset the connection, so that the kernel keeps nothing of it.
fn reset(socket: &impl AsFd) {
    // At worst it is closed in the usual way.
    let _ = socket::set_reset_on_close(socket);
}

/// The core that the connection's packets arrive on. Those from this machine itself arrive where their sender
/// runs, which says nothing, and is the one core where our reactor would be in the way.
fn incoming_cpu(socket: &TcpStream, peer: SocketAddr) -> Option<usize> {
    if is_local_peer(socket, peer) { None } else { socket::incoming_cpu(socket) }
}

fn is_local_peer(socket: &TcpStream, peer: SocketAddr) -> bool {
    socket.local_addr().is_ok_and(|local| socket::is_local(local.ip(), peer.ip()))
}

/// Send buffer of connections from this machine: four answers of 128 KiB.
const LOCAL_SEND_BUFFER_BYTES: usize = 512 * 1024;

/// A host that has been silent for so long is asked, at this interval and so often, whether it is there.
const PROBE_AFTER: Duration = Duration::from_secs(60);
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
const PROBES: u32 = 3;

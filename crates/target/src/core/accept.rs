//! Connections come in on the first core and go to the core that [`Placer`] chooses.
//!
//! One core accepts for all, not one listener for each core (`SO_REUSEPORT`): then the kernel would choose by
//! a hash, or by the incoming core alone, without a look at how crowded the cores are.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use isolane_proto::subsystem::ConnectionInfo;
use isolane_reactor::{ListenerToken, SocketOptions, Token, socket};

use super::Driver;
use super::lane::Lane;
use crate::placement::Placer;
use crate::shared::{Address, Message};
use crate::table::Key;

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
        let open = self.descriptors();
        if open >= self.core.shared.connections_max as u64 {
            log::warn!("{peer}: refused: {open} connections are open, which is the limit");
            return;
        }
        let options = &self.listeners.options[listener.index()];
        if let Err(error) = options.apply(&socket) {
            return log::warn!("{peer}: cannot be served: {error}");
        }
        if is_from_here(&socket, peer) {
            options.suit_within_machine(&socket, SEND_BUFFER_HERE_BYTES);
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
        if self.stop.is_some() || !self.core.shared.seats.take(self.core.index) {
            log::warn!("{peer}: refused: there is no memory for another connection on its core");
            return;
        }
        match self.prepare(socket) {
            Ok((token, local)) => {
                self.insert(token, ConnectionInfo { local, remote: peer });
                self.core.counters.connections_open.add(1);
            }
            Err(error) => {
                self.core.shared.seats.give_back(self.core.index);
                log::warn!("{peer}: cannot be served: {error}");
            }
        }
    }

    fn prepare(&mut self, socket: TcpStream) -> std::io::Result<(Token, SocketAddr)> {
        let local = socket.local_addr()?;
        socket::set_nodelay(&socket)?;
        socket::set_user_timeout(&socket, UNACKNOWLEDGED)?;
        socket::set_keepalive(&socket, PROBE_AFTER, PROBE_INTERVAL, PROBES)?;
        let token = self.core.reactor.add(socket)?;
        if self.core.zero_copy_above != usize::MAX {
            self.core.reactor.enable_zero_copy(token)?;
        }
        Ok((token, local))
    }

    fn insert(&mut self, token: Token, connection: ConnectionInfo) -> Key {
        let limits = self.limits.clone();
        let now = self.core.now;
        let name = |lane| Address { core: self.core.index, lane };
        let key = self.lanes.insert_with(|key| Lane::new(name(key), token, connection, limits, now));
        self.know(token, key);
        key
    }

    /// From now on events of this socket are the lane's.
    pub(super) fn know(&mut self, token: Token, key: Key) {
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
        let lingering = self.core.shared.counters.iter().map(|core| core.connections_lingering.value());
        (0..self.listeners.given.len()).map(|core| self.load(core)).chain(lingering).sum()
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

/// The core that the connection's packets arrive on. Those from this machine itself arrive where their sender
/// runs, which says nothing, and is the one core where our reactor would be in the way.
fn incoming_cpu(socket: &TcpStream, peer: SocketAddr) -> Option<usize> {
    if is_from_here(socket, peer) { None } else { socket::incoming_cpu(socket) }
}

fn is_from_here(socket: &TcpStream, peer: SocketAddr) -> bool {
    socket.local_addr().is_ok_and(|local| socket::is_within_machine(local.ip(), peer.ip()))
}

/// Send buffer of connections from this machine: four answers of 128 KiB.
const SEND_BUFFER_HERE_BYTES: usize = 512 * 1024;

/// Bytes that a host has not acknowledged for so long end its connection.
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);
/// A host that has been silent for so long is asked, at this interval and so often, whether it is there.
const PROBE_AFTER: Duration = Duration::from_secs(60);
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
const PROBES: u32 = 3;

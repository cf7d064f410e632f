//! Changes of the ports of a running target as a whole: ports come, go, and get other addresses.
//!
//! All new addresses are bound before anything changes. An address that a present listener has, or includes, is bound
//! next to it (`SO_REUSEPORT`), so that two ports can exchange their addresses. From then on, the kernel can give new
//! connections to the new socket, where they wait. If the change is not made, the present port at that address serves them.
//!
//! Invariant: until [`BoundPorts::finish`], a drop makes the ports what they were, and resets no connection.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc;

use isolane_proto::subsystem::ConfigError;
use isolane_reactor::accept_waiting;
use rustix::net::sockopt::set_socket_reuseport;

use crate::apply::TargetControl;
use crate::control::MESSAGE_TIMEOUT;
use crate::error::{NamespaceError, PortsError, StartError};
use crate::listen::{is_dual_stack, overlaps};
use crate::port::TargetPort;
use crate::shared::{Message, Shared};

/// Changes of ports, all of which have names.
#[derive(Clone, Debug, Default)]
pub struct PortChanges {
    /// Ports with new names.
    pub added: Vec<TargetPort>,
    /// Ports with the names of present ones, whose places they take. They keep the PORTIDs.
    pub replaced: Vec<TargetPort>,
    /// Names of ports that go.
    pub removed: Vec<String>,
}

/// Ports whose addresses are bound. The added ones accept connections already, and end if this is dropped.
pub struct BoundPorts {
    target: TargetControl,
    /// Names of the added ports that end again.
    added: Vec<String>,
    /// Ports at whose sockets connections wait: in the end, the replaced ones.
    opened: VecDeque<(TargetPort, TcpListener)>,
    removed: Vec<String>,
    /// Name and address of each added or replaced port.
    addresses: Vec<(String, SocketAddr)>,
    leaving: Leaving,
}

/// Listeners that close, as copies. Other sockets can have their addresses until this is dropped.
#[derive(Default)]
struct Leaving(Vec<TcpListener>);

impl Drop for Leaving {
    fn drop(&mut self) {
        for listener in &self.0 {
            // If this fails, sockets of the same user can still share the address.
            let _ = set_socket_reuseport(listener, false);
        }
    }
}

impl TargetControl {
    /// Binds the addresses of all new ports, and accepts at the added ones; then [`BoundPorts::finish`] makes the other
    /// changes. A new port can have the address of one that goes or gets another address. Waits up to 5 s for an address
    /// that another program uses.
    ///
    /// # Errors
    /// The first port that is not possible, with its name; nothing has changed then. Or the target has ended.
    pub fn bind_ports(&self, changes: PortChanges) -> Result<BoundPorts, PortsError> {
        let PortChanges { added, replaced, removed } = changes;
        let shared = self.shared().map_err(|error| PortsError::new(None, error))?;
        let plan = AddressPlan::new(&shared, (&added, &replaced, &removed));
        let mut bound = BoundPorts {
            target: self.clone(),
            added: Vec::new(),
            opened: VecDeque::new(),
            removed,
            addresses: Vec::new(),
            leaving: Leaving(shared.copy_listeners(&plan.shared)),
        };
        let added_count = added.len();
        for port in added.into_iter().chain(replaced) {
            let failed = |error: StartError| PortsError::new(port.name.clone(), error);
            let socket = plan.open(&port, &bound.leaving.0).map_err(failed)?;
            let address = socket.local_addr().map_err(StartError::Begin).map_err(failed)?;
            bound.addresses.push((port.name.clone().unwrap_or_default(), address));
            bound.opened.push_back((port, socket));
        }
        for _ in 0..added_count {
            let Some((port, socket)) = bound.opened.pop_front() else { break };
            let name = port.name.clone();
            shared.add_port(port, socket).map_err(|error| PortsError::new(name.clone(), error))?;
            bound.added.extend(name);
        }
        Ok(bound)
    }
}

impl BoundPorts {
    /// Returns name and address of each added or replaced port.
    pub fn addresses(&self) -> &[(String, SocketAddr)] {
        &self.addresses
    }

    /// Keeps the added ports, accepts at the replaced ones, and closes the listeners that are gone. Connections of hosts
    /// that have come by these close after their commands, within 5 s, and discovery controllers are notified.
    ///
    /// # Errors
    /// A name does not exist, a replaced port cannot accept, or the target has ended. The other changes are made.
    pub fn finish(mut self) -> Result<(), PortsError> {
        self.added.clear();
        // All new sockets listen, so no other one needs the addresses.
        drop(std::mem::take(&mut self.leaving));
        let shared = self.target.shared().map_err(|error| PortsError::new(None, error))?;
        let replaced = std::mem::take(&mut self.opened);
        let mut result = if replaced.is_empty() { Ok(()) } else { shared.replace_ports(replaced.into()) };
        for name in &self.removed {
            let removed = self.target.remove_port(name);
            result = result.and(removed.map_err(|error| PortsError::new(Some(name.clone()), error)));
        }
        result
    }
}

impl Drop for BoundPorts {
    fn drop(&mut self) {
        for name in &self.added {
            if let Err(error) = self.target.remove_port(name) {
                log::error!("port {name}: {error}");
            }
        }
        if let Ok(shared) = self.target.shared() {
            self.opened.iter().for_each(|(_, socket)| shared.serve_waiting(socket));
        }
    }
}

/// The addresses of all ports after a change.
struct AddressPlan {
    /// Those of listeners that stay.
    kept: Vec<SocketAddr>,
    /// Those of listeners that close later, and share their port number with a new one.
    shared: Vec<SocketAddr>,
    /// Those that are requested.
    requested: Vec<SocketAddr>,
}

impl AddressPlan {
    fn new(
        shared: &Shared,
        (added, replaced, removed): (&[TargetPort], &[TargetPort], &[String]),
    ) -> AddressPlan {
        let requested = added.iter().chain(replaced).map(|port| port.listen.address);
        let requested: Vec<SocketAddr> = requested.collect();
        let is_leaving = |name: &Option<String>| {
            replaced.iter().any(|port| port.name == *name)
                || name.as_ref().is_some_and(|name| removed.contains(name))
        };
        let present: Vec<(bool, SocketAddr)> = shared
            .control(|port| port.listeners().map(|(_, it)| (is_leaving(&it.name), it.address)).collect());
        let of = |leaves: bool| present.iter().filter(move |it| it.0 == leaves).map(|it| it.1);
        let is_shared = |address: &SocketAddr| requested.iter().any(|new| overlaps(*new, *address));
        AddressPlan { kept: of(false).collect(), shared: of(true).filter(is_shared).collect(), requested }
    }

    fn open(&self, port: &TargetPort, leaving: &[TcpListener]) -> Result<TcpListener, StartError> {
        let address = port.listen.address;
        if self.kept.contains(&address) {
            return Err(StartError::SameAddress(address));
        }
        let is_dual_stack = is_dual_stack(address, self.kept.iter().chain(&self.requested).copied());
        match self.shared.iter().find(|other| overlaps(address, **other)) {
            None => port.listen.open(is_dual_stack),
            Some(other) => port.listen.open_beside(is_dual_stack, (*other, leaving)),
        }
    }
}

impl Shared {
    /// Returns copies of the listeners at these addresses; none if the core that accepts is late.
    fn copy_listeners(&self, addresses: &[SocketAddr]) -> Vec<TcpListener> {
        if addresses.is_empty() {
            return Vec::new();
        }
        let (copies, copied) = mpsc::channel();
        self.post(0, Message::CopyListeners { addresses: addresses.to_vec(), copies });
        copied.recv_timeout(MESSAGE_TIMEOUT).unwrap_or_default()
    }

    /// Replaces the ports, so that every later Connect at the old ones fails, then their listeners.
    fn replace_ports(&self, replaced: Vec<(TargetPort, TcpListener)>) -> Result<(), PortsError> {
        let _changes = self.changes.lock();
        let failed = |error: ConfigError| PortsError::new(None, NamespaceError::from(error));
        let (old, new) = self
            .control(|control| {
                let mut old = Vec::new();
                let mut listeners = Vec::new();
                for (port, socket) in &replaced {
                    let name = port.name.clone().unwrap_or_default();
                    let id = control.find_listener(&name).ok_or(ConfigError::UnknownPort(name))?;
                    let address = socket.local_addr().unwrap_or(port.listen.address);
                    old.push(id);
                    listeners.push((id, port.to_listener(address)));
                }
                Ok((old, control.replace_listeners(listeners)?))
            })
            .map_err(failed)
            .inspect_err(|_| replaced.iter().for_each(|(_, socket)| self.serve_waiting(socket)))?;
        let mut result = Ok(());
        for ((port, socket), id) in replaced.into_iter().zip(new) {
            let listening = self.listen(id, socket, port.listen.options);
            result = result.and(listening.map_err(|error| PortsError::new(port.name, error)));
        }
        old.into_iter().for_each(|id| self.close_listener(id));
        result
    }

    /// Serves the connections that wait at a socket that is not used. When they connect, they are at the port that has
    /// their address; where there is none, their Connect is refused.
    fn serve_waiting(&self, socket: &TcpListener) {
        if let Err(error) = socket.set_nonblocking(true) {
            return log::error!("cannot accept the connections of a port that does not change: {error}");
        }
        for (socket, peer) in accept_waiting(socket) {
            self.post(0, Message::Accepted { socket, peer });
        }
    }
}

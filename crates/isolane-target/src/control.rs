//! Ports of a running target, which come and go.
//!
//! Invariant: a change that fails changes nothing.

use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use isolane_proto::subsystem::{ConfigError, Listener, ListenerId};
use isolane_reactor::SocketOptions;
use isolane_wire::Nqn;

use crate::apply::{TargetChange, TargetControl};
use crate::error::{NamespaceError, PortError, StartError};
use crate::limits::TargetLimits;
use crate::listen::is_dual_stack;
use crate::port::{NewListener, TargetPort};
use crate::shared::{Message, Shared};
use crate::stall_times::StallTimes;

impl TargetControl {
    /// Replaces the ports at which hosts reach a subsystem; `None`: all. Connections of hosts that have come by another
    /// port close after their commands, and discovery controllers are notified.
    ///
    /// # Errors
    /// No subsystem or port has one of the names, or the target has ended.
    pub fn set_ports(&self, nqn: &Nqn, ports: Option<Vec<String>>) -> Result<(), NamespaceError> {
        self.shared()?.apply_one(TargetChange::SetPorts { subsystem: *nqn, ports }).map(drop)
    }

    /// Listens at another port, and returns its address. A name that a removed port had gets its PORTID again. Waits up
    /// to 5 s for an address in use.
    ///
    /// # Errors
    /// The address is not available, the name is in use, or the target has ended.
    pub fn add_port(&self, port: TargetPort) -> Result<SocketAddr, PortError> {
        self.shared()?.open_port(port)
    }

    /// Closes the listener of a port. Connections of hosts that have come by it close after their commands, within 5 s,
    /// and discovery controllers are notified. Subsystems keep the name in their lists.
    ///
    /// # Errors
    /// No port has this name, or the target has ended.
    pub fn remove_port(&self, name: &str) -> Result<(), NamespaceError> {
        self.shared()?.remove_port(name)
    }

    /// Replaces the addresses of other discovery services in the discovery log, and notifies discovery controllers.
    ///
    /// # Errors
    /// The target has ended.
    pub fn set_referrals(&self, referrals: Vec<SocketAddr>) -> Result<(), NamespaceError> {
        let shared = self.shared()?;
        let _changes = shared.changes.lock();
        shared.control(|port| port.set_referrals(referrals));
        Ok(())
    }

    /// Replaces the limits of connections: see [`Target::set_limits`](crate::Target::set_limits).
    ///
    /// # Errors
    /// The target has ended.
    pub fn set_limits(&self, limits: TargetLimits) -> Result<(), NamespaceError> {
        self.shared()?.set_limits(limits);
        Ok(())
    }

    /// Replaces the times after which the target does not wait for its volumes: see
    /// [`Target::set_stall_times`](crate::Target::set_stall_times).
    ///
    /// # Errors
    /// The target has ended.
    pub fn set_stall_times(&self, times: StallTimes) -> Result<(), NamespaceError> {
        self.shared()?.stall_times.replace(times);
        Ok(())
    }

    /// Returns the ports with the addresses of their listeners, in the order of their additions; none once the target
    /// has ended.
    pub fn ports(&self) -> Vec<(Option<String>, SocketAddr)> {
        let Ok(shared) = self.shared() else { return Vec::new() };
        let list = |(_, it): (_, &Listener)| (it.name.clone(), it.address);
        shared.control(|port| port.listeners().map(list).collect())
    }
}

impl Shared {
    /// Binds, adds the port, then accepts.
    fn open_port(&self, port: TargetPort) -> Result<SocketAddr, PortError> {
        let all: Vec<SocketAddr> =
            self.control(|control| control.listeners().map(|(_, listener)| listener.address).collect());
        let requested = port.listen.address;
        if all.contains(&requested) {
            return Err(StartError::SameAddress(requested).into());
        }
        let socket = port.listen.open(is_dual_stack(requested, all.into_iter()))?;
        let address = socket.local_addr().map_err(StartError::Begin)?;
        self.add_port(port, socket).map(|()| address)
    }

    /// Adds a port, and accepts at its socket.
    pub(crate) fn add_port(&self, port: TargetPort, socket: TcpListener) -> Result<(), PortError> {
        let address = socket.local_addr().map_err(StartError::Begin)?;
        let _changes = self.changes.lock();
        let added = self.control(|control| control.add_listener(port.to_listener(address)));
        let id = added.map_err(NamespaceError::from)?;
        let listening = self.listen(id, socket, port.listen.options);
        if let Err(PortError::Listen(_)) = &listening {
            self.control(|control| control.remove_listener(id));
        }
        listening
    }

    /// Accepts connections at a socket, on the first core.
    pub(crate) fn listen(
        &self,
        id: ListenerId,
        socket: TcpListener,
        options: SocketOptions,
    ) -> Result<(), PortError> {
        let (result, accepts) = mpsc::channel();
        self.post(0, Message::Listen(Box::new(NewListener { socket, id, options, result })));
        match accepts.recv_timeout(MESSAGE_TIMEOUT) {
            // A core that is late accepts later.
            Ok(Ok(())) | Err(RecvTimeoutError::Timeout) => Ok(()),
            Ok(Err(error)) => Err(StartError::Begin(error).into()),
            Err(RecvTimeoutError::Disconnected) => Err(NamespaceError::Ended.into()),
        }
    }

    /// Removes the port, so that every later Connect fails there, then closes its listener.
    fn remove_port(&self, name: &str) -> Result<(), NamespaceError> {
        let _changes = self.changes.lock();
        let id = self.control(|port| port.find_listener(name));
        let id = id.ok_or_else(|| ConfigError::UnknownPort(name.to_owned()))?;
        self.control(|port| port.remove_listener(id));
        self.close_listener(id);
        Ok(())
    }

    /// Closes a listener.
    pub(crate) fn close_listener(&self, id: ListenerId) {
        let (closed, closes) = mpsc::channel();
        self.post(0, Message::CloseListener { id, closed });
        // Disconnected once it is closed.
        let _ = closes.recv_timeout(MESSAGE_TIMEOUT);
    }
}

/// Time for the first core to handle a message.
pub(crate) const MESSAGE_TIMEOUT: Duration = Duration::from_secs(1);

//! The control path of a target: subsystems, their controllers, and every command that is not I/O.
//!
//! One [`Port`] holds the NVM subsystems and the discovery subsystem with all of their associations.
//! It owns no connection, permit, volume, or clock. I/O commands bypass it: [`parse_io`] checks
//! them.
//!
//! A driver uses it as follows:
//!
//! 1. Pass the first command of a connection, which must be Fabrics Connect, to [`Port::connect`]
//!    with its data. Complete any other first command with [`Failure::Sequence`](crate::Failure).
//! 2. Pass every command of the admin queue, and the fabrics commands of I/O queues, to
//!    [`Port::handle_command`]. [`data_expected`] returns the length of the data beforehand; the
//!    host must describe exactly this length.
//! 3. After every call, drain [`Port::poll_event`], and handle its events before the returned
//!    action.
//! 4. Call [`Port::handle_disconnected`] when a connection is lost, and [`Port::handle_drained`]
//!    when its last I/O has ended. Until then the controller keeps its CNTLID. Order the I/O of a
//!    new association after the unfinished changes of older associations of the same host, which
//!    [`Port::host_to_drain`] returns.
//! 5. Run the keep-alive timers with [`Port::poll_timeout`] and [`Port::handle_timeout`].
//!
//! Invariant: a CNTLID leaves the table only when every queue of its association has been drained.

mod admin;
mod association;
mod associations;
mod command;
mod config;
mod connect;
mod disconnect;
mod discovery;
mod event;
mod feature;
mod host_page;
mod identify;
mod io;
mod keep_alive;
mod listener;
mod log;
mod namespace;
mod port;
mod ports;
mod property;
mod shared;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use isolane_wire::Nqn;

use crate::completion::Completion;

pub use association::AssociationState;
pub use command::{data_expected, invalid_transfer_status, takes_data};
pub use config::{
    ADMIN_IN_CAPSULE_BYTES, ConfigError, Generation, Listener, MAX_ADMIN_ENTRIES, MAX_NSID, NamespaceConfig,
    NamespaceGeometry, PortConfig, SubsystemConfig,
};
pub use connect::parse_host;
pub use host_page::HostPage;
pub use io::{IoCommand, parse_io, parse_ranges};
pub use listener::{ListenerId, ListenerState};
pub use namespace::is_listed;
pub use port::{Port, PortState, ResumedQueue, SubsystemState};
pub use shared::{ControllerStatus, IoCounters, IoTotals};

/// A host, as its Connect names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// HOSTNQN; `None` if the host sent an empty one.
    pub nqn: Option<Nqn>,
    /// HOSTID.
    pub hostid: [u8; 16],
}

impl Host {
    /// Whether both can be the same host: the names are equal, or, if either has no name, the
    /// identifiers.
    pub fn matches(&self, other: &Host) -> bool {
        match (&self.nqn, &other.nqn) {
            (Some(name), Some(other)) => name == other,
            _ => self.hostid == other.hostid,
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.nqn {
            Some(nqn) => nqn.fmt(f),
            None => write!(f, "a host without a name (identifier {:032x})", u128::from_be_bytes(self.hostid)),
        }
    }
}

/// Identifier of one association between a host and a controller. It is unique, although its CNTLID
/// can be reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AssociationId {
    /// Its subsystem.
    pub subsystem: SubsystemId,
    /// Controller ID within its subsystem.
    pub cntlid: u16,
    /// Counts the associations of this subsystem.
    pub serial: u64,
}

/// Identifier of one subsystem of a port. It is unique, although the NQN of a removed subsystem can
/// be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubsystemId(u32);

impl SubsystemId {
    /// The discovery subsystem.
    pub const DISCOVERY: SubsystemId = SubsystemId(0);
    /// The first NVM subsystem of [`PortConfig::subsystems`].
    pub const FIRST: SubsystemId = SubsystemId(1);

    /// The NVM subsystem at this index of [`PortConfig::subsystems`].
    pub fn at(index: usize) -> SubsystemId {
        SubsystemId(index as u32 + 1)
    }

    /// A small number, different for each subsystem of a port.
    pub fn number(self) -> usize {
        self.0 as usize
    }

    /// Whether it is the discovery subsystem.
    pub fn is_discovery(self) -> bool {
        self == SubsystemId::DISCOVERY
    }
}

/// Addresses of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// The listener that accepted it.
    pub listener: ListenerId,
    /// The address that the host reached, for the discovery log.
    pub local: SocketAddr,
    /// The host's address.
    pub remote: SocketAddr,
}

/// A connected queue.
#[derive(Clone, Debug)]
pub struct Connected {
    /// Its association.
    pub id: AssociationId,
    /// Queue identifier; 0 is the admin queue.
    pub qid: u16,
    /// Submission queue size, 0's based.
    pub sqsize: u16,
    /// Whether the host has disabled submission queue flow control, so that SQHD is reserved.
    pub flow_control_disabled: bool,
    /// The host.
    pub host: Host,
    /// State of the controller for the I/O path.
    pub status: Arc<ControllerStatus>,
    /// Counters of this queue for the SMART log.
    pub counters: Arc<IoCounters>,
    /// The completion of the Connect.
    pub completion: Completion,
}

/// A rejected Connect: send the completion, then close the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRefusal {
    /// The completion of the Connect.
    pub completion: Completion,
    /// Whether another queue has the QID. A driver can hold the Connect until that queue has ended,
    /// and then pass it to [`Port::connect`] again.
    pub is_qid_in_use: bool,
}

/// Action that a command requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Complete the command.
    Complete(Completion),
    /// Send the data, whose length is [`data_expected`], then complete the command.
    CompleteWithData(Vec<u8>, Completion),
    /// Collect the text of the host's page (log page C0h), pass it to [`Port::handle_host_page`], and
    /// take the action that this returns.
    CollectHostPage(Box<Host>),
    /// Hold the request with [`Connection::hold`](crate::target::Connection::hold) until
    /// [`Port::poll_async_event`] returns its completion.
    HoldAsyncEvent,
    /// Flush every volume of the subsystem, then complete the command with this completion, or with the status of a
    /// failed flush.
    Flush(Completion),
    /// Complete the command, send the completion, then close this connection.
    Disconnect(Completion),
}

/// Action that the rest of the target must take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlEvent {
    /// Held Async Event Requests have completions: take them with [`Port::poll_async_event`] on the
    /// core of the admin queue.
    AsyncEvents(AssociationId),
    /// CC.EN became 0: close the I/O connections, keep the admin connection. RDY drops once all are
    /// drained.
    CloseIoQueues(AssociationId),
    /// CC.SHN was set: when the I/O of the association has ended or takes too long, flush every
    /// volume of its subsystem and call [`Port::handle_flushed`]. Connections stay open.
    Shutdown(AssociationId),
    /// Close every connection of the association and cancel the commands that have not reached a
    /// volume.
    Close {
        /// The association.
        id: AssociationId,
        /// The reason, for the log line.
        reason: CloseReason,
    },
    /// Let the commands that have reached a volume complete on each connection of the association, and accept no new
    /// ones; then close them, the admin queue last.
    Retire {
        /// The association.
        id: AssociationId,
        /// The reason, for the log line.
        reason: CloseReason,
    },
    /// The association has ended, with all of its I/O.
    Ended(AssociationId),
}

/// Reason for the end of an association.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// Its admin connection was lost.
    AdminQueueLost,
    /// The host was silent for longer than the keep-alive timeout.
    KeepAliveExpired,
    /// Its host is no longer allowed to use the subsystem.
    HostRemoved,
    /// Its subsystem was removed.
    SubsystemRemoved,
    /// A port of its connections was removed, or its subsystem is no longer there.
    PortRemoved,
    /// An operator has requested it. The host can connect again.
    Requested,
}

/// One live association, for `info` and log lines.
#[derive(Clone, Debug)]
pub struct AssociationInfo {
    /// Its identifier.
    pub id: AssociationId,
    /// The host.
    pub host: Host,
    /// Addresses of its admin connection.
    pub connection: ConnectionInfo,
    /// Connected queues, the admin queue included.
    pub queues: usize,
    /// Keep-alive timeout in milliseconds; 0: disabled.
    pub kato_ms: u32,
}

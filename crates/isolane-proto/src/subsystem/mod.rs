//! The control path of a target: subsystems, their controllers, and every command that is not I/O.
//!
//! What it is: one [`Port`] holds the NVM subsystem and the discovery subsystem with all of their
//! associations. Commands go in with [`Port::connect`] and [`Port::handle_command`], which answer at once;
//! what happens beyond the one connection that asked comes out of [`Port::poll_event`]. What it is not: it
//! owns no connection, no permit, no volume and no clock, and no I/O command passes through it; [`parse_io`]
//! checks those without it.
//!
//! How a driver uses it:
//!
//! 1. The first command of a connection must be Fabrics Connect; anything else is answered
//!    `Status::COMMAND_SEQUENCE_ERROR`. Its 1,024 bytes go into [`Port::connect`].
//! 2. Every command of the admin queue, and fabrics commands of I/O queues, go into [`Port::handle_command`]
//!    with their data. [`data_expected`] says beforehand how much data a command moves; what the host offers
//!    must equal it.
//! 3. After every call, [`Port::poll_event`] is drained, and its events are acted on before the returned
//!    action.
//! 4. When a connection is gone: [`Port::handle_disconnected`] at once, [`Port::handle_drained`] when no I/O
//!    of it is in flight any more. Until then its controller keeps its CNTLID. The driver orders the I/O of a
//!    new association behind the unfinished changes of older ones of the same host, which
//!    [`Port::host_to_drain`] names.
//! 5. [`Port::poll_timeout`] and [`Port::handle_timeout`] run the keep-alive timers.
//!
//! Invariant: a CNTLID leaves the table only when every queue of its association has been drained.

mod admin;
mod association;
mod associations;
mod config;
mod connect;
mod data_len;
mod discovery;
mod event;
mod feature;
mod identify;
mod io;
mod keep_alive;
mod log;
mod namespace;
mod port;
mod property;
mod shared;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;

use crate::completion::Completion;

pub use association::Host;
pub use config::{
    ADMIN_IN_CAPSULE_BYTES, ConfigError, Generation, MAX_ADMIN_ENTRIES, MAX_NSID, NamespaceConfig,
    NamespaceGeometry, PortConfig, SubsystemConfig,
};
pub use connect::parse_host;
pub use data_len::{DataExpected, data_expected};
pub use io::{DeallocateRange, IoCommand, parse_io, parse_ranges};
pub use port::Port;
pub use shared::{ControllerStatus, IoCounters, IoTotals};

/// One association between a host and a controller; never the same again, although its CNTLID may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AssociationId {
    /// Controller ID within its subsystem.
    pub cntlid: u16,
    /// Whether it is a discovery controller.
    pub discovery: bool,
    /// Counts the associations of this port.
    pub serial: u64,
}

/// Where a connection comes from and where it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// The address that the host reached; the discovery log names it.
    pub local: SocketAddr,
    /// The host's address.
    pub remote: SocketAddr,
}

/// A queue that has been connected.
#[derive(Clone, Debug)]
pub struct Connected {
    /// Its association.
    pub id: AssociationId,
    /// Queue identifier; 0 is the admin queue.
    pub qid: u16,
    /// Submission queue size as the host gave it, 0's based.
    pub sqsize: u16,
    /// Whether the host does without submission queue flow control (SQHD is then not meant).
    pub flow_control_disabled: bool,
    /// The host.
    pub host: Host,
    /// What the I/O path must know of the controller.
    pub status: Arc<ControllerStatus>,
    /// What this queue counts for the SMART log.
    pub counters: Arc<IoCounters>,
    /// The answer to the Connect.
    pub completion: Completion,
}

/// A Connect that was not accepted: answer with this, then close the connection when the answer has been sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRefusal(pub Completion);

/// What to do with a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Answer.
    Complete(Completion),
    /// Send the data, then answer. Its length is what [`data_expected`] told.
    CompleteWithData(Vec<u8>, Completion),
    /// Hold the request with [`Connection::hold`](crate::target::Connection::hold) until [`Port::poll_async_event`]
    /// returns its completion.
    HoldAsyncEvent,
    /// Flush every volume, then answer with this; with the volume's status if a flush fails.
    Flush(Completion),
    /// Answer, send it, close this connection.
    Disconnect(Completion),
}

/// What the rest of the target has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlEvent {
    /// Held Async Event Requests have been answered: take their completions with
    /// [`Port::poll_async_event`] where the admin queue is driven.
    AsyncEvents {
        /// Whose admin queue.
        id: AssociationId,
    },
    /// CC.EN became 0: close the I/O connections, keep the admin connection. RDY drops once all are drained.
    CloseIoQueues {
        /// Whose.
        id: AssociationId,
    },
    /// CC.SHN was set: when no I/O of the association is in flight, or too long, flush every volume and call
    /// [`Port::handle_flushed`]. Connections stay open.
    Shutdown {
        /// Whose.
        id: AssociationId,
    },
    /// Close every connection of the association at once and cancel what has not reached a volume.
    Close {
        /// Whose.
        id: AssociationId,
        /// Why, for the log line.
        reason: CloseReason,
    },
    /// The association is gone, all of its I/O has ended.
    Ended {
        /// Which.
        id: AssociationId,
    },
}

/// Why an association was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// Its admin connection is gone.
    AdminQueueLost,
    /// Nothing was heard of the host for longer than the keep-alive timeout.
    KeepAliveExpired,
}

/// One live association, for `info` and log lines.
#[derive(Clone, Debug)]
pub struct AssociationInfo {
    /// Which.
    pub id: AssociationId,
    /// The host.
    pub host: Host,
    /// Where its admin connection comes from.
    pub connection: ConnectionInfo,
    /// Connected queues, the admin queue included.
    pub queues: usize,
    /// Keep-alive timeout in milliseconds; 0: none.
    pub kato_ms: u32,
}

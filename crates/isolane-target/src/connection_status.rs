//! State of a connection, for operators.

use std::net::SocketAddr;
use std::time::Duration;

use isolane_proto::subsystem::{AssociationId, ListenerId};
use isolane_wire::Nqn;

use crate::slab::LaneId;

/// State of one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionStatus {
    /// Address of the host.
    pub peer: SocketAddr,
    /// Name of the port that accepted it, if the port has a name.
    pub port: Option<String>,
    /// NQN of the host, once it has connected its queue.
    pub host_nqn: Option<Nqn>,
    /// NQN of the subsystem, once the queue is connected.
    pub subsystem_nqn: Option<Nqn>,
    /// Controller ID, once the queue is connected.
    pub cntlid: Option<u16>,
    /// Queue ID, once it is connected; 0 is the admin queue.
    pub qid: Option<u16>,
    /// The phase.
    pub phase: ConnectionPhase,
    /// The host has proved its identity on this connection.
    pub is_authenticated: bool,
    /// Time since this process has the connection. An upgrade starts it again.
    pub age: Duration,
    /// Number of commands at volumes, or waiting for one.
    pub commands: u32,
    /// Index of the reactor that owns it, from 0.
    pub reactor: usize,
    /// Core that this reactor is pinned to.
    pub core: Option<usize>,
    /// Core that last processed its packets.
    pub incoming_cpu: Option<usize>,
    /// Bytes received and sent.
    pub moved_bytes: u64,
    /// Size of the data in the send buffer of the kernel that was never sent.
    pub unsent_bytes: usize,
}

/// Phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionPhase {
    /// The host has not connected its queue.
    Connecting,
    /// The host must authenticate before other commands.
    Authenticating,
    /// The queue executes commands.
    Connected,
    /// No more commands are read.
    Closing,
}

/// A connection, as its core describes it.
pub(crate) struct LaneStatus {
    pub status: ConnectionStatus,
    pub lane: LaneId,
    pub association: Option<AssociationId>,
    pub listener: ListenerId,
}

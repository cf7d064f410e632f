//! Connections of a running target, for operators: their list, and their clean ends.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use isolane_proto::subsystem::{AssociationId, ListenerId};
use isolane_wire::Nqn;

use crate::apply::TargetControl;
use crate::error::NamespaceError;
use crate::shared::{Message, Shared};
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

/// Ends that an operator has requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disconnected {
    /// Number of associations, with all of their connections.
    pub associations: usize,
    /// Number of other connections.
    pub connections: usize,
}

impl TargetControl {
    /// Returns the state of every connection, ordered by peer; none once the target has ended. Leaves out a core that
    /// does not reply within 1 s.
    pub fn connections(&self) -> Vec<ConnectionStatus> {
        self.shared().map_or_else(|_| Vec::new(), |shared| shared.connections())
    }

    /// Ends all associations of a host, also those with the discovery service: commands that have started complete, for
    /// 5 s at most, and no new ones are read. The host can connect again.
    ///
    /// # Errors
    /// The target has ended.
    pub fn disconnect_host(&self, host: &Nqn) -> Result<Disconnected, NamespaceError> {
        let associations = self.shared()?.control(|port| port.disconnect_host(host));
        Ok(Disconnected { associations, connections: 0 })
    }

    /// Ends the connections from an address in the same way. The end of an admin queue ends its association.
    ///
    /// # Errors
    /// The target has ended.
    pub fn disconnect_address(&self, peer: SocketAddr) -> Result<Disconnected, NamespaceError> {
        let shared = self.shared()?;
        let associations = shared.control(|port| port.disconnect_address(peer));
        let lanes = shared.describe_lanes();
        let of_peer = lanes.iter().filter(|it| it.status.peer == peer && it.status.qid != Some(0));
        let connections = of_peer.filter(|it| it.status.phase != ConnectionPhase::Closing);
        let connections = connections.filter(|it| shared.retire(it.association, it.lane, REASON)).count();
        Ok(Disconnected { associations, connections })
    }
}

impl Shared {
    /// Returns the state of every connection, ordered by peer.
    pub(crate) fn connections(&self) -> Vec<ConnectionStatus> {
        let lanes = self.describe_lanes();
        let mut all: Vec<ConnectionStatus> = self.control(|port| {
            let find = |listener| port.listeners().find(|(id, _)| *id == listener);
            let name = |listener| find(listener).and_then(|(_, it)| it.name.clone());
            let nqn = |id: AssociationId| port.subsystem_nqn(id.subsystem).copied();
            let named = |it: LaneStatus| ConnectionStatus {
                port: name(it.listener),
                subsystem_nqn: it.association.and_then(nqn),
                ..it.status
            };
            lanes.into_iter().map(named).collect()
        });
        all.sort_by_key(|status| status.peer);
        all
    }

    fn describe_lanes(&self) -> Vec<LaneStatus> {
        let (sender, replies) = mpsc::channel();
        self.post_to_all(|| Message::Describe(sender.clone()));
        drop(sender);
        let deadline = Instant::now() + MESSAGE_TIMEOUT;
        let mut all = Vec::new();
        while let Ok(lane) = replies.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            all.push(lane);
        }
        all
    }
}

/// Reason for the log line.
const REASON: &str = "an operator has disconnected it";
/// Time for the cores to handle a message; each does in its next turn.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(1);

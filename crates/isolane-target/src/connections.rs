//! Connections of a running target, for operators: their list, and their clean ends.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use isolane_proto::subsystem::{AssociationId, CloseReason};
use isolane_wire::Nqn;

use crate::apply::TargetControl;
use crate::connection_status::{ConnectionPhase, ConnectionStatus, LaneStatus};
use crate::counters::Counters;
use crate::error::NamespaceError;
use crate::event::TargetEvent;
use crate::event::reason_text;
use crate::limits::{LimitKind, LimitScope};
use crate::shared::{Message, Shared};

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

    /// Sets the receiver of events. It is called on the control path, and must not wait or call the target. Returns
    /// `false` if there is one, or the target has ended.
    pub fn on_event(&self, receive: impl Fn(TargetEvent) + Send + Sync + 'static) -> bool {
        self.shared().is_ok_and(|shared| shared.events.set(Box::new(receive)))
    }

    /// Returns the number of refused Connects, or waits for memory, of each limit, as [`Counters::limits_reached`]; none
    /// once the target has ended.
    pub fn limits_reached(&self) -> BTreeMap<(LimitScope, LimitKind), u64> {
        let mut sum = Counters::default();
        let shared = self.shared();
        shared.iter().flat_map(|shared| &shared.counters).for_each(|core| core.add_to(&mut sum));
        sum.limits_reached
    }

    /// Ends all associations of a host, also those with the discovery service: commands that have started complete, for
    /// 5 s at most, and no new ones are read. The host can connect again. Waits while the target is frozen.
    ///
    /// # Errors
    /// The target has ended.
    pub fn disconnect_host(&self, host: &Nqn) -> Result<Disconnected, NamespaceError> {
        let shared = self.shared()?;
        let _changes = shared.changes.lock();
        let associations = shared.control(|port| port.disconnect_host(host));
        Ok(Disconnected { associations, connections: 0 })
    }

    /// Ends the connections from an address in the same way. The end of an admin queue ends its association.
    ///
    /// # Errors
    /// The target has ended.
    pub fn disconnect_address(&self, peer: SocketAddr) -> Result<Disconnected, NamespaceError> {
        let shared = self.shared()?;
        let _changes = shared.changes.lock();
        let associations = shared.control(|port| port.disconnect_address(peer));
        let lanes = shared.describe_lanes();
        let of_peer = lanes.iter().filter(|it| it.status.peer == peer && it.status.qid != Some(0));
        let connections = of_peer.filter(|it| it.status.phase != ConnectionPhase::Closing);
        let reason = reason_text(CloseReason::Requested);
        let connections = connections.filter(|it| shared.retire(it.association, it.lane, reason)).count();
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

/// Time for the cores to handle a message; each does in its next turn.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(1);

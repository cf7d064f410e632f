//! State of the lanes of a core, for operators.

use std::sync::mpsc::Sender;

use isolane_reactor::socket;

use super::Driver;
use crate::connection_status::{ConnectionPhase, ConnectionStatus, LaneStatus};
use crate::lane::{Association, Lane};

impl Driver {
    /// Sends the status of every connection.
    pub(super) fn describe_lanes(&self, sender: &Sender<LaneStatus>) {
        // 0 without a core of its own.
        let core = usize::try_from(self.core.shared.observed[self.core.index].cpu.value()).ok();
        let core = core.and_then(|core| core.checked_sub(1));
        for lane in self.lanes.values() {
            let Some(socket) = lane.token.and_then(|token| self.core.reactor.socket(token)) else { continue };
            let association = lane.association.as_ref();
            let status = ConnectionStatus {
                peer: lane.peer(),
                port: None,
                host_nqn: association.and_then(|it| it.host.nqn),
                subsystem_nqn: None,
                cntlid: association.map(|it| it.id.cntlid),
                qid: association.map(|it| it.qid),
                phase: phase(lane),
                is_authenticated: association.is_some_and(Association::is_authenticated),
                age: self.core.now.saturating_duration_since(lane.opened_at),
                commands: lane.active,
                reactor: self.core.index,
                core,
                incoming_cpu: socket::incoming_cpu(&socket),
                moved_bytes: lane.conn.moved_bytes(),
                unsent_bytes: socket::unsent_bytes(socket).unwrap_or(0),
            };
            let association = association.map(|it| it.id);
            let listener = lane.connection.listener;
            // The receiver may have timed out.
            let _ = sender.send(LaneStatus { status, lane: lane.id, association, listener });
        }
    }
}

fn phase(lane: &Lane) -> ConnectionPhase {
    match &lane.association {
        _ if lane.retiring || !lane.is_open() => ConnectionPhase::Closing,
        None => ConnectionPhase::Connecting,
        Some(association) if association.is_locked() => ConnectionPhase::Authenticating,
        Some(_) => ConnectionPhase::Connected,
    }
}

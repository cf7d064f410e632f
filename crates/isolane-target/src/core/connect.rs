//! Fabrics Connect: passes its data to the port. For an admin queue, the [`fence`](super::fence) is filled
//! first. A Connect whose QID is in use is held until the old queue has ended, because a host reconnects as
//! soon as it has closed the old connection. Both waits are bounded: then the Connect is refused without DNR.

use std::sync::Arc;
use std::time::Duration;

use isolane_proto::subsystem::{ConnectRefusal, parse_host};
use isolane_proto::target::Permit;
use isolane_proto::{Completion, Failure};
use isolane_reactor::socket;
use isolane_wire::SubmissionEntry;

use super::Core;
use super::unauthenticated::TOO_MANY_UNAUTHENTICATED;
use crate::fence::Fence;
use crate::lane::{Association, Connecting, Lane};
use crate::limits::LimitReached;
use crate::shared::ConnectError;

impl Core {
    /// Starts a Connect whose data has arrived.
    pub(super) fn begin_connect(
        &mut self,
        lane: &mut Lane,
        permit: Permit,
        entry: SubmissionEntry,
        data: Vec<u8>,
    ) {
        if lane.connecting.is_some() {
            return self.fail(lane, permit, Failure::Sequence);
        }
        let (until, fence) = (self.now + CONNECT_TIMEOUT, Arc::<Fence>::default());
        let cores_left = self.shared.request_drain((&entry, &data), lane.connection, &fence, lane.id);
        lane.connecting = Some(Connecting { permit, entry, data, cores_left, fence, until });
        self.try_connect(lane);
    }

    /// Called when a core has entered its changes into the fence.
    pub(super) fn on_host_drained(&mut self, lane: &mut Lane) {
        if let Some(connecting) = &mut lane.connecting {
            connecting.cores_left = connecting.cores_left.saturating_sub(1);
            self.try_connect(lane);
        }
    }

    /// Passes the Connect to the port once all cores have replied.
    pub(super) fn try_connect(&mut self, lane: &mut Lane) {
        let is_due = |connecting: &mut Connecting| connecting.cores_left == 0 && !self.frozen;
        let Some(connecting) = lane.connecting.take_if(is_due) else {
            return;
        };
        let core = self.index;
        let from = lane.connection;
        if !self.shared.lane_quota.admit(core, self.shared.lingering() as usize) {
            return self.refuse(lane, connecting, Failure::Busy.into());
        }
        let Ok(auth) = self.required_authentication(&connecting.data) else {
            self.shared.lane_quota.disconnect(core);
            return self.refuse_without_key(lane, connecting);
        };
        if auth.is_some() && !self.enter_unauthenticated(lane) {
            self.shared.lane_quota.disconnect(core);
            return self.refuse_unauthenticated(lane, connecting);
        }
        let (command, fence) = ((&connecting.entry, &connecting.data[..]), Arc::clone(&connecting.fence));
        let queue = (lane.id, &lane.in_flight, auth.is_none());
        match self.shared.connect(command, from, queue, fence, self.now) {
            Ok((connected, fence)) => {
                if connected.qid == 0 {
                    log::limited!(Info, "{}: {} has connected", lane.peer(), connected.host);
                }
                log::debug!(
                    "{}: connected queue {} of controller {} for {} on reactor {}{}",
                    lane.peer(),
                    connected.qid,
                    connected.id.cntlid,
                    connected.host,
                    self.index,
                    self.incoming_cpu_suffix(lane)
                );
                lane.conn.set_connected(connected.qid, connected.sqsize, connected.flow_control_disabled);
                lane.association = Some(Association {
                    id: connected.id,
                    qid: connected.qid,
                    host: connected.host,
                    mask_host: self.namespaces.mask_host(&connected.host),
                    status: connected.status,
                    counters: connected.counters,
                    changes: self.shared.unflushed.of(connected.id.subsystem, &connected.host),
                    fence,
                    serves_io: connected.qid != 0 && auth.is_none(),
                    auth,
                });
                lane.in_quota = true;
                self.attach_memory(lane);
                if let Some(arrival) = lane.newcomer.take() {
                    self.shared.newcomers.remove(lane.peer().ip(), arrival);
                }
                self.complete(lane, connecting.permit, lane.with_authreq(connected.completion));
                if let Some(Err(error)) = lane.token.map(|token| self.configure_socket(token)) {
                    log::limited!(Warn, "{}: cannot serve the connection: {error}", lane.peer());
                    self.close(lane, "its socket rejects an option");
                }
            }
            Err(ConnectError::Limit(reached)) => {
                self.shared.lane_quota.disconnect(core);
                self.leave_unauthenticated(lane);
                self.refuse_above_limit(lane, connecting, reached);
            }
            Err(ConnectError::Port(ConnectRefusal { completion, is_qid_in_use })) => {
                self.shared.lane_quota.disconnect(core);
                self.leave_unauthenticated(lane);
                if is_qid_in_use && self.now < connecting.until {
                    lane.connecting = Some(connecting);
                } else {
                    self.refuse(lane, connecting, completion);
                }
            }
        }
    }

    /// Returns the core on which the packets of a lane arrive, as the end of a log line.
    fn incoming_cpu_suffix(&self, lane: &Lane) -> String {
        let socket = lane.token.and_then(|token| self.reactor.socket(token));
        let core = socket.and_then(|socket| socket::incoming_cpu(&socket));
        core.map_or(String::new(), |core| format!("; its packets arrive on core {core}"))
    }

    /// Refuses a Connect whose deadline has passed.
    pub(super) fn check_connect_deadline(&mut self, lane: &mut Lane) {
        let now = self.now;
        if lane
            .connecting
            .as_ref()
            .is_some_and(|connecting| connecting.cores_left == 0 && now >= connecting.until)
        {
            // Held: the port refuses it with the status of a QID in use.
            return self.try_connect(lane);
        }
        if let Some(connecting) = lane.connecting.take_if(|connecting| now >= connecting.until) {
            self.refuse(lane, connecting, Failure::Busy.into());
        }
    }

    fn refuse(&mut self, lane: &mut Lane, connecting: Connecting, completion: Completion) {
        let reason = completion.status.to_string();
        self.refuse_because(lane, connecting, completion, &reason);
    }

    fn refuse_without_key(&mut self, lane: &mut Lane, connecting: Connecting) {
        self.shared.forget_held_connect(lane.id);
        let reason = "it must authenticate, and this target has no key of it";
        self.refuse_because(lane, connecting, Failure::HostNotAllowed.into(), reason);
    }

    fn refuse_unauthenticated(&mut self, lane: &mut Lane, connecting: Connecting) {
        self.shared.forget_held_connect(lane.id);
        self.counters.authentication_refused.add(1);
        self.refuse_because(lane, connecting, Failure::Busy.into(), TOO_MANY_UNAUTHENTICATED);
    }

    fn refuse_above_limit(&mut self, lane: &mut Lane, connecting: Connecting, reached: LimitReached) {
        self.shared.forget_held_connect(lane.id);
        let host = host_text(&connecting.data);
        self.shared.log_limit(&self.counters, lane.peer(), reached, &host);
        self.complete(lane, connecting.permit, Failure::Busy.into());
        self.close_gracefully(lane, "its Connect is above a limit");
    }

    fn refuse_because(
        &mut self,
        lane: &mut Lane,
        connecting: Connecting,
        completion: Completion,
        reason: &str,
    ) {
        let Connecting { permit, data, .. } = connecting;
        let reason = format!("Connect of {}: {reason}", host_text(&data));
        self.shared.log_refusal(&self.counters, lane.peer(), &reason);
        self.complete(lane, permit, completion);
        self.close_gracefully(lane, "its Connect was refused");
    }
}

/// Returns the host of a Connect for log lines.
fn host_text(data: &[u8]) -> String {
    parse_host(data).map_or(String::from("a host with an invalid name"), |host| host.to_string())
}

/// Time limit for the cores that drain the older connections of the host, and for the end of a queue that
/// has the same QID.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

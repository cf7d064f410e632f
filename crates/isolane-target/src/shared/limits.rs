//! Limits of connections: which queues count, and the checks of a Connect and of a proof.
//!
//! Invariant: a queue that has to prove who its host is counts for that host only after the proof, so that nobody uses up
//! the limits of a host by its name.

use isolane_proto::subsystem::AssociationId;
use isolane_wire::SubmissionEntry;

use super::{ControlState, LaneEntry, Shared};
use crate::limits::{LimitReached, QueueInUse};
use crate::slab::LaneId;

impl Shared {
    /// Counts a queue for its host, which has proven its identity.
    ///
    /// # Errors
    /// The host is at a limit; the queue does not count.
    pub(crate) fn count_proven(&self, id: AssociationId, lane: LaneId) -> Result<(), LimitReached> {
        let mut control = self.control.lock();
        let Some(entry) = control.lanes_of(id).find(|entry| entry.id == lane) else { return Ok(()) };
        let (host, is_admin, entries) = (entry.host, entry.qid == 0, entry.entries);
        control.limits.check_host((id.subsystem, &host), is_admin, entries, control.queues())?;
        let lanes = control.lanes.get_mut(&id).into_iter().flatten();
        lanes.filter(|entry| entry.id == lane).for_each(|entry| entry.proven = true);
        Ok(())
    }
}

impl ControlState {
    pub(super) fn check_limits(&self, entry: &SubmissionEntry, data: &[u8]) -> Result<(), LimitReached> {
        self.limits.check((entry, data), |nqn| self.port.find_subsystem(nqn), self.queues())
    }

    /// The connected queues of each association.
    fn queues(&self) -> impl Iterator<Item = impl Iterator<Item = QueueInUse<'_>>> + Clone {
        self.lanes.iter().map(|(id, lanes)| {
            let open = lanes.iter().filter(|lane| !lane.closed);
            open.map(|lane: &LaneEntry| QueueInUse {
                subsystem: id.subsystem,
                host: &lane.host,
                entries: lane.entries,
                proven: lane.proven,
            })
        })
    }
}

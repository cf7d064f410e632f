//! Limits of connections: which queues count, and the checks of a Connect and of a proof.
//!
//! Invariant: a queue that has to prove who its host is counts for that host only after the proof, so that nobody uses up
//! the limits of a host by its name.

use std::net::SocketAddr;
use std::sync::Arc;

use isolane_proto::subsystem::AssociationId;
use isolane_wire::SubmissionEntry;

use super::{ControlState, LaneEntry, Message, Shared};
use crate::counters::CoreCounters;
use crate::limits::{LimitReached, QueueInUse, TargetLimits};
use crate::memory_limits::MemoryLimits;
use crate::slab::LaneId;

impl Shared {
    /// Replaces the limits of connections, and of memory.
    pub(crate) fn set_limits(&self, limits: TargetLimits) {
        let mut control = self.control.lock();
        let mut memory = self.memory_limits.lock();
        let new = MemoryLimits::new(&limits, memory.as_deref()).map(Arc::new);
        if memory.is_some() || new.is_some() {
            self.post_to_all(|| Message::MemoryLimits(new.clone()));
        }
        (control.limits, *memory) = (limits, new);
    }

    /// Counts a command that waits because of a limit, and logs one per second and limit.
    pub(crate) fn log_memory_limit(&self, counters: &CoreCounters, peer: SocketAddr, reached: LimitReached) {
        counters.limits_reached[reached.index()].add(1);
        let limit = &self.limit_logs[reached.index()];
        log::limited!(by limit, Warn, "{peer}: commands wait: {reached}");
    }

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

//! Commands of namespaces without a volume, of hosts that know no retry delays.
//!
//! A host that repeats a failed command at once would soon give up, so the failure waits: until the namespace has a
//! volume again, or the host could lose patience. The data of a held command is discarded, because the host sends it
//! again.

use std::time::Instant;

use isolane_proto::Failure;
use isolane_proto::subsystem::SubsystemId;
use isolane_proto::target::Permit;

use super::{Core, Driver};
use crate::lane::Lane;
use crate::slab::SlabKey;

/// A command whose failure waits.
#[derive(Debug)]
pub(super) struct HeldCommand {
    lane: SlabKey,
    permit: Permit,
    subsystem: SubsystemId,
    nsid: u32,
    since: Instant,
}

impl Core {
    /// Holds a command of a namespace that is offline.
    pub(super) fn hold_offline(&mut self, lane: &mut Lane, permit: Permit) {
        let (nsid, since) = (lane.conn.entry(&permit).nsid, self.now);
        let subsystem = lane.association.as_ref().map(|association| association.id.subsystem);
        match subsystem.filter(|_| lane.is_open()) {
            Some(subsystem) => {
                self.held.push(HeldCommand { lane: lane.key, permit, subsystem, nsid, since });
            }
            None => self.fail(lane, permit, Failure::Offline),
        }
    }

    /// Abandons the held commands of a closed lane.
    pub(super) fn abandon_held(&mut self, lane: &mut Lane) {
        for held in self.held.extract_if(.., |held| held.lane == lane.key) {
            lane.conn.abandon(held.permit);
        }
    }

    /// Returns the namespace of a held command.
    pub(super) fn held_nsid(&self) -> Option<u32> {
        self.held.first().map(|held| held.nsid)
    }

    /// Forfeits all held commands.
    pub(super) fn forfeit_held(&mut self) {
        self.held.drain(..).for_each(|held| held.permit.forfeit());
    }
}

impl Driver {
    /// Fails the held commands that are due, or all if another process is to continue. Called in each tick.
    pub(super) fn fail_held(&mut self) {
        let (now, frozen, limit) = (self.core.now, self.core.frozen, self.core.times.answer_within);
        let (due, held) = std::mem::take(&mut self.core.held).into_iter().partition(|held| {
            let is_late = now.saturating_duration_since(held.since) >= limit;
            frozen || is_late || !self.core.namespaces.is_offline(held.subsystem, held.nsid)
        });
        self.core.held = held;
        for HeldCommand { lane, permit, subsystem, nsid, .. } in due {
            let Some(lane) = self.lanes.get_mut(lane) else {
                unreachable!("a lane was removed before its commands")
            };
            // An association keeps its lanes in the slab until its commands have ended.
            let failure = lane.association.as_ref().map_or(Failure::Namespace, |association| {
                let namespaces = &self.core.namespaces;
                let is_back = namespaces.find_for(subsystem, nsid, association.mask_host).is_some();
                if is_back { Failure::Offline } else { self.core.missing(association, nsid) }
            });
            // The host knows no retry delays.
            self.core.fail(lane, permit, failure.status().with_crd(0));
        }
    }
}

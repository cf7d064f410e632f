//! Commands that wait before they start: for memory, for their blocks, behind orphans, a fault, or a fence, or for a
//! limit.
//!
//! Their namespace can lose its volume in the meantime. The volume before must get no change then, because its hosts
//! would find the change nowhere; they repeat the command, which finds the present volume. It can also become
//! read-only.
//!
//! Invariant: when a core takes a table, no command stays in a queue for a volume that the table has replaced, unless
//! that volume has started it. A write whose data was requested, or is arriving, has started.

use isolane_volume::VolumeError;

use super::fair_share::extract_over_share;
use super::{Core, Driver};
use crate::lane::{Lane, Stalled};
use crate::work::Waiting;

impl Core {
    /// Continues a command that has not started.
    pub(super) fn continue_held(&mut self, lane: &mut Lane, waiting: Waiting) {
        if self.is_removed(waiting.position()) {
            return self.give_back(lane, waiting, false);
        }
        match waiting {
            Waiting::Start { job, request, .. } if job.is_change() && self.is_read_only(job.position) => {
                self.fail_unstarted(lane, job, request, VolumeError::ReadOnly);
            }
            Waiting::Start { job, request, .. } => self.start(lane, job, request),
            // It is checked once its data is there.
            waiting @ Waiting::Data { .. } => self.enter(lane, waiting),
        }
    }

    fn is_read_only(&self, position: usize) -> bool {
        self.namespaces.at(position).geometry.read_only
    }

    /// Whether the namespace at a position has another volume now, or none.
    fn is_removed(&self, position: usize) -> bool {
        let namespace = self.namespaces.at(position);
        self.namespaces.find(namespace.subsystem, namespace.nsid) != Some(position)
    }

    /// Answers a command that has not started, so that its host repeats it.
    pub(super) fn give_back(&mut self, lane: &mut Lane, waiting: Waiting, has_reserved: bool) {
        self.without_blame(waiting.position(), |core| core.cancel(lane, waiting, has_reserved));
    }

    /// The same for a command whose in-capsule data has no memory. Its data is skipped.
    pub(super) fn give_back_stalled(&mut self, lane: &mut Lane, stalled: Stalled) {
        self.without_blame(stalled.position, |core| core.skip_in_capsule(lane, stalled));
    }

    /// Answers commands that do not count as answers of a volume that is stalled.
    fn without_blame(&mut self, position: usize, answer: impl FnOnce(&mut Self)) {
        let answered = self.volumes[position].answered;
        answer(self);
        self.volumes[position].answered = answered;
    }
}

impl Driver {
    /// Continues a command that has not started; one that must still wait returns to the end of its queue.
    pub(super) fn continue_held(&mut self, waiting: Waiting) {
        let Some(lane) = self.lanes.get_mut(waiting.lane()) else { unreachable!("{LANE_REMOVED_EARLY}") };
        self.core.continue_held(lane, waiting);
    }

    /// Gives back all waiting commands whose namespaces have other volumes now, or none. Called with each new table.
    pub(super) fn give_back_replaced(&mut self) {
        let core = &mut self.core;
        let mut waiting = std::mem::take(&mut core.waiting);
        let is_replaced = |waiting: &Waiting| !waiting.is_started() && core.is_removed(waiting.position());
        let over_limit = waiting.over_limit.extract(is_replaced);
        let others = waiting.extract(|waiting, _| is_replaced(waiting));
        core.waiting = waiting;
        let over_limit = over_limit.into_iter().map(|waiting| (waiting, false));
        for (waiting, has_reserved) in others.end_waits(&mut core.memory).chain(over_limit) {
            let Some(lane) = self.lanes.get_mut(waiting.lane()) else { unreachable!("{LANE_REMOVED_EARLY}") };
            core.give_back(lane, waiting, has_reserved);
        }
        for lane in self.lanes.values_mut() {
            if lane.is_limited() {
                let over_share = extract_over_share(lane, |waiting| core.is_removed(waiting.position()));
                over_share.into_iter().for_each(|waiting| core.give_back(lane, waiting, false));
            }
            if let Some(stalled) = lane.stalled.take_if(|stalled| core.is_removed(stalled.position)) {
                core.give_back_stalled(lane, stalled);
            }
        }
    }
}

pub(super) const LANE_REMOVED_EARLY: &str = "a lane was removed before its last command";

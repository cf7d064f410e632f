//! Commands that were held before they started, and continue: behind orphans, a fault, a fence, or a limit.
//!
//! Their namespace can have lost its volume in the meantime. The volume before must get no change then, because its hosts
//! would find the change nowhere; they repeat the command, which finds the present volume. It can also have become read-only.

use isolane_volume::VolumeError;

use super::{Core, Driver};
use crate::lane::Lane;
use crate::work::Waiting;

impl Core {
    /// Continues a command that has not started.
    pub(super) fn continue_held(&mut self, lane: &mut Lane, waiting: Waiting) {
        if self.is_removed(waiting.position()) {
            return self.give_back(lane, waiting);
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

    /// Answers a command that has not started, so that its host repeats it. Its volume is not to blame.
    pub(super) fn give_back(&mut self, lane: &mut Lane, waiting: Waiting) {
        let position = waiting.position();
        let answered = self.volumes[position].answered;
        self.cancel(lane, waiting, false);
        self.volumes[position].answered = answered;
    }
}

impl Driver {
    /// Continues a command that has not started; one that must still wait returns to the end of its queue.
    pub(super) fn continue_held(&mut self, waiting: Waiting) {
        let Some(lane) = self.lanes.get_mut(waiting.lane()) else { unreachable!("{LANE_REMOVED_EARLY}") };
        self.core.continue_held(lane, waiting);
    }
}

pub(super) const LANE_REMOVED_EARLY: &str = "a lane was removed before its last command";

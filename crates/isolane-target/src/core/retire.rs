//! Clean ends of connections whose port is gone: their commands complete, and no new ones are read.
//!
//! A host repeats the commands that were not read, and those whose data had not arrived, on another path. The admin queue
//! ends last, because its end ends the association with all of its connections.

use std::time::{Duration, Instant};

use super::Driver;
use crate::slab::LaneId;

/// A lane that ends after its commands.
pub(super) struct Retiring {
    lane: LaneId,
    until: Instant,
    reason: &'static str,
}

impl Driver {
    /// Stops reading from a lane, which closes once its commands are complete.
    pub(super) fn retire(&mut self, id: LaneId, reason: &'static str) {
        let Some(lane) = self.key_of(id).and_then(|key| self.lanes.get_mut(key)) else { return };
        if !lane.is_open() || lane.retiring {
            return;
        }
        lane.retiring = true;
        if let (false, Some(token)) = (lane.paused, lane.token) {
            lane.paused = true;
            self.core.reactor.pause(token);
        }
        self.retiring.push(Retiring { lane: id, until: self.core.now + RETIRE_TIMEOUT, reason });
    }

    /// Closes the lanes whose commands are complete.
    pub(super) fn poll_retiring(&mut self) {
        let mut retiring = std::mem::take(&mut self.retiring);
        retiring.retain(|it| !self.has_retired(it));
        self.retiring = retiring;
    }

    fn has_retired(&mut self, retiring: &Retiring) -> bool {
        let Retiring { lane, until, reason } = *retiring;
        let Some(lane) = self.key_of(lane).and_then(|key| self.lanes.get_mut(key)) else { return true };
        if !lane.is_open() {
            return true;
        }
        let association = lane.association.as_ref().filter(|association| association.qid == 0);
        let must_wait = association.is_some_and(|it| self.core.shared.has_io_lanes(it.id));
        if self.core.now >= until {
            self.core.close(lane, reason);
            return true;
        }
        if lane.active > 0 || must_wait {
            return false;
        }
        self.core.close_gracefully(lane, reason);
        true
    }
}

/// Time for commands to complete.
const RETIRE_TIMEOUT: Duration = Duration::from_secs(5);

//! Parts of volumes that this core drives: connections of remote volumes.
//!
//! Invariant: while this core can sleep, each part is prepared for a wait, so that nothing it waits for is missed.

use std::time::Instant;

use isolane_reactor::Token;
use isolane_volume::CorePart;

use super::Core;

/// A part and what this core knows of it.
pub(super) struct DrivenPart {
    part: Box<dyn CorePart>,
    token: Token,
    /// Its descriptor is readable.
    is_ready: bool,
    /// When it must be turned even if nothing happens.
    deadline: Instant,
}

impl Core {
    /// Takes the parts of this core's share of the volumes.
    pub(super) fn take_parts(&mut self) {
        let (cores, count) = (self.shared.counters.len(), self.volumes.len());
        for position in (self.index..count).step_by(cores) {
            let volume = &self.shared.namespaces.at(position).volume;
            for part in volume.take_core_parts() {
                match self.reactor.watch(part.wait_fd()) {
                    Ok(token) => {
                        self.parts.push(DrivenPart { part, token, is_ready: true, deadline: self.now });
                    }
                    Err(error) => {
                        log::warn!("{}: core {} cannot drive it: {error}", volume.name(), self.index)
                    }
                }
            }
        }
    }

    /// Ends the waits of a turn of the reactor. A request of this core then costs no system call to wake a part.
    pub(super) fn finish_waits(&mut self) {
        self.parts.iter_mut().for_each(|driven| driven.part.finish_wait());
    }

    /// The descriptor of a part is readable.
    pub(super) fn on_part_readable(&mut self, token: Token) {
        for driven in self.parts.iter_mut().filter(|driven| driven.token == token) {
            driven.is_ready = true;
        }
    }

    /// Turns the parts that have work, and prepares all for a wait.
    pub(super) fn drive_parts(&mut self) {
        for driven in &mut self.parts {
            let is_due = driven.is_ready || driven.deadline <= self.now;
            let mut prepared = if is_due { None } else { driven.part.prepare_wait() };
            for _ in 0..MAX_TURNS {
                if prepared.is_some() {
                    break;
                }
                self.reactor.on_read(driven.token, driven.part.turn());
                prepared = driven.part.prepare_wait();
            }
            driven.is_ready = false;
            driven.deadline = prepared.unwrap_or(self.now);
        }
    }

    /// Returns when a part must be turned even if nothing happens.
    pub(super) fn parts_deadline(&self) -> Option<Instant> {
        self.parts.iter().map(|driven| driven.deadline).min()
    }
}

/// Maximum number of turns of a part in one turn of the core: one receives, one sends requests that follow.
const MAX_TURNS: usize = 2;

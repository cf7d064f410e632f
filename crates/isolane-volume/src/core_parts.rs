//! Parts of volumes that one core drives: connections of remote volumes.
//!
//! Invariant: while the core can sleep, each part is prepared for a wait, so that nothing it waits for is missed.

use std::time::Instant;

use isolane_reactor::{Reactor, Token};

use crate::{CorePart, Volume};

/// The parts of one core. Its driver calls [`CoreParts::finish_waits`] at the start of a turn, and
/// [`CoreParts::drive`] at the end.
#[derive(Default)]
pub struct CoreParts(Vec<DrivenPart>);

/// A part and what the core knows of it.
struct DrivenPart {
    /// Identifies its volume.
    key: usize,
    part: Box<dyn CorePart>,
    token: Token,
    /// Its descriptor is readable.
    is_ready: bool,
    /// When it must be turned even if nothing happens.
    deadline: Instant,
}

impl CoreParts {
    /// Takes the parts of a volume, which has this key from now on.
    pub fn take(&mut self, key: usize, volume: &dyn Volume, reactor: &mut Reactor, now: Instant) {
        for part in volume.take_core_parts() {
            match reactor.watch(part.wait_fd()) {
                Ok(token) => self.0.push(DrivenPart { key, part, token, is_ready: true, deadline: now }),
                Err(error) => log::warn!("{}: no core can drive it: {error}", volume.name()),
            }
        }
    }

    /// Drops the parts of the volume with this key.
    pub fn remove(&mut self, key: usize, reactor: &mut Reactor) {
        for driven in self.0.extract_if(.., |driven| driven.key == key) {
            reactor.close(driven.token);
        }
    }

    /// Ends the waits of a turn of the reactor. A request of this core then costs no system call to wake a part.
    pub fn finish_waits(&mut self) {
        self.0.iter_mut().for_each(|driven| driven.part.finish_wait());
    }

    /// Handles a readable descriptor. Ignores those of other parts of the program.
    pub fn handle_readable(&mut self, token: Token) {
        for driven in self.0.iter_mut().filter(|driven| driven.token == token) {
            driven.is_ready = true;
        }
    }

    /// Turns the parts that have work, and prepares all for a wait.
    pub fn drive(&mut self, reactor: &mut Reactor, now: Instant) {
        for driven in &mut self.0 {
            let is_due = driven.is_ready || driven.deadline <= now;
            let mut prepared = if is_due { None } else { driven.part.prepare_wait() };
            for _ in 0..MAX_TURNS {
                if prepared.is_some() {
                    break;
                }
                reactor.on_read(driven.token, driven.part.turn());
                prepared = driven.part.prepare_wait();
            }
            driven.is_ready = false;
            driven.deadline = prepared.unwrap_or(now);
        }
    }

    /// Returns when a part must be turned even if nothing happens.
    pub fn deadline(&self) -> Option<Instant> {
        self.0.iter().map(|driven| driven.deadline).min()
    }
}

/// Maximum number of turns of a part in one turn of the core: one receives, one sends requests that follow.
const MAX_TURNS: usize = 2;

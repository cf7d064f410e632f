//! What was closed and has not ended yet.
//!
//! Nobody waits for the answer to a close, so that to drop something never waits. Invariant: few of them are
//! under way at once, because an engine does not hear who does not take its answers, and whoever takes them must not
//! wait to be heard.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::Room;
use crate::control::{End, Request, Wire};

/// Objects and queues that were closed and have not ended yet.
#[derive(Default)]
pub(super) struct Closing {
    /// Their places, which are the engine's until then.
    rooms: BTreeMap<u32, Room>,
    /// Closes that are to be asked for.
    due: VecDeque<u32>,
    /// Those that are asked for and not answered.
    under_way: usize,
    /// When the engine was last asked to abandon streams.
    relieved: Option<Instant>,
}

impl Closing {
    /// One more.
    pub fn begin(&mut self, id: u32, room: Room) {
        self.rooms.insert(id, room);
        self.due.push_back(id);
    }

    /// Asks for as many as may be under way.
    pub fn ask(&mut self, wire: &Wire) {
        while self.under_way < UNDER_WAY_MAX
            && let Some(id) = self.due.pop_front()
        {
            if !self.rooms.contains_key(&id) {
                continue;
            }
            let close = Request::End { id, how: End::Close };
            // It fails if engines died so fast that all which they were asked is still under way: that will be
            // answered. Or the connection is broken, which whoever receives hears.
            if wire.send(&close.encode(UNASKED), &[], false).is_err() {
                self.due.push_front(id);
                return;
            }
            self.under_way += 1;
        }
    }

    /// The session's memory is used up. Asks the engine to abandon closed streams that do not move, if there may be some
    /// and it was not asked just before.
    pub fn relieve(&mut self, wire: &Wire, now: Instant) {
        let is_due = self.relieved.is_none_or(|at| now.saturating_duration_since(at) >= RELIEF_PAUSE);
        if is_due
            && !self.rooms.is_empty()
            && self.under_way < UNDER_WAY_MAX
            // If it fails, the next one who finds no memory asks.
            && wire.send(&Request::Relieve.encode(UNASKED), &[], false).is_ok()
        {
            self.relieved = Some(now);
            self.under_way += 1;
        }
    }

    /// One was answered.
    pub fn on_answered(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }

    /// The engine that was asked is dead: all are to be asked for again.
    pub fn on_restarted(&mut self) {
        self.due = self.rooms.keys().copied().collect();
        self.under_way = 0;
    }

    /// Whether it has not ended yet.
    pub fn has(&self, id: u32) -> bool {
        self.rooms.contains_key(&id)
    }

    /// The room of what has ended. To be dropped without any lock: it may hold the session itself.
    pub fn end(&mut self, id: u32) -> Option<Room> {
        self.rooms.remove(&id)
    }

    /// The rooms of all, since the session is over; likewise.
    pub fn end_all(&mut self) -> BTreeMap<u32, Room> {
        std::mem::take(&mut self.rooms)
    }
}

/// The serial number of what comes unasked, or is asked without waiting for the answer.
pub(super) const UNASKED: u32 = 0;
/// Closes that are asked for and not answered.
const UNDER_WAY_MAX: usize = 32;
/// As often as the engine looks.
const RELIEF_PAUSE: Duration = Duration::from_secs(1);

//! Which lane should be on which core (S8): a decision about loads, without I/O and without a clock of its
//! own.
//!
//! Each core reports once an interval what it did. Lanes without traffic are moved to the first core, and so
//! are those of cores that together do little, so that the other reactors can sleep; a lane is moved off a
//! core that has too much to do, to the one that does least, if both are better off. Invariant: one round
//! moves a bounded number of lanes, and a lane that was moved stays for a while.

use std::collections::HashMap;

use crate::slab::LaneId;

/// What a core did in one interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CoreLoad {
    /// The share of the time in which it had work, 0 to 1.
    pub busy: f64,
    pub lanes: Vec<LaneLoad>,
}

/// What a lane did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaneLoad {
    pub id: LaneId,
    pub moved_bytes: u64,
}

/// A lane is to go from one core to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub lane: LaneId,
    pub from: usize,
    pub to: usize,
}

/// Plans moves, round by round.
#[derive(Debug, Default)]
pub(crate) struct Scheduler {
    lanes: HashMap<LaneId, History>,
    cores: Vec<CoreHistory>,
}

#[derive(Clone, Copy, Debug, Default)]
struct History {
    idle_rounds: u32,
    /// Stays where it is for so many rounds more.
    cooldown_rounds: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct CoreHistory {
    overloaded_rounds: u32,
    light_rounds: u32,
}

impl Scheduler {
    /// What to move after a round with these loads, one for each core.
    pub(crate) fn plan(&mut self, loads: &[CoreLoad]) -> Vec<Move> {
        self.remember(loads);
        let mut moves: Vec<Move> = (0..loads.len()).filter_map(|from| self.offload(from, loads)).collect();
        let mut first_busy = loads.first().map_or(0.0, |first| first.busy);
        for (from, load) in loads.iter().enumerate().skip(1) {
            self.consolidate(from, load, &mut first_busy, &mut moves);
        }
        moves.truncate(MAX_MOVES);
        for it in &moves {
            self.lanes.insert(it.lane, History { idle_rounds: 0, cooldown_rounds: COOLDOWN_ROUNDS });
        }
        moves
    }

    fn remember(&mut self, loads: &[CoreLoad]) {
        let old = std::mem::take(&mut self.lanes);
        for lane in loads.iter().flat_map(|load| &load.lanes) {
            let history = old.get(&lane.id).copied().unwrap_or_default();
            let idle_rounds = if lane.moved_bytes == 0 { history.idle_rounds + 1 } else { 0 };
            let cooldown_rounds = history.cooldown_rounds.saturating_sub(1);
            self.lanes.insert(lane.id, History { idle_rounds, cooldown_rounds });
        }
        self.cores.resize(loads.len(), CoreHistory::default());
        for (core, load) in self.cores.iter_mut().zip(loads) {
            core.overloaded_rounds = if load.busy >= OVERLOADED { core.overloaded_rounds + 1 } else { 0 };
            core.light_rounds = if load.busy <= LIGHT { core.light_rounds + 1 } else { 0 };
        }
    }

    /// A lane for which another core is better, if this one has too much to do.
    fn offload(&self, from: usize, loads: &[CoreLoad]) -> Option<Move> {
        let load = &loads[from];
        if self.cores[from].overloaded_rounds < OVERLOADED_ROUNDS {
            return None;
        }
        let (to, least) =
            loads.iter().enumerate().min_by(|one, other| one.1.busy.total_cmp(&other.1.busy))?;
        let bytes: u64 = load.lanes.iter().map(|lane| lane.moved_bytes).sum();
        let weight = |lane: &LaneLoad| load.busy * lane.moved_bytes as f64 / bytes.max(1) as f64;
        // With less than the difference the other core does not become what this one is.
        let helps = |lane: &&LaneLoad| lane.moved_bytes > 0 && least.busy + weight(lane) < load.busy * GAIN;
        let movable = load.lanes.iter().filter(|lane| self.can_move(lane.id)).filter(helps);
        let best = movable.max_by_key(|lane| balance(weight(lane), load.busy - least.busy))?;
        (to != from && least.busy <= RELIEF).then_some(Move { lane: best.id, from, to })
    }

    /// Lanes that the first core can have as well; `first_busy` is what it has then.
    fn consolidate(&self, from: usize, load: &CoreLoad, first_busy: &mut f64, moves: &mut Vec<Move>) {
        let is_light = self.cores[from].light_rounds >= LIGHT_ROUNDS && *first_busy + load.busy <= PACKED;
        if is_light {
            *first_busy += load.busy;
        }
        for lane in &load.lanes {
            let is_idle = self.lanes.get(&lane.id).is_some_and(|it| it.idle_rounds >= IDLE_ROUNDS);
            if (is_light || is_idle && *first_busy < OVERLOADED) && self.can_move(lane.id) {
                moves.push(Move { lane: lane.id, from, to: 0 });
            }
        }
    }

    fn can_move(&self, lane: LaneId) -> bool {
        self.lanes.get(&lane).is_none_or(|history| history.cooldown_rounds == 0)
    }
}

/// How well a weight evens out a difference, larger is better: half of it is best.
fn balance(weight: f64, difference: f64) -> i64 {
    -((weight - difference / 2.0).abs() * 1e6) as i64
}

/// A core with work for more of its time than this has too much.
const OVERLOADED: f64 = 0.9;
const OVERLOADED_ROUNDS: u32 = 2;
/// Only a core with less than this takes a lane of an overloaded one, and it must end up with so much less
/// than that has now.
const RELIEF: f64 = 0.7;
const GAIN: f64 = 0.9;
/// A core with less than this gives its lanes to the first, if that then has no more than the second number.
const LIGHT: f64 = 0.3;
const LIGHT_ROUNDS: u32 = 5;
const PACKED: f64 = 0.5;
/// A lane without traffic for so long goes to the first core.
const IDLE_ROUNDS: u32 = 10;
/// A lane that was moved stays for so long.
const COOLDOWN_ROUNDS: u32 = 10;
/// In one round.
const MAX_MOVES: usize = 64;

#[cfg(test)]
mod tests;

//! Assignment of lanes to cores by load (S8), without I/O and without a clock.
//!
//! Each core reports its load once per interval. Idle lanes and lanes of lightly loaded cores move to the
//! first core, so that the other reactors can sleep. A lane of an overloaded core moves to the least loaded
//! core, if that helps both. Invariant: one round moves a bounded number of lanes, and a moved lane stays for
//! several rounds.

use std::collections::HashMap;

use crate::slab::LaneId;

/// Load of a core in one interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CoreLoad {
    /// Share of the time with work, 0 to 1.
    pub busy: f64,
    pub lanes: Vec<LaneLoad>,
}

/// Traffic of a lane in one interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaneLoad {
    pub id: LaneId,
    pub moved_bytes: u64,
}

/// A planned move of a lane.
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
    /// Rounds before the lane can move again.
    cooldown_rounds: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct CoreHistory {
    overloaded_rounds: u32,
    light_rounds: u32,
}

impl Scheduler {
    /// Returns the moves after a round with these loads, one for each core.
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

    /// Returns the best lane to move off an overloaded core.
    fn offload(&self, from: usize, loads: &[CoreLoad]) -> Option<Move> {
        let load = &loads[from];
        if self.cores[from].overloaded_rounds < OVERLOADED_ROUNDS {
            return None;
        }
        let (to, least) =
            loads.iter().enumerate().min_by(|one, other| one.1.busy.total_cmp(&other.1.busy))?;
        let bytes: u64 = load.lanes.iter().map(|lane| lane.moved_bytes).sum();
        let weight = |lane: &LaneLoad| load.busy * lane.moved_bytes as f64 / bytes.max(1) as f64;
        // The other core must not become as busy as this one.
        let helps = |lane: &&LaneLoad| lane.moved_bytes > 0 && least.busy + weight(lane) < load.busy * GAIN;
        let movable = load.lanes.iter().filter(|lane| self.can_move(lane.id)).filter(helps);
        let best = movable.max_by_key(|lane| balance(weight(lane), load.busy - least.busy))?;
        (to != from && least.busy <= MAX_RECEIVER_LOAD).then_some(Move { lane: best.id, from, to })
    }

    /// Moves lanes to the first core if it has capacity; `first_busy` is its load afterwards.
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

/// Rates how well a weight balances a difference; half of the difference is best, larger results are better.
fn balance(weight: f64, difference: f64) -> i64 {
    -((weight - difference / 2.0).abs() * 1e6) as i64
}

/// A core with a larger busy share for this many rounds is overloaded.
const OVERLOADED: f64 = 0.9;
const OVERLOADED_ROUNDS: u32 = 2;
/// Only a core below this share receives a lane of an overloaded one, and must stay below `GAIN` of its load.
const MAX_RECEIVER_LOAD: f64 = 0.7;
const GAIN: f64 = 0.9;
/// A core below this share for this many rounds moves its lanes to the first core, up to a share of `PACKED`.
const LIGHT: f64 = 0.3;
const LIGHT_ROUNDS: u32 = 5;
const PACKED: f64 = 0.5;
/// A lane without traffic for this many rounds moves to the first core.
const IDLE_ROUNDS: u32 = 10;
/// A moved lane stays for this many rounds.
const COOLDOWN_ROUNDS: u32 = 10;
/// Maximum number of moves in one round.
const MAX_MOVES: usize = 64;

#[cfg(test)]
mod tests;

//! What is repeated after a loss, and what waits for what: the rule of [`fence`](crate::fence), applied to
//! tasks.
//!
//! Parts of writes whose fate is unknown wait behind the fence of their association; new writes that overlap
//! one of them wait, too, whichever client of the volume it was that lost them. Not here: when an association
//! is known dead. Invariant: no command that changes a block is sent while a write of a lost association may
//! still change that block.

use std::sync::Arc;

use super::Client;
use super::flow::Run;
use super::task::{Part, Task, overlaps};
use super::tasks::Tasks;
use crate::error::RequestError;
use crate::expiry::{OldAssociation, Verdict};
use crate::fence::{Fences, Hold, NewAssociation};
use crate::options::WriteReplay;
use crate::predecessor::Note;
use crate::request::BlockRange;
use crate::setup::Plan;

/// Writes of unknown fate, and what waits for them.
pub(super) struct Replay {
    /// Those of all clients of the volume.
    fences: Arc<Fences>,
    /// Those that this client raised.
    raised: Vec<Raised>,
    /// What the association that is being lost leaves behind.
    uncertain: Vec<Part>,
    ranges: Vec<BlockRange>,
    /// New writes that overlap.
    held: Vec<u32>,
    /// Parts of earlier writes that overlap, which were not sent yet or are to be sent again.
    held_parts: Vec<Part>,
    /// What a verdict let go of, until the client has taken it.
    settled: Vec<(Part, Fate)>,
}

/// A fence and the parts behind it.
#[derive(Debug)]
struct Raised {
    id: u64,
    cntlid: u16,
    parts: Vec<Part>,
}

/// What becomes of a part behind a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Repeat,
    Fail,
}

impl Replay {
    pub(super) fn new(fences: Arc<Fences>) -> Replay {
        Replay {
            fences,
            raised: Vec::new(),
            uncertain: Vec::new(),
            ranges: Vec::new(),
            held: Vec::new(),
            held_parts: Vec::new(),
            settled: Vec::new(),
        }
    }

    /// Lost associations of this client that are not known dead.
    pub(super) fn fences(&self) -> usize {
        self.raised.len()
    }

    /// Whether no write has to wait.
    #[inline]
    pub(super) fn is_clear(&self) -> bool {
        self.fences.are_none()
    }

    /// Whether a task must wait, or fails.
    pub(super) fn holds_back(&self, task: &Task) -> Option<Hold> {
        self.fences.hold_back(|range| task.touches(range))
    }

    /// Whether a part must wait, or fails.
    pub(super) fn holds_back_part(&self, task: &Task, part: u32) -> Option<Hold> {
        if self.is_clear() {
            return None;
        }
        let changes = task.part_changes(part);
        self.fences.hold_back(|range| changes.iter().any(|own| overlaps(own, range)))
    }

    pub(super) fn hold(&mut self, task: u32) {
        self.held.push(task);
    }

    pub(super) fn hold_part(&mut self, part: Part) {
        self.held_parts.push(part);
    }

    /// A part of a write was sent and not answered.
    pub(super) fn note_uncertain(&mut self, part: Part, task: &Task) {
        self.uncertain.push(part);
        self.ranges.extend(task.part_changes(part.part));
    }

    /// All connections of the association are reset: from now on it is watched, if it left anything behind.
    pub(super) fn raise_fence(&mut self, old: OldAssociation, note: Option<Note>, plan: &Arc<Plan>) {
        let mut parts = std::mem::take(&mut self.uncertain);
        if parts.is_empty() {
            return note.into_iter().for_each(Note::on_dead);
        }
        if plan.options.reconnect.writes == WriteReplay::Never {
            self.settled.extend(parts.drain(..).map(|part| (part, Fate::Fail)));
        }
        let cntlid = old.cntlid;
        log::info!("{} writes wait until controller {cntlid} is known dead", parts.len());
        let id = self.fences.raise(old, std::mem::take(&mut self.ranges), note, plan);
        self.raised.push(Raised { id, cntlid, parts });
    }

    /// A new association: it may prove old ones dead.
    pub(super) fn on_association(&self, new: &NewAssociation, writes: WriteReplay) {
        self.fences.on_association(new, writes);
    }

    /// There is a verdict about an association, of this client or of another of the volume.
    pub(super) fn on_verdict(&mut self, id: u64, verdict: Verdict) {
        let Some(at) = self.raised.iter().position(|raised| raised.id == id) else { return };
        let (cntlid, parts) = (self.raised[at].cntlid, std::mem::take(&mut self.raised[at].parts));
        if verdict != Verdict::Unknown {
            self.raised.swap_remove(at);
        }
        let fate = if verdict == Verdict::Unknown { Fate::Fail } else { Fate::Repeat };
        let so = if fate == Fate::Fail { "fail" } else { "are repeated" };
        log::info!("controller {cntlid} {verdict}; {} writes {so}", parts.len());
        self.settled.extend(parts.into_iter().map(|part| (part, fate)));
    }

    /// No association will come: the fates stay unknown.
    pub(super) fn give_up(&mut self, tasks: &mut Tasks) {
        let behind = self.raised.drain(..).flat_map(|raised| raised.parts);
        for part in behind.chain(self.uncertain.drain(..)) {
            tasks.get_mut(part.task).into_iter().for_each(|task| task.fail(RequestError::Uncertain));
        }
        self.fences.on_giving_up();
        self.held.clear();
        self.held_parts.clear();
        self.ranges.clear();
        self.settled.clear();
    }
}

impl Client {
    /// Carries out what verdicts let go of. What was held goes, goes on waiting, or fails.
    pub(super) fn settle_replay(&mut self) {
        for (part, fate) in std::mem::take(&mut self.replay.settled) {
            let Some(task) = self.tasks.get_mut(part.task) else { continue };
            match fate {
                Fate::Repeat => {
                    let lane = task.lane;
                    self.backlogs[lane].push_back(Run::one(part));
                    self.pump(lane);
                }
                Fate::Fail => {
                    task.fail(RequestError::Uncertain);
                    task.left -= 1;
                    self.finish_if_done(part.task);
                }
            }
        }
        for held in std::mem::take(&mut self.replay.held) {
            self.enqueue(held);
        }
        for part in std::mem::take(&mut self.replay.held_parts) {
            let Some(task) = self.tasks.get(part.task) else { continue };
            let lane = task.lane;
            self.backlogs[lane].push_back(Run::one(part));
            self.pump(lane);
        }
    }
}

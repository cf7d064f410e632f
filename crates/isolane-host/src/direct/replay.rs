//! Decision what to repeat after a loss, and what must wait: the rule of [`fence`](crate::fence), applied to
//! requests.
//!
//! Parts of writes with an unknown fate wait for the fence of their association. New writes that overlap one of
//! them wait as well, whichever client of the volume lost it.
//!
//! Invariant: no command that changes a block is sent while a write of a lost association may still change it.

use std::sync::Arc;

use super::Direct;
use crate::client_state::ClientState;
use crate::connect::Plan;
use crate::connect::expiry::{OldAssociation, Verdict};
use crate::connect::fence::{FenceEffect, Fences, NewAssociation};
use crate::connect::journal::JournalEntry;
use crate::error::RequestError;
use crate::options::WriteReplay;
use crate::request::BlockRange;
use crate::request_table::{Part, PartRange, RequestSlot, RequestTable, overlaps};

/// Writes with an unknown fate, and the writes that wait for them.
pub(super) struct Replay {
    /// Shared by all clients of the volume.
    fences: Arc<Fences>,
    /// Fences of this client.
    raised: Vec<ActiveFence>,
    /// Parts in flight on the association that is being lost, and their blocks.
    uncertain: Vec<Part>,
    ranges: Vec<BlockRange>,
    /// Parts of other writes; the first of each range overlaps.
    held: Vec<PartRange>,
    /// Parts released by a verdict, until the client has processed them.
    settled: Vec<(Part, Verdict)>,
}

/// A fence and the parts that wait for it.
#[derive(Debug)]
struct ActiveFence {
    id: u64,
    cntlid: u16,
    parts: Vec<Part>,
}

impl Replay {
    pub(super) fn new(fences: Arc<Fences>) -> Replay {
        Replay {
            fences,
            raised: Vec::new(),
            uncertain: Vec::new(),
            ranges: Vec::new(),
            held: Vec::new(),
            settled: Vec::new(),
        }
    }

    /// Returns the number of lost associations of this client that are not known dead.
    pub(super) fn fences(&self) -> usize {
        self.raised.len()
    }

    /// Returns whether no write must wait.
    #[inline]
    pub(super) fn is_clear(&self) -> bool {
        self.fences.is_empty()
    }

    /// Returns whether a part must wait or fail.
    pub(super) fn holds_back(&self, request: &RequestSlot, part: u32) -> Option<FenceEffect> {
        if self.is_clear() {
            return None;
        }
        let changes = request.part_changes(part);
        self.fences.blocks(|range| changes.iter().any(|own| overlaps(own, range)))
    }

    pub(super) fn hold(&mut self, parts: PartRange) {
        self.held.push(parts);
    }

    /// Records a part of a write that was sent and did not complete.
    pub(super) fn record_uncertain(&mut self, part: Part, request: &RequestSlot) {
        self.uncertain.push(part);
        self.ranges.extend(request.part_changes(part.index));
    }

    /// Raises a fence for an association whose connections have all been reset, if it had writes in flight.
    pub(super) fn raise_fence(&mut self, old: OldAssociation, entry: Option<JournalEntry>, plan: &Arc<Plan>) {
        let mut parts = std::mem::take(&mut self.uncertain);
        if parts.is_empty() {
            return entry.into_iter().for_each(JournalEntry::on_dead);
        }
        if plan.options.reconnect.writes == WriteReplay::Never {
            self.settled.extend(parts.drain(..).map(|part| (part, Verdict::Unknown)));
        }
        let cntlid = old.association.cntlid;
        log::info!("{} writes wait until controller {cntlid} is known dead", parts.len());
        let id = self.fences.raise(old, std::mem::take(&mut self.ranges), entry, plan);
        self.raised.push(ActiveFence { id, cntlid, parts });
    }

    /// Handles a new association, which may prove old ones dead.
    pub(super) fn on_association(&self, new: &NewAssociation, writes: WriteReplay) {
        self.fences.on_association(new, writes);
    }

    /// Handles a verdict about an association of this client or of another client of the volume.
    pub(super) fn on_verdict(&mut self, id: u64, verdict: Verdict) {
        let Some(at) = self.raised.iter().position(|raised| raised.id == id) else { return };
        let (cntlid, parts) = (self.raised[at].cntlid, std::mem::take(&mut self.raised[at].parts));
        if verdict != Verdict::Unknown {
            self.raised.swap_remove(at);
        }
        let what = if verdict == Verdict::Unknown { "fail" } else { "are repeated" };
        log::info!("controller {cntlid} {verdict}; {} writes {what}", parts.len());
        self.settled.extend(parts.into_iter().map(|part| (part, verdict)));
    }

    /// Fails all writes with an unknown fate, because no new association will follow.
    pub(super) fn abandon(&mut self, requests: &mut RequestTable) {
        let fenced = self.raised.drain(..).flat_map(|raised| raised.parts);
        for part in fenced.chain(self.uncertain.drain(..)) {
            let request = requests.get_mut(part.slot);
            request.into_iter().for_each(|request| request.fail(RequestError::FateUnknown));
        }
        self.fences.on_client_closed();
        self.held.clear();
        self.ranges.clear();
        self.settled.clear();
    }
}

impl Direct {
    /// Processes parts and requests that verdicts have released: they are sent, wait again, or fail.
    pub(super) fn apply_verdicts(&mut self, state: &mut ClientState) {
        for (part, verdict) in std::mem::take(&mut self.replay.settled) {
            match verdict {
                Verdict::Unknown => state.complete_part(part, Err(RequestError::FateUnknown)),
                _ => self.requeue(state, PartRange::one(part)),
            }
        }
        for parts in std::mem::take(&mut self.replay.held) {
            self.requeue(state, parts);
        }
    }
}

//! State of a mirror in memory: member states, bits, and the requests in progress. No I/O but log lines.
//!
//! Invariants:
//! * At least one member is complete. Its data is the mirror's.
//! * Regions are marked for copying only while the other member is incomplete, and only if their bits are durable.
//! * Requests for the same blocks run one after another, in the order of their arrival, unless both read.

use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use isolane_memory::Payload;
use isolane_volume::{BlockRange, Outcome, VolumeError};

use super::bits::Bits;
use super::progress::Progress;
use super::record::{MemberState, Record};

/// State of a mirror.
#[derive(Debug)]
pub(super) struct State {
    /// Current record; it is durable if `committed` has reached its sequence.
    pub record: Record,
    committed: u64,
    /// Regions in which members can differ.
    pub dirty: Bits,
    /// Regions whose bit is set in the bitmap file, and not about to be cleared.
    durable: Bits,
    /// Regions written since the last search for idle regions.
    touched: Bits,
    /// Regions that must be copied to the incomplete member.
    pub to_copy: Bits,
    /// A commit is in progress.
    is_committing: bool,
    requests: Vec<ActiveRequest>,
    next_id: u64,
    reads: usize,
    /// Member that reads avoid while the other one has the data.
    avoided: Option<usize>,
    pub progress: Progress,
    /// First error that no member can compensate. All later changes and flushes fail.
    pub error: Option<VolumeError>,
    /// The volume is closed: maintenance ends.
    pub is_closing: bool,
}

#[derive(Debug)]
struct ActiveRequest {
    id: u64,
    span: BlockRange,
    is_change: bool,
    /// Number of earlier requests that exclude this one.
    blockers: Arc<AtomicUsize>,
}

/// Changes to make durable: first the bits of the sectors, then the record.
#[derive(Debug)]
pub(super) struct Commit {
    pub sectors: Vec<u64>,
    pub bits: Bits,
    pub record: Option<Record>,
}

/// Results of a request at the members; `None` if a member did not get it.
pub(super) type MemberResults = [Option<Result<(), VolumeError>>; 2];

impl State {
    /// Creates the state. `saved` are the bits in the bitmap file; all regions can differ without them.
    pub fn new(mut record: Record, saved: Option<Bits>) -> State {
        let clear = Bits::new(record.regions());
        let mut dirty = saved.clone().unwrap_or_else(|| clear.clone());
        if saved.is_none() {
            dirty.set(0..record.regions());
        }
        if record.states == [MemberState::Complete; 2] && dirty != clear {
            record.states[1] = MemberState::Incomplete;
        }
        let has_incomplete = record.states.contains(&MemberState::Incomplete);
        let to_copy = if has_incomplete { dirty.clone() } else { clear.clone() };
        let committed = record.sequence;
        record.sequence += 1;
        State {
            record,
            committed,
            dirty,
            durable: saved.unwrap_or(clear.clone()),
            touched: clear,
            to_copy,
            is_committing: false,
            requests: Vec::new(),
            next_id: 0,
            reads: 0,
            avoided: None,
            progress: Progress::new(),
            error: None,
            is_closing: false,
        }
    }

    /// Returns the regions of blocks.
    pub fn regions_of(&self, span: BlockRange) -> Range<u64> {
        let region_blocks = self.record.region_blocks;
        span.lba / region_blocks..(span.lba + span.blocks).div_ceil(region_blocks)
    }

    /// Returns the blocks of a region.
    pub fn blocks_of(&self, region: u64) -> BlockRange {
        let lba = region * self.record.region_blocks;
        BlockRange { lba, blocks: self.record.region_blocks.min(self.record.blocks - lba) }
    }

    /// Whether a member gets writes.
    pub fn is_live(&self, member: usize) -> bool {
        self.record.states[member] != MemberState::Out
    }

    /// Whether a member has all data.
    pub fn can_continue_with(&self, member: usize) -> bool {
        self.record.states[member] == MemberState::Complete
    }

    /// Returns the complete member with the lowest number.
    pub fn source(&self) -> usize {
        usize::from(self.record.states[0] != MemberState::Complete)
    }

    /// Returns the incomplete member.
    pub fn incomplete(&self) -> Option<usize> {
        self.record.states.iter().position(|state| *state == MemberState::Incomplete)
    }

    /// Returns the member to read, and the one to read if that fails.
    pub fn readers(&mut self, span: BlockRange) -> (usize, Option<usize>) {
        let source = self.source();
        let must_copy = || self.regions_of(span).any(|region| self.to_copy.get(region));
        if self.error.is_some() || !self.is_live(1 - source) || must_copy() {
            return (source, None);
        }
        self.reads = self.reads.wrapping_add(1);
        let first = self.avoided.map_or(self.reads % 2, |avoided| 1 - avoided);
        (first, Some(1 - first))
    }

    /// Lets reads avoid a member, or ends that. The first of two that are avoided stays the only one.
    pub fn avoid(&mut self, member: usize, is_avoided: bool) {
        if is_avoided {
            self.avoided = self.avoided.or(Some(member));
        } else {
            self.avoided = self.avoided.filter(|avoided| *avoided != member);
        }
    }

    /// Returns the error of an earlier request that makes all changes fail.
    pub fn check(&self) -> Result<(), VolumeError> {
        self.error.clone().map_or(Ok(()), Err)
    }

    /// Marks the regions of blocks dirty before a change.
    pub fn mark_dirty(&mut self, span: BlockRange) {
        self.touched.set(self.regions_of(span));
        self.dirty.set(self.regions_of(span));
    }

    /// Whether the bits of blocks are durable.
    pub fn are_durable(&self, span: BlockRange) -> bool {
        self.regions_of(span).all(|region| self.durable.get(region))
    }

    /// Whether the record and all bits are durable, also the cleared ones.
    pub fn is_saved(&self) -> bool {
        self.is_record_durable() && self.dirty == self.durable
    }

    /// Whether the record is durable.
    pub fn is_record_durable(&self) -> bool {
        self.committed >= self.record.sequence
    }

    /// Decides the outcome of a change of `span`, or of a flush. If the record changes, the caller makes it durable
    /// before the request completes.
    pub fn settle(&mut self, name: &str, results: &MemberResults, span: Option<BlockRange>) -> Outcome {
        let error = |member: usize| results[member].as_ref().and_then(|result| result.as_ref().err());
        let source = self.source();
        let Some(error) = error(source).or(error(1 - source)) else {
            return Ok(Payload::default());
        };
        let has_succeeded = |at: &usize| self.can_continue_with(*at) && results[*at] == Some(Ok(()));
        if let Some(member) = (0..2).find(has_succeeded) {
            let failed = 1 - member;
            if self.is_live(failed) {
                let reason = if *error == NO_ANSWER { &"no answer in time" as &dyn Display } else { error };
                log::error!("{name}: member {} failed: {reason}; restart to repair", failed + 1);
                self.record.remove(failed);
                self.progress.on_removed();
            }
            return Ok(Payload::default());
        }
        match span {
            // Another core has continued without the member that succeeded. The late one can answer later requests.
            None if *error == NO_ANSWER
                && results[1 - source] == Some(Ok(()))
                && !self.is_live(1 - source) => {}
            // Members can differ in regions in which a write has failed.
            Some(span) if !matches!(error, VolumeError::SyncFailed { .. }) => {
                if self.record.states == [MemberState::Complete; 2] {
                    log::error!("{name}: both members failed a write: {error}");
                    self.record.set_state(1, MemberState::Incomplete);
                }
                if self.incomplete().is_some() {
                    self.to_copy.set(self.regions_of(span));
                }
            }
            _ => drop(self.error.get_or_insert(error.clone())),
        }
        Err(error.clone())
    }

    /// Declares the incomplete member complete if nothing is left to copy.
    pub fn complete(&mut self, name: &str) {
        let has_copies = self.to_copy.iter().next().is_some();
        if let (Some(member), false, None) = (self.incomplete(), has_copies, &self.error) {
            self.record.set_state(member, MemberState::Complete);
            self.progress.on_complete(name);
        }
    }

    /// Returns the next region to copy, and the member to copy it to.
    pub fn next_copy(&mut self, name: &str) -> Option<(u64, usize)> {
        let target = self.incomplete().filter(|_| !self.is_closing && self.error.is_none())?;
        let region = self.to_copy.iter().next()?;
        self.progress.on_region(name, target, || self.to_copy.iter().count() as u64);
        Some((region, target))
    }

    /// Records that a region is the same on both members.
    pub fn on_copied(&mut self, name: &str, region: u64) {
        self.to_copy.clear(region);
        self.progress.on_copied(name);
    }

    /// Returns the dirty regions without a write since the last call. A flush of both members covers them.
    pub fn take_idle(&mut self) -> Vec<u64> {
        let idle = self.dirty.iter().filter(|region| self.is_idle(*region)).collect();
        self.touched = Bits::new(self.record.regions());
        idle
    }

    /// Clears the bits of idle regions after a flush of both members.
    pub fn clear_idle(&mut self, idle: Vec<u64>) {
        for region in idle {
            if self.is_idle(region) {
                self.dirty.clear(region);
            }
        }
    }

    /// Whether the members are the same in a region after a flush of both.
    fn is_idle(&self, region: u64) -> bool {
        let span = self.blocks_of(region);
        let is_written = |request: &ActiveRequest| request.is_change && request.span.overlaps(span);
        let has_both = self.error.is_none() && !self.record.states.contains(&MemberState::Out);
        let is_marked = self.touched.get(region) || self.to_copy.get(region);
        has_both && !is_marked && !self.requests.iter().any(is_written)
    }

    /// Starts a commit unless one is in progress.
    pub fn begin_commit(&mut self) -> Option<Commit> {
        if std::mem::replace(&mut self.is_committing, true) {
            return None;
        }
        let sectors = self.dirty.differences(&self.durable);
        self.durable.intersect(&self.dirty);
        let record = (!self.is_record_durable()).then(|| self.record.clone());
        Some(Commit { sectors, bits: self.dirty.clone(), record })
    }

    /// Ends a commit with the results of writing the labels.
    pub fn end_commit(&mut self, name: &str, commit: Commit, outcome: Result<MemberResults, VolumeError>) {
        self.is_committing = false;
        match outcome {
            Ok(labels) => {
                self.durable = commit.bits;
                self.committed = commit.record.map_or(self.committed, |record| record.sequence);
                // It records an error that no member can compensate.
                drop(self.settle(name, &labels, None));
            }
            Err(error) => drop(self.error.get_or_insert(error)),
        }
    }

    /// Registers a request. Returns its ID, and the number of earlier requests that exclude it.
    pub fn begin_request(&mut self, span: BlockRange, is_change: bool) -> (u64, Arc<AtomicUsize>) {
        self.next_id += 1;
        let blockers = Arc::new(AtomicUsize::new(0));
        let request = ActiveRequest { id: self.next_id, span, is_change, blockers: Arc::clone(&blockers) };
        let count = self.requests.iter().filter(|earlier| exclude(earlier, &request)).count();
        blockers.store(count, Ordering::Release);
        self.requests.push(request);
        (self.next_id, blockers)
    }

    /// Removes a request, which no longer blocks later ones.
    pub fn end_request(&mut self, id: u64) {
        // Requests are in the order of their IDs.
        let Ok(at) = self.requests.binary_search_by_key(&id, |request| request.id) else { return };
        let ended = self.requests.remove(at);
        for later in self.requests[at..].iter().filter(|later| exclude(&ended, later)) {
            later.blockers.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Error of a member that does not answer in time: ETIME, because a member can fail with ETIMEDOUT.
pub(super) const NO_ANSWER: VolumeError = VolumeError::WriteFailed { raw_os_error: 62 };

fn exclude(one: &ActiveRequest, other: &ActiveRequest) -> bool {
    (one.is_change || other.is_change) && one.span.overlaps(other.span)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_sync() -> State {
        let member = crate::open(&crate::parse("mem:1M").unwrap()).unwrap();
        let mut record = Record::new(member.info(), 4 << 20);
        record.states = [MemberState::Complete; 2];
        let saved = Bits::new(record.regions());
        State::new(record, Some(saved))
    }

    #[test]
    fn reads_avoid_one_member_at_most() {
        let mut state = in_sync();
        let span = BlockRange { lba: 0, blocks: 1 };
        let mut first = |avoid: &[(usize, bool)]| {
            avoid.iter().for_each(|(member, is_avoided)| state.avoid(*member, *is_avoided));
            let readers = [(); 4].map(|()| state.readers(span));
            assert!(readers.iter().all(|(first, second)| *second == Some(1 - first)), "{readers:?}");
            readers.map(|(first, _)| first)
        };
        assert_eq!(first(&[(0, true), (1, true)]), [1; 4]);
        assert_eq!(first(&[(1, false)]), [1; 4]);
        assert_eq!(first(&[(0, false)]).iter().sum::<usize>(), 2);
        assert_eq!(first(&[(1, true)]), [0; 4]);
    }

    #[test]
    fn keeps_changes_possible_after_opposite_removals() {
        for first in 0..2 {
            let mut state = in_sync();
            let only = |member: usize| {
                let mut results = [Some(Ok(())), Some(Ok(()))];
                results[1 - member] = Some(Err(NO_ANSWER));
                results
            };
            assert!(state.settle("mirror", &only(first), None).is_ok());
            assert_eq!(state.settle("mirror", &only(1 - first), None).unwrap_err(), NO_ANSWER);
            assert_eq!(state.check(), Ok(()));
            let commit = state.begin_commit().unwrap();
            state.end_commit("mirror", commit, Ok(only(1 - first)));
            assert_eq!(state.check(), Ok(()));
            let mut failed = only(1 - first);
            failed[first] = Some(Err(VolumeError::SyncFailed { raw_os_error: 5 }));
            assert!(state.settle("mirror", &failed, None).is_err());
            assert!(state.check().is_err(), "a failed sync of the last member is lost");
        }
    }
}

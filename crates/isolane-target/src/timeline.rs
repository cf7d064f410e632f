//! Stages of the commands of one lane, from the receive until the kernel has accepted the last byte.
//!
//! A command that waits or is at a volume has a [`Timeline`]. Commands that complete in the receive that delivered
//! them share one [`Mark`], as long as they are alike. When the socket has accepted the bytes up to the end of
//! a mark, its commands are recorded.
//!
//! Invariant: a timeline is in one stage at a time, so the stages add up to the total.

use std::collections::VecDeque;

use isolane_observe::cells::StageTimes;
use isolane_observe::stage::{MAX_STAGES, Operation, SizeClass, Stage};

/// Time of one command so far, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeline {
    /// Time of the receive.
    received: u64,
    stage: Stage,
    /// Start of this stage.
    since: u64,
    /// Durations of the stages before.
    times: StageTimes,
}

impl Timeline {
    /// Returns the timeline of a command that a receive delivered.
    pub(crate) fn new(received: u64) -> Timeline {
        Timeline { received, stage: Stage::Batch, since: received, times: [0; MAX_STAGES] }
    }

    /// Ends the current stage and starts `stage`.
    pub(crate) fn enter(&mut self, stage: Stage, now: u64) {
        // The stages of a target come first in their type, in the order of their positions.
        self.times[self.stage as usize] += now.saturating_sub(self.since);
        (self.stage, self.since) = (stage, self.since.max(now));
    }

    /// Changes the current stage, from its start.
    pub(crate) fn relabel(&mut self, stage: Stage) {
        self.stage = stage;
    }

    /// A file thread began at `at` the work that is in stage `device`. That can be before the end of the turn that
    /// handed it over, or long after it.
    pub(crate) fn begin_at_thread(&mut self, at: u64) {
        let queue = &mut self.times[Stage::Queue as usize];
        let early = self.since.saturating_sub(at).min(*queue);
        *queue -= early;
        self.since -= early;
        self.relabel(Stage::Queue);
        self.enter(Stage::Device, at);
    }

    pub(crate) fn is_in(&self, stage: Stage) -> bool {
        self.stage == stage
    }

    /// The volume has completed the request.
    pub(crate) fn finish(&mut self, now: u64) {
        if self.stage == Stage::Queue {
            self.relabel(Stage::Device);
        }
        self.enter(Stage::Answer, now);
    }

    /// Ends the last stage.
    fn end(mut self, now: u64) -> StageTimes {
        self.enter(Stage::Socket, now);
        self.times
    }

    pub(crate) fn received(&self) -> u64 {
        self.received
    }
}

/// Number of the volume, operation, and length of a command, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind(u64);

impl Kind {
    #[inline]
    pub(crate) fn new(volume: u32, operation: Operation, len: usize) -> Kind {
        Kind((((volume as usize) << OPERATION_BITS | operation as usize) as u64) << 32 | len as u64)
    }

    #[inline]
    pub(crate) fn volume(self) -> usize {
        (self.0 >> (32 + OPERATION_BITS)) as usize
    }

    #[inline]
    pub(crate) fn operation(self) -> Operation {
        let operation = (self.0 >> 32) as usize % (1 << OPERATION_BITS);
        Operation::ALL[operation.min(Operation::ALL.len() - 1)]
    }

    #[inline]
    pub(crate) fn len(self) -> u64 {
        self.0 & u64::from(u32::MAX)
    }

    #[inline]
    pub(crate) fn size(self) -> SizeClass {
        SizeClass::from_len(self.len())
    }

    /// Returns the [`series_index`].
    #[inline]
    pub(crate) fn series_index(self) -> usize {
        ((self.0 >> 32) as usize) << SIZE_BITS | self.size() as usize
    }
}

const OPERATION_BITS: u32 = usize::BITS - (Operation::ALL.len() - 1).leading_zeros();
const SIZE_BITS: u32 = usize::BITS - (SizeClass::ALL.len() - 1).leading_zeros();
/// Number of indexes for each volume.
pub(crate) const SERIES_OF_VOLUME: usize = 1 << (OPERATION_BITS + SIZE_BITS);

/// Returns the index of commands of one kind in a list of all kinds of all volumes. Some indexes stand for none.
pub(crate) fn series_index(volume: usize, operation: Operation, size: SizeClass) -> usize {
    (volume << OPERATION_BITS | operation as usize) << SIZE_BITS | size as usize
}

/// A command, for the list of slow operations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommandId {
    pub lba: u64,
    pub cid: u16,
    /// Commands of the connection in flight when it arrived.
    pub depth: u16,
    /// Upper bound of its time in the socket before the receive, in nanoseconds.
    pub unseen: u64,
    /// Number of the member whose write ended last, of a volume with several.
    pub last_member: Option<u32>,
}

/// Commands of one kind that completed in the receive that delivered them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub kind: Kind,
    /// Time of the receive.
    pub received: u64,
    pub count: u32,
    pub first: CommandId,
}

/// Commands whose responses are not sent completely.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    pub kind: Kind,
    pub first: CommandId,
    /// Number of commands.
    pub count: u32,
    /// Sum of the lengths.
    pub bytes: u64,
    pub failed: bool,
    pub timeline: Timeline,
    /// Position of the last byte in the output of the connection, once it is queued.
    end: u64,
}

impl Mark {
    pub(crate) fn new(kind: Kind, first: CommandId, timeline: Timeline) -> Mark {
        Mark { kind, first, count: 1, bytes: kind.len(), failed: false, timeline, end: u64::MAX }
    }

    /// Returns the mark of commands whose send began at `start`.
    pub(crate) fn from_sent(run: Run, start: u64) -> Mark {
        let mut mark = Mark::from(run);
        mark.timeline.enter(Stage::Socket, start);
        mark
    }

    /// Returns the durations of the stages, of which the last one ends now.
    pub(crate) fn end(&self, now: u64) -> StageTimes {
        self.timeline.end(now)
    }
}

impl From<Run> for Mark {
    fn from(run: Run) -> Mark {
        let mark = Mark::new(run.kind, run.first, Timeline::new(run.received));
        Mark { count: run.count, bytes: run.kind.len() * u64::from(run.count), ..mark }
    }
}

/// The marks of a lane, and the timelines of its commands that wait for data.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    /// The newest commands that completed in their receive.
    run: Option<Run>,
    /// In the order of their ends.
    marks: VecDeque<Mark>,
    /// Number of the first marks whose send has begun.
    begun: usize,
    /// Long responses that are not queued completely.
    long: Vec<Mark>,
    /// By slot.
    transfers: Vec<(u16, usize, Timeline)>,
}

impl Marks {
    pub(crate) fn is_empty(&self) -> bool {
        self.run.is_none() && self.marks.is_empty() && self.long.is_empty()
    }

    /// Counts a command that completed in the receive that delivered it.
    #[inline]
    pub(crate) fn add_inline(&mut self, kind: Kind, received: u64, first: impl FnOnce() -> CommandId) {
        match &mut self.run {
            Some(run) if run.kind == kind && run.received == received => run.count += 1,
            run => {
                let before = run.replace(Run { kind, received, count: 1, first: first() });
                before.into_iter().for_each(|before| self.push(before.into()));
            }
        }
    }

    /// Returns the only commands whose responses are not sent, if they completed in one receive.
    #[inline]
    pub(crate) fn only_run(&self) -> Option<&Run> {
        self.run.as_ref().filter(|_| self.marks.is_empty() && self.long.is_empty())
    }

    /// Removes the newest commands that completed in their receive.
    #[inline]
    pub(crate) fn remove_run(&mut self) {
        self.run = None;
    }

    /// Adds a command whose response is queued completely.
    pub(crate) fn push(&mut self, mark: Mark) {
        if self.marks.len() < MAX_MARKS {
            return self.marks.push_back(mark);
        }
        // The host reads nothing: the newest commands share the times of the last similar one.
        let is_similar = |other: &&mut Mark| {
            (other.kind.volume(), other.kind.operation(), other.kind.size())
                == (mark.kind.volume(), mark.kind.operation(), mark.kind.size())
        };
        let similar = self.marks.iter_mut().rev().find(is_similar);
        if let Some(similar) = similar {
            similar.count += mark.count;
            similar.bytes += mark.bytes;
        }
    }

    /// Adds a command whose response is queued in chunks.
    pub(crate) fn push_long(&mut self, mark: Mark) {
        self.long.push(mark);
    }

    /// The send of all queued bytes, up to the position `queued`, began at `now`. `chunks` has the CIDs of long
    /// responses with chunks in it, and whether the last one is.
    pub(crate) fn begin_send(&mut self, now: u64, queued: u64, chunks: impl Iterator<Item = (u16, bool)>) {
        let run = self.run.take();
        run.into_iter().for_each(|run| self.push(run.into()));
        for (cid, is_last) in chunks {
            let Some(at) = self.long.iter().position(|mark| mark.first.cid == cid) else { continue };
            if self.long[at].timeline.is_in(Stage::Answer) {
                self.long[at].timeline.enter(Stage::Socket, now);
            }
            if is_last {
                let mark = self.long.swap_remove(at);
                self.marks.push_back(mark);
            }
        }
        for mark in self.marks.range_mut(self.begun..) {
            mark.end = queued;
            if !mark.timeline.is_in(Stage::Socket) {
                mark.timeline.enter(Stage::Socket, now);
            }
        }
        self.begun = self.marks.len();
    }

    /// Returns a mark whose bytes the kernel has accepted, up to the position `sent`.
    #[inline]
    pub(crate) fn poll_sent(&mut self, sent: u64) -> Option<Mark> {
        if self.marks.front()?.end > sent {
            return None;
        }
        self.begun -= 1;
        self.marks.pop_front()
    }

    /// Keeps the timeline of a command whose data has yet to arrive, and the position of its namespace.
    pub(crate) fn begin_transfer(&mut self, slot: u16, position: usize, timeline: Timeline) {
        self.transfers.push((slot, position, timeline));
    }

    /// Returns the positions of the namespaces whose data has yet to arrive.
    pub(crate) fn transfer_positions(&self) -> impl Iterator<Item = usize> {
        self.transfers.iter().map(|(_, position, _)| *position)
    }

    /// Returns both for a command whose data has arrived.
    pub(crate) fn end_transfer(&mut self, slot: u16) -> Option<(usize, Timeline)> {
        let at = self.transfers.iter().position(|(other, ..)| *other == slot)?;
        let (_, position, timeline) = self.transfers.swap_remove(at);
        Some((position, timeline))
    }
}

/// Maximum number of marks of a lane, apart from long responses.
const MAX_MARKS: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_begins_with_the_file_thread() {
        for (began, times) in [(20, [20, 40]), (150, [150, 20])] {
            let mut timeline = Timeline::new(0);
            timeline.enter(Stage::Queue, 0);
            timeline.enter(Stage::Device, 100);
            timeline.begin_at_thread(began);
            let ended = began + times[1];
            timeline.enter(Stage::Answer, ended);
            let found = timeline.end(200);
            let stages = [Stage::Queue, Stage::Device].map(|stage| found[stage as usize]);
            assert_eq!(stages, times, "began at {began}");
            assert_eq!(found.iter().sum::<u64>(), 200);
        }
    }

    #[test]
    fn kind_keeps_its_parts() {
        for volume in [0, 1, 4, 255, 1 << 20] {
            for operation in Operation::ALL {
                let kind = Kind::new(volume, operation, 128 << 10);
                let volume = volume as usize;
                let parts = (kind.volume(), kind.operation(), kind.len(), kind.size());
                assert_eq!(parts, (volume, operation, 128 << 10, SizeClass::Large));
                assert_eq!(kind.series_index(), series_index(volume, operation, SizeClass::Large));
            }
        }
    }
}

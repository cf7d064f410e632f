//! Requests on their way: one task each, split into the commands ("parts") that carry it.
//!
//! A part needs no record of its own: the mark that travels with its command names the task and the part, and
//! the part's blocks follow from its number. The buffer is split into one piece per part without a copy and
//! joined again at the end. Not a queue: who is next is the lane's business. Invariant: a task ends exactly
//! when none of its parts is in flight and none remains to be sent, and then all pieces of its buffer are
//! back.

use std::collections::BTreeMap;
use std::time::Instant;

use isolane_memory::Buffer;
use smallvec::SmallVec;

use super::pieces::Pieces;
use super::shape::Shape;
use crate::error::RequestError;
use crate::request::{BlockRange, Completion, Request};
use crate::unflushed::{Change, FlushMark};

/// What every part of a task does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Read,
    Write { fua: bool },
    Flush(FlushMark),
    WriteZeroes { fua: bool, deallocate: bool },
    Deallocate(Box<[BlockRange]>),
}

impl Operation {
    /// Whether it is to make data durable.
    pub(crate) fn is_sync(&self) -> bool {
        use Operation::{Flush, Write, WriteZeroes};
        matches!(self, Flush(_) | Write { fua: true } | WriteZeroes { fua: true, .. })
    }

    /// What a request asks for, and its buffer.
    #[inline]
    pub(crate) fn of(request: Request) -> (Operation, Option<Buffer>) {
        match request {
            Request::Read { buffer, .. } => (Operation::Read, Some(buffer)),
            Request::Write { buffer, fua, .. } => (Operation::Write { fua }, Some(buffer)),
            Request::Flush => (Operation::Flush(FlushMark::default()), None),
            Request::WriteZeroes { fua, deallocate, .. } => {
                (Operation::WriteZeroes { fua, deallocate }, None)
            }
            Request::Deallocate { ranges } => (Operation::Deallocate(ranges.into_boxed_slice()), None),
        }
    }

    /// Whether repeating it late could undo a later write.
    pub(crate) fn changes_blocks(&self) -> bool {
        self.change() != Change::Nothing
    }

    /// What a success changes.
    #[inline(always)]
    pub(crate) fn change(&self) -> Change {
        match self {
            Operation::Read | Operation::Flush(_) => Change::Nothing,
            Operation::Write { fua: true } | Operation::WriteZeroes { fua: true, .. } => Change::Durable,
            Operation::Write { .. } | Operation::WriteZeroes { .. } | Operation::Deallocate(_) => {
                Change::Volatile
            }
        }
    }
}

/// One part of one task; its number in a command's mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub task: u32,
    pub part: u32,
}

impl Part {
    pub(crate) fn mark(self) -> u64 {
        u64::from(self.task) << 32 | u64::from(self.part)
    }

    pub(crate) fn of_mark(mark: u64) -> Part {
        Part { task: (mark >> 32) as u32, part: mark as u32 }
    }
}

/// What went wrong with a task so far.
#[derive(Debug, Default)]
struct Trouble {
    /// The first failure.
    failure: Option<RequestError>,
    /// How often parts were sent again because the target refused them for now.
    retries: BTreeMap<u32, u8>,
}

/// One request on its way.
#[derive(Debug)]
pub(crate) struct Task {
    pub tag: u64,
    pub lane: usize,
    pub operation: Operation,
    pub range: BlockRange,
    pub parts: u32,
    /// Parts that are neither complete nor given up.
    pub left: u32,
    /// Parts whose command is at the target.
    pub in_flight: u32,
    /// Times that a part was repeated because its data was damaged.
    pub repeats: u8,
    /// When the client first saw it in flight since a part was last sent; none: not seen yet.
    pub seen_in_flight: Option<Instant>,
    /// What went wrong so far; in a box, because it is rare and large.
    trouble: Option<Box<Trouble>>,
    part_blocks: u32,
    pieces: Pieces,
}

impl Task {
    /// Splits a request, which the shape has passed as one about `range`.
    pub(crate) fn new(tag: u64, lane: usize, request: Request, range: BlockRange, shape: &Shape) -> Task {
        let (operation, buffer) = Operation::of(request);
        let parts = shape.parts(&range);
        let pieces = match parts {
            1 => Pieces::One(buffer),
            _ => Pieces::split(buffer, parts, shape.block_bytes as usize * shape.part_blocks as usize),
        };
        let part_blocks = shape.part_blocks;
        Task {
            parts,
            left: parts,
            in_flight: 0,
            part_blocks,
            pieces,
            ..Task::sent(tag, lane, operation, range)
        }
    }

    /// One whose only part is on its way already, with the buffer.
    #[inline(always)]
    pub(crate) fn sent(tag: u64, lane: usize, operation: Operation, range: BlockRange) -> Task {
        Task {
            tag,
            lane,
            operation,
            range,
            parts: 1,
            left: 1,
            in_flight: 1,
            repeats: 0,
            seen_in_flight: None,
            trouble: None,
            part_blocks: u32::MAX,
            pieces: Pieces::One(None),
        }
    }

    /// Whether its one command is all that there is to it, and nothing has gone wrong. Then it owns no
    /// memory: the command has the buffer. A flush may fail although its command did not.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        let is_out = matches!(self.pieces, Pieces::One(None));
        let is_bare = !matches!(self.operation, Operation::Deallocate(_) | Operation::Flush(_));
        self.parts == 1 && self.trouble.is_none() && is_out && is_bare
    }

    /// The blocks of one part.
    #[inline]
    pub(crate) fn part_range(&self, part: u32) -> BlockRange {
        let offset = u64::from(part) * u64::from(self.part_blocks);
        let blocks = (self.range.blocks - offset).min(u64::from(self.part_blocks));
        BlockRange { lba: self.range.lba + offset, blocks }
    }

    /// The blocks that a part may change.
    pub(crate) fn part_changes(&self, part: u32) -> SmallVec<[BlockRange; 1]> {
        match &self.operation {
            Operation::Read | Operation::Flush(_) => SmallVec::new(),
            Operation::Deallocate(ranges) => SmallVec::from_slice(ranges),
            Operation::Write { .. } | Operation::WriteZeroes { .. } => {
                SmallVec::from_buf([self.part_range(part)])
            }
        }
    }

    /// Whether it may change a block of `range`.
    pub(crate) fn touches(&self, range: &BlockRange) -> bool {
        match &self.operation {
            Operation::Read | Operation::Flush(_) => false,
            Operation::Deallocate(ranges) => ranges.iter().any(|own| overlaps(own, range)),
            Operation::Write { .. } | Operation::WriteZeroes { .. } => overlaps(&self.range, range),
        }
    }

    /// Hands out the piece of the buffer that a part moves.
    #[inline]
    pub(crate) fn take_piece(&mut self, part: u32) -> Option<Buffer> {
        self.pieces.place(part)?.take()
    }

    /// Takes a piece back.
    pub(crate) fn return_piece(&mut self, part: u32, piece: Option<Buffer>) {
        if let Some(place) = self.pieces.place(part) {
            debug_assert!(place.is_none(), "a piece came back twice");
            *place = piece;
        }
    }

    /// Notes the first failure.
    pub(crate) fn fail(&mut self, error: RequestError) {
        self.trouble.get_or_insert_default().failure.get_or_insert(error);
    }

    /// Whether it is going to fail.
    pub(crate) fn has_failed(&self) -> bool {
        self.trouble.as_ref().is_some_and(|trouble| trouble.failure.is_some())
    }

    /// How often a part was sent again because the target refused it for now.
    pub(crate) fn retries(&self, part: u32) -> u8 {
        let retries = self.trouble.as_ref().and_then(|trouble| trouble.retries.get(&part));
        retries.copied().unwrap_or_default()
    }

    /// A part is sent again because the target refused it for now.
    pub(crate) fn note_retry(&mut self, part: u32) {
        *self.trouble.get_or_insert_default().retries.entry(part).or_default() += 1;
    }

    /// Ends the task.
    pub(crate) fn finish(self) -> Completion {
        debug_assert_eq!((self.left, self.in_flight), (0, 0));
        let result = self.trouble.and_then(|trouble| trouble.failure).map_or(Ok(()), Err);
        Completion { tag: self.tag, result, buffer: self.pieces.join() }
    }
}

/// Whether two ranges have a block in common.
pub(crate) fn overlaps(one: &BlockRange, other: &BlockRange) -> bool {
    one.lba < other.lba + other.blocks && other.lba < one.lba + one.blocks
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) const SHAPE: Shape = Shape { block_bytes: 512, capacity_blocks: 1000, part_blocks: 8 };

    fn task(request: Request) -> Task {
        let range = SHAPE.check(&request).unwrap();
        Task::new(7, 0, request, range, &SHAPE)
    }

    pub(crate) fn read(lba: u64, blocks: usize) -> Task {
        task(Request::Read { lba, buffer: Buffer::contiguous(blocks * 512) })
    }

    #[test]
    fn a_small_request_is_one_part_with_the_whole_buffer() {
        let mut task = read(3, 8);
        assert_eq!((task.parts, task.part_range(0)), (1, BlockRange { lba: 3, blocks: 8 }));
        assert_eq!(task.take_piece(0).unwrap().len(), 4096);
        assert!(task.take_piece(0).is_none());
    }

    #[test]
    fn a_large_request_is_split_without_a_gap_and_joined_without_a_copy() {
        let buffer = Buffer::contiguous(20 * 512);
        let start = buffer.as_slice().unwrap().as_ptr();
        let mut task = task(Request::Read { lba: 100, buffer });
        let ranges: Vec<_> = (0..task.parts).map(|part| task.part_range(part)).collect();
        let expected = [(100, 8), (108, 8), (116, 4)].map(|(lba, blocks)| BlockRange { lba, blocks });
        assert_eq!(ranges, expected);
        for part in [2, 0, 1] {
            let mut piece = task.take_piece(part).unwrap();
            piece.as_mut_slice().unwrap().fill(part as u8 + 1);
            task.return_piece(part, Some(piece));
        }
        task.left = 0;
        let completion = task.finish();
        let buffer = completion.buffer.unwrap();
        assert_eq!(buffer.as_slice().unwrap().as_ptr(), start);
        let bytes = buffer.to_vec();
        assert_eq!((bytes[0], bytes[4096], bytes[8192], bytes.len()), (1, 2, 3, 20 * 512));
    }

    #[test]
    fn a_write_touches_exactly_its_blocks() {
        let task = task(Request::Write { lba: 10, buffer: Buffer::contiguous(5 * 512), fua: false });
        let touched = |lba, blocks| task.touches(&BlockRange { lba, blocks });
        assert!(touched(14, 1) && touched(0, 11) && touched(0, 100));
        assert!(!touched(15, 1) && !touched(0, 10));
        assert!(!read(10, 5).touches(&BlockRange { lba: 10, blocks: 5 }));
    }

    #[test]
    fn marks_name_task_and_part() {
        let part = Part { task: 0xdead_beef, part: 0x1234_5678 };
        assert_eq!(Part::of_mark(part.mark()), part);
    }
}

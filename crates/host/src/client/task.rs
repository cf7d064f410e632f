//! Requests on their way: one task each, split into the commands ("parts") that carry it.
//!
//! A part needs no record of its own: the mark that travels with its command names the task and the part, and the part's
//! blocks follow from its number. The buffer is split into one piece per part without a copy and joined again at the end.
//! Not a queue: who is next is the lane's business. Invariant: a task ends exactly when none of its parts is in flight and
//! none remains to be sent, and then all pieces of its buffer are back.

use std::time::Instant;

use isolane_memory::Buffer;
use smallvec::SmallVec;

use crate::error::RequestError;
use crate::request::{BlockRange, Completion, Request};

/// What every part of a task does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Read,
    Write { fua: bool },
    Flush,
    WriteZeroes { fua: bool, deallocate: bool },
    Deallocate(Box<[BlockRange]>),
}

impl Operation {
    /// Whether repeating it late could undo a later write.
    pub(crate) fn changes_blocks(&self) -> bool {
        !matches!(self, Operation::Read | Operation::Flush)
    }
}

/// The shape of the volume that requests are checked against and split by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// A power of two.
    pub block_bytes: u32,
    pub capacity_blocks: u64,
    /// The most blocks of one command.
    pub part_blocks: u32,
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
    /// The first failure; in a box, because it is rare and large.
    pub failure: Option<Box<RequestError>>,
    part_blocks: u32,
    pieces: Pieces,
}

/// The buffer, as far as no command has it.
#[derive(Debug)]
enum Pieces {
    /// That of the only part.
    One(Option<Buffer>),
    /// One for each part.
    Many(Vec<Option<Buffer>>),
}

impl Task {
    /// Checks and splits a request. On error the request's buffer comes back with it.
    #[inline(always)]
    pub(crate) fn new(tag: u64, lane: usize, request: Request, shape: &Shape) -> Result<Task, Completion> {
        let range = match check(&request, shape) {
            Ok(range) => range,
            Err(error) => return Err(Completion { tag, result: Err(error), buffer: request.into_buffer() }),
        };
        let parts = parts_of(&range, shape);
        let (operation, buffer) = match request {
            Request::Read { buffer, .. } => (Operation::Read, Some(buffer)),
            Request::Write { buffer, fua, .. } => (Operation::Write { fua }, Some(buffer)),
            Request::Flush => (Operation::Flush, None),
            Request::WriteZeroes { fua, deallocate, .. } => {
                (Operation::WriteZeroes { fua, deallocate }, None)
            }
            Request::Deallocate { ranges } => (Operation::Deallocate(ranges.into_boxed_slice()), None),
        };
        let pieces = match parts {
            1 => Pieces::One(buffer),
            _ => Pieces::split(buffer, parts, shape.block_bytes as usize * shape.part_blocks as usize),
        };
        Ok(Task {
            tag,
            lane,
            operation,
            range,
            parts,
            left: parts,
            in_flight: 0,
            repeats: 0,
            seen_in_flight: None,
            failure: None,
            part_blocks: shape.part_blocks,
            pieces,
        })
    }

    /// Whether its one command is all that there is to it, and nothing has gone wrong.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.parts == 1 && self.failure.is_none()
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
            Operation::Read | Operation::Flush => SmallVec::new(),
            Operation::Deallocate(ranges) => SmallVec::from_slice(ranges),
            Operation::Write { .. } | Operation::WriteZeroes { .. } => {
                SmallVec::from_buf([self.part_range(part)])
            }
        }
    }

    /// Whether it may change a block of `range`.
    pub(crate) fn touches(&self, range: &BlockRange) -> bool {
        match &self.operation {
            Operation::Read | Operation::Flush => false,
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
        self.failure.get_or_insert_with(|| Box::new(error));
    }

    /// Ends the task.
    pub(crate) fn finish(self) -> Completion {
        debug_assert_eq!((self.left, self.in_flight), (0, 0));
        let result = self.failure.map_or(Ok(()), |error| Err(*error));
        Completion { tag: self.tag, result, buffer: self.pieces.join() }
    }
}

impl Pieces {
    fn split(buffer: Option<Buffer>, parts: u32, part_bytes: usize) -> Pieces {
        let Some(mut buffer) = buffer else { return Pieces::One(None) };
        let mut pieces = Vec::with_capacity(parts as usize);
        for _ in 1..parts {
            let rest = buffer.split_off(part_bytes);
            pieces.push(Some(std::mem::replace(&mut buffer, rest)));
        }
        pieces.push(Some(buffer));
        Pieces::Many(pieces)
    }

    #[inline]
    fn place(&mut self, part: u32) -> Option<&mut Option<Buffer>> {
        match self {
            Pieces::One(piece) => (part == 0).then_some(piece),
            Pieces::Many(pieces) => pieces.get_mut(part as usize),
        }
    }

    fn join(self) -> Option<Buffer> {
        let mut pieces = match self {
            Pieces::One(piece) => return piece,
            Pieces::Many(pieces) => pieces.into_iter().flatten(),
        };
        let mut whole = pieces.next()?;
        for piece in pieces {
            if whole.join(piece).is_err() {
                debug_assert!(false, "pieces of one buffer always fit");
            }
        }
        Some(whole)
    }
}

/// Whether two ranges have a block in common.
pub(crate) fn overlaps(one: &BlockRange, other: &BlockRange) -> bool {
    one.lba < other.lba + other.blocks && other.lba < one.lba + one.blocks
}

fn parts_of(range: &BlockRange, shape: &Shape) -> u32 {
    match range.blocks <= u64::from(shape.part_blocks) {
        true => 1,
        false => u32::try_from(range.blocks.div_ceil(u64::from(shape.part_blocks))).unwrap_or(u32::MAX),
    }
}

/// Checks a request, and says which blocks it is about; nothing for one about no range, or about several.
#[inline]
fn check(request: &Request, shape: &Shape) -> Result<BlockRange, RequestError> {
    let range = match request {
        Request::Read { lba, buffer } | Request::Write { lba, buffer, .. } => {
            BlockRange { lba: *lba, blocks: blocks_of(buffer, shape)? }
        }
        Request::WriteZeroes { range, .. } => *range,
        Request::Deallocate { ranges } => {
            check_ranges(ranges, shape)?;
            return Ok(BlockRange { lba: 0, blocks: 0 });
        }
        Request::Flush => return Ok(BlockRange { lba: 0, blocks: 0 }),
    };
    check_range(&range, shape).map(|()| range)
}

/// The blocks that a buffer holds.
#[inline]
fn blocks_of(buffer: &Buffer, shape: &Shape) -> Result<u64, RequestError> {
    let bytes = buffer.len() as u64;
    if bytes == 0 {
        return Err(RequestError::Buffer("the buffer is empty: give it the length of what is to be moved"));
    }
    if !buffer.is_exclusive() {
        return Err(RequestError::Buffer("the buffer is shared: drop what was shared from it first"));
    }
    // A power of two (see `shape_of`): no division.
    let blocks = bytes >> shape.block_bytes.trailing_zeros();
    match blocks << shape.block_bytes.trailing_zeros() == bytes {
        true => Ok(blocks),
        false => Err(RequestError::Unaligned { bytes, block_bytes: shape.block_bytes }),
    }
}

#[inline]
fn check_range(range: &BlockRange, shape: &Shape) -> Result<(), RequestError> {
    let capacity = shape.capacity_blocks;
    match range.lba.checked_add(range.blocks) {
        Some(end) if end <= capacity && range.blocks > 0 => Ok(()),
        _ => Err(RequestError::OutOfRange { lba: range.lba, blocks: range.blocks, capacity }),
    }
}

/// Dataset Management takes up to 256 ranges of 32-bit length.
fn check_ranges(ranges: &[BlockRange], shape: &Shape) -> Result<(), RequestError> {
    let is_fit = |range: &BlockRange| range.blocks <= u64::from(u32::MAX);
    if ranges.is_empty() || ranges.len() > 256 || !ranges.iter().all(is_fit) {
        return Err(RequestError::Ranges);
    }
    ranges.iter().try_for_each(|range| check_range(range, shape))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { block_bytes: 512, capacity_blocks: 1000, part_blocks: 8 };

    fn read(lba: u64, blocks: usize) -> Result<Task, Completion> {
        Task::new(7, 0, Request::Read { lba, buffer: Buffer::contiguous(blocks * 512) }, &SHAPE)
    }

    #[test]
    fn a_small_request_is_one_part_with_the_whole_buffer() {
        let mut task = read(3, 8).unwrap();
        assert_eq!((task.parts, task.part_range(0)), (1, BlockRange { lba: 3, blocks: 8 }));
        assert_eq!(task.take_piece(0).unwrap().len(), 4096);
        assert!(task.take_piece(0).is_none());
    }

    #[test]
    fn a_large_request_is_split_without_a_gap_and_joined_without_a_copy() {
        let buffer = Buffer::contiguous(20 * 512);
        let start = buffer.as_slice().unwrap().as_ptr();
        let mut task = Task::new(7, 0, Request::Read { lba: 100, buffer }, &SHAPE).unwrap();
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
    fn what_does_not_fit_the_volume_is_refused_and_the_buffer_comes_back() {
        let error = |result: Result<Task, Completion>| {
            let completion = result.unwrap_err();
            assert!(completion.buffer.is_some());
            completion.result.unwrap_err()
        };
        assert!(matches!(error(read(999, 2)), RequestError::OutOfRange { .. }));
        assert!(matches!(error(read(u64::MAX, 1)), RequestError::OutOfRange { .. }));
        assert!(matches!(error(read(0, 0)), RequestError::Buffer(_)));
        let odd = Request::Read { lba: 0, buffer: Buffer::contiguous(100) };
        assert!(matches!(error(Task::new(0, 0, odd, &SHAPE)), RequestError::Unaligned { .. }));
        let shared = Buffer::contiguous(512);
        let _other = shared.share(0, 512);
        let request = Request::Write { lba: 0, buffer: shared, fua: false };
        assert!(matches!(error(Task::new(0, 0, request, &SHAPE)), RequestError::Buffer(_)));
    }

    #[test]
    fn deallocation_is_bounded_like_its_command() {
        let task = |ranges| Task::new(0, 0, Request::Deallocate { ranges }, &SHAPE);
        let range = BlockRange { lba: 1, blocks: 2 };
        assert_eq!(task(vec![range; 256]).unwrap().parts, 1);
        assert!(task(vec![range; 257]).is_err());
        assert!(task(vec![]).is_err());
        assert!(task(vec![BlockRange { lba: 999, blocks: 2 }]).is_err());
    }

    #[test]
    fn a_write_touches_exactly_its_blocks() {
        let request = Request::Write { lba: 10, buffer: Buffer::contiguous(5 * 512), fua: false };
        let task = Task::new(0, 0, request, &SHAPE).unwrap();
        let touched = |lba, blocks| task.touches(&BlockRange { lba, blocks });
        assert!(touched(14, 1) && touched(0, 11) && touched(0, 100));
        assert!(!touched(15, 1) && !touched(0, 10));
        assert!(!read(10, 5).unwrap().touches(&BlockRange { lba: 10, blocks: 5 }));
    }

    #[test]
    fn marks_name_task_and_part() {
        let part = Part { task: 0xdead_beef, part: 0x1234_5678 };
        assert_eq!(Part::of_mark(part.mark()), part);
    }
}

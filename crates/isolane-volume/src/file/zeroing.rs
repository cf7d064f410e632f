//! Progress of a zeroing or deallocating request.
//!
//! The file system punches or zeroes ranges in units of 4 KiB; unaligned edges are written. Steps
//! are bounded, so that other requests can run in between.

use isolane_reactor::file::FileOpKind;
use smallvec::SmallVec;

use super::features::Features;
use crate::BlockRange;

/// A zeroing or deallocating request in progress; all numbers in bytes.
#[derive(Debug)]
pub(crate) struct Zeroing {
    pub(crate) purpose: Purpose,
    pub(crate) durable: bool,
    block_size: u64,
    /// Remaining ranges, the next one last.
    remaining: SmallVec<[Extent; 1]>,
}

#[derive(Clone, Copy, Debug)]
struct Extent {
    offset: u64,
    len: u64,
}

/// Requested effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Read as zeroes; the space may be freed.
    ZeroAndFree,
    /// Read as zeroes; the space stays allocated.
    Zero,
    /// Free the space; read as zeroes if `zeroed`.
    Free { zeroed: bool },
}

/// One step: a write of zeroes, or a range operation of the file system or device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ZeroStep {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) kind: FileOpKind,
}

impl Zeroing {
    pub(crate) fn write_zeroes(
        range: BlockRange,
        block_size: u32,
        deallocate: bool,
        durable: bool,
    ) -> Zeroing {
        let purpose = if deallocate { Purpose::ZeroAndFree } else { Purpose::Zero };
        Zeroing::new(purpose, &[range], block_size, durable)
    }

    pub(crate) fn deallocate(ranges: &[BlockRange], block_size: u32, zeroed: bool, durable: bool) -> Zeroing {
        Zeroing::new(Purpose::Free { zeroed }, ranges, block_size, durable)
    }

    fn new(purpose: Purpose, ranges: &[BlockRange], block_size: u32, durable: bool) -> Zeroing {
        let block_size = u64::from(block_size);
        let extent =
            |range: &BlockRange| Extent { offset: range.lba * block_size, len: range.blocks * block_size };
        let remaining = ranges.iter().rev().map(extent).filter(|extent| extent.len > 0).collect();
        Zeroing { purpose, durable, block_size, remaining }
    }

    /// Returns the next step; `None` at the end. Skips ranges that are a hint which the device does not support.
    pub(crate) fn next(&mut self, features: &Features) -> Option<ZeroStep> {
        loop {
            let Extent { offset, len } = *self.remaining.last()?;
            let to_boundary = offset.next_multiple_of(UNIT) - offset;
            let len = match to_boundary {
                0 if len >= UNIT => len - len % UNIT,
                0 => len,
                _ => to_boundary.min(len),
            };
            let supported = self.range_kinds().iter().find(|kind| len >= UNIT && features.has(**kind));
            let (kind, max_len) = match supported {
                Some(kind) => (*kind, MAX_RANGE_BYTES),
                None if self.purpose == (Purpose::Free { zeroed: false }) => {
                    self.advance(len);
                    continue;
                }
                None => (FileOpKind::Write { durable: false }, MAX_WRITE_BYTES),
            };
            return Some(ZeroStep { offset, len: len.min(max_len), kind });
        }
    }

    fn range_kinds(&self) -> &'static [FileOpKind] {
        match self.purpose {
            Purpose::ZeroAndFree => &[FileOpKind::PunchHole, FileOpKind::ZeroRange, FileOpKind::DeviceZero],
            Purpose::Zero => &[FileOpKind::ZeroRange, FileOpKind::DeviceZero],
            Purpose::Free { zeroed: true } => &[FileOpKind::PunchHole],
            Purpose::Free { zeroed: false } => &[FileOpKind::PunchHole, FileOpKind::DeviceDiscard],
        }
    }

    /// Marks the first `len` bytes of the current range as done.
    pub(crate) fn advance(&mut self, len: u64) {
        let Some(extent) = self.remaining.last_mut() else { return };
        extent.offset += len;
        extent.len -= len.min(extent.len);
        if extent.len == 0 {
            self.remaining.pop();
        }
    }

    /// Returns the remaining ranges in blocks.
    pub(crate) fn remaining_ranges(&self) -> impl Iterator<Item = BlockRange> {
        self.remaining.iter().rev().map(|extent| BlockRange {
            lba: extent.offset / self.block_size,
            blocks: extent.len / self.block_size,
        })
    }
}

/// Unit of range operations.
const UNIT: u64 = 4096;
/// Limit of a range step; a multiple of [`UNIT`]. A file system may lock the whole file for each step.
const MAX_RANGE_BYTES: u64 = 4 << 20;
/// Limit of a written step; a multiple of [`UNIT`].
const MAX_WRITE_BYTES: u64 = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: FileOpKind = FileOpKind::Write { durable: false };

    fn steps(mut zeroing: Zeroing, features: &Features) -> Vec<(u64, u64, FileOpKind)> {
        let mut steps = Vec::new();
        while let Some(step) = zeroing.next(features) {
            steps.push((step.offset, step.len, step.kind));
            zeroing.advance(step.len);
        }
        steps
    }

    fn range(lba: u64, blocks: u64) -> BlockRange {
        BlockRange { lba, blocks }
    }

    #[test]
    fn punches_aligned_middle_and_writes_edges() {
        let zeroing = Zeroing::write_zeroes(range(7, 20), 512, true, false);
        let punch = FileOpKind::PunchHole;
        let expected = [(3584, 512, WRITE), (4096, 8192, punch), (12_288, 1536, WRITE)];
        assert_eq!(steps(zeroing, &Features::file()), expected);
    }

    #[test]
    fn writes_unsupported_ranges_in_bounded_steps() {
        let zeroing = Zeroing::write_zeroes(range(0, 1024), 512, false, false);
        let half = MAX_WRITE_BYTES;
        assert_eq!(steps(zeroing, &Features::none()), [(0, half, WRITE), (half, half, WRITE)]);
    }

    #[test]
    fn skips_hint_without_discard_support() {
        let zeroing = Zeroing::deallocate(&[range(1, 100)], 512, false, false);
        assert_eq!(steps(zeroing, &Features::none()), []);
    }
}

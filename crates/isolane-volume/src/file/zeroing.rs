//! Progress of a zeroing or deallocating request.
//!
//! The file system punches or zeroes ranges in units of 4 KiB; unaligned edges are written. Steps
//! are bounded, so that other requests can run in between: a range step by its time, because a hole
//! of 1 TiB takes as long as 4 MiB with data.

use std::time::Duration;

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
    /// Maximum length of the next range step; a multiple of [`UNIT`].
    step_bytes: u64,
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
        Zeroing { purpose, durable, block_size, step_bytes: FIRST_RANGE_BYTES, remaining }
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
                Some(kind) => (*kind, self.step_bytes),
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

    /// Chooses the length of the next range steps after one of `len` bytes. A shorter step at the end
    /// of a range does not show that longer ones would be fast.
    pub(crate) fn record_duration(&mut self, len: u64, duration: Duration) {
        if duration > STEP_TIME {
            self.step_bytes = (len / 2).next_multiple_of(UNIT).clamp(MIN_RANGE_BYTES, MAX_RANGE_BYTES);
        } else if len >= self.step_bytes {
            let factor = if duration <= STEP_TIME / 8 { 8 } else { u64::from(duration <= STEP_TIME / 2) + 1 };
            self.step_bytes = (self.step_bytes * factor).min(MAX_RANGE_BYTES);
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
/// Time that a range step should take at most: a file system may lock the whole file for each step.
/// Half of the 50 ms that others may wait, because the next step can have more data.
const STEP_TIME: Duration = Duration::from_millis(25);
/// Length of the first range step, and bounds of later ones; multiples of [`UNIT`].
const FIRST_RANGE_BYTES: u64 = 4 << 20;
const MIN_RANGE_BYTES: u64 = 256 << 10;
const MAX_RANGE_BYTES: u64 = 1 << 30;
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

    /// Steps on a device that takes `duration` for a step of this offset and length.
    fn timed_steps(blocks: u64, duration: impl Fn(u64, u64) -> Duration) -> Vec<(u64, Duration)> {
        let mut zeroing = Zeroing::deallocate(&[range(0, blocks)], 512, true, false);
        let mut steps = Vec::new();
        while let Some(step) = zeroing.next(&Features::file()) {
            let duration = duration(step.offset, step.len);
            steps.push((step.len, duration));
            zeroing.advance(step.len);
            zeroing.record_duration(step.len, duration);
        }
        steps
    }

    #[test]
    fn deallocates_long_hole_in_few_steps() {
        let steps = timed_steps((7 << 40) / 512, |_, _| Duration::from_micros(15));
        assert!(steps.len() < 7200, "{} steps", steps.len());
        assert_eq!(steps.iter().map(|(len, _)| len).sum::<u64>(), 7 << 40);
    }

    #[test]
    fn bounds_time_of_each_range_step() {
        for gib_per_second in [1, 10, 100] {
            let steps = timed_steps((1 << 40) / 512, |_, len| Duration::from_nanos(len / gib_per_second));
            let longest = steps.iter().map(|(_, duration)| *duration).max();
            assert!(longest <= Some(2 * STEP_TIME), "{gib_per_second} GB/s: {longest:?}");
            let first_fast = steps.iter().position(|(_, duration)| *duration >= STEP_TIME / 4);
            assert!(first_fast.is_some_and(|at| at <= 8), "{gib_per_second} GB/s: {first_fast:?}");
        }
    }

    #[test]
    fn shortens_steps_once_range_has_data() {
        let hole_end = 1 << 40;
        let time = |offset: u64, len: u64| match offset {
            ..1_099_511_627_776 => Duration::from_micros(15),
            _ => Duration::from_nanos(len / 10),
        };
        let steps = timed_steps((2 << 40) / 512, time);
        let slow: Vec<_> = steps.iter().filter(|(_, duration)| *duration > 2 * STEP_TIME).collect();
        assert!(slow.len() <= 2, "halved at each slow step: {slow:?}");
        assert!(slow.iter().all(|(_, duration)| *duration <= 5 * STEP_TIME), "{slow:?}");
        assert!(steps.len() > (hole_end / MAX_RANGE_BYTES) as usize);
        let steps = timed_steps(1 << 30, |_, _| Duration::from_secs(1));
        assert_eq!(steps.last().map(|(len, _)| *len), Some(MIN_RANGE_BYTES));
    }

    #[test]
    fn skips_hint_without_discard_support() {
        let zeroing = Zeroing::deallocate(&[range(1, 100)], 512, false, false);
        assert_eq!(steps(zeroing, &Features::none()), []);
    }
}

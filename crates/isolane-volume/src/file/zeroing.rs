//! What is left to zero or deallocate of a request, and how the next piece of it is done.
//!
//! Ranges are punched or zeroed by the file system in whole 4 KiB pieces; edges are written. Steps are
//! bounded, so that other requests get their turn.

use isolane_reactor::file::Kind;
use smallvec::SmallVec;

use super::abilities::Abilities;
use crate::{BlockRange, Request};

/// A zeroing or deallocating request in progress. All numbers are bytes.
#[derive(Debug)]
pub(crate) struct Zeroing {
    purpose: Purpose,
    pub(crate) is_durable: bool,
    block_size: u64,
    /// Rests of ranges, the next one last.
    rests: SmallVec<[Rest; 1]>,
}

#[derive(Clone, Copy, Debug)]
struct Rest {
    offset: u64,
    len: u64,
}

/// What the host asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// Zeroes, and the space may go.
    ZeroAndFree,
    /// Zeroes, and the space stays.
    Zero,
    /// The space goes; zeroes if `is_zeroed`.
    Free { is_zeroed: bool },
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) method: Method,
}

/// How a step is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// By the file system or device.
    Range(Kind),
    /// By writing zeroes.
    Write,
    /// Not at all: a hint that cannot be followed.
    Skip,
}

impl Zeroing {
    pub(crate) fn write_zeroes(
        range: BlockRange,
        block_size: u32,
        deallocate: bool,
        is_durable: bool,
    ) -> Zeroing {
        let purpose = if deallocate { Purpose::ZeroAndFree } else { Purpose::Zero };
        Zeroing::new(purpose, &[range], block_size, is_durable)
    }

    pub(crate) fn deallocate(
        ranges: &[BlockRange],
        block_size: u32,
        is_zeroed: bool,
        is_durable: bool,
    ) -> Zeroing {
        Zeroing::new(Purpose::Free { is_zeroed }, ranges, block_size, is_durable)
    }

    fn new(purpose: Purpose, ranges: &[BlockRange], block_size: u32, is_durable: bool) -> Zeroing {
        let block_size = u64::from(block_size);
        let rest =
            |range: &BlockRange| Rest { offset: range.lba * block_size, len: range.blocks * block_size };
        let rests = ranges.iter().rev().map(rest).filter(|rest| rest.len > 0).collect();
        Zeroing { purpose, is_durable, block_size, rests }
    }

    /// The next step; `None` at the end.
    pub(crate) fn next(&self, abilities: &Abilities) -> Option<Piece> {
        let rest = self.rests.last()?;
        let to_boundary = rest.offset.next_multiple_of(UNIT) - rest.offset;
        if to_boundary > 0 || rest.len < UNIT {
            let len = if to_boundary > 0 { to_boundary.min(rest.len) } else { rest.len };
            return Some(Piece { offset: rest.offset, len, method: self.edge_method() });
        }
        let method = self.method(abilities);
        let len_max = match method {
            Method::Range(_) => RANGE_MAX,
            Method::Write => WRITE_MAX,
            Method::Skip => u64::MAX,
        };
        let len = (rest.len - rest.len % UNIT).min(len_max);
        Some(Piece { offset: rest.offset, len, method })
    }

    /// The first `len` bytes of the rest are done.
    pub(crate) fn advance(&mut self, len: u64) {
        let Some(rest) = self.rests.last_mut() else { return };
        rest.offset += len;
        rest.len -= len.min(rest.len);
        if rest.len == 0 {
            self.rests.pop();
        }
    }

    /// What is left, as a request of its own.
    pub(crate) fn into_request(self) -> Request {
        let in_blocks = |rest: &Rest| BlockRange {
            lba: rest.offset / self.block_size,
            blocks: rest.len / self.block_size,
        };
        let mut ranges = self.rests.iter().rev().map(in_blocks);
        let fua = self.is_durable;
        match (self.purpose, ranges.next()) {
            (_, None) => Request::Flush,
            (Purpose::Free { .. }, Some(first)) => {
                Request::Deallocate { ranges: std::iter::once(first).chain(ranges).collect(), fua }
            }
            (purpose, Some(BlockRange { lba, blocks })) => {
                Request::WriteZeroes { lba, blocks, fua, deallocate: purpose == Purpose::ZeroAndFree }
            }
        }
    }

    fn method(&self, abilities: &Abilities) -> Method {
        let candidates: &[Kind] = match self.purpose {
            Purpose::ZeroAndFree => &[Kind::PunchHole, Kind::ZeroRange, Kind::DeviceZero],
            Purpose::Zero => &[Kind::ZeroRange, Kind::DeviceZero],
            Purpose::Free { is_zeroed: true } => &[Kind::PunchHole],
            Purpose::Free { is_zeroed: false } => &[Kind::PunchHole, Kind::DeviceDiscard],
        };
        let able = candidates.iter().find(|kind| abilities.has(**kind));
        match (able, self.purpose) {
            (Some(kind), _) => Method::Range(*kind),
            (None, Purpose::Free { is_zeroed: false }) => Method::Skip,
            (None, _) => Method::Write,
        }
    }

    fn edge_method(&self) -> Method {
        if self.purpose == (Purpose::Free { is_zeroed: false }) { Method::Skip } else { Method::Write }
    }
}

/// What file systems and devices punch and zero whole.
const UNIT: u64 = 4096;
/// A multiple of [`UNIT`]. A file system locks the whole file for each step, so writes to it wait for one.
const RANGE_MAX: u64 = 4 << 20;
/// A multiple of [`UNIT`].
const WRITE_MAX: u64 = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(mut zeroing: Zeroing, abilities: &Abilities) -> Vec<(u64, u64, Method)> {
        let mut steps = Vec::new();
        while let Some(piece) = zeroing.next(abilities) {
            steps.push((piece.offset, piece.len, piece.method));
            zeroing.advance(piece.len);
        }
        steps
    }

    fn range(lba: u64, blocks: u64) -> BlockRange {
        BlockRange { lba, blocks }
    }

    #[test]
    fn edges_are_written_and_the_middle_is_punched() {
        let zeroing = Zeroing::write_zeroes(range(7, 20), 512, true, false);
        let punch = Method::Range(Kind::PunchHole);
        let expected = [(3584, 512, Method::Write), (4096, 8192, punch), (12_288, 1536, Method::Write)];
        assert_eq!(steps(zeroing, &Abilities::file()), expected);
    }

    #[test]
    fn what_a_file_cannot_do_is_written_in_bounded_steps() {
        let zeroing = Zeroing::write_zeroes(range(0, 1024), 512, false, false);
        let half = WRITE_MAX;
        assert_eq!(
            steps(zeroing, &Abilities::none()),
            [(0, half, Method::Write), (half, half, Method::Write)]
        );
    }

    #[test]
    fn a_hint_to_a_device_without_discard_is_skipped() {
        let zeroing = Zeroing::deallocate(&[range(1, 100)], 512, false, false);
        assert!(steps(zeroing, &Abilities::none()).iter().all(|step| step.2 == Method::Skip));
    }

    #[test]
    fn what_is_left_is_a_request_of_its_own() {
        let mut zeroing = Zeroing::deallocate(&[range(8, 8), range(0, 16)], 512, true, true);
        zeroing.advance(4096);
        zeroing.advance(4096);
        let Request::Deallocate { ranges, fua: true } = zeroing.into_request() else { panic!() };
        assert_eq!(ranges[..], [range(8, 8)]);
    }
}

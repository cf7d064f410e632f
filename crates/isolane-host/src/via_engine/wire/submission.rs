//! Submission of one command, as an entry of a ring.

use isolane_observe::stage;
use isolane_shm::entries::Entry;

use crate::lane_class::LaneClass;
use crate::request::BlockRange;

/// One command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submission {
    /// Tag returned in the outcome.
    pub tag: u64,
    /// The operation.
    pub operation: Operation,
    /// The class of lanes.
    pub class: LaneClass,
    /// The lane within the class that serves it.
    pub lane: u16,
    /// The blocks; for a deallocation, 0 and the number of ranges.
    pub range: BlockRange,
    /// Offset of its payload in the session's memory.
    pub offset: u64,
    /// Length of the payload in bytes: the blocks, or the ranges of a deallocation.
    pub len: u64,
    /// Time of the push on the monotonic clock of the kernel, in nanoseconds; 0 if it is unknown.
    pub pushed: u64,
}

/// Operation of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads blocks into the payload.
    Read,
    /// Writes blocks from the payload.
    Write {
        /// Force Unit Access.
        fua: bool,
    },
    /// Makes all completed writes durable.
    Flush,
    /// Writes zeroes.
    WriteZeroes {
        /// Force Unit Access.
        fua: bool,
        /// The space may be released.
        deallocate: bool,
    },
    /// Deallocates the ranges in the payload.
    Deallocate,
}

impl Operation {
    /// Returns the kind, under which it is recorded.
    #[inline]
    pub fn kind(self) -> stage::Operation {
        match self {
            Operation::Read => stage::Operation::Read,
            Operation::Write { .. } => stage::Operation::Write,
            Operation::Flush => stage::Operation::Flush,
            Operation::WriteZeroes { .. } => stage::Operation::WriteZeroes,
            Operation::Deallocate => stage::Operation::Deallocate,
        }
    }
}

impl Submission {
    /// Encodes an entry.
    #[inline]
    pub fn encode(&self) -> Entry {
        let flags = |fua: bool, deallocate: bool| u64::from(fua) << 8 | u64::from(deallocate) << 9;
        let operation = match self.operation {
            Operation::Read => READ,
            Operation::Write { fua } => WRITE | flags(fua, false),
            Operation::Flush => FLUSH,
            Operation::WriteZeroes { fua, deallocate } => WRITE_ZEROES | flags(fua, deallocate),
            Operation::Deallocate => DEALLOCATE,
        };
        let head = operation | (self.class as u64) << 16 | u64::from(self.lane) << 32;
        [head, self.tag, self.range.lba, self.range.blocks, self.offset, self.len, self.pushed, 0]
    }

    /// Decodes an entry. Returns `None` if it is malformed.
    #[inline]
    pub fn decode(entry: &Entry) -> Option<Submission> {
        let [head, tag, lba, blocks, offset, len, pushed, _] = *entry;
        let (fua, deallocate) = (head >> 8 & 1 == 1, head >> 9 & 1 == 1);
        let operation = match head & 0xff {
            READ => Operation::Read,
            WRITE => Operation::Write { fua },
            FLUSH => Operation::Flush,
            WRITE_ZEROES => Operation::WriteZeroes { fua, deallocate },
            DEALLOCATE => Operation::Deallocate,
            _ => return None,
        };
        let class = match head >> 16 & 0xff {
            0 => LaneClass::Default,
            1 => LaneClass::Read,
            2 => LaneClass::Poll,
            _ => return None,
        };
        let lane = (head >> 32) as u16;
        let range = BlockRange { lba, blocks };
        Some(Submission { tag, operation, class, lane, range, offset, len, pushed })
    }
}

/// Encodes a range of a deallocation for the payload.
pub fn encode_range(range: &BlockRange) -> [u8; RANGE_BYTES] {
    let mut bytes = [0; RANGE_BYTES];
    bytes[..8].copy_from_slice(&range.lba.to_le_bytes());
    bytes[8..].copy_from_slice(&range.blocks.to_le_bytes());
    bytes
}

/// Decodes a range of a deallocation from the payload.
pub fn decode_range(bytes: &[u8; RANGE_BYTES]) -> BlockRange {
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
    BlockRange { lba: word(0), blocks: word(8) }
}

/// Length of an encoded range of a deallocation.
pub const RANGE_BYTES: usize = 16;

const READ: u64 = 1;
const WRITE: u64 = 2;
const FLUSH: u64 = 3;
const WRITE_ZEROES: u64 = 4;
const DEALLOCATE: u64 = 5;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_reads_back_as_it_was_written() {
        let operations = [
            Operation::Read,
            Operation::Write { fua: true },
            Operation::Write { fua: false },
            Operation::Flush,
            Operation::WriteZeroes { fua: true, deallocate: false },
            Operation::WriteZeroes { fua: false, deallocate: true },
            Operation::Deallocate,
        ];
        for (operation, class) in
            operations.into_iter().zip([LaneClass::Read, LaneClass::Poll, LaneClass::Default].iter().cycle())
        {
            let range = BlockRange { lba: 0x0102_0304_0506_0708, blocks: 0x1112_1314_1516_1718 };
            let submission = Submission {
                tag: u64::MAX - 1,
                operation,
                class: *class,
                lane: 0xabcd,
                range,
                offset: 77,
                len: 99,
                pushed: u64::MAX - 2,
            };
            assert_eq!(Submission::decode(&submission.encode()), Some(submission));
        }
        let range = BlockRange { lba: 1 << 60 | 3, blocks: 5 };
        assert_eq!(decode_range(&encode_range(&range)), range);
    }

    proptest! {
        #[test]
        fn garbage_is_none_or_means_something(entry: [u64; 8]) {
            if let Some(submission) = Submission::decode(&entry) {
                prop_assert_eq!(Submission::decode(&submission.encode()), Some(submission));
            }
        }
    }
}

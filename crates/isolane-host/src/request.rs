//! Requests to a volume, and their completions.
//!
//! Addresses are logical blocks of the namespace. A request larger than one command becomes several commands
//! and one [`Completion`].
//!
//! Invariant: the buffer of a request is returned in its completion.

use std::time::Instant;

use isolane_memory::Buffer;
use isolane_observe::stage::Operation;

use crate::error::RequestError;
use crate::lane_class::LaneClass;

/// A range of logical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// The first block.
    pub lba: u64,
    /// Number of blocks.
    pub blocks: u64,
}

/// One request to a volume. Buffers hold exactly the bytes of the range.
#[derive(Debug)]
pub enum Request {
    /// Reads whole blocks; the length of `buffer` is the number of bytes.
    Read {
        /// The first block.
        lba: u64,
        /// Destination of the data.
        buffer: Buffer,
    },
    /// Writes whole blocks; the length of `buffer` is the number of bytes.
    Write {
        /// The first block.
        lba: u64,
        /// The data, which must not change until the completion.
        buffer: Buffer,
        /// Force Unit Access: complete only when the data is durable.
        fua: bool,
    },
    /// Makes every write that completed before it durable.
    Flush,
    /// Zeroes a range without sending the zeroes.
    WriteZeroes {
        /// The blocks.
        range: BlockRange,
        /// Force Unit Access: complete only when the zeroes are durable.
        fua: bool,
        /// The controller may release the space.
        deallocate: bool,
    },
    /// Deallocates ranges whose content is no longer needed. Their content is undefined afterwards.
    Deallocate {
        /// At most 256 ranges, each shorter than 2³² blocks.
        ranges: Vec<BlockRange>,
    },
}

impl Request {
    /// Returns whether it reads data.
    #[inline]
    pub fn is_read(&self) -> bool {
        matches!(self, Request::Read { .. })
    }

    /// Returns the class of lanes for a request that names none.
    #[inline]
    pub(crate) fn lane_class(&self) -> LaneClass {
        if self.is_read() { LaneClass::Read } else { LaneClass::Default }
    }

    /// Returns the kind in statistics.
    pub(crate) fn kind(&self) -> Operation {
        match self {
            Request::Read { .. } => Operation::Read,
            Request::Write { .. } => Operation::Write,
            Request::Flush => Operation::Flush,
            Request::WriteZeroes { .. } => Operation::WriteZeroes,
            Request::Deallocate { .. } => Operation::Deallocate,
        }
    }

    /// Returns the buffer, if it has one.
    pub fn into_buffer(self) -> Option<Buffer> {
        match self {
            Request::Read { buffer, .. } | Request::Write { buffer, .. } => Some(buffer),
            Request::Flush | Request::WriteZeroes { .. } | Request::Deallocate { .. } => None,
        }
    }
}

/// Completion of one request.
#[derive(Debug)]
pub struct Completion {
    /// The tag passed to `submit`.
    pub tag: u64,
    /// Result of the request.
    pub result: Result<(), RequestError>,
    /// The buffer of a read or a write. After a failed read its content is undefined: it may be other data
    /// received over the same connection.
    pub buffer: Option<Buffer>,
}

/// How long a turn waits when nothing happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    None,
    /// Until this time.
    Until(Instant),
    /// Until something happens.
    Forever,
}

impl Wait {
    pub(crate) fn deadline(self, now: Instant) -> Option<Instant> {
        match self {
            Wait::None => Some(now),
            Wait::Until(deadline) => Some(deadline),
            Wait::Forever => None,
        }
    }

    pub(crate) fn is_over(self, now: Instant) -> bool {
        self.deadline(now).is_some_and(|deadline| now >= deadline)
    }
}

//! What a caller asks of a volume and what comes back.
//!
//! Addresses are logical blocks of the namespace the client is bound to. This is not a wire format: a request
//! larger than what the controller takes in one command becomes several commands and one [`Completion`].
//! Invariant: the buffer of a request comes back in its completion, whatever happened.

use isolane_memory::Buffer;

use crate::error::RequestError;

/// A run of logical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// The first block.
    pub lba: u64,
    /// How many.
    pub blocks: u64,
}

/// One request to a volume. Buffers hold exactly the bytes of the range.
#[derive(Debug)]
pub enum Request {
    /// Reads whole blocks into `buffer`; its length says how many.
    Read {
        /// The first block.
        lba: u64,
        /// Where the data lands.
        buffer: Buffer,
    },
    /// Writes whole blocks from `buffer`; its length says how many.
    Write {
        /// The first block.
        lba: u64,
        /// What is written. Nobody changes it before it comes back.
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
    /// Tells that the content of ranges is no longer needed; what they read as afterwards is up to the
    /// controller.
    Deallocate {
        /// At most 256 ranges, each shorter than 2³² blocks.
        ranges: Vec<BlockRange>,
    },
}

impl Request {
    /// Whether it brings data from the volume.
    #[inline]
    pub fn is_read(&self) -> bool {
        matches!(self, Request::Read { .. })
    }

    /// The buffer, if it has one.
    pub fn into_buffer(self) -> Option<Buffer> {
        match self {
            Request::Read { buffer, .. } | Request::Write { buffer, .. } => Some(buffer),
            Request::Flush | Request::WriteZeroes { .. } | Request::Deallocate { .. } => None,
        }
    }
}

/// The end of one request.
#[derive(Debug)]
pub struct Completion {
    /// The caller's mark from `submit`.
    pub tag: u64,
    /// What became of it.
    pub result: Result<(), RequestError>,
    /// The buffer of a read or a write. After a failed read what it holds is not told: it may be other data
    /// that came over the same connection.
    pub buffer: Option<Buffer>,
}

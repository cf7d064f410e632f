//! What is asked of a volume, and what it answers.

use isolane_memory::{Buffer, Payload};
use isolane_reactor::file::Operation;
use smallvec::SmallVec;

use crate::{Task, VolumeError};

/// Consecutive blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// The first block.
    pub lba: u64,
    /// How many.
    pub blocks: u64,
}

/// A request to a volume.
#[derive(Debug)]
pub enum Request {
    /// Read blocks.
    Read {
        /// The first block.
        lba: u64,
        /// How many.
        blocks: u64,
    },
    /// Write blocks. Once started, the data is complete: nothing of it arrives later.
    Write {
        /// The first block.
        lba: u64,
        /// How many; `data` has exactly this many blocks.
        blocks: u64,
        /// What to write.
        data: Buffer,
        /// Complete only when the data is durable.
        fua: bool,
    },
    /// Make durable every write that completed before.
    Flush,
    /// Make blocks read as zeroes.
    WriteZeroes {
        /// The first block.
        lba: u64,
        /// How many.
        blocks: u64,
        /// Complete only when the zeroes are durable.
        fua: bool,
        /// The space may be given up.
        deallocate: bool,
    },
    /// Give up the space of blocks, whose contents are no longer needed.
    Deallocate {
        /// Which.
        ranges: SmallVec<[BlockRange; 1]>,
        /// Complete only when that is durable.
        fua: bool,
    },
    /// What is left of a request that the volume has begun, and handed out as [`Step::Later`]. It keeps the
    /// request's place among others; dropping it gives that up.
    Rest(Task),
}

impl Request {
    /// Whether it may change blocks.
    pub fn is_change(&self) -> bool {
        match self {
            Request::Read { .. } | Request::Flush => false,
            Request::Rest(task) => task.is_change(),
            Request::Write { .. } | Request::WriteZeroes { .. } | Request::Deallocate { .. } => true,
        }
    }
}

/// How a request ended: the data of a read, and an empty payload for all others.
pub type Outcome = Result<Payload, VolumeError>;

/// What to do next for a request.
#[derive(Debug)]
pub enum Step {
    /// It is over. Its buffer went back to the pool.
    Done(Outcome),
    /// Carry out this operation on [`Volume::file`](crate::Volume::file), then
    /// [`resume`](crate::Volume::resume) the task with its result.
    File(Operation, Task),
    /// Not now: no memory, or a request for the same blocks (or another flush) is being carried out. Start
    /// this request in a later turn. It is what is left of the original one, and its outcome is the outcome
    /// of all.
    Later(Request),
}

impl Step {
    /// Success without data.
    pub(crate) fn done() -> Step {
        Step::Done(Ok(Payload::default()))
    }

    /// Failure.
    pub(crate) fn failed(error: VolumeError) -> Step {
        Step::Done(Err(error))
    }
}

//! Requests to a volume and the steps of their execution.

mod pending;
pub(crate) mod task;

use isolane_memory::{Buffer, Payload, Pool};
use isolane_reactor::file::FileOp;
use smallvec::SmallVec;

pub use self::pending::{Completer, Pending};
pub use self::task::Task;
use crate::{BlockRange, VolumeError, VolumeInfo};

/// A request to a volume.
#[derive(Debug)]
pub enum Request {
    /// Read blocks.
    Read {
        /// The first block.
        lba: u64,
        /// Number of blocks.
        blocks: u64,
    },
    /// Write blocks; the data is complete.
    Write {
        /// The first block.
        lba: u64,
        /// Number of blocks; equals the length of `data`.
        blocks: u64,
        /// Data to write.
        data: Buffer,
        /// Complete only when the data is durable.
        fua: bool,
    },
    /// Make all completed writes durable.
    Flush,
    /// Make blocks read as zeroes.
    WriteZeroes {
        /// The first block.
        lba: u64,
        /// Number of blocks.
        blocks: u64,
        /// Complete only when the zeroes are durable.
        fua: bool,
        /// The space may be freed.
        deallocate: bool,
    },
    /// Free the space of blocks whose contents are no longer needed.
    Deallocate {
        /// Blocks to deallocate.
        ranges: SmallVec<[BlockRange; 1]>,
        /// Complete only when the deallocation is durable.
        fua: bool,
    },
    /// The remainder of a request in progress, returned in [`Step::Retry`]. It keeps the request's
    /// position among others; dropping it abandons the request.
    Continue(Task),
}

impl Request {
    /// Whether the request may change blocks.
    pub fn is_change(&self) -> bool {
        match self {
            Request::Read { .. } | Request::Flush => false,
            Request::Continue(task) => task.is_change(),
            Request::Write { .. } | Request::WriteZeroes { .. } | Request::Deallocate { .. } => true,
        }
    }

    /// Checks everything that does not depend on the state of the volume.
    ///
    /// # Errors
    /// The first reason to reject the request.
    pub fn check(&self, info: &VolumeInfo) -> Result<(), VolumeError> {
        if info.read_only && self.is_change() {
            return Err(VolumeError::ReadOnly);
        }
        match self {
            Request::Flush | Request::Continue(_) => Ok(()),
            Request::Read { lba, blocks } | Request::WriteZeroes { lba, blocks, .. } => {
                info.locate(*lba, *blocks).map(drop)
            }
            Request::Write { lba, blocks, data, .. } => {
                let (_, len) = info.locate(*lba, *blocks)?;
                let given = data.len();
                if given as u64 == len {
                    Ok(())
                } else {
                    Err(VolumeError::WrongLength { given, blocks: *blocks })
                }
            }
            Request::Deallocate { ranges, .. } => {
                ranges.iter().try_for_each(|BlockRange { lba, blocks }| info.locate(*lba, *blocks).map(drop))
            }
        }
    }

    /// Fails the request and recycles its data.
    pub fn fail(self, error: VolumeError, pool: &mut Pool) -> Step {
        if let Request::Write { data, .. } = self {
            pool.recycle_buffer(data);
        }
        Step::failed(error)
    }
}

/// Result of a request: the data of a read, and an empty payload for all others.
pub type Outcome = Result<Payload, VolumeError>;

/// Next step of a request.
#[derive(Debug)]
pub enum Step {
    /// The request completed. Its buffer was returned to the pool.
    Done(Outcome),
    /// Execute this operation on [`Volume::file`](crate::Volume::file), then pass its result to
    /// [`resume`](crate::Volume::resume).
    File(FileOp, Task),
    /// The volume completes the request later, from any thread: see [`Step::pending`].
    Pending(Pending),
    /// Out of memory, or blocked by a request for the same blocks or another flush. Start this
    /// request in a later turn; it replaces the original one.
    Retry(Request),
}

impl Step {
    /// Returns success without data.
    pub(crate) fn done() -> Step {
        Step::Done(Ok(Payload::default()))
    }

    /// Returns a failure.
    pub fn failed(error: VolumeError) -> Step {
        Step::Done(Err(error))
    }
}

//! Operation of a request, without its blocks and its buffer.

use isolane_memory::Buffer;

use crate::request::{BlockRange, Request};
use crate::unflushed::{Change, FlushMark};

/// Operation that every part of a request carries out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Read,
    Write { fua: bool },
    Flush(FlushMark),
    WriteZeroes { fua: bool, deallocate: bool },
    Deallocate(Box<[BlockRange]>),
}

impl Operation {
    /// Returns whether it makes data durable.
    pub(crate) fn is_sync(&self) -> bool {
        use Operation::{Flush, Write, WriteZeroes};
        matches!(self, Flush(_) | Write { fua: true } | WriteZeroes { fua: true, .. })
    }

    /// Splits a request into its operation and its buffer.
    #[inline]
    pub(crate) fn from_request(request: Request) -> (Operation, Option<Buffer>) {
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

    /// Returns whether repeating it late could undo a later write.
    pub(crate) fn changes_blocks(&self) -> bool {
        self.change() != Change::Nothing
    }

    /// Returns the kind of change that a success makes.
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

//! I/O commands of the NVM command set (Base 1.4 §6).
//!
//! Each command is encoded to and decoded from a [`SubmissionEntry`]. The caller dispatches on the
//! opcode ([`crate::opcode::IoOpcode`]); the queue sets the data pointer. Ranges are not checked
//! against the namespace size.

mod dataset_management;
mod read_write;
#[cfg(test)]
mod tests;
mod write_zeroes;

pub use dataset_management::{DatasetManagementCommand, DsmRange};
pub use read_write::{ReadCommand, WriteCommand};
pub use write_zeroes::WriteZeroesCommand;

use crate::SubmissionEntry;
use crate::opcode::IoOpcode;

macro_rules! impl_blocks {
    ($($command:ty),*) => {
        $(impl $command {
            /// Returns the number of logical blocks, 1 to 65,536.
            #[inline]
            pub fn blocks(&self) -> u32 {
                u32::from(self.nlb) + 1
            }
        })*
    };
}

impl_blocks!(ReadCommand, WriteCommand, WriteZeroesCommand);

/// Flush of one namespace, or of all ([`crate::admin::NSID_ALL`]).
pub fn flush(nsid: u32) -> SubmissionEntry {
    SubmissionEntry { nsid, ..IoOpcode::Flush.into() }
}

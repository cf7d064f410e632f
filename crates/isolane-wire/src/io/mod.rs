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

/// Flush of one namespace, or of all ([`crate::admin::NSID_ALL`]).
pub fn flush(nsid: u32) -> SubmissionEntry {
    SubmissionEntry::new(IoOpcode::Flush.code(), nsid)
}

bits! {
    /// Dword 12 of Read, Write and Write Zeroes.
    pub struct BlocksAndFlags(u32) {
        /// NLB: logical blocks, 0's based.
        nlb / with_nlb: u16 = [15:0],
        /// DTYPE: directive type (Write).
        dtype / with_dtype: u8 = [23:20],
        /// DEAC: deallocate if possible (Write Zeroes).
        deac / with_deac: bool = [25:25],
        /// PRINFO: protection information.
        prinfo / with_prinfo: u8 = [29:26],
        /// FUA: force unit access.
        fua / with_fua: bool = [30:30],
        /// LR: limited retry.
        lr / with_lr: bool = [31:31],
    }
}

/// Encodes an entry with SLBA in dwords 10 and 11 and these flags in dword 12.
#[inline]
fn block_entry(opcode: IoOpcode, nsid: u32, slba: u64, cdw12: BlocksAndFlags) -> SubmissionEntry {
    SubmissionEntry {
        cdw10: slba as u32,
        cdw11: (slba >> 32) as u32,
        cdw12: cdw12.0,
        ..SubmissionEntry::new(opcode.code(), nsid)
    }
}

//! Write Zeroes (Base 1.4 §6.16).

use super::{BlocksAndFlags, block_entry};
use crate::{SubmissionEntry, opcode::IoOpcode};

/// Write Zeroes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct WriteZeroesCommand {
    /// Namespace.
    pub nsid: u32,
    /// SLBA: first logical block.
    pub slba: u64,
    /// NLB: logical blocks, 0's based.
    pub nlb: u16,
    /// DEAC: the blocks may be deallocated, if they read as zeroes then.
    pub deallocate: bool,
    /// FUA: durable before the completion.
    pub fua: bool,
    /// LR: limited retry.
    pub lr: bool,
    /// PRINFO: protection information; 0 on namespaces without.
    pub prinfo: u8,
}

impl WriteZeroesCommand {
    /// Returns the number of logical blocks, 1 to 65,536.
    #[inline]
    pub fn blocks(&self) -> u32 {
        u32::from(self.nlb) + 1
    }

    /// Encodes the command.
    pub fn entry(&self) -> SubmissionEntry {
        let cdw12 = BlocksAndFlags(0)
            .with_nlb(self.nlb)
            .with_deac(self.deallocate)
            .with_prinfo(self.prinfo)
            .with_fua(self.fua)
            .with_lr(self.lr);
        block_entry(IoOpcode::WriteZeroes, self.nsid, self.slba, cdw12)
    }

    /// Decodes the command.
    pub fn parse(entry: &SubmissionEntry) -> Self {
        let cdw12 = BlocksAndFlags(entry.cdw12);
        Self {
            nsid: entry.nsid,
            slba: entry.cdw10_11(),
            nlb: cdw12.nlb(),
            deallocate: cdw12.deac(),
            fua: cdw12.fua(),
            lr: cdw12.lr(),
            prinfo: cdw12.prinfo(),
        }
    }
}

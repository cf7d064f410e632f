//! Read and Write (Base 1.4 §6.9, §6.15).

use super::{BlocksAndFlags, block_entry};
use crate::{SubmissionEntry, opcode::IoOpcode};

/// Read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReadCommand {
    /// Namespace.
    pub nsid: u32,
    /// SLBA: first logical block.
    pub slba: u64,
    /// NLB: logical blocks, 0's based.
    pub nlb: u16,
    /// FUA: the returned data must be durable.
    pub fua: bool,
    /// LR: limited retry.
    pub lr: bool,
    /// PRINFO: protection information; 0 on namespaces without.
    pub prinfo: u8,
}

impl ReadCommand {
    /// Returns the number of logical blocks, 1 to 65,536.
    #[inline]
    pub fn blocks(&self) -> u32 {
        u32::from(self.nlb) + 1
    }

    /// Encodes the command.
    #[inline]
    pub fn entry(&self) -> SubmissionEntry {
        let cdw12 =
            BlocksAndFlags(0).with_nlb(self.nlb).with_prinfo(self.prinfo).with_fua(self.fua).with_lr(self.lr);
        block_entry(IoOpcode::Read, self.nsid, self.slba, cdw12)
    }

    /// Decodes the command.
    #[inline]
    pub fn parse(entry: &SubmissionEntry) -> Self {
        let cdw12 = BlocksAndFlags(entry.cdw12);
        Self {
            nsid: entry.nsid,
            slba: entry.cdw10_11(),
            nlb: cdw12.nlb(),
            fua: cdw12.fua(),
            lr: cdw12.lr(),
            prinfo: cdw12.prinfo(),
        }
    }
}

/// Write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct WriteCommand {
    /// Namespace.
    pub nsid: u32,
    /// SLBA: first logical block.
    pub slba: u64,
    /// NLB: logical blocks, 0's based.
    pub nlb: u16,
    /// FUA: durable before the completion.
    pub fua: bool,
    /// LR: limited retry.
    pub lr: bool,
    /// PRINFO: protection information; 0 on namespaces without.
    pub prinfo: u8,
    /// DTYPE: directive type; 0 means no directive.
    pub dtype: u8,
}

impl WriteCommand {
    /// Returns the number of logical blocks, 1 to 65,536.
    #[inline]
    pub fn blocks(&self) -> u32 {
        u32::from(self.nlb) + 1
    }

    /// Encodes the command.
    #[inline]
    pub fn entry(&self) -> SubmissionEntry {
        let cdw12 = BlocksAndFlags(0)
            .with_nlb(self.nlb)
            .with_dtype(self.dtype)
            .with_prinfo(self.prinfo)
            .with_fua(self.fua)
            .with_lr(self.lr);
        block_entry(IoOpcode::Write, self.nsid, self.slba, cdw12)
    }

    /// Decodes the command.
    #[inline]
    pub fn parse(entry: &SubmissionEntry) -> Self {
        let cdw12 = BlocksAndFlags(entry.cdw12);
        Self {
            nsid: entry.nsid,
            slba: entry.cdw10_11(),
            nlb: cdw12.nlb(),
            fua: cdw12.fua(),
            lr: cdw12.lr(),
            prinfo: cdw12.prinfo(),
            dtype: cdw12.dtype(),
        }
    }
}

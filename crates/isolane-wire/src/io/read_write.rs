//! Read and Write (Base 1.4 §6.9, §6.15).

use crate::opcode::IoOpcode;

command! {
    /// Read.
    pub struct ReadCommand: IoOpcode::Read => {
        /// Namespace.
        nsid[31:0] => nsid: u32,
        /// SLBA: first logical block.
        cdw10[31:0] cdw11[31:0] => slba: u64,
        /// NLB: logical blocks, 0's based.
        cdw12[15:0] => nlb: u16,
        /// FUA: the returned data must be durable.
        cdw12[30:30] => fua: bool,
        /// LR: limited retry.
        cdw12[31:31] => lr: bool,
        /// PRINFO: protection information; 0 on namespaces without.
        cdw12[29:26] => prinfo: u8,
    }
}

command! {
    /// Write.
    pub struct WriteCommand: IoOpcode::Write => {
        /// Namespace.
        nsid[31:0] => nsid: u32,
        /// SLBA: first logical block.
        cdw10[31:0] cdw11[31:0] => slba: u64,
        /// NLB: logical blocks, 0's based.
        cdw12[15:0] => nlb: u16,
        /// FUA: durable before the completion.
        cdw12[30:30] => fua: bool,
        /// LR: limited retry.
        cdw12[31:31] => lr: bool,
        /// PRINFO: protection information; 0 on namespaces without.
        cdw12[29:26] => prinfo: u8,
        /// DTYPE: directive type; 0 means no directive.
        cdw12[23:20] => dtype: u8,
    }
}

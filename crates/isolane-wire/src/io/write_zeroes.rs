//! Write Zeroes (Base 1.4 §6.16).

use crate::opcode::IoOpcode;

command! {
    /// Write Zeroes.
    pub struct WriteZeroesCommand: IoOpcode::WriteZeroes => {
        /// Namespace.
        nsid[31:0] => nsid: u32,
        /// SLBA: first logical block.
        cdw10[31:0] cdw11[31:0] => slba: u64,
        /// NLB: logical blocks, 0's based.
        cdw12[15:0] => nlb: u16,
        /// DEAC: the blocks may be deallocated, if they read as zeroes then.
        cdw12[25:25] => deallocate: bool,
        /// FUA: durable before the completion.
        cdw12[30:30] => fua: bool,
        /// LR: limited retry.
        cdw12[31:31] => lr: bool,
        /// PRINFO: protection information; 0 on namespaces without.
        cdw12[29:26] => prinfo: u8,
    }
}

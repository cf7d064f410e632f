//! Abort (Base 1.4 §5.1).

use crate::opcode::AdminOpcode;

command! {
    /// Abort of one command.
    pub struct AbortCommand: AdminOpcode::Abort => {
        /// SQID: submission queue of the command.
        cdw10[15:0] => sqid: u16,
        /// CID: command identifier.
        cdw10[31:16] => cid: u16,
    }
}

bits! {
    /// Dword 0 of the response.
    pub struct AbortResponse(u32) {
        /// The command was not aborted and completes normally.
        not_aborted / with_not_aborted: bool = [0:0],
    }
}

//! Abort (Base 1.4 §5.1).

use crate::{SubmissionEntry, opcode::AdminOpcode};

/// Abort of one command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AbortCommand {
    /// SQID: submission queue of the command.
    pub sqid: u16,
    /// CID: command identifier.
    pub cid: u16,
}

bits! {
    /// Dword 10 of Abort.
    pub struct Dword10(u32) {
        /// SQID.
        sqid / with_sqid: u16 = [15:0],
        /// CID.
        cid / with_cid: u16 = [31:16],
    }
}

bits! {
    /// Dword 0 of the response.
    pub struct AbortResponse(u32) {
        /// The command was not aborted and completes normally.
        not_aborted / with_not_aborted: bool = [0:0],
    }
}

impl AbortCommand {
    /// Encodes the command.
    pub fn entry(&self) -> SubmissionEntry {
        let cdw10 = Dword10(0).with_sqid(self.sqid).with_cid(self.cid).0;
        SubmissionEntry { cdw10, ..SubmissionEntry::new(AdminOpcode::Abort.code(), 0) }
    }

    /// Decodes the command.
    pub fn parse(entry: &SubmissionEntry) -> Self {
        let dword10 = Dword10(entry.cdw10);
        Self { sqid: dword10.sqid(), cid: dword10.cid() }
    }
}

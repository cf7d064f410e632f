//! Completion of one command: status and result dwords, without SQHD, SQID, and CID.

use isolane_wire::{CompletionEntry, Status};

/// Result of one command (NVMe Base 1.4 §4.6: dwords 0 and 1 and the status field of a completion).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Status field without the phase tag.
    pub status: Status,
    /// Command specific result, dword 0.
    pub dw0: u32,
    /// Command specific result, dword 1 (upper half of a property).
    pub dw1: u32,
}

impl Completion {
    /// Success with both result dwords 0.
    pub fn success() -> Completion {
        Completion::failed(Status::SUCCESS)
    }

    /// Success with a result in dword 0.
    pub fn with_dw0(dw0: u32) -> Completion {
        Completion { status: Status::SUCCESS, dw0, dw1: 0 }
    }

    /// The given status with both result dwords 0.
    pub fn failed(status: Status) -> Completion {
        Completion { status, dw0: 0, dw1: 0 }
    }

    /// Whether the command succeeded.
    pub fn is_success(&self) -> bool {
        self.status.is_success()
    }
}

impl From<CompletionEntry> for Completion {
    fn from(entry: CompletionEntry) -> Completion {
        Completion { status: entry.status, dw0: entry.dw0, dw1: entry.dw1 }
    }
}

//! Disconnect: the host deletes one I/O queue (Fabrics 1.1 §3.6).

use super::{Halves, fabrics_entry};
use crate::{SubmissionEntry, opcode::FabricsType};

/// Disconnect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DisconnectCommand {
    /// RECFMT: 0 is the only record format.
    pub recfmt: u16,
}

impl DisconnectCommand {
    /// Encodes the command.
    pub fn entry(&self) -> SubmissionEntry {
        let cdw10 = Halves(0).with_low(self.recfmt).0;
        SubmissionEntry { cdw10, ..fabrics_entry(FabricsType::Disconnect) }
    }

    /// Decodes the command.
    pub fn parse(entry: &SubmissionEntry) -> Self {
        Self { recfmt: Halves(entry.cdw10).low() }
    }
}

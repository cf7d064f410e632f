//! Fabrics commands: Connect, Property Get and Set, Disconnect (Fabrics 1.1 §3).
//!
//! Each command is encoded to and decoded from a [`SubmissionEntry`]. The caller dispatches on
//! opcode and FCTYPE ([`crate::opcode::FabricsType`]); the sending queue sets the data pointer.

mod connect;
mod disconnect;
mod property;
#[cfg(test)]
mod tests;

pub use connect::{
    CNTLID_DYNAMIC, ConnectAttributes, ConnectCommand, ConnectData, ConnectRejection, ConnectResponse,
    MAX_CNTLID,
};
pub use disconnect::DisconnectCommand;
pub use property::{PropertyGetCommand, PropertySetCommand, PropertySize};

use crate::SubmissionEntry;
use crate::opcode::{AdminOpcode, FabricsType};

fn fabrics_entry(fctype: FabricsType) -> SubmissionEntry {
    SubmissionEntry::new(AdminOpcode::Fabrics.code(), u32::from(fctype.code()))
}

bits! {
    /// Two 16-bit fields of one dword.
    pub struct Halves(u32) {
        /// Bits 15:0.
        low / with_low: u16 = [15:0],
        /// Bits 31:16.
        high / with_high: u16 = [31:16],
    }
}

//! Fabrics commands: Connect, Property Get and Set, Disconnect (Fabrics 1.1 §3).
//!
//! Each command is encoded to and decoded from a [`SubmissionEntry`](crate::SubmissionEntry). The caller dispatches on
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

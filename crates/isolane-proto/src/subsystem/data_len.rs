//! How much data a command of the control path moves, and in which direction.
//!
//! What it is: the length that each command has by the specification, so that a driver knows what to receive
//! before the command is executed. What it is not: a judgement; a command that does not exist moves nothing.

use isolane_wire::SubmissionEntry;
use isolane_wire::admin::{GetLogPageCommand, IdentifyCommand};
use isolane_wire::fabrics::ConnectData;
use isolane_wire::opcode::{AdminOpcode, FabricsType};

use super::feature;

/// Data of one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataExpected {
    /// None.
    None,
    /// The host sends this many bytes.
    FromHost(u32),
    /// The controller returns this many bytes.
    ToHost(u64),
}

impl DataExpected {
    /// Whether the host's SGL describes exactly these bytes.
    pub fn matches(self, data_bytes: u32) -> bool {
        match self {
            DataExpected::None => data_bytes == 0,
            DataExpected::FromHost(bytes) => data_bytes == bytes,
            DataExpected::ToHost(bytes) => u64::from(data_bytes) == bytes,
        }
    }
}

/// The data of an admin or fabrics command; none if it is not one that a controller here knows. A driver
/// receives data only if it is [`DataExpected::FromHost`] of the length that the host describes, and discards
/// it else.
pub fn data_expected(entry: &SubmissionEntry) -> DataExpected {
    match AdminOpcode::decode(entry.opcode) {
        Some(AdminOpcode::Fabrics) if entry.fctype() == FabricsType::Connect.code() => {
            DataExpected::FromHost(ConnectData::LEN as u32)
        }
        Some(AdminOpcode::Identify) => DataExpected::ToHost(IdentifyCommand::DATA_LEN.into()),
        Some(AdminOpcode::GetLogPage) => DataExpected::ToHost(GetLogPageCommand::parse(entry).len()),
        Some(AdminOpcode::GetFeatures) => feature::data_returned(entry),
        _ => DataExpected::None,
    }
}

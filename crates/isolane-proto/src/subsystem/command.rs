//! An admin or fabrics command with its context, and the checks that all of these commands share.
//!
//! Invariant: [`data_expected`] knows the length of every command before the command is executed.
//! An unknown command moves no data.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use isolane_wire::admin::{GetFeaturesCommand, GetLogPageCommand, IdentifyCommand, SetFeaturesCommand};
use isolane_wire::fabrics::ConnectData;
use isolane_wire::feature::{FeatureId, HostBehaviorSupport};
use isolane_wire::opcode::{AdminOpcode, FabricsType, IoOpcode};
use isolane_wire::{Status, SubmissionEntry};

use super::association::{Association, HOST_IDENTIFIER_BYTES};
use super::discovery::Record;
use super::namespace::{SubsystemKind, SubsystemProfile};
use super::{ControlEvent, IoTotals};
use crate::failure::Failure;

/// One command, its controller, and the state of the port that the command can read.
#[derive(Debug)]
pub(super) struct CommandContext<'a> {
    pub(super) association: &'a mut Association,
    pub(super) events: &'a mut VecDeque<ControlEvent>,
    pub(super) qid: u16,
    pub(super) entry: &'a SubmissionEntry,
    /// Length of the data that the host's SGL describes.
    pub(super) data_bytes: u32,
    /// Data from the host; empty for a command that takes none.
    pub(super) data: &'a [u8],
    pub(super) now: Instant,
    /// The subsystem of the controller.
    pub(super) profile: &'a SubsystemProfile,
    /// The records of the discovery log for this host.
    pub(super) records: &'a [Record],
    /// Generation of the discovery log.
    pub(super) generation: u64,
    pub(super) totals: IoTotals,
    pub(super) uptime: Duration,
    /// Whether a flush of a volume has failed.
    pub(super) degraded: bool,
}

impl CommandContext<'_> {
    /// Checks that the SGL describes exactly the data that the command moves (SGLS bit 18 is
    /// clear).
    pub(super) fn check_transfer(&self) -> Result<(), Status> {
        if u64::from(self.data_bytes) == data_expected(self.entry) {
            return Ok(());
        }
        Err(Failure::SglLength.status())
    }
}

/// Returns the length of the data of an admin or fabrics command, in bytes; 0 for an unknown
/// command. A driver receives the data of Connect, and of a command that [`takes_data`], if the host
/// describes this length, and discards all other data.
pub fn data_expected(entry: &SubmissionEntry) -> u64 {
    match AdminOpcode::decode(entry.opcode) {
        Some(AdminOpcode::Fabrics) if entry.fctype() == FabricsType::Connect.code() => {
            ConnectData::LEN as u64
        }
        Some(AdminOpcode::Identify) => IdentifyCommand::DATA_LEN.into(),
        Some(AdminOpcode::GetLogPage) => GetLogPageCommand::parse(entry).len(),
        Some(AdminOpcode::GetFeatures) => match FeatureId::decode(GetFeaturesCommand::parse(entry).fid) {
            Some(FeatureId::HostIdentifier) => HOST_IDENTIFIER_BYTES,
            Some(FeatureId::HostBehaviorSupport) => HostBehaviorSupport::LEN as u64,
            _ => 0,
        },
        Some(AdminOpcode::SetFeatures) => match FeatureId::decode(SetFeaturesCommand::parse(entry).fid) {
            Some(FeatureId::HostBehaviorSupport) => HostBehaviorSupport::LEN as u64,
            _ => 0,
        },
        _ => 0,
    }
}

/// Whether an admin command takes data from the host, which goes to
/// [`Port::handle_data`](super::Port::handle_data).
pub fn takes_data(entry: &SubmissionEntry) -> bool {
    AdminOpcode::decode(entry.opcode) == Some(AdminOpcode::SetFeatures) && data_expected(entry) > 0
}

/// Returns the status of a command whose data has an invalid description, which fails with
/// `status`. A command that its queue does not offer fails for that reason, because its opcode does
/// not say how it describes data.
pub fn invalid_transfer_status(entry: &SubmissionEntry, is_io_queue: bool, status: Status) -> Status {
    let is_known = match AdminOpcode::decode(entry.opcode) {
        Some(AdminOpcode::Fabrics) => FabricsType::decode(entry.fctype()).is_some(),
        _ if is_io_queue => IoOpcode::decode(entry.opcode).is_some_and(is_io_offered),
        opcode => opcode.is_some_and(|opcode| is_offered(opcode, SubsystemKind::Nvm)),
    };
    if is_known { status } else { Failure::Opcode.status() }
}

/// Whether I/O queues execute a command of the NVM command set.
pub(super) fn is_io_offered(opcode: IoOpcode) -> bool {
    matches!(
        opcode,
        IoOpcode::Read
            | IoOpcode::Write
            | IoOpcode::Flush
            | IoOpcode::WriteZeroes
            | IoOpcode::DatasetManagement
    )
}

/// Whether controllers of a kind execute an admin command; the command effects log lists the same
/// commands.
pub(super) fn is_offered(opcode: AdminOpcode, kind: SubsystemKind) -> bool {
    let is_common = matches!(
        opcode,
        AdminOpcode::Identify
            | AdminOpcode::GetLogPage
            | AdminOpcode::GetFeatures
            | AdminOpcode::SetFeatures
            | AdminOpcode::AsyncEventRequest
            | AdminOpcode::KeepAlive
    );
    is_common || (opcode == AdminOpcode::Abort && kind == SubsystemKind::Nvm)
}

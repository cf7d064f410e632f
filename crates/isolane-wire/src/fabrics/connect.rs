//! Connect: assigns a connection to a queue of a controller (Fabrics 1.1 §3.3).

use crate::{CompletionEntry, NqnField, Status, opcode::FabricsType};

/// CNTLID of Connect for an admin queue in the dynamic controller model: the subsystem chooses.
pub const CNTLID_DYNAMIC: u16 = 0xffff;

/// The highest controller identifier; FFF0h to FFFFh are reserved.
pub const MAX_CNTLID: u16 = 0xffef;

bits! {
    /// CATTR of Connect.
    pub struct ConnectAttributes(u8) {
        /// Priority class of the queue.
        priority / with_priority: u8 = [1:0],
        /// Disable submission queue flow control: SQHD is not kept.
        disable_sq_flow_control / with_disable_sq_flow_control: bool = [2:2],
        /// The host supports deletion of single I/O queues.
        individual_queue_deletion / with_individual_queue_deletion: bool = [3:3],
    }
}

command! {
    /// Connect command; [`ConnectData`] is in its capsule.
    pub struct ConnectCommand: FabricsType::Connect => {
        /// RECFMT: 0 is the only record format.
        cdw10[15:0] => recfmt: u16,
        /// QID: 0 is the admin queue.
        cdw10[31:16] => qid: u16,
        /// SQSIZE: entries of the submission queue, 0's based.
        cdw11[15:0] => sqsize: u16,
        /// CATTR.
        cdw11[23:16] => attributes: ConnectAttributes,
        /// KATO: keep alive timeout in milliseconds; 0 disables it. Admin queue only.
        cdw12[31:0] => kato_ms: u32,
    }
}

impl ConnectCommand {
    /// Offset of RECFMT in the command.
    pub const RECFMT: u16 = 40;
    /// Offset of QID in the command.
    pub const QID: u16 = 42;
    /// Offset of SQSIZE in the command.
    pub const SQSIZE: u16 = 44;
    /// Offset of CATTR in the command.
    pub const CATTR: u16 = 46;
    /// Offset of KATO in the command.
    pub const KATO: u16 = 48;
}

layout! {
    /// Data of Connect: host, subsystem, and controller.
    pub struct ConnectData[1024] {
        /// HOSTID: a UUID, the same for all connections of a host.
        0 => hostid: [u8; 16],
        /// CNTLID: FFFFh to request a controller, else the controller of this I/O queue.
        16 => cntlid: u16,
        /// SUBNQN.
        256 => subnqn: NqnField,
        /// HOSTNQN.
        512 => hostnqn: NqnField,
    }
}

impl ConnectData {
    /// Offset of HOSTID in the data.
    pub const HOSTID: u16 = 0;
    /// Offset of CNTLID in the data.
    pub const CNTLID: u16 = 16;
    /// Offset of SUBNQN in the data.
    pub const SUBNQN: u16 = 256;
    /// Offset of HOSTNQN in the data.
    pub const HOSTNQN: u16 = 512;
}

bits! {
    /// Dword 0 of a successful Connect.
    pub struct ConnectResponse(u32) {
        /// CNTLID: controller allocated or joined.
        cntlid / with_cntlid: u16 = [15:0],
        /// AUTHREQ: 0 if no authentication is needed before other commands.
        authreq / with_authreq: u16 = [31:16],
    }
}

impl ConnectResponse {
    /// ATR, bit 1 of AUTHREQ: the host must authenticate before it sends other commands.
    pub const ATR: u16 = 1 << 1;

    /// ASCR, bit 2 of AUTHREQ: the host must also set up a secure channel.
    pub const ASCR: u16 = 1 << 2;
}

/// Invalid field of a Connect rejected with Connect Invalid Parameters (1/82h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnectRejection {
    /// A field of the command, by its offset in bytes (IATTR bit 0 clear).
    Command(u16),
    /// A field of the data, by its offset in bytes (IATTR bit 0 set).
    Data(u16),
}

bits! {
    /// Dword 0 of a Connect with invalid parameters.
    pub struct RejectedDword0(u32) {
        /// IPO: invalid parameter offset.
        ipo / with_ipo: u16 = [15:0],
        /// IATTR bit 0: the offset is in the data.
        is_data / with_is_data: bool = [16:16],
    }
}

impl ConnectRejection {
    /// Encodes the response; the queue sets `cid` and SQHD. A retry would fail again, so DNR is
    /// set.
    pub fn completion(&self) -> CompletionEntry {
        let (ipo, is_data) = match *self {
            Self::Command(offset) => (offset, false),
            Self::Data(offset) => (offset, true),
        };
        CompletionEntry {
            dw0: RejectedDword0(0).with_ipo(ipo).with_is_data(is_data).0,
            status: Status::CONNECT_INVALID_PARAMETERS.with_dnr(true),
            ..CompletionEntry::default()
        }
    }

    /// Decodes the response; `None` for another status.
    pub fn parse(entry: &CompletionEntry) -> Option<Self> {
        let dw0 = RejectedDword0(entry.dw0);
        let rejection = if dw0.is_data() { Self::Data(dw0.ipo()) } else { Self::Command(dw0.ipo()) };
        entry.status.is(Status::CONNECT_INVALID_PARAMETERS).then_some(rejection)
    }

    /// Returns the name of the field in the specification.
    pub fn field(&self) -> &'static str {
        match *self {
            Self::Command(ConnectCommand::RECFMT) => "RECFMT",
            Self::Command(ConnectCommand::QID) => "QID",
            Self::Command(ConnectCommand::SQSIZE) => "SQSIZE",
            Self::Command(ConnectCommand::CATTR) => "CATTR",
            Self::Command(ConnectCommand::KATO) => "KATO",
            Self::Data(ConnectData::HOSTID) => "HOSTID",
            Self::Data(ConnectData::CNTLID) => "CNTLID",
            Self::Data(ConnectData::SUBNQN) => "SUBNQN",
            Self::Data(ConnectData::HOSTNQN) => "HOSTNQN",
            Self::Command(_) | Self::Data(_) => "an unnamed field",
        }
    }
}

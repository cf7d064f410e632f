//! Description of a target, as of the last connection.
//!
//! Sizes are in bytes unless the name says blocks.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use isolane_wire::Nqn;
use isolane_wire::log::RestartLoss;
use isolane_wire::registers::Vs;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::codec::{EncodedRestartLoss, EncodedVersion, text};
use crate::lane_class::{LaneClass, LaneCounts};

/// A subsystem, its controller, its namespaces, and the negotiated parameters.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Info {
    /// Address of the target.
    #[serde(with = "text")]
    pub address: SocketAddr,
    /// The subsystem.
    #[serde(with = "text")]
    pub nqn: Nqn,
    /// The controller of this association.
    pub controller: ControllerInfo,
    /// The active namespaces, in rising order of their ids.
    pub namespaces: Vec<NamespaceInfo>,
    /// Negotiated parameters.
    pub negotiated: Negotiated,
}

/// Contents of Identify Controller and the registers.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct ControllerInfo {
    /// Controller id, chosen by the target for this association.
    pub cntlid: u16,
    /// Serial number.
    pub serial: String,
    /// Model.
    pub model: String,
    /// Firmware revision.
    pub firmware: String,
    /// Version of the NVMe specification: VS.
    #[serde(with = "EncodedVersion")]
    pub version: Vs,
    /// Maximum data of one command in bytes, from MDTS. `None`: no limit reported.
    pub max_transfer_bytes: Option<u64>,
    /// Entries of an I/O queue at most, from CAP.MQES.
    pub max_queue_entries: u32,
    /// Whether there is a volatile write cache, so that a flush means something.
    pub has_volatile_cache: bool,
    /// Whether Write Zeroes is served.
    pub has_write_zeroes: bool,
    /// Whether Dataset Management (deallocate) is served.
    pub has_deallocate: bool,
    /// Whether any command counts as keep alive (TBKAS).
    pub traffic_based_keep_alive: bool,
    /// CQT: how long commands may go on after an association has ended; zero: not reported.
    pub command_quiesce_time: Duration,
}

/// Contents of Identify Namespace and the descriptor list.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct NamespaceInfo {
    /// Namespace id.
    pub nsid: u32,
    /// Size of a logical block in bytes.
    pub block_bytes: u32,
    /// Logical blocks: NSZE.
    pub blocks: u64,
    /// Metadata of each block in bytes. This host does not support any.
    pub metadata_bytes: u16,
    /// UUID, if it has one.
    pub uuid: Option<Uuid>,
    /// NGUID, if it has one.
    pub nguid: Option<[u8; 16]>,
    /// EUI64, if it has one.
    pub eui64: Option<[u8; 8]>,
    /// Whether it is write protected.
    pub read_only: bool,
    /// Generation, if the target reports one: an Isolane target does.
    pub generation: Option<Generation>,
}

/// The time during which a target loses no acknowledged write.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Generation {
    /// Another one after every restart that loses acknowledged writes.
    pub id: Uuid,
    /// Acknowledged writes that such a restart loses.
    #[serde(with = "EncodedRestartLoss")]
    pub loses: RestartLoss,
}

impl NamespaceInfo {
    /// Size in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.blocks.saturating_mul(u64::from(self.block_bytes))
    }
}

/// Negotiated parameters of an association.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Negotiated {
    /// Every header carries a CRC32C.
    pub header_digest: bool,
    /// All data carries a CRC32C.
    pub data_digest: bool,
    /// Alignment of data towards the target in bytes.
    pub data_alignment_bytes: usize,
    /// MAXH2CDATA: the most data of one H2CData PDU.
    pub max_h2c_data_bytes: u32,
    /// Write data up to this length travels in the command's capsule on an I/O queue.
    pub max_in_capsule_bytes: u32,
    /// Whether submission queue flow control is off.
    pub flow_control_disabled: bool,
    /// Keep-alive timeout; zero: none.
    pub keep_alive: Duration,
    /// I/O connections, by class.
    pub lanes: LaneCounts,
    /// Commands in flight on each.
    pub depth: u16,
    /// The most data of one command.
    pub max_transfer_bytes: usize,
}

/// One connection of a client, and the cores that handle it (H3, S6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionStatus {
    /// Controller ID; each association has one.
    pub cntlid: u16,
    /// The core that [`Options::cores`](crate::Options::cores) has placed it on, and that should drive it.
    pub core: Option<usize>,
    /// Queue ID; 0 is the admin queue.
    pub qid: u16,
    /// Its class and its index there, counted over all cores; `None` for the admin queue.
    pub lane: Option<(LaneClass, usize)>,
    /// The local address, which identifies it in the target's list.
    pub local: SocketAddr,
    /// The core of the thread that drove it when the status was read; for a shared volume, of the leader.
    pub driving_core: usize,
    /// The core that last processed its packets, if known.
    pub incoming_cpu: Option<usize>,
}

/// The engine that a volume is open at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineStatus {
    /// Path of the engine's socket.
    pub path: PathBuf,
    /// The engine's core that drives the volume's connections, which sessions share.
    pub core: usize,
}

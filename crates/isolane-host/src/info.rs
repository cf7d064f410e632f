//! What the target told about itself when the association was made.
//!
//! Plain facts for people and programs; nothing here is asked anew. Sizes are in bytes unless a name says
//! blocks.

use std::net::SocketAddr;
use std::time::Duration;

use isolane_wire::Nqn;
use isolane_wire::log::RestartLoss;
use isolane_wire::registers::Vs;
use uuid::Uuid;

use crate::classes::Classes;
use crate::error::ConnectError;

/// A subsystem, its controller, its namespaces, and what was agreed on.
#[derive(Clone, Debug)]
pub struct Info {
    /// Where it is.
    pub address: SocketAddr,
    /// The subsystem.
    pub nqn: Nqn,
    /// The controller of this association.
    pub controller: ControllerInfo,
    /// The active namespaces, in rising order of their ids.
    pub namespaces: Vec<NamespaceInfo>,
    /// What both sides agreed on.
    pub negotiated: Negotiated,
}

impl Info {
    /// The namespace of an id, or the only one.
    pub(crate) fn choose(&self, nsid: Option<u32>) -> Result<&NamespaceInfo, ConnectError> {
        let present = || self.namespaces.iter().map(|namespace| namespace.nsid).collect();
        match (nsid, self.namespaces.as_slice()) {
            (Some(nsid), namespaces) => namespaces
                .iter()
                .find(|namespace| namespace.nsid == nsid)
                .ok_or_else(|| ConnectError::UnknownNamespace { nsid, present: present() }),
            (None, []) => Err(ConnectError::NoNamespace),
            (None, [namespace]) => Ok(namespace),
            (None, _) => Err(ConnectError::ManyNamespaces(present())),
        }
    }
}

/// What Identify Controller and the registers tell.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    pub version: Vs,
    /// The most bytes of one command, from MDTS; none: no limit told.
    pub transfer_bytes_max: Option<u64>,
    /// Entries of an I/O queue at most, from CAP.MQES.
    pub queue_entries_max: u32,
    /// Whether there is a volatile write cache, so that a flush means something.
    pub has_volatile_cache: bool,
    /// Whether Write Zeroes is served.
    pub has_write_zeroes: bool,
    /// Whether Dataset Management (deallocate) is served.
    pub has_deallocate: bool,
    /// Whether any command counts as keep alive (TBKAS).
    pub is_keep_alive_traffic_based: bool,
    /// CQT: how long commands may go on after an association has ended; zero: not reported.
    pub command_quiesce_time: Duration,
}

/// What Identify Namespace and the descriptor list tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Namespace id.
    pub nsid: u32,
    /// Bytes in a logical block.
    pub block_bytes: u32,
    /// Logical blocks: NSZE.
    pub blocks: u64,
    /// Bytes of metadata of each block; this host moves none.
    pub metadata_bytes: u16,
    /// UUID, if it has one.
    pub uuid: Option<Uuid>,
    /// NGUID, if it has one.
    pub nguid: Option<[u8; 16]>,
    /// EUI64, if it has one.
    pub eui64: Option<[u8; 8]>,
    /// Whether it is write protected.
    pub is_read_only: bool,
    /// Generation, if the target reports one: an Isolane target does.
    pub generation: Option<Generation>,
}

/// The time during which a target loses no acknowledged write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Another one after every restart that loses acknowledged writes.
    pub id: Uuid,
    /// Acknowledged writes that such a restart loses.
    pub loses: RestartLoss,
}

impl NamespaceInfo {
    /// Size in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.blocks.saturating_mul(u64::from(self.block_bytes))
    }
}

/// What both sides agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Every header carries a CRC32C.
    pub header_digest: bool,
    /// All data carries a CRC32C.
    pub data_digest: bool,
    /// Alignment of data towards the target in bytes.
    pub data_alignment_bytes: usize,
    /// MAXH2CDATA: the most data of one H2CData PDU.
    pub h2c_data_bytes_max: u32,
    /// Write data up to this length travels in the command's capsule on an I/O queue.
    pub in_capsule_bytes_max: u32,
    /// Whether submission queue flow control is off.
    pub is_flow_control_disabled: bool,
    /// Keep-alive timeout; zero: none.
    pub keep_alive: Duration,
    /// I/O connections, by class.
    pub lanes: Classes,
    /// Commands in flight on each.
    pub depth: u16,
    /// The most data of one command.
    pub transfer_bytes_max: usize,
}

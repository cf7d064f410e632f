//! The state of a frozen target, as plain data.
//!
//! ```text
//! | magic (8) | version (4) | length (8) | CRC32C (4) | content |
//! ```
//!
//! The content names sockets by their descriptors, which both processes share. Invariant: a state that was read is
//! consistent: each connected queue of an association has one connection, and each such connection has its queue.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use isolane_proto::subsystem::{AssociationId, ConnectionInfo, ListenerId, PortState, ResumedQueue};
use isolane_proto::target::{ConnectionState, StateError};
use isolane_wire::digest::crc32c;
use serde::{Deserialize, Serialize};

use crate::table_state::TableState;

/// State of a target that another process continues: see [`Target::freeze`](crate::Target::freeze).
#[derive(Debug)]
pub struct FrozenState {
    pub(crate) content: Content,
    /// All sockets, once the frozen target has released them.
    pub(crate) sockets: Vec<OwnedFd>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Content {
    pub port: PortState,
    pub tables: Vec<TableState>,
    pub listeners: Vec<(SocketAddr, RawFd)>,
    pub lanes: Vec<LaneState>,
}

/// State of one connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LaneState {
    pub core: u32,
    pub socket: RawFd,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    pub listener: ListenerId,
    pub queue: Option<QueueName>,
    pub proof: Proof,
    pub conn: ConnectionState,
}

/// Proof of the identity of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Proof {
    /// It has given none, or needs none.
    None,
    /// It has given it.
    Given,
    /// An exchange is running. Its secrets are not part of the state, so the connection does not continue.
    Running,
}

/// A queue of an association.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct QueueName {
    /// Number of the subsystem.
    pub subsystem: u32,
    pub cntlid: u16,
    pub serial: u64,
    pub qid: u16,
}

/// State of one core.
#[derive(Debug, Default)]
pub(crate) struct CoreState {
    pub listeners: Vec<(SocketAddr, RawFd)>,
    pub lanes: Vec<LaneState>,
}

/// Work that a frozen core has not finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unfinished {
    pub nsid: Option<u32>,
    pub volume: Option<String>,
    pub operation: &'static str,
}

/// A connection to continue on a core.
pub(crate) struct ResumedLane {
    pub socket: OwnedFd,
    pub connection: ConnectionInfo,
    pub conn: ConnectionState,
    pub queue: Option<(AssociationId, u16, ResumedQueue)>,
    pub proof: Proof,
}

/// Reason why bytes are not the state of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrozenStateError {
    /// The first bytes differ.
    #[error("not the state of a target")]
    Foreign,
    /// Another version of the format.
    #[error("the state has version {found}, and this program reads version {}", FrozenState::VERSION)]
    Version {
        /// Version of the state.
        found: u32,
    },
    /// Bytes are missing, or there are too many.
    #[error("the state of a target is truncated")]
    Truncated,
    /// The checksum or the encoding is wrong.
    #[error("the state of a target is damaged")]
    Damaged,
    /// The parts do not belong together.
    #[error(transparent)]
    Invalid(#[from] StateError),
}

impl FrozenState {
    /// Version of the format, and of everything that `isolane serve` passes on with it; a program continues a state of
    /// its own version only.
    pub const VERSION: u32 = 3;

    /// Returns the state as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        // Plain data without maps always has an encoding.
        let content = postcard::to_allocvec(&self.content).unwrap_or_default();
        let mut bytes = Vec::with_capacity(HEADER_BYTES + content.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&FrozenState::VERSION.to_le_bytes());
        bytes.extend_from_slice(&(content.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&crc32c(&content).to_le_bytes());
        bytes.extend_from_slice(&content);
        bytes
    }

    /// Reads a state. Its sockets are named only: see [`Target::start_from`](crate::Target::start_from).
    ///
    /// # Errors
    /// If the bytes are not a valid state of this version.
    pub fn from_bytes(bytes: &[u8]) -> Result<FrozenState, FrozenStateError> {
        let (magic, bytes) = bytes.split_first_chunk::<8>().ok_or(FrozenStateError::Foreign)?;
        if magic != MAGIC {
            return Err(FrozenStateError::Foreign);
        }
        let (version, bytes) = bytes.split_first_chunk().ok_or(FrozenStateError::Truncated)?;
        let found = u32::from_le_bytes(*version);
        if found != FrozenState::VERSION {
            return Err(FrozenStateError::Version { found });
        }
        let (len, bytes) = bytes.split_first_chunk().ok_or(FrozenStateError::Truncated)?;
        let (sum, content) = bytes.split_first_chunk().ok_or(FrozenStateError::Truncated)?;
        if u64::from_le_bytes(*len) != content.len() as u64 {
            return Err(FrozenStateError::Truncated);
        }
        if crc32c(content) != u32::from_le_bytes(*sum) {
            return Err(FrozenStateError::Damaged);
        }
        let (content, rest) =
            postcard::take_from_bytes::<Content>(content).map_err(|_| FrozenStateError::Damaged)?;
        if !rest.is_empty() {
            return Err(FrozenStateError::Damaged);
        }
        content.check()?;
        Ok(FrozenState { content, sockets: Vec::new() })
    }

    /// Returns the sockets of listeners and connections, which the process that continues must inherit. Empty before
    /// [`Frozen::hand_over`](crate::Frozen::hand_over), and in a state that was read.
    pub fn sockets(&self) -> &[OwnedFd] {
        &self.sockets
    }

    /// Returns the number of connections.
    pub fn connections(&self) -> usize {
        self.content.lanes.len()
    }
}

impl Content {
    /// Checks that connections and queues match, and that no socket is named twice.
    pub(crate) fn check(&self) -> Result<(), StateError> {
        let mut sockets = HashSet::new();
        let named = self.lanes.iter().map(|lane| lane.socket);
        let mut named = named.chain(self.listeners.iter().map(|(_, socket)| *socket));
        if !named.all(|socket| socket >= 0 && sockets.insert(socket)) {
            return Err(StateError("a socket"));
        }
        self.tables.iter().try_for_each(TableState::check)?;
        let mut queues: HashSet<QueueName> = self.queues().collect();
        if queues.len() != self.queues().count() {
            return Err(StateError("an association occurs twice"));
        }
        for lane in &self.lanes {
            let qid = lane.conn.queue().map(|queue| queue.qid);
            let is_known = match lane.queue {
                Some(queue) => qid == Some(queue.qid) && queues.remove(&queue),
                None => qid.is_none(),
            };
            if !is_known {
                return Err(StateError("a connection without its queue"));
            }
        }
        if queues.is_empty() { Ok(()) } else { Err(StateError("a queue without its connection")) }
    }

    fn queues(&self) -> impl Iterator<Item = QueueName> {
        self.port.subsystems.iter().flat_map(|subsystem| {
            subsystem.associations.iter().flat_map(|association| {
                association.queues().map(|qid| QueueName {
                    subsystem: subsystem.number,
                    cntlid: association.cntlid,
                    serial: association.serial,
                    qid,
                })
            })
        })
    }
}

/// Returns the descriptor of a socket, as a state names it.
pub(crate) fn name(socket: &impl AsRawFd) -> RawFd {
    socket.as_raw_fd()
}

const MAGIC: &[u8; 8] = b"ISOLFRZN";
const HEADER_BYTES: usize = 24;

//! Messages between an engine and its supervisor, one packet each.

use serde::{Deserialize, Serialize};

use super::Record;

/// Message of the engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToSupervisor {
    /// First message: the protocol version ([`LINK_VERSION`]). The first variant, whose encoding is the same in every
    /// version.
    Hello { version: u32 },
    /// Stores a record with the descriptors of the packet. Answered by [`ToEngine::Stored`] or [`ToEngine::StoreFailed`].
    Put { key: u64, record: Record },
    /// Removes a record.
    Remove { key: u64 },
    /// The engine serves clients.
    Ready,
    /// No client has been attached for the idle time.
    Idle,
}

/// Message of the supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToEngine {
    /// Restores a record with the descriptors of the packet.
    Restore { key: u64, record: Record },
    /// Ends the restored records: the engine must serve. The packet contains the listener and the memory of the
    /// [`watch::Record`](crate::watch::Record).
    Start { version: u32, epoch: u64 },
    /// The record is stored.
    Stored { key: u64 },
    /// The record is not stored, because the supervisor has no descriptors left.
    StoreFailed { key: u64 },
    /// Closes all objects, then ends the engine.
    Shutdown,
    /// Ends the engine as it is; another one continues.
    Exit,
    /// Prints clients and their objects.
    PrintStatus,
}

/// Protocol version. A supervisor starts only engines of the same version.
pub(crate) const LINK_VERSION: u32 = 9;

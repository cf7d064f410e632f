//! One connection and what its core knows of it. It does nothing by itself: the core's other files act on it.
//!
//! Invariant: a lane stays in its core's table until no command of it is at a volume, also when its socket is
//! long closed; only then has the port heard that its queue is drained.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use isolane_proto::subsystem::{AssociationId, ConnectionInfo, ControllerStatus, Host, IoCounters};
use isolane_proto::target::{Connection, ConnectionConfig, Permit};
use isolane_reactor::{Detached, Token};
use isolane_wire::SubmissionEntry;

use super::work::{Job, Waiting};
use crate::counters::InFlight;
use crate::fence::Fence;
use crate::newcomers::Arrival;
use crate::slab::{LaneId, SlabKey};

/// One connection.
pub(crate) struct Lane {
    /// Its own place in the table.
    pub key: SlabKey,
    /// Identifies the lane on all cores; does not change when it moves.
    pub id: LaneId,
    /// Bytes moved when the load was last reported.
    pub reported_bytes: u64,
    /// The socket; none once it is closed.
    pub token: Option<Token>,
    pub connection: ConnectionInfo,
    pub conn: Connection,
    pub phase: Phase,
    /// What the connection belongs to, once Connect has succeeded.
    pub association: Option<Association>,
    /// A Connect that is not answered yet.
    pub connecting: Option<Connecting>,
    /// A command whose in-capsule data has no memory yet. Nothing is read until it has.
    pub stalled: Option<Stalled>,
    /// The command, by its slot, that uses the memory reserved for this lane.
    pub guaranteed_slot: Option<u16>,
    /// What it has at each volume; entries of volumes without anything are used again.
    pub volumes: Vec<AtVolume>,
    /// Commands that would exceed a share of memory or output, at all volumes.
    pub limited: usize,
    /// Memory claimed for all volumes, in bytes.
    pub reserved_bytes: usize,
    /// Bytes that the kernel still reads from our memory.
    pub zerocopy_bytes: usize,
    /// Bytes moved when the deadlines were last looked at, and since when there are so many.
    pub moved_bytes: u64,
    pub moved_at: Instant,
    /// Commands at volumes, or waiting for one.
    pub active: u32,
    /// Those among them that may leave something in a volatile cache.
    pub volatile: u32,
    /// The same numbers, for other cores.
    pub in_flight: Arc<InFlight>,
    /// In the list of lanes that are to be sent from in this turn.
    pub dirty: bool,
    /// The socket did not take all of the last send: it takes more when the reactor says so.
    pub send_blocked: bool,
    /// Not read from until there is room: memory, or space for output.
    pub paused: bool,
    /// The port has heard that the connection is lost.
    pub disconnected: bool,
    pub disconnected_at: Instant,
    /// Its association goes on without waiting for its commands.
    pub left_behind: bool,
    /// Once it is disconnected: the positions of volumes that still work on commands of it, and how many.
    pub left_at: Vec<(usize, u32)>,
    /// Its place among the connections before Connect.
    pub newcomer: Option<Arrival>,
    /// Its queue was connected, and it has a seat.
    pub in_quota: bool,
}

/// What one lane has at one volume.
#[derive(Debug, Default)]
pub(crate) struct AtVolume {
    position: usize,
    /// Commands that would exceed a share of memory or output, small and large ones.
    pub over_share: [VecDeque<Waiting>; 2],
    /// Small commands that have passed the large ones there.
    pub passed: u32,
    /// Memory promised to commands that wait for it, or taken by reads in flight, in bytes.
    pub reserved_bytes: usize,
    /// Memory for data that the host is to send, in bytes.
    pub awaited_bytes: usize,
}

impl AtVolume {
    pub(crate) fn position(&self) -> usize {
        self.position
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.over_share.iter().any(|row| !row.is_empty())
    }

    fn is_idle(&self) -> bool {
        !self.is_limited() && self.reserved_bytes == 0 && self.awaited_bytes == 0
    }
}

/// The end of a lane comes in steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Commands are taken.
    Open,
    /// What is queued is sent, then writing is shut down, and what still comes is thrown away until the host
    /// closes. Closing with unread data in the socket would destroy what was sent last (TCP 1.0 §3.5).
    Closing {
        /// By then it is closed in any case.
        until: Instant,
        write_shut: bool,
    },
    /// The socket is closed; commands may still be at volumes.
    Closed,
}

/// What a connected lane belongs to.
pub(crate) struct Association {
    pub id: AssociationId,
    pub qid: u16,
    pub host: Host,
    pub status: Arc<ControllerStatus>,
    pub counters: Arc<IoCounters>,
    /// What its I/O has to come after; none once that is over.
    pub fence: Option<Arc<Fence>>,
}

/// A Connect that waits until older connections of its host have been read.
pub(crate) struct Connecting {
    pub permit: Permit,
    pub entry: SubmissionEntry,
    pub data: Vec<u8>,
    /// Cores that have not yet raised their part of the fence.
    pub cores_left: usize,
    pub fence: Arc<Fence>,
    pub until: Instant,
}

/// A command with in-capsule data.
pub(crate) struct Stalled {
    pub permit: Permit,
    /// Position of its namespace.
    pub position: usize,
    pub len: usize,
    /// It has waited for memory since then.
    pub since: Instant,
}

/// A lane between two cores.
pub(crate) struct MigratingLane {
    pub lane: Option<Box<Lane>>,
    pub socket: Option<Detached>,
}

impl std::fmt::Debug for MigratingLane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MigratingLane").field("id", &self.lane.as_ref().map(|lane| lane.id)).finish()
    }
}

impl Lane {
    pub(crate) fn new(
        id: LaneId,
        token: Token,
        connection: ConnectionInfo,
        limits: ConnectionConfig,
        now: Instant,
    ) -> Lane {
        Lane {
            key: id.lane,
            id,
            reported_bytes: 0,
            token: Some(token),
            connection,
            conn: Connection::new(limits, now),
            phase: Phase::Open,
            association: None,
            connecting: None,
            stalled: None,
            guaranteed_slot: None,
            volumes: Vec::new(),
            limited: 0,
            reserved_bytes: 0,
            zerocopy_bytes: 0,
            moved_bytes: 0,
            moved_at: now,
            active: 0,
            volatile: 0,
            in_flight: Arc::default(),
            dirty: false,
            send_blocked: false,
            paused: false,
            disconnected: false,
            disconnected_at: now,
            left_behind: false,
            left_at: Vec::new(),
            newcomer: None,
            in_quota: false,
        }
    }

    /// The other end, for log lines.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.connection.remote
    }

    pub(crate) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// One more command is at a volume.
    pub(crate) fn begin(&mut self, volatile: bool) {
        self.active += 1;
        self.volatile += u32::from(volatile);
        self.in_flight.set(self.active, self.volatile);
    }

    /// One command less is at a volume.
    pub(crate) fn end(&mut self, volatile: bool) {
        self.active -= 1;
        self.volatile -= u32::from(volatile);
        self.in_flight.set(self.active, self.volatile);
    }

    /// Whether a command has to wait for changes of older associations.
    pub(crate) fn is_held(&mut self, job: &Job) -> bool {
        let Some(association) = &mut self.association else { return false };
        let fence = association.fence.take_if(|fence| fence.is_over());
        drop(fence);
        association.fence.as_ref().is_some_and(|fence| fence.holds(job.position, job.blocks))
    }

    /// Whether commands wait for a share of memory or output.
    pub(crate) fn is_limited(&self) -> bool {
        self.limited > 0
    }

    /// What it has at a volume.
    pub(crate) fn at_volume(&mut self, position: usize) -> &mut AtVolume {
        let of_it = self.volumes.iter().position(|at| at.position == position);
        let at = of_it.or_else(|| self.volumes.iter().position(AtVolume::is_idle)).unwrap_or_else(|| {
            self.volumes.push(AtVolume::default());
            self.volumes.len() - 1
        });
        if of_it.is_none() {
            (self.volumes[at].position, self.volumes[at].passed) = (position, 0);
        }
        &mut self.volumes[at]
    }

    /// Claims memory for a command.
    pub(crate) fn reserve(&mut self, position: usize, len: usize) {
        self.reserved_bytes += len;
        self.at_volume(position).reserved_bytes += len;
    }

    /// The command has got its memory, or is done with it.
    pub(crate) fn unreserve(&mut self, position: usize, len: usize) {
        if len > 0 {
            self.reserved_bytes -= len;
            self.at_volume(position).reserved_bytes -= len;
        }
    }

    /// Takes a command back that is answered or given up, so that the lane's own memory is free again.
    pub(crate) fn release_guaranteed(&mut self, permit: &Permit) {
        if self.guaranteed_slot == Some(permit.slot()) {
            self.guaranteed_slot = None;
        }
    }
}

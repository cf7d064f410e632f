//! State of one lane: a connection and its commands. The other files of the core work on it.
//!
//! Invariant: a lane stays in the slab of its core until its last command has left its volume, even if its
//! socket is closed; only then is the port notified that its queue is drained.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use isolane_proto::auth::TargetExchange;
use isolane_proto::subsystem::{AssociationId, ConnectionInfo, ControllerStatus, Host, IoCounters};
use isolane_proto::target::{Connection, ConnectionConfig, Permit};
use isolane_reactor::{Detached, Token};
use isolane_wire::SubmissionEntry;

use crate::counters::InFlight;
use crate::fence::Fence;
use crate::masks::MaskHost;
use crate::memory_limits::LaneMemory;
use crate::newcomers::Arrival;
use crate::observed::ConnectionCells;
use crate::slab::{LaneId, SlabKey};
use crate::timeline::{Marks, Timeline};
use crate::unflushed::HostChanges;
use crate::work::{Job, Waiting};

/// One connection on the core that owns it.
pub(crate) struct Lane {
    /// Its key in the slab of its core.
    pub key: SlabKey,
    /// Identifies the lane on all cores; does not change when it moves.
    pub id: LaneId,
    /// Bytes moved at the last load report.
    pub reported_bytes: u64,
    /// Time of the last receive, on the clock of the stages.
    pub received_at: u64,
    /// Upper bound of the time that its data waited in the socket, in nanoseconds.
    pub unseen: u64,
    /// Commands whose stages have not ended.
    pub marks: Marks,
    /// Its numbers, once it has completed an I/O command.
    pub observed: Option<Arc<ConnectionCells>>,
    /// The socket; `None` once it is closed.
    pub token: Option<Token>,
    pub connection: ConnectionInfo,
    pub conn: Connection,
    /// Time at which this process got the connection.
    pub opened_at: Instant,
    pub phase: Phase,
    /// The association, once Connect has succeeded.
    pub association: Option<Association>,
    /// A Connect that has not completed.
    pub connecting: Option<Connecting>,
    /// A command whose in-capsule data has no memory yet. The lane is not read until it has.
    pub stalled: Option<Stalled>,
    /// A command that waits for the page of the host. The lane is not read until it has the page, so that the space for
    /// output bounds the memory for pages.
    pub waiting_for_page: Option<WaitingForPage>,
    /// Slot of the command that uses the memory guaranteed to this lane.
    pub guaranteed_slot: Option<u16>,
    /// Its commands and memory at each volume; idle entries are reused.
    pub volumes: Vec<AtVolume>,
    /// Number of commands at all volumes that would exceed a share of memory or output.
    pub limited: usize,
    /// Memory reserved at all volumes, in bytes.
    pub reserved_bytes: usize,
    /// Memory of its jobs beyond that, in bytes, while it has limits of memory.
    pub job_bytes: isize,
    /// Its limits of memory.
    pub memory: Option<Box<LaneMemory>>,
    /// Length of the zero-copy sends that the kernel has not released.
    pub zerocopy_bytes: usize,
    /// Bytes moved at the last check of deadlines, and the time of their last change.
    pub moved_bytes: u64,
    pub moved_at: Instant,
    /// Number of commands at volumes, or waiting for one.
    pub active: u32,
    /// Commands of them that can leave data in a volatile cache.
    pub volatile: u32,
    /// The same counts, for other cores.
    pub in_flight: Arc<InFlight>,
    /// Listed for a send in this turn.
    pub dirty: bool,
    /// The socket was full at the last send; the reactor reports when it is writable.
    pub send_blocked: bool,
    /// Not read until memory or space for output is available.
    pub paused: bool,
    /// Not read any more: it closes once its commands are complete.
    pub retiring: bool,
    /// The port was notified that the connection is lost.
    pub disconnected: bool,
    pub disconnected_at: Instant,
    /// Its association continues without waiting for its commands.
    pub left_behind: bool,
    /// Once disconnected: positions of volumes with commands of this lane, and their number.
    pub left_at: Vec<(usize, u32)>,
    /// Its entry among the connections before Connect.
    pub newcomer: Option<Arrival>,
    /// Its entry among the queues whose host has not authenticated.
    pub unauthenticated: Option<Arrival>,
    /// Counted in the lane quota, since its queue was connected.
    pub in_quota: bool,
}

/// Commands and memory of one lane at one volume.
#[derive(Debug, Default)]
pub(crate) struct AtVolume {
    pub position: usize,
    /// Commands that would exceed a share of memory or output, by size.
    pub over_share: [VecDeque<Waiting>; 2],
    /// Number of small commands that have passed the large ones.
    pub passed: u32,
    /// Memory reserved for waiting commands and for reads in flight, in bytes.
    pub reserved_bytes: usize,
    /// Memory for data that the host has yet to send, in bytes.
    pub awaited_bytes: usize,
}

impl AtVolume {
    pub(crate) fn is_limited(&self) -> bool {
        self.over_share.iter().any(|row| !row.is_empty())
    }

    fn is_idle(&self) -> bool {
        !self.is_limited() && self.reserved_bytes == 0 && self.awaited_bytes == 0
    }
}

/// Phase of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Accepts commands.
    Open,
    /// Sends the queued data, shuts down writing, and discards received data until the host closes. A close
    /// with unread data in the socket would destroy the last sent data (TCP 1.0 §3.5).
    Closing {
        /// Time at which the socket is closed in any case.
        until: Instant,
        write_shut: bool,
    },
    /// The socket is closed; commands can still be at volumes.
    Closed,
}

/// Association of a connected lane.
pub(crate) struct Association {
    pub id: AssociationId,
    pub qid: u16,
    pub host: Host,
    /// Its number in the masks of the table of this core.
    pub mask_host: Option<MaskHost>,
    pub status: Arc<ControllerStatus>,
    pub counters: Arc<IoCounters>,
    /// Unflushed changes of its host; `None`: all count as unflushed.
    pub changes: Option<Arc<HostChanges>>,
    /// Fence that its I/O must follow; `None` once it is over.
    pub fence: Option<Arc<Fence>>,
    /// It is an I/O queue, and its host has authenticated if it must.
    pub serves_io: bool,
    /// Authentication; `None` if the host need not authenticate.
    pub auth: Option<Box<Authentication>>,
}

/// Authentication of one queue.
pub(crate) struct Authentication {
    pub exchange: TargetExchange,
    /// The data of an Authentication Send is being received.
    pub is_receiving: bool,
    /// An Authentication Send whose exponentiation runs.
    pub computing: Option<Computing>,
    /// The success was logged.
    pub is_reported: bool,
    /// Time at which a queue is closed whose host has not authenticated.
    pub until: Instant,
}

impl Authentication {
    /// Whether a message of the host is being received, or an exchange is running.
    pub(crate) fn is_running(&self) -> bool {
        self.is_receiving || self.exchange.is_running()
    }
}

/// An Authentication Send whose exponentiation waits or runs.
pub(crate) struct Computing {
    pub permit: Permit,
    /// Dropped when the result is no longer needed.
    pub _waits: Arc<()>,
}

impl Association {
    /// Whether the host must authenticate before other commands are served.
    pub(crate) fn is_locked(&self) -> bool {
        self.auth.as_ref().is_some_and(|auth| !auth.exchange.is_authenticated())
    }

    /// Whether the host has authenticated.
    pub(crate) fn is_authenticated(&self) -> bool {
        self.auth.as_ref().is_some_and(|auth| auth.exchange.is_authenticated())
    }
}

/// A Connect that waits until older connections of its host are drained.
pub(crate) struct Connecting {
    pub permit: Permit,
    pub entry: SubmissionEntry,
    pub data: Vec<u8>,
    /// Number of cores that have not entered their changes into the fence.
    pub cores_left: usize,
    pub fence: Arc<Fence>,
    pub until: Instant,
}

/// A command that waits for memory for its in-capsule data.
pub(crate) struct Stalled {
    pub permit: Permit,
    /// Position of its namespace.
    pub position: usize,
    pub len: usize,
    /// Start of the wait.
    pub since: Instant,
    pub timeline: Timeline,
}

/// A Get Log Page that waits for the page of the host.
#[derive(Debug)]
pub(crate) struct WaitingForPage {
    pub permit: Permit,
    pub entry: SubmissionEntry,
    /// Length in its SGL.
    pub len: u32,
}

/// A lane that moves from one core to another.
pub(crate) struct MigratingLane {
    pub lane: Box<Lane>,
    pub socket: Detached,
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
            received_at: 0,
            unseen: 0,
            marks: Marks::default(),
            observed: None,
            token: Some(token),
            connection,
            conn: Connection::new(limits, now),
            opened_at: now,
            phase: Phase::Open,
            association: None,
            connecting: None,
            stalled: None,
            waiting_for_page: None,
            guaranteed_slot: None,
            volumes: Vec::new(),
            limited: 0,
            reserved_bytes: 0,
            job_bytes: 0,
            memory: None,
            zerocopy_bytes: 0,
            moved_bytes: 0,
            moved_at: now,
            active: 0,
            volatile: 0,
            in_flight: Arc::default(),
            dirty: false,
            send_blocked: false,
            paused: false,
            retiring: false,
            disconnected: false,
            disconnected_at: now,
            left_behind: false,
            left_at: Vec::new(),
            newcomer: None,
            unauthenticated: None,
            in_quota: false,
        }
    }

    /// Returns the address of the host.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.connection.remote
    }

    pub(crate) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Counts a command at a volume.
    pub(crate) fn begin(&mut self, volatile: bool) {
        self.active += 1;
        self.volatile += u32::from(volatile);
        self.in_flight.set(self.active, self.volatile);
    }

    /// Counts the end of a command at a volume.
    pub(crate) fn end(&mut self, volatile: bool) {
        self.active -= 1;
        self.volatile -= u32::from(volatile);
        self.in_flight.set(self.active, self.volatile);
    }

    /// Returns the unflushed changes of its host.
    pub(crate) fn changes(&self) -> Option<&HostChanges> {
        self.association.as_ref()?.changes.as_deref()
    }

    /// Returns `true` if a command must wait for changes of older associations.
    pub(crate) fn is_held(&mut self, job: &Job) -> bool {
        let Some(association) = &mut self.association else { return false };
        let fence = association.fence.take_if(|fence| fence.is_over());
        drop(fence);
        association.fence.as_ref().is_some_and(|fence| fence.holds(job.position, job.blocks))
    }

    /// Returns `true` if commands wait for a share of memory or output.
    pub(crate) fn is_limited(&self) -> bool {
        self.limited > 0
    }

    /// Returns its commands and memory at a volume.
    #[inline]
    pub(crate) fn at_volume(&mut self, position: usize) -> &mut AtVolume {
        match self.volumes.iter().position(|at| at.position == position) {
            Some(index) => &mut self.volumes[index],
            None => self.add_volume(position),
        }
    }

    #[cold]
    fn add_volume(&mut self, position: usize) -> &mut AtVolume {
        let index = self.volumes.iter().position(AtVolume::is_idle).unwrap_or_else(|| {
            self.volumes.push(AtVolume::default());
            self.volumes.len() - 1
        });
        let at = &mut self.volumes[index];
        (at.position, at.passed) = (position, 0);
        at
    }

    /// Returns the positions that its commands have, apart from those that its core lists.
    pub(crate) fn positions(&self) -> impl Iterator<Item = usize> {
        let volumes = self.volumes.iter().filter(|at| !at.is_idle()).map(|at| at.position);
        let stalled = self.stalled.iter().map(|stalled| stalled.position);
        let left = self.left_at.iter().map(|(position, _)| *position);
        volumes.chain(stalled).chain(left).chain(self.marks.transfer_positions())
    }

    /// Reserves memory for a command.
    pub(crate) fn reserve(&mut self, position: usize, len: usize) {
        self.reserved_bytes += len;
        self.at_volume(position).reserved_bytes += len;
    }

    /// Removes a reservation: the command has its memory, or has ended.
    pub(crate) fn unreserve(&mut self, position: usize, len: usize) {
        if len > 0 {
            self.reserved_bytes -= len;
            self.at_volume(position).reserved_bytes -= len;
        }
    }

    /// Makes the guaranteed memory available again if the ended command used it.
    pub(crate) fn release_guaranteed(&mut self, permit: &Permit) {
        if self.guaranteed_slot == Some(permit.slot()) {
            self.guaranteed_slot = None;
        }
    }
}

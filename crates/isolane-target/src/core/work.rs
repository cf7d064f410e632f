//! Work for volumes: a command on its way to its volume, and the reason why it waits.
//!
//! Types only. `job` runs a command, `waiting` tries those again that could not run.

use std::sync::Arc;
use std::time::Instant;

use isolane_proto::target::Permit;
use isolane_volume::nested::Member;
use isolane_volume::{BlockRange, Request, Task};

use crate::counters::IoKind;
use crate::namespace::Namespace;
use crate::slab::SlabKey;

/// A command that has been given to a volume.
#[derive(Debug)]
pub(crate) struct Job {
    pub permit: Permit,
    /// Position of its namespace.
    pub position: usize,
    pub operation: IoKind,
    pub len: usize,
    /// All blocks that it touches lie within.
    pub blocks: BlockRange,
    /// Present once the command is in a fence: lives until it ends.
    mark: Option<Arc<()>>,
    pub started: Instant,
    /// Its volume reads from a file, into memory of the pool.
    pub reads_into_pool: bool,
    /// Memory that it has claimed for that, in bytes.
    pub reserved: usize,
    /// Memory of the data that it writes, in bytes.
    pub data_bytes: usize,
    /// What is to be done after the first request, if that succeeds.
    pub then: Option<Request>,
    /// It may leave something in a volatile cache.
    pub volatile: bool,
    /// Counted among the lane's commands at volumes.
    pub counted: bool,
}

impl Job {
    /// The job of answering a command by this request.
    pub(super) fn new(
        permit: Permit,
        position: usize,
        namespace: &Namespace,
        request: &Request,
        started: Instant,
    ) -> Job {
        let in_bytes = |blocks: u64| (blocks as usize) << namespace.geometry.block_shift;
        let (operation, len, is_durable) = match request {
            Request::Read { blocks, .. } => (IoKind::Read, in_bytes(*blocks), true),
            Request::Write { data, fua, .. } => (IoKind::Write, data.len(), *fua),
            Request::Flush => (IoKind::Flush, 0, true),
            Request::WriteZeroes { blocks, fua, .. } => (IoKind::WriteZeroes, in_bytes(*blocks), *fua),
            Request::Deallocate { fua, .. } => (IoKind::Deallocate, 0, *fua),
            Request::Continue(_) => unreachable!("a job begins with its first request"),
        };
        let data_bytes = if let Request::Write { data, .. } = request { data.len() } else { 0 };
        let volatile = !is_durable && namespace.volume.info().volatile_cache;
        Job {
            permit,
            position,
            operation,
            len,
            blocks: blocks_of(request),
            mark: None,
            started,
            reads_into_pool: namespace.volume.reads_into_pool(),
            reserved: 0,
            data_bytes,
            then: None,
            volatile,
            counted: false,
        }
    }

    /// Whether it changes blocks.
    pub(super) fn is_change(&self) -> bool {
        matches!(self.operation, IoKind::Write | IoKind::WriteZeroes | IoKind::Deallocate)
    }

    /// Lives as long as the job.
    pub(super) fn mark(&mut self) -> &Arc<()> {
        self.mark.get_or_insert_default()
    }

    /// Memory that a request will take from the pool: that for the data it reads.
    pub(super) fn bytes_to_take(&self, request: &Request) -> usize {
        if self.reads_into_pool && matches!(request, Request::Read { .. }) { self.len } else { 0 }
    }
}

/// What the reactor carries out an operation for.
#[derive(Debug)]
pub(crate) enum FileWork {
    /// A command of a lane.
    Command { lane: SlabKey, job: Job, task: Task },
    /// One volume's part of a flush of all.
    Flush { group: SlabKey, position: usize, task: Task },
    /// A member of a nested volume, on behalf of one of the others.
    Member(Member),
}

/// Something that waits.
#[derive(Debug)]
pub(crate) enum Waiting {
    /// A command needs memory before its data can be asked for.
    Data { lane: SlabKey, permit: Permit, position: usize, len: usize },
    /// A command is to be given to its volume.
    Start { lane: SlabKey, job: Job, request: Request },
    /// A volume is to be flushed.
    Flush { group: SlabKey, position: usize, request: Request },
}

impl Waiting {
    /// Memory that it needs before it can go on.
    pub(super) fn bytes_to_take(&self) -> usize {
        match self {
            Waiting::Data { len, .. } => *len,
            Waiting::Start { job, request, .. } => job.bytes_to_take(request),
            Waiting::Flush { .. } => 0,
        }
    }

    /// Position of its namespace.
    pub(super) fn position(&self) -> usize {
        match self {
            Waiting::Start { job, .. } => job.position,
            Waiting::Data { position, .. } | Waiting::Flush { position, .. } => *position,
        }
    }

    /// Whether it moves little or much.
    pub(super) fn size(&self) -> Size {
        match self {
            Waiting::Data { len, .. } => Size::of(*len),
            Waiting::Start { job, .. } => Size::of(job.len),
            Waiting::Flush { .. } => Size::Small,
        }
    }

    /// Whether its volume has begun it: others may wait for it, so it is tried again in every turn.
    pub(super) fn is_started(&self) -> bool {
        match self {
            Waiting::Start { request, .. } | Waiting::Flush { request, .. } => {
                matches!(request, Request::Continue(_))
            }
            Waiting::Data { .. } => false,
        }
    }

    pub(super) fn lane(&self) -> Option<SlabKey> {
        match self {
            Waiting::Data { lane, .. } | Waiting::Start { lane, .. } => Some(*lane),
            Waiting::Flush { .. } => None,
        }
    }
}

/// Small and large commands do not wait for each other: a part of the pool serves small ones only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    Small,
    Large,
}

impl Size {
    pub(crate) fn of(len: usize) -> Size {
        if len <= MAX_SMALL_BYTES { Size::Small } else { Size::Large }
    }
}

/// The smallest range that has all blocks of a request.
fn blocks_of(request: &Request) -> BlockRange {
    match request {
        Request::Read { lba, blocks }
        | Request::Write { lba, blocks, .. }
        | Request::WriteZeroes { lba, blocks, .. } => BlockRange { lba: *lba, blocks: *blocks },
        Request::Flush | Request::Continue(_) => BlockRange { lba: 0, blocks: 0 },
        Request::Deallocate { ranges, .. } => {
            let first = ranges.iter().map(|range| range.lba).min().unwrap_or(0);
            let end = ranges.iter().map(|range| range.lba.saturating_add(range.blocks)).max().unwrap_or(0);
            BlockRange { lba: first, blocks: end - first }
        }
    }
}

/// Commands up to this size are small.
const MAX_SMALL_BYTES: usize = 64 * 1024;

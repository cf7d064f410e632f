//! Work for volumes: commands at a volume, and commands that wait.
//!
//! Types only: `job` runs a command, `waiting` retries the commands that could not run.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use isolane_observe::stage::{Operation, Stage};
use isolane_proto::target::Permit;
use isolane_volume::nested::Member;
use isolane_volume::{BlockRange, Request, Task};

use crate::namespace::Namespace;
use crate::slab::SlabKey;
use crate::timeline::{CommandId, Kind, Mark, Timeline};

/// A command at a volume.
#[derive(Debug)]
pub(crate) struct Job {
    /// `None` once the command was answered.
    pub permit: Option<Permit>,
    /// Position of its namespace.
    pub position: usize,
    pub operation: Operation,
    pub len: usize,
    /// The smallest range that contains all its blocks.
    pub blocks: BlockRange,
    /// Present once the command is in a fence; dropped when the command ends.
    mark: Option<Arc<()>>,
    pub started: Instant,
    pub id: CommandId,
    pub timeline: Timeline,
    /// Its volume reads into memory of the pool.
    pub reads_into_pool: bool,
    /// Memory reserved for that, in bytes.
    pub reserved: usize,
    /// Memory of its write data, in bytes.
    pub data_bytes: usize,
    /// Its part of the memory of its lane that the limits of memory count, in bytes.
    pub counted_bytes: isize,
    /// Request to run after the first one, if that succeeds.
    pub then: Option<Request>,
    /// It can leave data in a volatile cache.
    pub volatile: bool,
    /// Number of a flush among those of its host at the volume.
    pub flush_number: u64,
    /// Counted among the lane's commands at volumes.
    pub counted: bool,
    /// Time at which it was given to its volume, or began to wait for another command there.
    pub there_since: Option<Instant>,
    /// It was answered or has lost its connection, and counts among the orphans of its volume.
    pub is_orphan: bool,
    /// It was answered, and its data is in the memory guaranteed to its lane.
    pub holds_guarantee: bool,
    /// It has taken its share of the limits of its namespace, if there are any.
    pub is_charged: bool,
}

impl Job {
    /// Returns the job of a command that starts with this request.
    pub(crate) fn new(
        permit: Permit,
        position: usize,
        namespace: &Namespace,
        request: &Request,
        (started, id, timeline): (Instant, CommandId, Timeline),
    ) -> Job {
        let in_bytes = |blocks: u64| (blocks as usize) << namespace.geometry.block_shift;
        let (operation, len, is_durable) = match request {
            Request::Read { blocks, .. } => (Operation::Read, in_bytes(*blocks), true),
            Request::Write { data, fua, .. } => (Operation::Write, data.len(), *fua),
            Request::Flush => (Operation::Flush, 0, true),
            Request::WriteZeroes { blocks, fua, .. } => (Operation::WriteZeroes, in_bytes(*blocks), *fua),
            Request::Deallocate { fua, .. } => (Operation::Deallocate, 0, *fua),
            Request::Continue(_) => unreachable!("a job starts with its first request"),
        };
        let data_bytes = if let Request::Write { data, .. } = request { data.len() } else { 0 };
        let volatile = !is_durable && namespace.has_cache;
        Job {
            permit: Some(permit),
            position,
            operation,
            len,
            blocks: blocks_of(request),
            mark: None,
            started,
            id,
            timeline,
            reads_into_pool: namespace.volume.reads_into_pool(),
            reserved: 0,
            data_bytes,
            counted_bytes: 0,
            then: None,
            volatile,
            flush_number: 0,
            counted: false,
            there_since: None,
            is_orphan: false,
            holds_guarantee: false,
            is_charged: namespace.limiter.is_none() || operation == Operation::Flush,
        }
    }

    /// Returns `true` if it changes blocks.
    pub(crate) fn is_change(&self) -> bool {
        matches!(self.operation, Operation::Write | Operation::WriteZeroes | Operation::Deallocate)
    }

    /// Returns a mark that lives as long as the job.
    pub(crate) fn mark(&mut self) -> &Arc<()> {
        self.mark.get_or_insert_default()
    }

    /// Returns the mark of the command that fails now.
    pub(crate) fn failed_mark(&self, namespace: &Namespace) -> Mark {
        let kind = Kind::new(namespace.number, self.operation, self.len);
        let mut mark = Mark::new(kind, self.id, self.timeline);
        mark.failed = true;
        mark
    }

    /// Ends the fences that it is in.
    pub(crate) fn unmark(&mut self) {
        self.mark = None;
    }

    /// Returns the memory that the request takes from the pool for its data, in bytes.
    pub(crate) fn bytes_to_take(&self, request: &Request) -> usize {
        if self.reads_into_pool && matches!(request, Request::Read { .. }) { self.len } else { 0 }
    }
}

/// Owner of an operation in the reactor.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "most are the large one")]
pub(crate) enum FileWork {
    /// A command of a lane.
    Command { lane: SlabKey, job: Job, task: Task },
    /// The part of one volume in a flush of all volumes.
    Flush { group: SlabKey, position: usize, task: Task },
    /// A member of a nested volume, on behalf of one of the others.
    Member(Member),
}

/// A command that waits for memory or for its volume.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "most are the large one")]
pub(crate) enum Waiting {
    /// A command that needs memory for the data it requests.
    Data { lane: SlabKey, permit: Permit, position: usize, len: usize, since: Instant, timeline: Timeline },
    /// A command to start at its volume.
    Start { lane: SlabKey, job: Job, request: Request },
}

impl Waiting {
    /// Returns the memory that it needs to continue, in bytes.
    pub(crate) fn bytes_to_take(&self) -> usize {
        match self {
            Waiting::Data { len, .. } => *len,
            Waiting::Start { job, request, .. } => job.bytes_to_take(request),
        }
    }

    /// Returns the memory that the limits of memory count for it from now on, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            Waiting::Data { len, .. } => *len,
            Waiting::Start { job, request: Request::Read { .. }, .. } => job.len,
            Waiting::Start { .. } => 0,
        }
    }

    /// Starts a stage.
    pub(crate) fn enter(&mut self, stage: Stage, now: u64) {
        match self {
            Waiting::Data { timeline, .. } => timeline.enter(stage, now),
            Waiting::Start { job, .. } => job.timeline.enter(stage, now),
        }
    }

    /// Returns the position of its namespace.
    pub(crate) fn position(&self) -> usize {
        match self {
            Waiting::Start { job, .. } => job.position,
            Waiting::Data { position, .. } => *position,
        }
    }

    /// Returns its size class.
    pub(crate) fn size(&self) -> Size {
        match self {
            Waiting::Data { len, .. } => Size::of(*len),
            Waiting::Start { job, .. } => Size::of(job.len),
        }
    }

    /// Removes the commands that `is_removed` selects from a queue.
    pub(crate) fn extract_from(
        row: &mut VecDeque<Waiting>,
        is_removed: impl Fn(&Waiting) -> bool,
    ) -> VecDeque<Waiting> {
        if !row.iter().any(&is_removed) {
            return VecDeque::new();
        }
        let (removed, others) = std::mem::take(row).into_iter().partition(is_removed);
        *row = others;
        removed
    }

    /// Returns `true` if its volume has started it. Other commands may wait for it, so it is retried in every
    /// turn.
    pub(crate) fn is_started(&self) -> bool {
        matches!(self, Waiting::Start { request: Request::Continue(_), .. })
    }

    pub(crate) fn lane(&self) -> SlabKey {
        match self {
            Waiting::Data { lane, .. } | Waiting::Start { lane, .. } => *lane,
        }
    }
}

/// Size class. Small and large commands do not wait for each other: a part of the pool serves small ones
/// only.
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

/// Returns the smallest range that contains all blocks of a request.
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

//! Commands above the [limits](crate::qos) of their namespaces.
//!
//! They wait in queues of their namespace, one for reads and one for writes, so that no limit of one delays the other.
//! The first command of each queue takes its share once it is due. A write whose data the host has yet to send waits
//! before the data is requested, so the limit slows the host, and uses no memory.
//!
//! A command that still waits after [`answer_within`](crate::TargetConfig::answer_within) is answered, so that its host
//! repeats it before it gives up. It has not begun, so it leaves no orphan.
//!
//! Invariant: a command takes its share once, and waits behind no command of another namespace.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use isolane_observe::stage::{Operation, Stage};
use isolane_volume::Request;
use isolane_wire::Sgl;

use super::held::LANE_REMOVED_EARLY;
use super::{Core, Driver, RETRY_DELAY};
use crate::lane::Lane;
use crate::qos::Direction;
use crate::slab::SlabKey;
use crate::work::{Job, Waiting};

/// The commands of all namespaces.
#[derive(Default)]
pub(super) struct OverLimit {
    /// By position.
    namespaces: BTreeMap<usize, Queues>,
    /// Time of the next try.
    due: Option<Instant>,
}

/// The commands of one namespace.
#[derive(Default)]
struct Queues {
    /// By direction.
    queues: [VecDeque<Waiting>; 2],
    /// Direction whose turn it is.
    next: usize,
    /// Time of the next try; `None` is immediately.
    due: Option<Instant>,
}

impl OverLimit {
    /// Returns the time of the next try.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.due
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// Tries all now: their limits have changed.
    pub(super) fn try_all(&mut self, now: Instant) {
        self.namespaces.values_mut().for_each(|one| one.due = None);
        self.due = (!self.namespaces.is_empty()).then_some(now);
    }

    /// Returns the positions that are due, and leaves the others for later.
    fn take_due(&mut self, now: Instant) -> Vec<usize> {
        self.due = self.namespaces.values().filter_map(|one| one.due.filter(|due| *due > now)).min();
        let due = self.namespaces.iter().filter(|(_, one)| one.due.is_none_or(|due| due <= now));
        due.map(|(position, _)| *position).collect()
    }

    /// Tries at this time, or earlier.
    fn try_at(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiting> {
        self.namespaces.values().flat_map(|one| one.queues.iter().flatten())
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Waiting> {
        self.namespaces.values_mut().flat_map(|one| one.queues.iter_mut().flatten())
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = Waiting> {
        std::mem::take(&mut self.namespaces).into_values().flat_map(|one| one.queues.into_iter().flatten())
    }

    /// Removes the commands of one lane.
    pub(super) fn extract_for(&mut self, lane: SlabKey) -> Vec<Waiting> {
        self.extract(|waiting| waiting.lane() == lane)
    }

    /// Removes the commands that `is_removed` selects, those of a namespace together.
    pub(super) fn extract(&mut self, is_removed: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        let mut removed = Vec::new();
        for queue in self.namespaces.values_mut().flat_map(|one| &mut one.queues) {
            removed.extend(Waiting::extract_from(queue, &is_removed));
        }
        removed
    }
}

impl Core {
    /// Starts a job of a namespace with limits, or queues it.
    #[cold]
    pub(super) fn start_within_limits(&mut self, lane: &mut Lane, mut job: Job, request: Request) {
        let (direction, bytes) = share_of(&job);
        if was_requested(lane, &job) || self.take_share(job.position, direction, bytes) {
            job.is_charged = true;
            return self.start(lane, job, request);
        }
        self.count(lane, &mut job);
        self.queue_over_limit(direction, Waiting::Start { lane: lane.key, job, request });
    }

    /// Requests the data of a write of a namespace with limits, or queues it.
    #[cold]
    pub(super) fn request_within_limits(&mut self, lane: &mut Lane, waiting: Waiting, len: usize) {
        if self.take_share(waiting.position(), Direction::Write, len as u64) {
            return self.enter(lane, waiting);
        }
        self.queue_over_limit(Direction::Write, waiting);
    }

    /// Takes the share of a new command, unless it must wait.
    fn take_share(&mut self, position: usize, direction: Direction, bytes: u64) -> bool {
        let Some(limiter) = &self.namespaces.at(position).limiter else { return true };
        let over_limit = &mut self.waiting.over_limit;
        let waits = over_limit.namespaces.get(&position);
        if waits.is_some_and(|waits| !waits.queues[direction as usize].is_empty()) {
            return false;
        }
        match limiter.take(direction, bytes, self.now) {
            Ok(()) => true,
            Err(at) => {
                over_limit.try_at(at.max(self.now + RETRY_DELAY));
                false
            }
        }
    }

    fn queue_over_limit(&mut self, direction: Direction, mut waiting: Waiting) {
        waiting.enter(Stage::Limit, self.observer.now());
        self.counters.qos_waits.add(1);
        let namespace = self.waiting.over_limit.namespaces.entry(waiting.position()).or_default();
        namespace.queues[direction as usize].push_back(waiting);
        namespace.due = None;
    }

    /// Returns the next command of a namespace if it has its share; directions take turns. Without limits, and once the
    /// target stops, none waits.
    fn poll_over_limit(&mut self, position: usize) -> Option<Waiting> {
        let OverLimit { namespaces, .. } = &mut self.waiting.over_limit;
        let waits = namespaces.get_mut(&position)?;
        let limiter = self.namespaces.at(position).limiter.as_ref().filter(|_| !self.stopping);
        let mut due = None;
        for at in [waits.next, 1 - waits.next] {
            let Some(first) = waits.queues[at].front() else { continue };
            let (direction, bytes) = match first {
                Waiting::Data { len, .. } => (Direction::Write, *len as u64),
                Waiting::Start { job, .. } => share_of(job),
            };
            match limiter.map_or(Ok(()), |limiter| limiter.take(direction, bytes, self.now)) {
                Ok(()) => {
                    waits.next = 1 - at;
                    return waits.queues[at].pop_front();
                }
                Err(at) => due = due.into_iter().chain([at.max(self.now + RETRY_DELAY)]).min(),
            }
        }
        waits.due = due;
        match due {
            Some(due) => self.waiting.over_limit.try_at(due),
            None => _ = namespaces.remove(&position),
        }
        None
    }
}

impl Core {
    /// Logs commands that were answered while they waited.
    fn log_over_limit(&mut self, position: usize, count: usize) {
        let volume = &mut self.volumes[position];
        let (name, within) = (self.namespaces.at(position).volume.name(), self.times.answer_within);
        log::limited!(
            by volume.log,
            Warn,
            "{name}: the limits of its namespace have held {count} commands for {within:?}; their hosts were told to \
             repeat them: raise qos, or let the hosts send less at a time"
        );
    }
}

impl Driver {
    /// Continues the commands that have their shares, a bounded number of each namespace.
    pub(super) fn retry_over_limit(&mut self) {
        if !self.core.waiting.over_limit.is_due(self.core.now) {
            return;
        }
        for position in self.core.waiting.over_limit.take_due(self.core.now) {
            let mut left = COMMANDS_PER_TURN;
            while let Some(waiting) = self.core.poll_over_limit(position) {
                self.continue_over_limit(waiting);
                left -= 1;
                if left == 0 {
                    self.core.waiting.over_limit.try_at(self.core.now);
                    break;
                }
            }
        }
    }

    /// Answers the commands that have waited for too long. Called in each tick.
    pub(super) fn answer_over_limit(&mut self) {
        let core = &mut self.core;
        let mut over_limit = std::mem::take(&mut core.waiting.over_limit);
        let late = over_limit.extract(|waiting| core.is_over_limit_late(waiting));
        core.waiting.over_limit = over_limit;
        let mut answered = BTreeMap::<usize, usize>::new();
        for waiting in late {
            let Some(lane) = self.lanes.get_mut(waiting.lane()) else { unreachable!("{LANE_REMOVED_EARLY}") };
            *answered.entry(waiting.position()).or_default() += usize::from(lane.is_open());
            core.give_back(lane, waiting, false);
        }
        answered.into_iter().for_each(|(position, count)| core.log_over_limit(position, count));
    }

    fn continue_over_limit(&mut self, mut waiting: Waiting) {
        if let Waiting::Start { job, .. } = &mut waiting {
            // Its age counts from its start at the volume.
            (job.is_charged, job.started) = (true, self.core.now);
        }
        self.continue_held(waiting);
    }
}

/// Returns the direction of a command, and the bytes that count.
fn share_of(job: &Job) -> (Direction, u64) {
    match job.operation {
        Operation::Read => (Direction::Read, job.len as u64),
        Operation::Write => (Direction::Write, job.len as u64),
        _ => (Direction::Write, 0),
    }
}

/// Returns `true` for a command that has taken its share before its data was requested.
fn was_requested(lane: &Lane, job: &Job) -> bool {
    let has_data = matches!(job.operation, Operation::Write | Operation::Deallocate);
    let is_requested = |permit| matches!(lane.conn.entry(permit).sgl, Sgl::Transport { .. });
    has_data && job.permit.as_ref().is_some_and(is_requested)
}

/// Commands of one namespace that one turn continues.
const COMMANDS_PER_TURN: usize = 64;

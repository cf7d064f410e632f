//! One core of the target: its reactor, its memory, its lanes. The turn of the reactor is [`Driver::turn`].
//!
//! ```text
//! receive from every ready lane → act on every whole PDU
//!                               → volumes complete at once or later → ONE send per lane
//! ```
//!
//! [`Driver`] owns the lanes and knows which of them an event is for; [`Core`] owns everything else and acts
//! on one lane at a time. The files beside this one are its verbs:
//!
//! | file | what it does |
//! |---|---|
//! | [`accept`] | takes connections in and spreads them over the cores |
//! | [`receive`] | from bytes to events of the protocol's machine |
//! | [`command`] | which way a command goes; commands of the control path |
//! | [`connect`] | Fabrics Connect |
//! | [`fence`] | the order between a host's new association and its older ones |
//! | [`io`] | I/O commands: what they ask of which volume |
//! | [`job`] | from a volume's start of a request to the answer |
//! | [`waiting`] | commands that wait for memory or for their volume |
//! | [`memory`] | who may take pages |
//! | [`nested`] | requests of nested volumes to their members |
//! | [`share`] | how many of them one lane may keep |
//! | [`flush`] | flushes of all volumes: controller shutdown, end of the target |
//! | [`send`] | one vectored send per lane and turn |
//! | [`close`] | the end of a lane |
//! | [`load`] | what this core does, told to the first, and what moves therefore |
//! | [`log_limiter`] | lines that others can cause, one a second |
//! | [`mail`] | what other cores say |
//! | [`timer`] | deadlines and keep-alive timers |
//! | [`migration`] | lanes that move to another core |
//!
//! Invariant: no lane of this core is touched by another thread, and nothing here waits but the reactor's
//! turn.

mod accept;
mod close;
mod command;
mod connect;
mod fair_share;
mod fence;
mod flush;
mod io;
mod job;
mod lane;
mod mailbox;
mod memory_budget;
mod migration;
mod nested;
mod receive;
mod send;
mod timer;
mod waiting;
mod work;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use isolane_memory::{Pool, ZeroCopySend};
use isolane_proto::target::ConnectionConfig;
use isolane_reactor::mailbox::Receiver;
use isolane_reactor::{Event, Reactor, Token};
use isolane_volume::nested::Executor;

pub(crate) use self::accept::Acceptor;
use self::fair_share::VolumeUse;
use self::fence::HostDrain;
use self::flush::{FlushGroup, Flushed, PendingFlush};
use self::job::VolumeLog;
use self::lane::Lane;
pub(crate) use self::lane::MigratingLane;
use self::memory_budget::MemoryBudget;
pub(crate) use self::memory_budget::max_lanes;
use self::work::{FileWork, Waiting};
use crate::counters::CoreCounters;
use crate::log_limiter::LogLimiter;
use crate::shared::{Message, Shared};
use crate::slab::{LaneId, Slab, SlabKey};

/// Everything of one core but its lanes.
pub(crate) struct Core {
    index: usize,
    shared: Arc<Shared>,
    counters: Arc<CoreCounters>,
    reactor: Reactor,
    memory: MemoryBudget,
    now: Instant,
    /// What this turn receives from one lane at most.
    max_receive_bytes: usize,
    /// Sends of so many bytes copy nothing, if the kernel can do that.
    zerocopy_threshold: usize,
    /// For so long a host may leave bytes unacknowledged.
    stall: Duration,
    /// Emptied lists, for the next such sends.
    spare_zerocopy: Vec<ZeroCopySend>,
    /// Operations that the reactor carries out, by the number it knows them by.
    files: Slab<FileWork>,
    /// Requests of nested volumes to their members.
    nested: Executor,
    /// Commands that wait for memory, in the order of asking.
    waiting: VecDeque<Waiting>,
    /// Commands that wait for their volumes; those come first that a volume has begun.
    blocked: VecDeque<Waiting>,
    /// Commands that wait for changes of older associations.
    fenced: VecDeque<Waiting>,
    /// Lanes with commands beyond their share of memory.
    limited: Vec<SlabKey>,
    /// Lanes with something to send in this turn.
    dirty: Vec<SlabKey>,
    /// Lanes that are not read from for want of memory.
    stalled: VecDeque<SlabKey>,
    /// No more commands are taken.
    stopping: bool,
    /// Lanes to look at because they may have ended.
    ended: Vec<SlabKey>,
    flushes: Slab<FlushGroup>,
    flushed: Vec<Flushed>,
    pending_flushes: Vec<PendingFlush>,
    /// What each volume holds of this core, by its position.
    volumes: Vec<VolumeUse>,
    volume_log: VolumeLog,
    digest_log: LogLimiter,
    newcomer_log: LogLimiter,
    /// Those whose deadline this tick may still enforce.
    newcomers_to_end: usize,
}

/// One core with its lanes.
pub(crate) struct Driver {
    core: Core,
    lanes: Slab<Lane>,
    /// The lane of every socket, by the index of its token.
    by_token: Vec<Option<(Token, SlabKey)>>,
    overflow: Vec<u8>,
    limits: ConnectionConfig,
    events: Vec<Event>,
    mailbox: Receiver<Message>,
    host_drains: Vec<HostDrain>,
    listeners: accept::Listeners,
    /// Lanes that have come from other cores, by their names.
    migrated_in: HashMap<LaneId, SlabKey>,
    migration: Option<migration::Migration>,
    next_tick: Instant,
    shutdown: Option<close::ShutdownState>,
}

/// How a core ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CoreReport {
    /// Commands still at volumes.
    pub commands_aborted: usize,
    /// Volumes that could not be flushed.
    pub flushes_failed: usize,
    /// The core's reactor broke.
    pub failed: bool,
}

/// What a core is made of.
pub(crate) struct Parts {
    pub index: usize,
    /// The core that its thread is pinned to.
    pub cpu: Option<usize>,
    pub shared: Arc<Shared>,
    pub reactor: Reactor,
    pub mailbox: Receiver<Message>,
    pub max_pool_pages: usize,
    pub zerocopy_threshold: Option<usize>,
    /// How often lanes are moved by load, if at all.
    pub rebalance_interval: Option<Duration>,
    pub limits: ConnectionConfig,
}

impl Driver {
    pub(crate) fn new(parts: Parts) -> Driver {
        let now = Instant::now();
        let core = Core {
            index: parts.index,
            counters: Arc::clone(&parts.shared.counters[parts.index]),
            memory: MemoryBudget::new(Pool::new(memory_budget::pool_pages(parts.max_pool_pages))),
            volumes: std::iter::repeat_with(VolumeUse::default).take(parts.shared.namespaces.len()).collect(),
            volume_log: VolumeLog::new(parts.shared.namespaces.len()),
            shared: parts.shared,
            reactor: parts.reactor,
            now,
            max_receive_bytes: usize::MAX,
            zerocopy_threshold: parts.zerocopy_threshold.unwrap_or(usize::MAX),
            stall: parts.limits.stall,
            spare_zerocopy: Vec::new(),
            files: Slab::default(),
            nested: Executor::default(),
            waiting: VecDeque::new(),
            blocked: VecDeque::new(),
            fenced: VecDeque::new(),
            limited: Vec::new(),
            dirty: Vec::new(),
            stalled: VecDeque::new(),
            stopping: false,
            ended: Vec::new(),
            flushes: Slab::default(),
            flushed: Vec::new(),
            pending_flushes: Vec::new(),
            digest_log: LogLimiter::default(),
            newcomer_log: LogLimiter::default(),
            newcomers_to_end: 0,
        };
        let migration = parts.rebalance_interval.map(|interval| {
            migration::Migration::new(interval, core.reactor.mode(), core.shared.counters.len(), now)
        });
        let migration = migration.map(|mut migration| {
            parts.cpu.into_iter().filter(|_| core.index == 0).for_each(|cpu| migration.drive_frequency(cpu));
            migration
        });
        Driver {
            listeners: accept::Listeners::new(core.shared.counters.len()),
            core,
            lanes: Slab::default(),
            by_token: Vec::new(),
            overflow: vec![0; OVERFLOW_BYTES],
            limits: parts.limits,
            events: Vec::new(),
            mailbox: parts.mailbox,
            host_drains: Vec::new(),
            migrated_in: HashMap::new(),
            migration,
            next_tick: now + TICK,
            shutdown: None,
        }
    }

    /// Turns until the target stops. Dropping it then waits for the operations that are still in flight.
    pub(crate) fn run(&mut self) -> CoreReport {
        while !self.is_finished() {
            if let Err(error) = self.turn() {
                log::error!("core {}: the reactor failed: {error}; this core stops", self.core.index);
                self.core.shared.cores_drained.fetch_add(1, Ordering::AcqRel);
                return CoreReport { failed: true, ..self.finish() };
            }
        }
        self.finish()
    }

    /// One turn of the reactor.
    fn turn(&mut self) -> std::io::Result<()> {
        let mut events = std::mem::take(&mut self.events);
        let turned = self.core.reactor.turn(self.deadline(), &mut events);
        self.core.now = self.core.reactor.now();
        self.reap_zerocopy();
        self.core.memory.measure(self.core.shared.lane_quota.used(self.core.index));
        self.core.max_receive_bytes = self.per_lane_budget(&events);
        for event in events.drain(..) {
            self.handle_event(event);
        }
        self.events = events;
        if self.has_deferred_work() {
            self.poll_slow_path();
        }
        self.tick_if_due();
        // A host that sees the end of its connection may at once use its queue id again.
        self.reap();
        self.send_dirty();
        self.poll_migrations();
        self.poll_shutdown();
        turned
    }

    /// Whether anything waits that no event brings on. Mostly not, and then a turn is short.
    fn has_deferred_work(&self) -> bool {
        let Core { waiting, blocked, fenced, limited, stalled, pending_flushes, flushed, nested, .. } =
            &self.core;
        !(waiting.is_empty()
            && blocked.is_empty()
            && fenced.is_empty()
            && limited.is_empty()
            && stalled.is_empty()
            && self.host_drains.is_empty()
            && pending_flushes.is_empty()
            && flushed.is_empty()
            && !nested.is_waiting())
    }

    fn poll_slow_path(&mut self) {
        self.retry_waiting();
        self.retry_blocked();
        self.admit_limited();
        self.resume_stalled();
        self.poll_host_drains();
        self.poll_fenced();
        self.poll_flushes();
        self.core.run_nested();
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Readable(token) => {
                if let Some(key) = self.lane_of(token) {
                    self.receive(key);
                    self.send_if_was_idle(key);
                }
            }
            Event::Writable(token) => {
                if let Some(key) = self.lane_of(token)
                    && let Some(lane) = self.lanes.get_mut(key)
                {
                    lane.send_blocked = false;
                    self.core.mark_dirty(lane);
                }
            }
            Event::File(finished) => self.handle_file(finished),
            Event::Accepted { listener, socket, peer } => self.handle_accepted(listener, socket, peer),
            Event::Woken => self.read_mailbox(),
        }
    }

    /// What each lane may bring in one turn, so that the others need not wait for long.
    fn per_lane_budget(&self, events: &[Event]) -> usize {
        if events.len() < 2 || !self.core.shared.scheduling {
            return usize::MAX;
        }
        let readable = events.iter().filter(|event| matches!(event, Event::Readable(_))).count();
        if readable < 2 { usize::MAX } else { (TURN_BYTES / readable).max(LANE_BYTES) }
    }

    fn lane_of(&self, token: Token) -> Option<SlabKey> {
        let (known, key) = (*self.by_token.get(token.index())?)?;
        (known == token).then_some(key)
    }

    /// When the next turn must begin, even if nothing happens.
    fn deadline(&self) -> Option<Instant> {
        [self.lane_deadline(), self.core.nested.deadline()].into_iter().flatten().min()
    }

    /// The deadline of everything but nested volumes.
    fn lane_deadline(&self) -> Option<Instant> {
        let now = self.core.now;
        let is_draining = self.host_drains.iter().any(|drain| !drain.is_late());
        if !self.core.dirty.is_empty() || is_draining || !self.core.ended.is_empty() {
            return Some(now);
        }
        if !self.core.waiting.is_empty() || !self.core.blocked.is_empty() {
            return Some(now + RETRY_DELAY);
        }
        let is_watching = !self.core.limited.is_empty()
            || !self.core.stalled.is_empty()
            || !self.core.pending_flushes.is_empty()
            || !self.core.fenced.is_empty()
            || !self.host_drains.is_empty()
            || self.shutdown.is_some();
        if is_watching {
            return Some(now + RECHECK_INTERVAL);
        }
        let migration = self.migration.as_ref().map(|migration| migration.deadline(now));
        let next_tick = migration.map_or(self.next_tick, |deadline| deadline.min(self.next_tick));
        (!self.lanes.is_empty()).then_some(next_tick)
    }
}

/// What is read behind the known destinations in one receive.
const OVERFLOW_BYTES: usize = 128 * 1024;
/// What one turn receives from several lanes together, and what at least from each.
const TURN_BYTES: usize = 1 << 20;
const LANE_BYTES: usize = 64 << 10;
/// How often deadlines of lanes and keep-alive timers are looked at.
const TICK: Duration = Duration::from_millis(250);
/// How soon commands that wait for other cores' commands are tried again.
const RETRY_DELAY: Duration = Duration::from_micros(100);
/// How soon slower conditions are looked at again.
const RECHECK_INTERVAL: Duration = Duration::from_millis(1);

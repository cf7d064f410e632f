//! One core of the target: its reactor, its memory, its lanes. The turn of the reactor is [`Driver::turn`].
//!
//! ```text
//! receive from every ready lane → handle every complete PDU
//!                               → volumes complete now or later → one send per lane
//! ```
//!
//! [`Driver`] owns the lanes and finds the lane of an event; [`Core`] owns all other state and works on one
//! lane at a time. Their methods are in these files:
//!
//! | file | purpose |
//! |---|---|
//! | [`accept`] | accepts connections and places them on cores |
//! | [`receive`] | receives bytes and handles the events of the connection |
//! | [`command`] | dispatches commands; commands of the control path |
//! | [`control_data`] | data of commands of the control path |
//! | [`connect`] | Fabrics Connect |
//! | [`authentication`] | authentication of hosts |
//! | [`unauthenticated`] | bounds of queues whose host has not authenticated |
//! | [`fence`] | orders the new association of a host after its older ones |
//! | [`io`] | I/O commands: from the command to the request of a volume |
//! | [`held`] | commands that wait before they start, and continue or go back |
//! | [`over_limit`] | commands above the limits of their namespaces |
//! | [`offline`] | commands of namespaces without a volume |
//! | [`job`] | runs a request on its volume, and completes the command |
//! | [`waiting`] | commands that wait for memory or for their volume |
//! | [`nested`] | requests of nested volumes to their members |
//! | [`fair_share`] | limits of one lane and one volume |
//! | [`flush`] | flushes of all volumes: controller shutdown, end of the target |
//! | [`freeze`] | stops all lanes, so that another process can continue them |
//! | [`slow`] | commands that their volumes do not complete |
//! | [`stalled`] | answers in place of a volume, and orphans |
//! | [`send`] | one vectored send per lane and turn |
//! | [`acks`] | times until hosts acknowledge sampled sends |
//! | [`close`] | closes lanes, and stops the core |
//! | [`mailbox`] | messages from other cores |
//! | [`retire`] | closes connections after their commands |
//! | [`namespaces`] | takes the next table of namespaces, and releases removed ones |
//! | [`timer`] | deadlines and keep-alive timers |
//! | [`migration`] | load reports, and moves of lanes between cores |
//!
//! Invariant: only this thread accesses the lanes of this core, and it blocks only in the turn of the
//! reactor.

mod accept;
mod acks;
mod authentication;
mod close;
mod command;
mod connect;
mod control_data;
mod describe;
mod fair_share;
mod fault;
mod fence;
mod flush;
mod freeze;
mod held;
mod io;
mod job;
mod mailbox;
mod memory_limit;
mod migration;
mod namespaces;
mod nested;
mod offline;
mod over_limit;
mod receive;
mod retire;
mod send;
mod slow;
mod stalled;
#[cfg(test)]
mod stepping;
mod timer;
mod unauthenticated;
mod waiting;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use isolane_memory::Pool;
use isolane_proto::target::ConnectionConfig;
use isolane_reactor::mailbox::Receiver;
use isolane_reactor::{Event, Reactor, Token};
use isolane_volume::CoreParts;
use isolane_volume::nested::Executor;

pub(crate) use self::accept::Acceptor;
use self::acks::AckSampler;
use self::fair_share::VolumeState;
use self::fence::HostDrain;
use self::flush::Flushes;
use self::offline::HeldCommand;
use self::retire::Retiring;
use self::send::SendList;
use self::stalled::Answers;
use self::waiting::WaitingCommands;
use crate::config::TargetConfig;
use crate::counters::CoreCounters;
use crate::error::ShutdownReport;
use crate::lane::Lane;
use crate::memory_budget::{MemoryBudget, pool_pages};
use crate::memory_limits::MemoryLimits;
use crate::namespace::Namespaces;
use crate::observed::{Observer, Phase};
use crate::release::Release;
use crate::shared::{Message, Shared};
use crate::slab::{LaneId, Slab, SlabKey};
use crate::stall_times::StallTimes;
use crate::work::FileWork;

/// State of one core, except its lanes.
pub(crate) struct Core {
    /// Dropped first: the ends of volumes and of the reactor wait for requests that the parts complete.
    parts: CoreParts,
    index: usize,
    shared: Arc<Shared>,
    counters: Arc<CoreCounters>,
    reactor: Reactor,
    memory: MemoryBudget,
    /// Limits of memory, if there are any.
    memory_limits: Option<Arc<MemoryLimits>>,
    /// Lanes with such limits that hold memory.
    metered: Vec<SlabKey>,
    now: Instant,
    /// Maximum number of bytes that this turn receives from one lane.
    max_receive_bytes: usize,
    /// Time limit for unacknowledged bytes at a host.
    stall: Duration,
    observer: Observer,
    /// Operations of commands that this turn has submitted.
    submitted: Vec<SlabKey>,
    /// Operations in the reactor, by their tokens.
    files: Slab<FileWork>,
    /// Requests of nested volumes to their members.
    nested: Executor,
    waiting: WaitingCommands,
    sends: SendList,
    acks: AckSampler,
    /// The core accepts no more commands.
    stopping: bool,
    /// Lanes are not read, and no deadline is checked.
    frozen: bool,
    /// Its state was taken: no command starts and no byte is sent, so that another process can continue them all.
    captured: bool,
    authenticating: freeze::Authenticating,
    /// Lanes that may have ended.
    ended: Vec<SlabKey>,
    flushes: Flushes,
    /// The table of this core. Messages replace it between events, so that no command needs a lock.
    namespaces: Arc<Namespaces>,
    /// By position.
    volumes: Vec<VolumeState>,
    /// Commands of namespaces that are offline.
    held: Vec<HeldCommand>,
    /// Limits of their wait, and of all commands at volumes, as of the last tick.
    times: StallTimes,
    answers: Answers,
    /// A volume can have orphans: commands look for them.
    has_orphans: bool,
    /// Removed namespaces that this core may still use.
    releasing: Vec<Arc<Release>>,
}

/// One core with its lanes.
pub(crate) struct Driver {
    core: Core,
    lanes: Slab<Lane>,
    /// Lane of every socket, by the index of its token.
    by_token: Vec<Option<(Token, SlabKey)>>,
    overflow: Vec<u8>,
    limits: ConnectionConfig,
    events: Vec<Event>,
    mailbox: Receiver<Message>,
    host_drains: Vec<HostDrain>,
    retiring: Vec<Retiring>,
    /// Present on the first core.
    acceptor: Option<Acceptor>,
    /// Lanes that have moved here from other cores.
    migrated_in: HashMap<LaneId, SlabKey>,
    migration: migration::Migration,
    next_tick: Instant,
    shutdown: Option<close::ShutdownState>,
    /// Receives a message each time this frozen core has nothing left to do.
    still: Option<Sender<()>>,
}

impl Driver {
    /// `cpu` is the core that the thread is pinned to, `namespaces` the present table.
    pub(crate) fn new(
        (index, cpu): (usize, Option<usize>),
        (shared, namespaces): (Arc<Shared>, Arc<Namespaces>),
        reactor: Reactor,
        mailbox: Receiver<Message>,
        acceptor: Option<Acceptor>,
        config: &TargetConfig,
    ) -> Driver {
        let (now, limits) = (Instant::now(), config.limits());
        let cells = Arc::clone(&shared.observed[index]);
        cells.cpu.set(cpu.map_or(0, |cpu| cpu as u64 + 1));
        if config.observe {
            cells.sleeps.get_or_init(|| reactor.sleep_times());
        }
        let observer = Observer::new(config.observe, cells);
        let memory_limits = shared.memory_limits();
        let mut core = Core {
            index,
            counters: Arc::clone(&shared.counters[index]),
            parts: CoreParts::default(),
            memory: MemoryBudget::new(Pool::new(pool_pages(config.max_pool_pages))),
            volumes: (0..namespaces.end()).map(|_| VolumeState::default()).collect(),
            namespaces,
            memory_limits,
            metered: Vec::new(),
            held: Vec::new(),
            times: config.stall_times(),
            answers: Answers::default(),
            has_orphans: false,
            releasing: Vec::new(),
            shared,
            reactor,
            now,
            max_receive_bytes: usize::MAX,
            stall: limits.stall,
            observer,
            submitted: Vec::new(),
            files: Slab::default(),
            nested: if config.observe { Executor::timed() } else { Executor::default() },
            waiting: WaitingCommands::default(),
            sends: SendList::new(config.zerocopy_threshold),
            acks: AckSampler::new(config.acks),
            stopping: false,
            frozen: false,
            captured: false,
            authenticating: freeze::Authenticating::default(),
            ended: Vec::new(),
            flushes: Flushes::default(),
        };
        (0..core.namespaces.end()).for_each(|position| core.take_parts(position));
        let (interval, cpu) = (config.rebalance_interval, cpu.filter(|_| index == 0));
        let cores = core.shared.counters.len();
        Driver {
            acceptor,
            core,
            lanes: Slab::default(),
            by_token: Vec::new(),
            overflow: vec![0; OVERFLOW_BYTES],
            limits,
            events: Vec::new(),
            mailbox,
            host_drains: Vec::new(),
            retiring: Vec::new(),
            migrated_in: HashMap::new(),
            migration: migration::Migration::new(interval, config.mode, cores, cpu, now),
            next_tick: now + TICK,
            shutdown: None,
            still: None,
        }
    }

    /// Runs turns until the target stops. Dropping the driver then waits for the operations in flight.
    pub(crate) fn run(&mut self) -> ShutdownReport {
        while !self.is_finished() {
            if let Err(error) = self.turn() {
                log::error!("core {}: the reactor failed: {error}; this core stops", self.core.index);
                self.core.shared.cores_drained.fetch_add(1, Ordering::AcqRel);
                return ShutdownReport { cores_failed: 1, ..self.finish() };
            }
        }
        self.finish()
    }

    /// One turn of the reactor.
    fn turn(&mut self) -> std::io::Result<()> {
        let mut events = std::mem::take(&mut self.events);
        self.core.observer.enter(Phase::Idle);
        let turned = self.core.reactor.turn(self.deadline(), &mut events);
        self.core.now = self.core.reactor.now();
        self.core.observer.begin_turn(&self.core.reactor, !events.is_empty());
        self.poll_acks();
        self.core.parts.finish_waits();
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
        // A host can reuse a queue ID as soon as it sees the end of the connection.
        self.reap();
        self.send_dirty();
        self.settle_memory();
        self.core.parts.drive(&mut self.core.reactor, self.core.now);
        self.core.hand_over_submitted();
        self.poll_migrations();
        self.poll_shutdown();
        self.poll_freeze();
        turned
    }

    /// Returns `true` if work waits that no event reports. Mostly none does, which keeps a turn short.
    fn has_deferred_work(&self) -> bool {
        let Core { waiting, flushes, nested, now, .. } = &self.core;
        let is_draining = !(self.host_drains.is_empty() && self.retiring.is_empty());
        is_draining
            || !(waiting.is_empty() && flushes.is_empty() && !nested.has_work(*now))
            || waiting.over_limit.is_due(*now)
    }

    fn poll_slow_path(&mut self) {
        self.core.observer.enter(Phase::Volume);
        if self.core.captured {
            return self.core.run_nested();
        }
        self.retry_over_limit();
        self.retry_waiting();
        // Before the commands: a buffered file runs one flush at a time, and theirs could always be first.
        self.poll_flushes();
        self.retry_blocked();
        self.admit_limited();
        self.resume_stalled();
        self.poll_host_drains();
        self.poll_retiring();
        self.poll_fenced();
        self.poll_behind();
        self.core.run_nested();
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Readable(token) => {
                if let Some(key) = self.lane_of(token) {
                    self.receive(key);
                    self.send_if_was_idle(key);
                } else {
                    self.core.parts.handle_readable(token);
                }
            }
            Event::Writable(token) => {
                if let Some(key) = self.lane_of(token)
                    && let Some(lane) = self.lanes.get_mut(key)
                {
                    lane.send_blocked = false;
                    self.core.sends.add(lane);
                }
            }
            Event::File(finished) => self.handle_file(finished),
            Event::Accepted { listener, socket, peer } => self.handle_accepted(listener, socket, peer),
            Event::Woken => self.read_mailbox(),
        }
    }

    /// Returns the receive limit of each lane in this turn, in bytes, so that other lanes do not wait for
    /// long.
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

    /// Returns the latest start of the next turn.
    fn deadline(&self) -> Option<Instant> {
        let Core { nested, parts, acks, waiting, .. } = &self.core;
        let over_limit = waiting.over_limit.deadline().filter(|_| !self.core.captured);
        let deadlines =
            [self.lane_deadline(), nested.deadline(), parts.deadline(), acks.deadline(), over_limit];
        deadlines.into_iter().flatten().min()
    }

    /// The deadline of everything but nested volumes.
    fn lane_deadline(&self) -> Option<Instant> {
        let now = self.core.now;
        let is_draining = self.host_drains.iter().any(|drain| !drain.is_late());
        let retries_behind = self.core.waiting.retries_behind();
        if !self.core.sends.is_empty() || is_draining || !self.core.ended.is_empty() || retries_behind {
            return Some(now);
        }
        if self.core.waiting.needs_retry() {
            return Some(now + RETRY_DELAY);
        }
        let is_watching = !self.core.waiting.is_empty()
            || !self.core.flushes.is_empty()
            || !self.host_drains.is_empty()
            || !self.retiring.is_empty()
            || self.shutdown.is_some()
            || self.core.frozen;
        if is_watching {
            let is_retrying = self.core.flushes.has_part_to_retry();
            return Some(now + if is_retrying { RETRY_DELAY } else { RECHECK_INTERVAL });
        }
        let next_tick = self.migration.deadline(now).into_iter().chain([self.next_tick]).min();
        let is_due = !self.lanes.is_empty()
            || self.core.volumes.iter().any(|at| at.slow.is_shown)
            || !self.core.releasing.is_empty()
            || self.core.observer.has_pending();
        next_tick.filter(|_| is_due)
    }
}

/// Size of the receive buffer after the known destinations.
const OVERFLOW_BYTES: usize = 128 * 1024;
/// Receive limit of one turn for several lanes together, and minimum for each, in bytes.
const TURN_BYTES: usize = 1 << 20;
const LANE_BYTES: usize = 64 << 10;
/// Interval at which deadlines and keep-alive timers are checked.
const TICK: Duration = Duration::from_millis(250);
/// Delay before commands that wait for volumes or memory are retried.
const RETRY_DELAY: Duration = Duration::from_micros(100);
/// Interval at which slower conditions are checked.
const RECHECK_INTERVAL: Duration = Duration::from_millis(1);

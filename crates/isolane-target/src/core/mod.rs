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
//! | [`share`] | how many of them one lane may keep |
//! | [`flush`] | flushes of all volumes: controller shutdown, end of the target |
//! | [`send`] | one vectored send per lane and turn |
//! | [`close`] | the end of a lane |
//! | [`load`] | what this core does, told to the first, and what moves therefore |
//! | [`log_limit`] | lines that others can cause, one a second |
//! | [`mail`] | what other cores say |
//! | [`timer`] | deadlines and keep-alive timers |
//! | [`travel`] | lanes that move to another core |
//!
//! Invariant: no lane of this core is touched by another thread, and nothing here waits but the reactor's
//! turn.

mod accept;
mod close;
mod command;
mod connect;
mod fence;
mod flush;
mod io;
mod job;
mod lane;
mod load;
mod log_limit;
mod mail;
mod memory;
mod receive;
mod send;
mod share;
mod timer;
mod travel;
mod waiting;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use isolane_memory::{Pool, ZeroCopySend};
use isolane_proto::target::ConnectionConfig;
use isolane_reactor::mailbox::Receiver;
use isolane_reactor::{Event, Reactor, Token};

pub(crate) use self::accept::Acceptor;
use self::fence::HostReading;
use self::flush::{FlushGroup, Flushed, Planned};
use self::job::{FileWork, VolumeLog};
use self::lane::Lane;
pub(crate) use self::log_limit::LogLimit;
use self::memory::Memory;
pub(crate) use self::memory::max_lanes;
use self::share::VolumeUse;
pub(crate) use self::travel::Traveller;
use self::waiting::Waiting;
use crate::counters::CoreCounters;
use crate::shared::{Address, Message, Shared};
use crate::table::{Key, Table};

/// Everything of one core but its lanes.
pub(crate) struct Core {
    index: usize,
    shared: Arc<Shared>,
    counters: Arc<CoreCounters>,
    reactor: Reactor,
    memory: Memory,
    now: Instant,
    /// What this turn receives from one lane at most.
    max_receive_bytes: usize,
    /// Sends of so many bytes copy nothing, if the kernel can do that.
    zero_copy_above: usize,
    /// For so long a host may leave bytes unacknowledged.
    stall: Duration,
    /// Emptied lists, for the next such sends.
    spare_lent: Vec<ZeroCopySend>,
    /// Operations that the reactor carries out, by the number it knows them by.
    files: Table<FileWork>,
    /// Commands that wait for memory, in the order of asking.
    waiting: VecDeque<Waiting>,
    /// Commands that wait for their volumes; those come first that a volume has begun.
    blocked: VecDeque<Waiting>,
    /// Commands that wait for changes of older associations.
    fenced: VecDeque<Waiting>,
    /// Lanes with commands beyond their share of memory.
    limited: Vec<Key>,
    /// Lanes with something to send in this turn.
    dirty: Vec<Key>,
    /// Lanes that are not read from for want of memory.
    stalled: VecDeque<Key>,
    /// No more commands are taken.
    is_stopping: bool,
    /// Lanes to look at because they may have ended.
    ended: Vec<Key>,
    flushes: Table<FlushGroup>,
    flushed: Vec<Flushed>,
    planned: Vec<Planned>,
    /// What each volume holds of this core, by its position.
    volumes: Vec<VolumeUse>,
    volume_log: VolumeLog,
    digest_log: LogLimit,
    newcomer_log: LogLimit,
    /// Those whose deadline this tick may still enforce.
    newcomers_to_end: usize,
}

/// One core with its lanes.
pub(crate) struct Driver {
    core: Core,
    lanes: Table<Lane>,
    /// The lane of every socket, by the index of its token.
    by_token: Vec<Option<(Token, Key)>>,
    overflow: Vec<u8>,
    limits: ConnectionConfig,
    events: Vec<Event>,
    mailbox: Receiver<Message>,
    readings: Vec<HostReading>,
    listeners: accept::Listeners,
    /// Lanes that have come from other cores, by their names.
    travellers: HashMap<Address, Key>,
    travel: Option<travel::Travel>,
    next_tick: Instant,
    stop: Option<close::Stop>,
}

/// How a core ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CoreReport {
    /// Commands still at volumes.
    pub commands_cut: usize,
    /// Volumes that could not be flushed.
    pub flushes_failed: usize,
    /// The core's reactor broke.
    pub is_failed: bool,
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
    pub zero_copy_above: Option<usize>,
    /// How often lanes are moved by load, if at all.
    pub schedule: Option<Duration>,
    pub limits: ConnectionConfig,
}

impl Driver {
    pub(crate) fn new(parts: Parts) -> Driver {
        let now = Instant::now();
        let core = Core {
            index: parts.index,
            counters: Arc::clone(&parts.shared.counters[parts.index]),
            memory: Memory::new(Pool::new(memory::pool_pages(parts.max_pool_pages))),
            volumes: std::iter::repeat_with(VolumeUse::default).take(parts.shared.namespaces.len()).collect(),
            volume_log: VolumeLog::new(parts.shared.namespaces.len()),
            shared: parts.shared,
            reactor: parts.reactor,
            now,
            max_receive_bytes: usize::MAX,
            zero_copy_above: parts.zero_copy_above.unwrap_or(usize::MAX),
            stall: parts.limits.stall,
            spare_lent: Vec::new(),
            files: Table::default(),
            waiting: VecDeque::new(),
            blocked: VecDeque::new(),
            fenced: VecDeque::new(),
            limited: Vec::new(),
            dirty: Vec::new(),
            stalled: VecDeque::new(),
            is_stopping: false,
            ended: Vec::new(),
            flushes: Table::default(),
            flushed: Vec::new(),
            planned: Vec::new(),
            digest_log: LogLimit::default(),
            newcomer_log: LogLimit::default(),
            newcomers_to_end: 0,
        };
        let travel = parts.schedule.map(|interval| {
            travel::Travel::new(interval, core.reactor.mode(), core.shared.counters.len(), now)
        });
        let travel = travel.map(|mut travel| {
            parts
                .cpu
                .into_iter()
                .filter(|_| core.index == 0)
                .for_each(|cpu| travel.loads.drive_frequency(cpu));
            travel
        });
        Driver {
            listeners: accept::Listeners::new(core.shared.counters.len()),
            core,
            lanes: Table::default(),
            by_token: Vec::new(),
            overflow: vec![0; OVERFLOW_BYTES],
            limits: parts.limits,
            events: Vec::new(),
            mailbox: parts.mailbox,
            readings: Vec::new(),
            travellers: HashMap::new(),
            travel,
            next_tick: now + TICK,
            stop: None,
        }
    }

    /// Turns until the target stops. Dropping it then waits for the operations that are still in flight.
    pub(crate) fn run(&mut self) -> CoreReport {
        while !self.is_over() {
            if let Err(error) = self.turn() {
                log::error!("core {}: the reactor failed: {error}; this core stops", self.core.index);
                self.core.shared.cores_drained.fetch_add(1, Ordering::AcqRel);
                return CoreReport { is_failed: true, ..self.finish() };
            }
        }
        self.finish()
    }

    /// One turn of the reactor.
    fn turn(&mut self) -> std::io::Result<()> {
        let mut events = std::mem::take(&mut self.events);
        let turned = self.core.reactor.turn(self.deadline(), &mut events);
        self.core.now = self.core.reactor.now();
        self.take_returned();
        self.core.memory.measure(self.core.shared.seats.taken(self.core.index));
        self.core.max_receive_bytes = self.fair_bytes(&events);
        for event in events.drain(..) {
            self.handle_event(event);
        }
        self.events = events;
        if self.has_more_to_see_to() {
            self.see_to_more();
        }
        self.tick_if_due();
        // A host that sees the end of its connection may at once use its queue id again.
        self.reap();
        self.send_dirty();
        self.see_to_travel();
        self.see_to_stop();
        turned
    }

    /// Whether anything waits that no event brings on. Mostly not, and then a turn is short.
    fn has_more_to_see_to(&self) -> bool {
        let Core { waiting, blocked, fenced, limited, stalled, planned, flushed, .. } = &self.core;
        !(waiting.is_empty()
            && blocked.is_empty()
            && fenced.is_empty()
            && limited.is_empty()
            && stalled.is_empty()
            && self.readings.is_empty()
            && planned.is_empty()
            && flushed.is_empty())
    }

    fn see_to_more(&mut self) {
        self.retry_waiting();
        self.retry_blocked();
        self.admit_limited();
        self.resume_stalled();
        self.read_hosts();
        self.see_to_fenced();
        self.see_to_flushes();
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Readable(token) => {
                if let Some(key) = self.lane_of(token) {
                    self.receive(key);
                    self.send_if_last(key);
                }
            }
            Event::Writable(token) => {
                if let Some(key) = self.lane_of(token)
                    && let Some(lane) = self.lanes.get_mut(key)
                {
                    lane.is_stuck = false;
                    self.core.mark_dirty(lane);
                }
            }
            Event::File(finished) => self.handle_file(finished),
            Event::Accepted { listener, socket, peer } => self.handle_accepted(listener, socket, peer),
            Event::Woken => self.read_mailbox(),
        }
    }

    /// What each lane may bring in one turn, so that the others need not wait for long.
    fn fair_bytes(&self, events: &[Event]) -> usize {
        if events.len() < 2 || !self.core.shared.scheduling {
            return usize::MAX;
        }
        let readable = events.iter().filter(|event| matches!(event, Event::Readable(_))).count();
        if readable < 2 { usize::MAX } else { (TURN_BYTES / readable).max(LANE_BYTES) }
    }

    fn lane_of(&self, token: Token) -> Option<Key> {
        let (known, key) = (*self.by_token.get(token.index())?)?;
        (known == token).then_some(key)
    }

    /// When the next turn must begin, even if nothing happens.
    fn deadline(&self) -> Option<Instant> {
        let now = self.core.now;
        let is_reading = self.readings.iter().any(|reading| !reading.is_late());
        if !self.core.dirty.is_empty() || is_reading || !self.core.ended.is_empty() {
            return Some(now);
        }
        if !self.core.waiting.is_empty() || !self.core.blocked.is_empty() {
            return Some(now + RETRY);
        }
        let is_watching = !self.core.limited.is_empty()
            || !self.core.stalled.is_empty()
            || !self.core.planned.is_empty()
            || !self.core.fenced.is_empty()
            || !self.readings.is_empty()
            || self.stop.is_some();
        if is_watching {
            return Some(now + WATCH);
        }
        let travel = self.travel.as_ref().map(|travel| travel.deadline(now));
        let next_tick = travel.map_or(self.next_tick, |deadline| deadline.min(self.next_tick));
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
const RETRY: Duration = Duration::from_micros(100);
/// How soon slower conditions are looked at again.
const WATCH: Duration = Duration::from_millis(1);

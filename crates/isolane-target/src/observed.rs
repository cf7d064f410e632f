//! Latencies that the cores of a target record, readable from any thread at any time.
//!
//! Each core writes its own [`CoreCells`], and each lane its [`ConnectionCells`], with plain stores. Memory for the
//! numbers of a kind of commands is allocated when the first of them ends.
//!
//! Invariant: one thread at a time writes to each part.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use isolane_observe::cells::{CoarseCells, Counter, SeriesCells, StageTimes};
use isolane_observe::slow::{SlowRecord, SlowRing, SlowWriter};
use isolane_observe::snapshot::{Connection, Core, Series, SeriesKey};
use isolane_observe::stage::{MAX_STAGES, Operation, Side, SizeClass, Stage, kinds};
use isolane_proto::subsystem::{AssociationId, ConnectionInfo, Host};
use isolane_proto::target::Connection as ConnectionState;
use isolane_reactor::{Reactor, SleepTimes, clock};
use isolane_volume::nested::MemberEnd;
use parking_lot::Mutex;

use crate::timeline::{Mark, Run, SERIES_OF_VOLUME, series_index};

/// Numbers that one core writes.
#[derive(Debug, Default)]
pub(crate) struct CoreCells {
    /// By [`series_index`]. Volumes have numbers: the namespaces in their order, then the members, then all others
    /// together.
    series: Vec<OnceLock<Box<SeriesCells>>>,
    /// Memory for the series, in bytes.
    max_bytes: u64,
    used_bytes: Counter,
    /// Turns in which bytes moved.
    turns: CoarseCells,
    /// Of its reactor, if it is observed.
    pub sleeps: OnceLock<Arc<SleepTimes>>,
    /// Number of the current turn, and its part as a [`Phase`].
    turn: Counter,
    phase: Counter,
    /// Thread ID, and the core that the thread is pinned to plus one.
    pub thread: Counter,
    pub cpu: Counter,
    pub slow: SlowRing,
}

impl CoreCells {
    pub(crate) fn new(volumes: usize, max_bytes: usize) -> CoreCells {
        let series = (0..(volumes + 1) * SERIES_OF_VOLUME).map(|_| OnceLock::new());
        CoreCells { series: series.collect(), max_bytes: max_bytes as u64, ..CoreCells::default() }
    }

    /// Returns the cells to record into, with this [`series_index`].
    #[inline]
    pub(crate) fn series(&self, index: usize) -> &SeriesCells {
        match self.series.get(index).and_then(OnceLock::get) {
            Some(cells) => cells,
            None => self.add_series(index),
        }
    }

    /// Allocates the cells, or those of all volumes beyond the limit of memory or numbers.
    #[cold]
    fn add_series(&self, index: usize) -> &SeriesCells {
        let used = self.used_bytes.value() + SERIES_BYTES;
        let others = self.series.len() - SERIES_OF_VOLUME;
        let has_number = index < others;
        if has_number && used <= self.max_bytes {
            self.used_bytes.set(used);
            return self.series[index].get_or_init(Box::default);
        }
        self.series[others + index % SERIES_OF_VOLUME].get_or_init(Box::default)
    }

    /// Returns the number that stands for all volumes beyond the limit.
    pub(crate) fn others(&self) -> usize {
        self.series.len() / SERIES_OF_VOLUME - 1
    }

    /// Returns the numbers of all volumes. `core` is the index of this core.
    pub(crate) fn copy(&self, core: usize) -> impl Iterator<Item = Series> {
        let all = (0..=self.others()).flat_map(|volume| kinds().map(move |kind| (volume, kind)));
        all.filter_map(move |(volume, (operation, size))| {
            let cells = self.series[series_index(volume, operation, size)].get()?;
            let (volume, core) = (volume as u32, core as u32);
            cells.copy(SeriesKey { side: Side::Target, volume, core, operation, size })
        })
    }

    /// Returns the state of the core itself.
    pub(crate) fn describe(&self, index: usize) -> Core {
        let (sleeps, turns) = (self.sleeps.get(), self.turns.copy());
        Core {
            index: index as u32,
            cpu: self.cpu.value().checked_sub(1).map(|cpu| cpu as u32),
            thread: self.thread.value() as u32,
            busy_ns: turns.sum_ns(),
            asleep_ns: sleeps.map_or(0, |sleeps| sleeps.asleep_ns(Instant::now())),
            late_ns: sleeps.map_or(0, |sleeps| sleeps.late_ns()),
            turns: Some(turns),
            ..Core::default()
        }
    }

    /// Returns the current turn.
    pub(crate) fn turn(&self, index: usize) -> Turn {
        Turn {
            core: index as u32,
            thread: self.thread.value() as u32,
            number: self.turn.value(),
            phase: PHASES[self.phase.value() as usize % PHASES.len()],
        }
    }

    /// Returns the memory in use, in bytes.
    pub(crate) fn memory(&self) -> usize {
        let used = self.series.iter().filter_map(OnceLock::get);
        used.map(|cells| cells.memory()).sum()
    }
}

/// The current turn of a core. A core is stuck while it stays in one turn and phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Index of the core.
    pub core: u32,
    /// Its thread ID.
    pub thread: u32,
    /// Number of the turn; it wraps.
    pub number: u64,
    /// Part of the turn; `None` while the core polls or sleeps.
    pub phase: Option<&'static str>,
}

/// Part of a turn.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Phase {
    /// Polls or sleeps.
    Idle,
    Events,
    Receive,
    Volume,
    Send,
}

/// By [`Phase`].
const PHASES: [Option<&str>; 5] = [None, Some("events"), Some("receive"), Some("volume"), Some("send")];

/// Numbers of one connected queue.
#[derive(Debug)]
pub(crate) struct ConnectionCells {
    host: Host,
    /// Its names and addresses, without numbers: each copy would have to format them again.
    description: Connection,
    /// Index of the core that owns it.
    pub core: Counter,
    /// CPU that last processed its packets plus one, in the last tick with received bytes.
    incoming_cpu: Counter,
    totals: [OnceLock<Box<CoarseCells>>; SizeClass::ALL.len()],
    stages: [Counter; MAX_STAGES],
    max: [Counter; MAX_STAGES],
    received_bytes: Counter,
    sent_bytes: Counter,
    in_flight: Counter,
    /// Age of the oldest command at a volume in the last tick plus one, in milliseconds.
    oldest_ms: Counter,
    /// Stage `peer` of sampled sends.
    peer_times: OnceLock<Box<CoarseCells>>,
}

impl ConnectionCells {
    /// Records the time until the host had acknowledged a send.
    pub(crate) fn record_peer(&self, ns: u64) {
        self.peer_times.get_or_init(Box::default).record(ns, 1);
    }

    #[inline]
    fn record(&self, size: SizeClass, times: &StageTimes, count: u64) {
        self.totals[size as usize].get_or_init(Box::default).record(times.iter().sum(), count);
        for ((ns, sum), max) in times.iter().zip(&self.stages).zip(&self.max) {
            if *ns > 0 {
                sum.add(ns.wrapping_mul(count));
                max.raise(*ns);
            }
        }
    }

    #[inline]
    fn record_two(&self, size: SizeClass, cell: usize, times: [(usize, u64); 2], count: u64) {
        let [(_, first), (_, second)] = times;
        self.totals[size as usize].get_or_init(Box::default).record_at(cell, first + second, count);
        for (stage, ns) in times {
            self.stages[stage].add(ns.wrapping_mul(count));
            self.max[stage].raise(ns);
        }
    }

    /// Sets its state in a tick. `oldest` is the age of its oldest command at a volume, and `incoming_cpu` returns the CPU
    /// that last processed its packets.
    pub(crate) fn set_state(
        &self,
        oldest: Option<Duration>,
        conn: &ConnectionState,
        incoming_cpu: impl FnOnce() -> Option<usize>,
    ) {
        let received = conn.received_bytes();
        if received != self.received_bytes.value() {
            self.incoming_cpu.set(incoming_cpu().map_or(0, |cpu| cpu as u64 + 1));
        }
        self.received_bytes.set(received);
        self.sent_bytes.set(conn.moved_bytes() - received);
        self.in_flight.set(conn.in_flight() as u64);
        self.oldest_ms.set(oldest.map_or(0, |age| age.as_millis() as u64 + 1));
    }

    fn copy(&self) -> Connection {
        let totals = SizeClass::ALL.into_iter().zip(&self.totals);
        let totals = totals.filter_map(|(size, cells)| Some((size, cells.get()?.copy())));
        let by_stage = |values: &[Counter; MAX_STAGES]| -> Vec<(Stage, u64)> {
            let stages = Side::Target.stages().iter().copied().zip(values.iter().map(Counter::value));
            stages.filter(|(_, ns)| *ns > 0).collect()
        };
        Connection {
            core: self.core.value() as u32,
            incoming_cpu: self.incoming_cpu.value().checked_sub(1).map(|cpu| cpu as u32),
            totals: totals.collect(),
            stages_ns: by_stage(&self.stages),
            stage_max_ns: by_stage(&self.max),
            received_bytes: self.received_bytes.value(),
            sent_bytes: self.sent_bytes.value(),
            in_flight: self.in_flight.value() as u32,
            oldest_ms: self.oldest_ms.value().checked_sub(1),
            peer_times: self.peer_times.get().map(|cells| cells.copy()),
            ..self.description.clone()
        }
    }
}

/// Connections that have completed a command.
#[derive(Debug, Default)]
pub(crate) struct Connections(Mutex<Registry>);

#[derive(Debug, Default)]
struct Registry {
    last_id: u64,
    /// With the time of the close, if it is closed.
    list: Vec<(Arc<ConnectionCells>, Option<Instant>)>,
}

impl Connections {
    /// Adds a connected queue, which core `core` owns.
    #[cold]
    pub(crate) fn add(
        &self,
        association: (AssociationId, Host, u16),
        connection: ConnectionInfo,
        core: usize,
    ) -> Arc<ConnectionCells> {
        let mut registry = self.0.lock();
        registry.last_id += 1;
        let (id, host, queue) = association;
        let description = Connection {
            id: registry.last_id,
            host: host.nqn.map_or_else(String::new, |nqn| nqn.as_str().to_owned()),
            host_id: uuid::Uuid::from_bytes(host.hostid).to_string(),
            controller: id.cntlid,
            queue,
            local: connection.local.to_string(),
            peer: connection.remote.to_string(),
            ..Connection::default()
        };
        let cells = Arc::new(ConnectionCells {
            host,
            description,
            core: Counter::default(),
            incoming_cpu: Counter::default(),
            totals: Default::default(),
            stages: Default::default(),
            max: Default::default(),
            received_bytes: Counter::default(),
            sent_bytes: Counter::default(),
            in_flight: Counter::default(),
            oldest_ms: Counter::default(),
            peer_times: OnceLock::new(),
        });
        cells.core.set(core as u64);
        registry.list.push((Arc::clone(&cells), None));
        cells
    }

    /// Keeps a closed one for a while, so that readers see its last numbers.
    pub(crate) fn close(&self, cells: &Arc<ConnectionCells>, now: Instant) {
        let is_kept = |closed: Option<Instant>| closed.is_none_or(|closed| now - closed < KEPT_AFTER_CLOSE);
        cells.in_flight.set(0);
        cells.oldest_ms.set(0);
        let list = &mut self.0.lock().list;
        list.retain(|(_, closed)| is_kept(*closed));
        list.iter_mut().filter(|(other, _)| Arc::ptr_eq(other, cells)).for_each(|(_, at)| *at = Some(now));
    }

    /// Returns the numbers of the connections with this name and this host identifier.
    pub(crate) fn copy_of(&self, host: &Host) -> Vec<Connection> {
        let list = self.0.lock().list.clone();
        list.iter().filter(|(cells, _)| cells.host == *host).map(|(cells, _)| cells.copy()).collect()
    }

    pub(crate) fn copy(&self) -> Vec<Connection> {
        let list = self.0.lock().list.clone();
        list.iter().map(|(cells, _)| cells.copy()).collect()
    }
}

/// Writer of the numbers of one core.
#[derive(Debug)]
pub(crate) struct Observer {
    is_on: bool,
    pub cells: Arc<CoreCells>,
    slow: SlowWriter,
    /// Start of this turn, after the poll; 0 if it has no events and the time was not needed.
    turn_ns: u64,
    /// Start of the turn before, or of this one if the one before had no events.
    polled_ns: u64,
    /// Busy time of the reactor that is recorded.
    busy_ns: u64,
}

impl Observer {
    pub(crate) fn new(is_on: bool, cells: Arc<CoreCells>) -> Observer {
        Observer { is_on, cells, slow: SlowWriter::default(), turn_ns: 0, polled_ns: 0, busy_ns: 0 }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Returns the time of the clock in nanoseconds; 0 if nothing is recorded.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        if self.is_on { clock::now() } else { 0 }
    }

    /// Records the turn before. Called after the reactor has polled or slept.
    #[inline]
    pub(crate) fn begin_turn(&mut self, reactor: &Reactor, has_events: bool) {
        let before = self.turn_ns;
        self.turn_ns = if has_events { self.now() } else { 0 };
        self.polled_ns = if before > 0 { before } else { self.turn_ns };
        if !self.is_on {
            return;
        }
        self.cells.turn.add(1);
        self.enter(Phase::Events);
        let busy_ns = reactor.busy_ns();
        if busy_ns != self.busy_ns {
            self.cells.turns.record(busy_ns - self.busy_ns, 1);
            self.busy_ns = busy_ns;
        }
    }

    #[inline]
    pub(crate) fn enter(&self, phase: Phase) {
        self.cells.phase.set(phase as u64);
    }

    /// Returns the time since the last poll that did not report the socket, or since its last receive at `received`.
    #[inline]
    pub(crate) fn unseen(&self, now: u64, received: u64) -> u64 {
        now.saturating_sub(self.polled_ns.max(received))
    }

    /// Returns the time at which this turn began.
    pub(crate) fn turn_ns(&mut self) -> u64 {
        if self.turn_ns == 0 {
            self.turn_ns = self.now();
        }
        self.turn_ns
    }

    /// Records commands whose last byte the kernel has accepted.
    #[inline]
    pub(crate) fn record(&mut self, mark: &Mark, connection: &ConnectionCells, now: u64) {
        let Mark { kind, count, bytes, .. } = *mark;
        let times = mark.end(now);
        let series = self.cells.series(kind.series_index());
        series.record(&times, u64::from(count));
        series.record_unseen(mark.first.unseen, u64::from(count));
        if mark.failed {
            series.add_error();
        } else {
            series.add_bytes(bytes);
        }
        connection.record(kind.size(), &times, u64::from(count));
        let total = now.saturating_sub(mark.timeline.received());
        if self.slow.is_slow(total) {
            self.add_slow(mark, connection, times, now);
        }
    }

    /// Records commands that completed in their receive, and whose send began at `start` and ended at `end`.
    #[inline]
    pub(crate) fn record_run(&mut self, run: &Run, connection: &ConnectionCells, (start, end): (u64, u64)) {
        let (kind, count) = (run.kind, u64::from(run.count));
        let (batch, socket) = (start.saturating_sub(run.received), end.saturating_sub(start));
        let times = [(Stage::Batch as usize, batch), (Stage::Socket as usize, socket)];
        let series = self.cells.series(kind.series_index());
        let cell = series.record_two(times, count);
        series.add_bytes(kind.len() * count);
        series.record_unseen(run.first.unseen, count);
        connection.record_two(kind.size(), cell, times, count);
        if self.slow.is_slow(batch + socket) {
            let mark = Mark::from_sent(*run, start);
            self.add_slow(&mark, connection, mark.end(end), end);
        }
    }

    #[cold]
    fn add_slow(&mut self, mark: &Mark, connection: &ConnectionCells, times: StageTimes, now: u64) {
        let record = SlowRecord {
            at_ns: now,
            total_ns: times.iter().sum(),
            stages_ns: times,
            connection: connection.description.id,
            lba: mark.first.lba,
            bytes: mark.bytes / u64::from(mark.count),
            volume: mark.kind.volume() as u32,
            cid: mark.first.cid,
            depth: mark.first.depth,
            operation: mark.kind.operation(),
            last_member: mark.first.last_member,
        };
        self.slow.add(record, &self.cells.slow);
    }

    /// Records requests to a member, the volume with number `id`.
    pub(crate) fn record_member(&self, id: u32, end: MemberEnd) {
        let series = |operation, bytes| {
            self.cells.series(series_index(id as usize, operation, SizeClass::from_len(bytes)))
        };
        match end {
            MemberEnd::One { operation, bytes, ns, succeeded, .. } => {
                let series = series(operation, bytes);
                series.record_total(ns, 1);
                if succeeded { series.add_bytes(bytes) } else { series.add_error() }
            }
            MemberEnd::Last { bytes, by_ns, .. } => series(Operation::Write, bytes).add_last(by_ns),
        }
    }

    /// Returns `true` if slow operations wait for a later tick.
    pub(crate) fn has_pending(&self) -> bool {
        self.slow.has_pending()
    }

    /// Publishes the slow operations of the last second if it has ended. Called in each tick.
    pub(crate) fn tick(&mut self) {
        let now = self.now();
        self.slow.end_second(now, &self.cells.slow);
    }
}

/// Memory of the numbers of one kind of commands, with the usual number of stages.
const SERIES_BYTES: u64 = 10 << 10;
/// Time for which the numbers of a closed connection are kept at least; the next close removes them.
const KEPT_AFTER_CLOSE: Duration = Duration::from_secs(5);

//! Latencies that the cores of an engine record, readable from any thread at any time.
//!
//! Each core writes its own [`CoreCells`], and each volume of a session its [`VolumeCells`], with plain stores. Memory
//! for the numbers of a kind of commands is allocated when the first of them ends.
//!
//! Invariant: one thread writes to each part, and no session to the numbers of another one.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use isolane_host::NamespaceInfo;
use isolane_observe::cells::{CoarseCells, Counter, KindCells, StageTimes};
use isolane_observe::slow::{SlowRecord, SlowRing, SlowWriter};
use isolane_observe::snapshot::{self, Core, Series};
use isolane_observe::stage::{Operation, Side, SizeClass};
use isolane_reactor::{SleepTimes, clock};
use parking_lot::Mutex;

/// Numbers of an engine.
#[derive(Debug)]
pub(crate) struct Observed {
    pub is_on: bool,
    pub started_ns: u64,
    pub cores: Vec<CoreCells>,
    pub volumes: Volumes,
}

impl Observed {
    pub(crate) fn new(is_on: bool, cores: &[usize]) -> Observed {
        let cores = cores.iter().map(|cpu| CoreCells { cpu: *cpu as u32, ..CoreCells::default() });
        Observed { is_on, started_ns: clock::now(), cores: cores.collect(), volumes: Volumes::default() }
    }
}

/// Numbers that one core writes.
#[derive(Debug, Default)]
pub(crate) struct CoreCells {
    cpu: u32,
    thread: Counter,
    turns: CoarseCells,
    busy_ns: Counter,
    sleeps: SleepTimes,
    /// Number of the current turn, and whether it works.
    turn: Counter,
    works: Counter,
    pub slow: SlowRing,
}

impl CoreCells {
    /// Returns the state of the core.
    pub(crate) fn describe(&self, index: u32) -> Core {
        Core {
            index,
            cpu: Some(self.cpu),
            thread: self.thread.value() as u32,
            busy_ns: self.busy_ns.value(),
            asleep_ns: self.sleeps.asleep_ns(Instant::now()),
            turns: Some(self.turns.copy()),
            ..Core::default()
        }
    }

    /// Returns the current turn.
    pub(crate) fn turn(&self, core: u32) -> CurrentTurn {
        CurrentTurn {
            core,
            thread: self.thread.value() as u32,
            number: self.turn.value(),
            phase: (self.works.value() > 0).then_some("turn"),
        }
    }
}

/// The current turn of a core. A core is stuck while it stays in one turn and phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CurrentTurn {
    /// Index of the core.
    pub core: u32,
    /// Its thread ID.
    pub thread: u32,
    /// Number of the turn; it wraps.
    pub number: u64,
    /// Part of the turn; `None` while the core sleeps.
    pub phase: Option<&'static str>,
}

/// Session that an object belongs to.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub session: u32,
    /// Name of its application, for people.
    pub application: Arc<str>,
}

/// What a session uses on a core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Volume with this URI.
    Volume(String),
    /// All its streams together.
    Streams,
}

/// Numbers of one volume of a session, or of its streams. The core of the volume or of the streams writes.
#[derive(Debug)]
pub(crate) struct VolumeCells {
    id: u32,
    owner: Owner,
    core: u32,
    source: Source,
    /// Namespace ID and size in bytes, once the volume is open.
    namespace: OnceLock<(u32, u64)>,
    kinds: KindCells,
}

impl VolumeCells {
    pub(crate) fn set_namespace(&self, namespace: &NamespaceInfo) {
        let _ = self.namespace.set((namespace.nsid, namespace.len_bytes()));
    }

    /// Counts a command that failed.
    pub(crate) fn add_error(&self, operation: Operation, bytes: u64) {
        self.kinds.of(operation, SizeClass::from_len(bytes)).add_error();
    }

    /// Returns the numbers of all operations.
    pub(crate) fn copy(&self) -> impl Iterator<Item = Series> {
        self.kinds.copy(side_of(self.id), self.id, self.core)
    }

    /// Describes the volume.
    pub(crate) fn describe(&self) -> snapshot::Volume {
        let namespace = self.namespace.get();
        let (name, kind) = match &self.source {
            Source::Volume(uri) => (uri.escape_debug().to_string(), "remote"),
            Source::Streams => ("streams".to_owned(), "stream"),
        };
        snapshot::Volume {
            id: self.id,
            nsid: namespace.map(|(nsid, _)| *nsid),
            name: format!("{name} (session {})", self.owner.session),
            kind: kind.to_owned(),
            bytes: namespace.map_or(0, |(_, bytes)| *bytes),
            application: Some(self.owner.application.to_string()),
            ..snapshot::Volume::default()
        }
    }
}

/// Returns the side that measures the operations of a volume with this ID.
pub(crate) fn side_of(id: u32) -> Side {
    if id & STREAMS == 0 { Side::Engine } else { Side::Stream }
}

/// Returns a time that an application has written, on our clock: at most `now`, and 0 if there is none.
#[inline]
pub(crate) fn on_our_clock(at: u64, now: u64, monotonic: u64) -> u64 {
    match at {
        0 => 0,
        at => now.saturating_sub(monotonic.saturating_sub(at)),
    }
}

/// Volumes and streams of sessions.
#[derive(Debug, Default)]
pub(crate) struct Volumes(Mutex<Registry>);

#[derive(Debug, Default)]
struct Registry {
    last_id: u32,
    list: Vec<Entry>,
    /// Volumes beyond [`MAX_VOLUMES`].
    unobserved: u64,
}

/// Numbers that are in use, or were until recently.
#[derive(Debug)]
struct Entry {
    cells: Arc<VolumeCells>,
    /// Objects that write them.
    users: u64,
    /// Time of the close of the last one.
    closed: Option<Instant>,
}

impl Volumes {
    /// Adds a volume of a session on a core, or another stream to its streams there. Returns `None` if there are too
    /// many.
    fn add(&self, owner: Owner, core: u32, source: Source) -> Option<Arc<VolumeCells>> {
        let registry = &mut *self.0.lock();
        registry.remove_closed(Instant::now());
        let mut id = None;
        if source == Source::Streams {
            for entry in registry.streams_of(owner.session) {
                if entry.cells.core == core {
                    (entry.users, entry.closed) = (entry.users + 1, None);
                    return Some(Arc::clone(&entry.cells));
                }
                id = Some(entry.cells.id);
            }
        }
        if registry.list.len() >= MAX_VOLUMES {
            registry.unobserved += 1;
            return None;
        }
        let id = id.unwrap_or_else(|| registry.next_id(&source));
        let (namespace, kinds) = (OnceLock::new(), KindCells::default());
        let cells = Arc::new(VolumeCells { id, owner, core, source, namespace, kinds });
        registry.list.push(Entry { cells: Arc::clone(&cells), users: 1, closed: None });
        Some(cells)
    }

    /// Keeps a closed one for a while, so that readers see its last numbers.
    fn close(&self, cells: &Arc<VolumeCells>, now: Instant) {
        let registry = &mut *self.0.lock();
        registry.remove_closed(now);
        if let Some(own) = registry.list.iter_mut().find(|entry| Arc::ptr_eq(&entry.cells, cells)) {
            own.users = own.users.saturating_sub(1);
            own.closed = (own.users == 0).then_some(now);
        }
    }

    /// Returns all volumes, and the number of those that are not observed.
    pub(crate) fn all(&self) -> (Vec<Arc<VolumeCells>>, u64) {
        let registry = self.0.lock();
        (registry.list.iter().map(|entry| Arc::clone(&entry.cells)).collect(), registry.unobserved)
    }
}

impl Registry {
    fn remove_closed(&mut self, now: Instant) {
        let is_kept = |closed: Option<Instant>| closed.is_none_or(|closed| now - closed < KEPT_AFTER_CLOSE);
        self.list.retain(|entry| is_kept(entry.closed));
    }

    /// Returns the streams of a session, by core.
    fn streams_of(&mut self, session: u32) -> impl Iterator<Item = &mut Entry> {
        self.list.iter_mut().filter(move |entry| {
            entry.cells.source == Source::Streams && entry.cells.owner.session == session
        })
    }

    fn next_id(&mut self, source: &Source) -> u32 {
        self.last_id = self.last_id.wrapping_add(1) & (STREAMS - 1);
        match source {
            Source::Volume(_) => self.last_id,
            Source::Streams => self.last_id | STREAMS,
        }
    }
}

/// Commands of a volume that completed alike.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Commands {
    pub operation: Operation,
    /// Length of each in bytes.
    pub bytes: u64,
    pub count: u64,
    /// Stages of [`Side::Engine`].
    pub stages: StageTimes,
    /// First block of the first.
    pub lba: u64,
}

/// Bytes of a stream that moved together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    pub operation: Operation,
    /// Position of the only stage in the stages of [`Side::Stream`].
    pub stage: usize,
    pub bytes: u64,
    pub ns: u64,
}

/// Writer of the numbers of one core.
#[derive(Debug)]
pub(crate) struct Observer {
    observed: Arc<Observed>,
    core: usize,
    /// Start of this turn on the clock.
    turn_ns: Cell<u64>,
    slow: RefCell<SlowWriter>,
}

impl Observer {
    /// For the core with this index, on its thread.
    pub(crate) fn new(observed: Arc<Observed>, core: u32) -> Rc<Observer> {
        let core = core as usize;
        observed.cores[core].thread.set(rustix::thread::gettid().as_raw_nonzero().get() as u64);
        Rc::new(Observer { observed, core, turn_ns: Cell::new(0), slow: RefCell::default() })
    }

    fn cells(&self) -> &CoreCells {
        &self.observed.cores[self.core]
    }

    /// Returns the time of the clock in nanoseconds; 0 if nothing is recorded.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        if self.observed.is_on { clock::now() } else { 0 }
    }

    /// Returns the time at which this turn began.
    #[inline]
    pub(crate) fn turn_ns(&self) -> u64 {
        self.turn_ns.get()
    }

    /// Begins a turn. `has_worked`: the turn before had work, and did not sleep.
    #[inline]
    pub(crate) fn begin_turn(&self, has_worked: bool) {
        self.begin_turn_at(self.now(), has_worked);
    }

    fn begin_turn_at(&self, now: u64, has_worked: bool) {
        let (cells, before) = (self.cells(), self.turn_ns.replace(now));
        cells.turn.add(1);
        cells.works.set(1);
        if has_worked && self.observed.is_on {
            let ns = now.saturating_sub(before);
            cells.turns.record(ns, 1);
            cells.busy_ns.add(ns);
        }
        self.slow.borrow_mut().end_second(now, &cells.slow);
    }

    /// Records that the core begins to sleep. Returns when it must be woken, so that readers see slow operations.
    pub(crate) fn begin_sleep(&self, now: Instant) -> Option<Instant> {
        self.cells().works.set(0);
        self.cells().sleeps.begin(now);
        self.slow.borrow().has_pending().then(|| now + Duration::from_secs(1))
    }

    /// Records that the core has slept, if it has begun to.
    pub(crate) fn end_sleep(&self, now: Instant) {
        self.cells().works.set(1);
        self.cells().sleeps.end(now);
    }

    /// Adds a volume of a session, or a stream to its streams. Returns `None` if nothing is recorded.
    pub(crate) fn add(&self, owner: Owner, source: Source) -> Option<Arc<VolumeCells>> {
        let Observed { is_on, volumes, .. } = &*self.observed;
        is_on.then(|| volumes.add(owner, self.core as u32, source))?
    }

    /// Removes a volume or a stream. Readers have time to see its last numbers.
    pub(crate) fn close(&self, cells: &Arc<VolumeCells>, now: Instant) {
        self.observed.volumes.close(cells, now);
    }

    /// Records completed commands of a volume at `now`.
    pub(crate) fn record(&self, volume: &VolumeCells, commands: &Commands, now: u64) {
        let Commands { operation, bytes, count, stages, .. } = *commands;
        let series = volume.kinds.of(operation, SizeClass::from_len(bytes));
        series.record(&stages, count);
        series.add_bytes(bytes * count);
        self.add_slow(volume, commands, now);
    }

    /// Records bytes of a stream that spent `ns` in one stage, until `now`.
    #[inline]
    pub(crate) fn record_stream(&self, streams: &VolumeCells, moved: &Moved, now: u64) {
        let Moved { operation, stage, bytes, ns } = *moved;
        let series = streams.kinds.of(operation, SizeClass::from_len(bytes));
        series.record_two([(stage, ns), (0, 0)], 1);
        series.add_bytes(bytes);
        if self.slow.borrow().is_slow(ns) {
            let mut stages = StageTimes::default();
            stages[stage] = ns;
            self.add_slow(streams, &Commands { operation, bytes, count: 1, stages, lba: 0 }, now);
        }
    }

    fn add_slow(&self, volume: &VolumeCells, commands: &Commands, now: u64) {
        let Commands { operation, bytes, stages, lba, .. } = *commands;
        let total_ns = stages.iter().sum();
        let mut slow = self.slow.borrow_mut();
        if slow.is_slow(total_ns) {
            let record = SlowRecord {
                at_ns: now,
                total_ns,
                stages_ns: stages,
                connection: 0,
                lba,
                bytes,
                volume: volume.id,
                cid: 0,
                depth: 0,
                operation,
                last_member: None,
            };
            slow.add(record, &self.cells().slow);
        }
    }
}

/// Bit of the IDs of streams.
const STREAMS: u32 = 1 << 31;
/// Volumes that have numbers of their own, of all sessions. The streams of a session on a core count as one.
const MAX_VOLUMES: usize = 256;
/// Time for which the numbers of a closed volume are kept at least; the next open or close removes them.
const KEPT_AFTER_CLOSE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(session: u32) -> Owner {
        Owner { session, application: Arc::from("fio (PID 7)") }
    }

    fn volume(uri: &str) -> Source {
        Source::Volume(uri.to_owned())
    }

    #[test]
    fn bounds_volumes_and_frees_closed_ones() {
        let volumes = Volumes::default();
        let all: Vec<_> =
            (0..MAX_VOLUMES).map(|_| volumes.add(owner(1), 0, volume("a")).expect("space")).collect();
        assert!(volumes.add(owner(1), 0, volume("b")).is_none());
        assert_eq!(volumes.all().1, 1);
        let now = Instant::now();
        all.iter().for_each(|cells| volumes.close(cells, now));
        assert_eq!(volumes.all().0.len(), MAX_VOLUMES, "kept for readers");
        volumes.close(&all[0], now + KEPT_AFTER_CLOSE);
        assert!(volumes.all().0.is_empty());
        let added = volumes.add(owner(2), 0, volume("c")).expect("space");
        assert!(all.iter().all(|cells| cells.id != added.id), "no ID is used twice");
    }

    #[test]
    fn streams_of_a_session_share_numbers() {
        let volumes = Volumes::default();
        let add = |session, core| volumes.add(owner(session), core, Source::Streams).expect("space");
        let (first, second, other_core, other) = (add(1, 0), add(1, 0), add(1, 1), add(2, 0));
        assert!(Arc::ptr_eq(&first, &second), "one core writes both");
        assert_eq!((first.id, other_core.id != first.id, other.id != first.id), (first.id, false, true));
        assert!(!Arc::ptr_eq(&first, &other_core));
        assert_eq!(
            (side_of(first.id), first.describe().name.as_str()),
            (Side::Stream, "streams (session 1)")
        );
        let later = Instant::now() + KEPT_AFTER_CLOSE;
        volumes.close(&first, Instant::now());
        volumes.close(&other, later);
        volumes.close(&other_core, later);
        assert_eq!(volumes.all().0.len(), 3, "the second stream is open");
        volumes.close(&second, Instant::now());
        assert!(Arc::ptr_eq(&add(1, 0), &first), "opened again");
    }

    #[test]
    fn publishes_slow_commands_of_the_second_before() {
        let observer = Observer::new(Arc::new(Observed::new(true, &[0])), 0);
        let volume = observer.observed.volumes.add(owner(7), 0, volume("nvme+tcp://a\u{1b}")).expect("space");
        let stages = std::array::from_fn(|stage| stage as u64 * 1000);
        let (operation, bytes) = (Operation::Write, 4096);
        let commands = Commands { operation, bytes, count: 3, stages, lba: 77 };
        observer.record(&volume, &commands, 1_000_000_000);
        let series: Vec<Series> = volume.copy().collect();
        assert_eq!(series.len(), 1);
        assert_eq!((series[0].total.count(), series[0].errors, series[0].bytes), (3, 0, 3 * 4096));
        assert_eq!(series[0].total.sum_ns(), 3 * stages.iter().sum::<u64>());
        assert!(observer.begin_sleep(Instant::now()).is_some(), "wakes to publish");
        observer.begin_turn_at(2_000_000_000, false);
        let slow = observer.cells().slow.copy();
        assert_eq!(slow.iter().map(|it| (it.volume, it.lba)).collect::<Vec<_>>(), [(volume.id, 77)]);
        assert!(observer.begin_sleep(Instant::now()).is_none());
        assert_eq!(volume.describe().name, "nvme+tcp://a\\u{1b} (session 7)");
    }

    #[test]
    fn counts_sleep_in_progress() {
        let observer = Observer::new(Arc::new(Observed::new(true, &[0])), 0);
        let asleep_ns = || observer.cells().describe(0).asleep_ns;
        observer.begin_sleep(Instant::now());
        while asleep_ns() == 0 {
            std::thread::yield_now();
        }
        observer.end_sleep(Instant::now());
        let ended_ns = asleep_ns();
        assert!(ended_ns > 0);
        observer.end_sleep(Instant::now());
        assert_eq!(asleep_ns(), ended_ns, "no sleep has begun");
    }
}

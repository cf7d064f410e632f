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
use isolane_observe::cells::{CoarseCells, Counter, SeriesCells, StageTimes};
use isolane_observe::slow::{SlowRecord, SlowRing, SlowWriter};
use isolane_observe::snapshot::{self, Core, Series, SeriesKey};
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

/// By operation and size class.
type Kinds = [[OnceLock<Box<SeriesCells>>; SizeClass::ALL.len()]; Operation::ALL.len()];

/// Session that an object belongs to.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub session: u32,
    /// Name of its application, for people.
    pub application: Arc<str>,
}

/// Numbers of one volume of a session. The core of the volume writes.
#[derive(Debug)]
pub(crate) struct VolumeCells {
    id: u32,
    owner: Owner,
    core: u32,
    uri: String,
    /// Namespace ID and size in bytes, once the volume is open.
    namespace: OnceLock<(u32, u64)>,
    kinds: Kinds,
}

impl VolumeCells {
    pub(crate) fn set_namespace(&self, namespace: &NamespaceInfo) {
        let _ = self.namespace.set((namespace.nsid, namespace.len_bytes()));
    }

    #[inline]
    fn series(&self, operation: Operation, size: SizeClass) -> &SeriesCells {
        self.kinds[operation as usize][size as usize].get_or_init(Box::default)
    }

    /// Counts a command that failed.
    pub(crate) fn add_error(&self, operation: Operation, bytes: u64) {
        self.series(operation, SizeClass::from_len(bytes)).add_error();
    }

    /// Returns the numbers of all operations.
    pub(crate) fn copy(&self) -> impl Iterator<Item = Series> {
        let kinds =
            Operation::ALL.into_iter().flat_map(|operation| SizeClass::ALL.map(|size| (operation, size)));
        kinds.filter_map(|(operation, size)| {
            let cells = self.kinds[operation as usize][size as usize].get()?;
            cells.copy(SeriesKey { side: Side::Engine, volume: self.id, core: self.core, operation, size })
        })
    }

    /// Describes the volume.
    pub(crate) fn describe(&self) -> snapshot::Volume {
        let namespace = self.namespace.get();
        snapshot::Volume {
            id: self.id,
            nsid: namespace.map(|(nsid, _)| *nsid),
            name: format!("{} (session {})", self.uri.escape_debug(), self.owner.session),
            kind: "remote".to_owned(),
            bytes: namespace.map_or(0, |(_, bytes)| *bytes),
            application: Some(self.owner.application.to_string()),
            ..snapshot::Volume::default()
        }
    }
}

/// Volumes of sessions.
#[derive(Debug, Default)]
pub(crate) struct Volumes(Mutex<Registry>);

#[derive(Debug, Default)]
struct Registry {
    last_id: u32,
    /// With the time of the close, if it is closed.
    list: Vec<(Arc<VolumeCells>, Option<Instant>)>,
    /// Volumes beyond [`MAX_VOLUMES`].
    unobserved: u64,
}

impl Volumes {
    /// Adds a volume of a session on a core. Returns `None` if there are too many.
    fn add(&self, owner: Owner, core: u32, uri: &str) -> Option<Arc<VolumeCells>> {
        let mut registry = self.0.lock();
        registry.remove_closed(Instant::now());
        if registry.list.len() >= MAX_VOLUMES {
            registry.unobserved += 1;
            return None;
        }
        registry.last_id = registry.last_id.wrapping_add(1);
        let (id, uri, kinds) = (registry.last_id, uri.to_owned(), Kinds::default());
        let cells = Arc::new(VolumeCells { id, owner, core, uri, namespace: OnceLock::new(), kinds });
        registry.list.push((Arc::clone(&cells), None));
        Some(cells)
    }

    /// Keeps a closed one for a while, so that readers see its last numbers.
    fn close(&self, cells: &Arc<VolumeCells>, now: Instant) {
        let registry = &mut *self.0.lock();
        registry.remove_closed(now);
        let own = registry.list.iter_mut().find(|(other, _)| Arc::ptr_eq(other, cells));
        own.into_iter().for_each(|(_, closed)| *closed = Some(now));
    }

    /// Returns all volumes, and the number of those that are not observed.
    pub(crate) fn all(&self) -> (Vec<Arc<VolumeCells>>, u64) {
        let registry = self.0.lock();
        (registry.list.iter().map(|(cells, _)| Arc::clone(cells)).collect(), registry.unobserved)
    }
}

impl Registry {
    fn remove_closed(&mut self, now: Instant) {
        let is_kept = |closed: Option<Instant>| closed.is_none_or(|closed| now - closed < KEPT_AFTER_CLOSE);
        self.list.retain(|(_, closed)| is_kept(*closed));
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

    /// Adds a volume of a session. Returns `None` if its commands are not recorded.
    pub(crate) fn add_volume(&self, owner: Owner, uri: &str) -> Option<Arc<VolumeCells>> {
        let Observed { is_on, volumes, .. } = &*self.observed;
        is_on.then(|| volumes.add(owner, self.core as u32, uri))?
    }

    /// Removes a volume once readers have had time to see its last numbers.
    pub(crate) fn close_volume(&self, cells: &Arc<VolumeCells>, now: Instant) {
        self.observed.volumes.close(cells, now);
    }

    /// Records completed commands of a volume at `now`.
    pub(crate) fn record(&self, volume: &VolumeCells, commands: &Commands, now: u64) {
        let Commands { operation, bytes, count, stages, lba } = *commands;
        let series = volume.series(operation, SizeClass::from_len(bytes));
        series.record(&stages, count);
        series.add_bytes(bytes * count);
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

/// Volumes that have numbers of their own, of all sessions.
const MAX_VOLUMES: usize = 256;
/// Time for which the numbers of a closed volume are kept at least; the next open or close removes them.
const KEPT_AFTER_CLOSE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(session: u32) -> Owner {
        Owner { session, application: Arc::from("fio (PID 7)") }
    }

    #[test]
    fn bounds_volumes_and_frees_closed_ones() {
        let volumes = Volumes::default();
        let all: Vec<_> = (0..MAX_VOLUMES).map(|_| volumes.add(owner(1), 0, "a").expect("space")).collect();
        assert!(volumes.add(owner(1), 0, "b").is_none());
        assert_eq!(volumes.all().1, 1);
        let now = Instant::now();
        all.iter().for_each(|cells| volumes.close(cells, now));
        assert_eq!(volumes.all().0.len(), MAX_VOLUMES, "kept for readers");
        volumes.close(&all[0], now + KEPT_AFTER_CLOSE);
        assert!(volumes.all().0.is_empty());
        let added = volumes.add(owner(2), 0, "c").expect("space");
        assert!(all.iter().all(|cells| cells.id != added.id), "no ID is used twice");
    }

    #[test]
    fn publishes_slow_commands_of_the_second_before() {
        let observer = Observer::new(Arc::new(Observed::new(true, &[0])), 0);
        let volume = observer.observed.volumes.add(owner(7), 0, "nvme+tcp://a\u{1b}").expect("space");
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

//! Threads of an engine.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use isolane_observe::snapshot::Snapshot;
use isolane_reactor::mailbox::{self, Sender};
use isolane_reactor::spin::AdaptiveSpin;
use rustix::event::{EventfdFlags, eventfd};

use crate::control::{Control, ControlDeps};
use crate::core::{ControlMessage, Core, CoreMessage};
use crate::epoll::Epoll;
use crate::object::ObjectKind;
use crate::observed::{Observed, Observer};
use crate::snapshot::{self, SnapshotSource};
use crate::store::{Record, StoreClient, StoredRecord};
use crate::stream::StreamKind;
use crate::volume::{JournalStore, VolumeKind};
use crate::watch::{self, Part, Stuck, Watch};
use crate::{EngineConfig, EngineError};

/// Running engine. Dropping it ends its threads and drops their objects as they are.
pub struct Engine {
    cores: Vec<(Sender<CoreMessage>, JoinHandle<io::Result<()>>)>,
    control: (Sender<ControlMessage>, Option<JoinHandle<io::Result<()>>>),
    /// Readable once a thread has ended.
    ended: Arc<OwnedFd>,
    watch: Watch,
    observed: Arc<Observed>,
}

/// Signals the end of a thread, including a panic.
struct ExitNotifier(Arc<OwnedFd>);

impl Drop for ExitNotifier {
    fn drop(&mut self) {
        // A full counter has been signaled before.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

impl Engine {
    /// Serves the clients that connect to `listener` ([`listen`](crate::listen)).
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn start(config: EngineConfig, listener: OwnedFd) -> Result<Engine, EngineError> {
        Engine::with_kinds(config, listener, Vec::new())
    }

    /// Serves objects of other kinds as well as streams and volumes.
    ///
    /// # Errors
    /// [`EngineError`].
    ///
    /// # Panics
    /// If two kinds have the same ID.
    pub fn with_kinds(
        config: EngineConfig,
        listener: OwnedFd,
        kinds: Vec<Box<dyn ObjectKind>>,
    ) -> Result<Engine, EngineError> {
        let record = watch::Record::new().map_err(EngineError::system(NO_RECORD))?;
        let store = Arc::new(StoreClient::none());
        Engine::resume(config, listener, kinds, FIRST_EPOCH, store, Vec::new(), record)
    }

    /// Continues the work of an engine that ended.
    pub(crate) fn resume(
        config: EngineConfig,
        listener: OwnedFd,
        mut kinds: Vec<Box<dyn ObjectKind>>,
        epoch: u64,
        store: Arc<StoreClient>,
        mut records: Vec<StoredRecord>,
        record: watch::Record,
    ) -> Result<Engine, EngineError> {
        config.check()?;
        let watch = Watch::new(record, config.cores.len());
        let part = |thread| watch.part(thread).map_err(EngineError::system(NO_RECORD));
        let ended = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let ended = Arc::new(ended.map_err(EngineError::system("cannot make an eventfd"))?);
        let epoll = Epoll::new().map_err(EngineError::system("cannot make an epoll"))?;
        let (messages, inbox) = mailbox::unbounded(epoll.sleeper().waker());
        let control_part = part(0)?;
        let parts = (1..=config.cores.len()).map(part).collect::<Result<Vec<_>, _>>()?;
        let observed = Arc::new(Observed::new(config.observe, &config.cores));
        let mut engine = Engine {
            cores: Vec::new(),
            control: (messages.clone(), None),
            ended: Arc::clone(&ended),
            watch,
            observed: Arc::clone(&observed),
        };
        for ((core, index), part) in config.cores.iter().zip(0..).zip(parts) {
            engine.cores.push(start_core(&config, index, *core, messages.clone(), &ended, part, &observed)?);
        }
        let cores = engine.cores.iter().map(|(sender, _)| sender.clone()).collect();
        store.set_callback(Box::new(move |key, stored| {
            // The control thread lives as long as the engine.
            let _ = messages.send(ControlMessage::Stored { key, stored });
        }));
        let journal = Arc::clone(&store) as Arc<dyn JournalStore>;
        let volumes = VolumeKind::new(&config, journal, take_notes(&mut records));
        let own: [Box<dyn ObjectKind>; 2] = [Box::new(StreamKind::new(&config)), Box::new(volumes)];
        kinds.splice(0..0, own);
        let ids: BTreeSet<u16> = kinds.iter().map(|kind| kind.id()).collect();
        assert_eq!(ids.len(), kinds.len(), "two kinds of objects have the same ID");
        let deps = ControlDeps { messages: inbox, cores, kinds, store, watch: control_part };
        let mut control = Control::new(config, epoch, epoll, listener, deps)
            .map_err(EngineError::system("cannot watch the listener"))?;
        let notifier = ExitNotifier(ended);
        let thread = thread::Builder::new().name("isolane-control".into()).spawn(move || {
            let _notifier = notifier;
            control.resume(records);
            control.run()
        });
        let thread = thread.map_err(EngineError::system("cannot start a thread"))?;
        engine.control.1 = Some(thread);
        Ok(engine)
    }

    /// Closes every object cleanly, waiting for at most `timeout`. Returns whether all are closed.
    pub fn stop(self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let has_stopped = || self.cores.iter().all(|(_, thread)| thread.is_finished());
        self.cores.iter().for_each(|(core, _)| drop(core.send(CoreMessage::Shutdown)));
        while Instant::now() < deadline && !has_stopped() {
            thread::sleep(POLL_INTERVAL);
        }
        has_stopped()
    }

    /// Prints clients and their objects to standard error, asynchronously.
    pub fn print_status(&self) {
        // An ended control thread has no clients.
        let _ = self.control.0.send(ControlMessage::PrintStatus);
    }

    /// Returns the numbers since the start: the latencies of each volume of a session with their stages, by
    /// operation and size, the cores, and slow operations. Waits for no core.
    pub fn snapshot(&self) -> Snapshot {
        snapshot::take(&self.observed)
    }

    /// Returns a source of snapshots that other threads can keep. It does not keep the engine running.
    pub fn source(&self) -> SnapshotSource {
        SnapshotSource::new(&self.observed)
    }

    /// Starts the next heartbeat, and wakes all threads.
    ///
    /// # Errors
    /// [`Stuck`], if a thread has missed too many heartbeats.
    pub(crate) fn beat(&self) -> Result<(), Stuck> {
        let result = self.watch.beat();
        // Ended threads are detected through `ended`.
        self.cores.iter().for_each(|(core, _)| drop(core.send(CoreMessage::Beat)));
        let _ = self.control.0.send(ControlMessage::Beat);
        result
    }

    /// Descriptor that becomes readable once a thread has ended.
    pub(crate) fn ended(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Whether all threads run.
    pub fn is_healthy(&self) -> bool {
        let control = self.control.1.as_ref();
        control.is_some_and(|thread| !thread.is_finished())
            && self.cores.iter().all(|(_, thread)| !thread.is_finished())
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Engine({} cores)", self.cores.len())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        for (core, thread) in self.cores.drain(..) {
            let _ = core.send(CoreMessage::Exit);
            log_exit("core", thread.join());
        }
        let _ = self.control.0.send(ControlMessage::Exit);
        if let Some(thread) = self.control.1.take() {
            log_exit("control", thread.join());
        }
    }
}

/// Removes the notes, which belong to no session, from `records`.
fn take_notes(records: &mut Vec<StoredRecord>) -> Vec<(u64, Vec<u8>)> {
    let notes = records.extract_if(.., |stored| matches!(stored.record, Record::Note(_)));
    let key_and_note = |StoredRecord { key, record, .. }| match record {
        Record::Note(note) => Some((key, note)),
        _ => None,
    };
    notes.filter_map(key_and_note).collect()
}

fn log_exit(thread: &str, result: thread::Result<io::Result<()>>) {
    match result {
        Ok(Ok(())) => {}
        Ok(Err(error)) => log::error!("{thread} thread failed: {error}"),
        Err(_) => log::error!("{thread} thread panicked"),
    }
}

/// Starts the thread of a core, and waits until it is pinned.
fn start_core(
    config: &EngineConfig,
    index: u32,
    core: usize,
    control: Sender<ControlMessage>,
    ended: &Arc<OwnedFd>,
    part: Part,
    observed: &Arc<Observed>,
) -> Result<(Sender<CoreMessage>, JoinHandle<io::Result<()>>), EngineError> {
    let epoll = Epoll::new().map_err(EngineError::system("cannot make an epoll"))?;
    let (sender, inbox) = mailbox::unbounded(epoll.sleeper().waker());
    let (mode, spin) = (config.mode, config.spin);
    let (pinned, is_pinned) = mpsc::sync_channel(1);
    let (notifier, observed) = (ExitNotifier(Arc::clone(ended)), Arc::clone(observed));
    let thread = thread::Builder::new().name(format!("isolane-core{core}")).spawn(move || {
        let _notifier = notifier;
        let result = isolane_reactor::cpu::pin(core);
        let has_failed = result.is_err();
        let _ = pinned.send(result);
        if has_failed {
            return Ok(());
        }
        // Built here, because the state of a core must not leave its thread.
        let spin = AdaptiveSpin::new(mode, spin, Instant::now());
        Core::new(index, epoll, inbox, control, spin, part, Observer::new(observed, index)).run()
    });
    let thread = thread.map_err(EngineError::system("cannot start a thread"))?;
    let result = is_pinned.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()));
    result.map_err(|source| EngineError::Core { core, source })?;
    Ok((sender, thread))
}

const FIRST_EPOCH: u64 = 1;
const NO_RECORD: &str = "cannot allocate memory to share with the supervisor";
/// Interval at which [`Engine::stop`] checks the cores.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

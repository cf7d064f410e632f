//! The threads of an engine.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use isolane_reactor::mailbox::{self, Sender};
use isolane_reactor::spin::Spin;
use rustix::event::{EventfdFlags, eventfd};

use crate::control::{Control, Door, Outfit};
use crate::core::{Core, Mail, Notice};
use crate::epoll::Epoll;
use crate::store::{Deposit, Listener, Record, Store};
use crate::volume::{Keeper, Volumes};
use crate::watch::{self, Part, Stuck, Watch};
use crate::{Config, EngineError};

pub use crate::control::listen;

/// A running engine. Dropping it ends its threads and leaves what they had as it is.
pub struct Engine {
    cores: Vec<(Sender<Mail>, JoinHandle<io::Result<()>>)>,
    control: (Sender<Notice>, Option<JoinHandle<io::Result<()>>>),
    /// Readable once a thread has ended.
    ended: Arc<OwnedFd>,
    watch: Watch,
}

/// Tells that a thread has ended, however it did.
struct Tells(Arc<OwnedFd>);

impl Drop for Tells {
    fn drop(&mut self) {
        // Full means that it was told before.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

impl Engine {
    /// Serves whoever attaches through `listener` ([`listen`]).
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn start(config: Config, listener: OwnedFd) -> Result<Engine, EngineError> {
        let record =
            watch::Record::new().map_err(|error| EngineError::system(NO_RECORD, io::Error::other(error)))?;
        Engine::resume(config, listener, FIRST_EPOCH, Store::none(), Vec::new(), record)
    }

    /// Goes on where the engine before was killed.
    pub(crate) fn resume(
        config: Config,
        listener: OwnedFd,
        epoch: u64,
        store: impl Into<Arc<Store>>,
        mut kept: Vec<Deposit>,
        record: watch::Record,
    ) -> Result<Engine, EngineError> {
        config.check()?;
        let watch = Watch::new(record, config.cores.len());
        let part = |thread| {
            watch.part(thread).map_err(|error| EngineError::system(NO_RECORD, io::Error::other(error)))
        };
        let ended = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let ended = Arc::new(ended.map_err(|error| EngineError::system("cannot make an eventfd", error))?);
        let epoll = Epoll::new().map_err(|error| EngineError::system("cannot make an epoll", error))?;
        let (notices, inbox) = mailbox::unbounded(epoll.sleeper().waker());
        let control_part = part(0)?;
        let parts = (1..=config.cores.len()).map(part).collect::<Result<Vec<_>, _>>()?;
        let mut engine =
            Engine { cores: Vec::new(), control: (notices.clone(), None), ended: Arc::clone(&ended), watch };
        for ((core, index), part) in config.cores.iter().zip(0..).zip(parts) {
            engine.cores.push(start_core(&config, index, *core, notices.clone(), &ended, part)?);
        }
        let cores = engine.cores.iter().map(|(sender, _)| sender.clone()).collect();
        let store: Arc<Store> = store.into();
        let hears = notices.clone();
        store.listen(Listener(Box::new(move |key, is_kept| {
            // The control thread lives as long as the engine.
            let _ = hears.send(Notice::Deposited { key, is_kept });
        })));
        let keeper = Arc::clone(&store) as Arc<dyn Keeper>;
        let volumes = Volumes::new(config.mode, config.spin, Some(keeper), notes(&mut kept));
        let control = Control::new(
            config,
            epoch,
            epoll,
            Door::new(listener),
            Outfit { notices: inbox, cores, volumes, store, watch: control_part },
        );
        let mut control = control.map_err(|error| EngineError::system("cannot watch the listener", error))?;
        let tells = Tells(ended);
        let thread = thread::Builder::new().name("isolane-control".into()).spawn(move || {
            let _tells = tells;
            control.resume(kept);
            control.run()
        });
        let thread = thread.map_err(|error| EngineError::system("cannot start a thread", error))?;
        engine.control.1 = Some(thread);
        Ok(engine)
    }

    /// Ends in order: every object ends, for as long as that takes, but not longer than `time_max`. Says
    /// whether all did.
    pub fn stop(self, time_max: Duration) -> bool {
        let until = Instant::now() + time_max;
        self.cores.iter().for_each(|(core, _)| drop(core.send(Mail::Stop)));
        while Instant::now() < until && !self.cores.iter().all(|(_, thread)| thread.is_finished()) {
            thread::sleep(LOOK);
        }
        self.cores.iter().all(|(_, thread)| thread.is_finished())
    }

    /// Prints who is attached, and what they have, to the standard error output: soon, and not by this thread.
    pub fn show(&self) {
        // A thread that has ended has nobody.
        let _ = self.control.0.send(Notice::Show);
    }

    /// Starts the next beat, and wakes all threads.
    ///
    /// # Errors
    /// [`Stuck`], if a thread has not turned for too many of them.
    pub(crate) fn beat(&self) -> Result<(), Stuck> {
        let outcome = self.watch.beat();
        // A thread that has ended is noticed otherwise.
        self.cores.iter().for_each(|(core, _)| drop(core.send(Mail::Beat)));
        let _ = self.control.0.send(Notice::Beat);
        outcome
    }

    /// Becomes readable once one of its threads has ended.
    pub(crate) fn ended(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Whether all of its threads run.
    pub fn is_whole(&self) -> bool {
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
            let _ = core.send(Mail::Halt);
            report("a core", thread.join());
        }
        let _ = self.control.0.send(Notice::Halt);
        if let Some(thread) = self.control.1.take() {
            report("the control thread", thread.join());
        }
    }
}

/// Takes what belongs to no session out of what was kept.
fn notes(kept: &mut Vec<Deposit>) -> Vec<(u64, Vec<u8>)> {
    let note = |kept: &mut Deposit| match &mut kept.record {
        Record::Note(note) => Some((kept.key, std::mem::take(note))),
        _ => None,
    };
    let notes = kept.iter_mut().filter_map(note).collect();
    kept.retain(|kept| !matches!(kept.record, Record::Note(_)));
    notes
}

fn report(what: &str, outcome: thread::Result<io::Result<()>>) {
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(error)) => log::error!("{what} has failed: {error}"),
        Err(_) => log::error!("{what} has panicked"),
    }
}

/// Starts the thread of a core, and waits until it is pinned.
fn start_core(
    config: &Config,
    index: u32,
    core: usize,
    control: Sender<Notice>,
    ended: &Arc<OwnedFd>,
    part: Part,
) -> Result<(Sender<Mail>, JoinHandle<io::Result<()>>), EngineError> {
    let epoll = Epoll::new().map_err(|error| EngineError::system("cannot make an epoll", error))?;
    let (sender, inbox) = mailbox::unbounded(epoll.sleeper().waker());
    let (mode, longest) = (config.mode, config.spin);
    let (pinned, is_pinned) = mpsc::sync_channel(1);
    let tells = Tells(Arc::clone(ended));
    let thread = thread::Builder::new().name(format!("isolane-core{core}")).spawn(move || {
        let _tells = tells;
        let outcome = isolane_reactor::core::pin(core);
        let has_failed = outcome.is_err();
        let _ = pinned.send(outcome);
        if has_failed {
            return Ok(());
        }
        // What a core has is not to leave its thread.
        Core::new(index, epoll, inbox, control, Spin::new(mode, longest, Instant::now()), part).run()
    });
    let thread = thread.map_err(|error| EngineError::system("cannot start a thread", error))?;
    let outcome = is_pinned.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()));
    outcome.map_err(|source| EngineError::Core { core, source })?;
    Ok((sender, thread))
}

const FIRST_EPOCH: u64 = 1;
const NO_RECORD: &str = "cannot have memory to share with the supervisor";
/// How often it is looked whether a core has ended.
const LOOK: Duration = Duration::from_millis(1);

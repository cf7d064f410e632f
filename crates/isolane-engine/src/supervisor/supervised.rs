//! The engine's process, as it sees itself.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use isolane_attach::control::{Wire, WireError};
use isolane_ring::Memory;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use crate::reserve::Reserve;
use crate::store::{Deposit, LINK_VERSION, Record, Store, ToEngine, ToSupervisor};
use crate::watch::{self, Stuck};
use crate::{Config, Engine, EngineError};

/// Serves as the engine of the supervisor at the other end of `link`, until that says so.
///
/// `strays` is set by the signals that have come to this process, which acts on none: whoever wants something of an
/// engine is to tell its supervisor. A signal to a whole group of processes comes here as well. It is a flag because
/// this process has no descriptor to spare; a signal wakes the thread that calls this.
///
/// The process dies with the thread that has started it: a supervisor has one only.
///
/// # Errors
/// [`EngineError`].
pub fn supervised(config: Config, link: OwnedFd, strays: Arc<AtomicBool>) -> Result<(), EngineError> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| EngineError::system("cannot be told of the supervisor's end", error))?;
    isolane_reactor::core::raise_descriptor_limit()
        .map_err(|error| EngineError::system("cannot have more descriptors", error))?;
    let wire =
        Wire::new(link.try_clone().map_err(|error| EngineError::system("cannot have its link", error))?);
    // A supervisor that has gone is noticed by the next call.
    let _ = wire.send(&ToSupervisor::Here { version: LINK_VERSION }.encode(), &[], true);
    let reserve = Reserve::of_engine(config.cores.len());
    let Handed { kept, listener, record, epoch } = take_over(&wire)?;
    drop(reserve);
    if epoch > 1 {
        log::info!("engine {epoch} takes up what was kept: {} records", kept.len());
    }
    let (serves, cores) = (describe(&config, epoch), config.cores.clone());
    let next = kept.last().map_or(0, |last| last.key + 1);
    let store = Arc::new(Store::of(Wire::new(link), next));
    let engine = Engine::resume(config, listener, epoch, Arc::clone(&store), kept, record)?;
    log::info!("{serves}");
    store.tell(&ToSupervisor::Ready);
    let outcome = attend(&wire, &store, &engine, &strays);
    store.on_over();
    let outcome = match outcome {
        Ok(Ended::Ordered(order)) => Ok(order),
        Ok(Ended::Stuck(stuck)) => {
            // Its thread would be waited for; the process ends with it.
            std::mem::forget(engine);
            return Err(why_stuck(stuck, &cores));
        }
        Err(error) => Err(error),
    };
    if outcome? == Order::Stop && !engine.stop(STOP_TIME_MAX) {
        log::warn!("the engine ends though not everything was done within {} s", STOP_TIME_MAX.as_secs());
    }
    Ok(())
}

/// What serves, and where.
fn describe(config: &Config, epoch: u64) -> String {
    let file = std::env::current_exe()
        .map_or_else(|_| "its file is unknown".into(), |file| file.display().to_string());
    let cores: Vec<_> = config.cores.iter().map(usize::to_string).collect();
    let mode = format!("{:?}", config.mode).to_lowercase();
    format!(
        "engine {epoch} serves: isolane {} ({file}), process {}, supervised by process {}; cores {}, mode {mode}",
        env!("CARGO_PKG_VERSION"),
        std::process::id(),
        Pid::as_raw(getppid()),
        cores.join(","),
    )
}

/// What the supervisor has handed over.
struct Handed {
    kept: Vec<Deposit>,
    listener: OwnedFd,
    record: watch::Record,
    epoch: u64,
}

/// Why the engine's process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Ordered(Order),
    Stuck(Stuck),
}

/// What the supervisor wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Stop,
    Halt,
}

fn take_over(wire: &Wire) -> Result<Handed, EngineError> {
    let mut kept = Vec::new();
    loop {
        let packet = match wire.receive(true) {
            Ok(Some(packet)) => packet,
            Ok(None) => continue,
            // Whose it is finds out; the others are kept.
            Err(WireError::NoDescriptors(packet)) => packet,
            Err(error) => return Err(orphaned(error)),
        };
        match ToEngine::decode(&packet.bytes).map_err(orphaned)? {
            ToEngine::Kept { key, record } => {
                let record = Record::decode(&record).map_err(orphaned)?;
                kept.push(Deposit { key, record, descriptors: packet.descriptors });
            }
            ToEngine::Go { version: LINK_VERSION, epoch } => {
                let mut descriptors = packet.descriptors.into_iter();
                let listener = descriptors.next().ok_or_else(|| orphaned("it has no listener"))?;
                let record = descriptors.next().ok_or_else(|| orphaned("it has no memory to share"))?;
                let record = Memory::open(record, usize::MAX).map(watch::Record::open).map_err(orphaned)?;
                return Ok(Handed { kept, listener, record, epoch });
            }
            ToEngine::Go { version, .. } => {
                let why = format!("it speaks version {version}, this program {LINK_VERSION}: end it, too");
                return Err(orphaned(why));
            }
            message => return Err(orphaned(format!("it has said {message:?} before it was time"))),
        }
    }
}

/// Hears the supervisor until it wants the engine to end, or a thread of the engine is stuck.
fn attend(wire: &Wire, store: &Store, engine: &Engine, strays: &AtomicBool) -> Result<Ended, EngineError> {
    let mut beaten = Instant::now();
    loop {
        // One beat however late it is: what has kept this thread waiting may have kept the others.
        if beaten.elapsed() >= BEAT {
            beaten = Instant::now();
            store.flush();
            if let Err(stuck) = engine.beat() {
                return Ok(Ended::Stuck(stuck));
            }
        }
        let timeout = isolane_ring::timespec(BEAT.saturating_sub(beaten.elapsed()));
        let mut watched =
            [PollFd::new(wire, PollFlags::IN), PollFd::from_borrowed_fd(engine.ended(), PollFlags::IN)];
        match poll(&mut watched, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(EngineError::system("cannot wait for the supervisor", error)),
        }
        let is_broken = !watched[1].revents().is_empty();
        if strays.swap(false, Ordering::Relaxed) {
            let supervisor = Pid::as_raw(getppid());
            log::info!(
                "a signal has come to the engine, which acts on none: its supervisor is process {supervisor}"
            );
        }
        match wire.receive(false) {
            Ok(Some(packet)) => match ToEngine::decode(&packet.bytes).map_err(orphaned)? {
                ToEngine::Deposited { key } => store.on_deposited(key, true),
                ToEngine::Unkept { key } => store.on_deposited(key, false),
                ToEngine::Show => engine.show(),
                ToEngine::Stop => return Ok(Ended::Ordered(Order::Stop)),
                ToEngine::Halt => return Ok(Ended::Ordered(Order::Halt)),
                message => return Err(orphaned(format!("it has said {message:?} in the middle"))),
            },
            Ok(None) if is_broken => return Err(EngineError::Broken),
            Ok(None) => {}
            Err(WireError::Closed) => return Err(orphaned("it has ended")),
            Err(error) => return Err(orphaned(error)),
        }
    }
}

/// What is said about a thread that is stuck.
fn why_stuck(stuck: Stuck, cores: &[usize]) -> EngineError {
    let thread = match stuck.core.and_then(|at| cores.get(at)) {
        Some(core) => format!("the thread of core {core}"),
        None => "the control thread".into(),
    };
    let session = stuck.session.map_or_else(|| "no session".into(), |session| format!("session {session}"));
    EngineError::Stuck { thread, session, seconds: watch::MISSED_MAX * BEAT.as_secs() }
}

fn orphaned(why: impl ToString) -> EngineError {
    EngineError::Orphaned { why: why.to_string() }
}

/// How long an engine takes to end in order.
const STOP_TIME_MAX: Duration = Duration::from_secs(5);
/// Time between two heartbeats of the engine's threads.
const BEAT: Duration = Duration::from_secs(2);

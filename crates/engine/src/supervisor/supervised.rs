//! The engine's process, as it sees itself.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use isolane_attach::control::{Wire, WireError};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use crate::reserve::Reserve;
use crate::store::{Deposit, LINK_VERSION, Record, Store, ToEngine, ToSupervisor};
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
    let Handed { kept, listener, epoch } = take_over(&wire)?;
    drop(reserve);
    if epoch > 1 {
        log::info!("engine {epoch} takes up what was kept: {} records", kept.len());
    }
    let serves = describe(&config, epoch);
    let next = kept.last().map_or(0, |last| last.key + 1);
    let store = Arc::new(Store::of(Wire::new(link), next));
    let engine = Engine::resume(config, listener, epoch, Arc::clone(&store), kept)?;
    log::info!("{serves}");
    store.tell(&ToSupervisor::Ready);
    let outcome = attend(&wire, &store, &engine, &strays);
    store.on_over();
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
    epoch: u64,
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
                let listener = packet.descriptors.into_iter().next();
                let listener = listener.ok_or_else(|| orphaned("it has no listener"))?;
                return Ok(Handed { kept, listener, epoch });
            }
            ToEngine::Go { version, .. } => {
                let why = format!("it speaks version {version}, this program {LINK_VERSION}: end it, too");
                return Err(orphaned(why));
            }
            message => return Err(orphaned(format!("it has said {message:?} before it was time"))),
        }
    }
}

/// Hears the supervisor until it wants the engine to end.
fn attend(wire: &Wire, store: &Store, engine: &Engine, strays: &AtomicBool) -> Result<Order, EngineError> {
    loop {
        let mut watched =
            [PollFd::new(wire, PollFlags::IN), PollFd::from_borrowed_fd(engine.ended(), PollFlags::IN)];
        match poll(&mut watched, None) {
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
                ToEngine::Stop => return Ok(Order::Stop),
                ToEngine::Halt => return Ok(Order::Halt),
                message => return Err(orphaned(format!("it has said {message:?} in the middle"))),
            },
            Ok(None) if is_broken => return Err(EngineError::Broken),
            Ok(None) => {}
            Err(WireError::Closed) => return Err(orphaned("it has ended")),
            Err(error) => return Err(orphaned(error)),
        }
    }
}

fn orphaned(why: impl ToString) -> EngineError {
    EngineError::Orphaned { why: why.to_string() }
}

/// How long an engine takes to end in order.
const STOP_TIME_MAX: Duration = Duration::from_secs(5);

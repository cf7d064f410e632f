//! Main loop of the engine's process.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use isolane_engine_api::{PacketError, PacketSocket, decode, encode};
use isolane_shm::SharedMemory;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use crate::fd_reserve::FdReserve;
use crate::object::ObjectKind;
use crate::store::{LINK_VERSION, StoreClient, StoredRecord, ToEngine, ToSupervisor};
use crate::watch::{self, Stuck};
use crate::{Engine, EngineConfig, EngineError, SnapshotSource};

/// Runs an engine for the supervisor at the other end of `link`, until the supervisor ends it. `kinds` are the
/// kinds of objects in addition to streams and volumes, the same at each restart.
///
/// `observe` is called once the engine serves; what it returns is dropped when the engine ends.
///
/// The caller sets `stray_signals` in its signal handlers: the engine ignores signals, which users must send to the
/// supervisor, but a signal to a process group arrives here too. A flag needs no descriptor; the signal wakes
/// the thread that calls this function.
///
/// The process is killed when the thread that has started it ends; a supervisor has only one thread.
///
/// # Errors
/// [`EngineError`].
pub fn run_engine<T>(
    config: EngineConfig,
    link: OwnedFd,
    kinds: Vec<Box<dyn ObjectKind>>,
    stray_signals: Arc<AtomicBool>,
    observe: impl FnOnce(SnapshotSource) -> T,
) -> Result<(), EngineError> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(EngineError::system("cannot watch the supervisor"))?;
    isolane_reactor::cpu::raise_fd_limit()
        .map_err(EngineError::system("cannot raise the descriptor limit"))?;
    let duplicate = link.try_clone().map_err(EngineError::system("cannot duplicate the link"))?;
    let wire = PacketSocket::new(duplicate);
    // The next call notices a supervisor that has ended.
    let _ = wire.send(&encode(&ToSupervisor::Hello { version: LINK_VERSION }), &[], true);
    let reserve = FdReserve::for_engine(config.cores.len());
    let HandOff { records, listener, watch_record, epoch } = receive_hand_off(&wire)?;
    drop(reserve);
    if epoch > 1 {
        log::info!("engine {epoch} resumes {} records", records.len());
    }
    let (description, cores) = (describe(&config, epoch), config.cores.clone());
    let next_key = records.last().map_or(0, |last| last.key + 1);
    let store = Arc::new(StoreClient::new(PacketSocket::new(link), next_key));
    let engine = Engine::resume(config, listener, kinds, epoch, Arc::clone(&store), records, watch_record)?;
    log::info!("{description}");
    let _observer = observe(engine.source());
    store.notify(&ToSupervisor::Ready);
    let result = serve(&wire, &store, &engine, &stray_signals);
    store.close();
    match result? {
        Exit::Immediate => {}
        Exit::Shutdown => {
            if !engine.stop(SHUTDOWN_TIMEOUT) {
                log::warn!("engine ends with unfinished objects after {} s", SHUTDOWN_TIMEOUT.as_secs());
            }
        }
        Exit::Stuck(stuck) => {
            // A drop would wait for the stuck thread, which ends with the process.
            std::mem::forget(engine);
            return Err(stuck_error(stuck, &cores));
        }
    }
    Ok(())
}

fn describe(config: &EngineConfig, epoch: u64) -> String {
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

/// State received from the supervisor.
struct HandOff {
    records: Vec<StoredRecord>,
    listener: OwnedFd,
    watch_record: watch::Record,
    epoch: u64,
}

/// Reason for the end of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    Shutdown,
    Immediate,
    Stuck(Stuck),
}

fn receive_hand_off(wire: &PacketSocket) -> Result<HandOff, EngineError> {
    let mut records = Vec::new();
    loop {
        let packet = match wire.receive(true) {
            Ok(Some(packet)) => packet,
            Ok(None) => continue,
            // Fails only the session of this record.
            Err(PacketError::NoDescriptors(packet)) => packet,
            Err(error) => return Err(orphaned(error)),
        };
        match decode(&packet.bytes).map_err(orphaned)? {
            ToEngine::Restore { key, record } => {
                records.push(StoredRecord { key, record, descriptors: packet.descriptors });
            }
            ToEngine::Start { version: LINK_VERSION, epoch } => {
                let mut descriptors = packet.descriptors.into_iter();
                let listener = descriptors.next().ok_or_else(|| orphaned("it has no listener"))?;
                let memfd = descriptors.next().ok_or_else(|| orphaned("it has no memory to share"))?;
                let memory = SharedMemory::open(memfd, usize::MAX).map_err(orphaned)?;
                return Ok(HandOff { records, listener, watch_record: watch::Record::open(memory), epoch });
            }
            ToEngine::Start { version, .. } => {
                let reason = format!("it speaks version {version}, this program {LINK_VERSION}: end it");
                return Err(orphaned(reason));
            }
            message => return Err(orphaned(format!("unexpected message {message:?} before the start"))),
        }
    }
}

/// Serves the link until the supervisor ends the engine, or a thread is stuck.
fn serve(
    wire: &PacketSocket,
    store: &StoreClient,
    engine: &Engine,
    stray_signals: &AtomicBool,
) -> Result<Exit, EngineError> {
    let mut last_beat = Instant::now();
    loop {
        // At most one beat, however late: what delayed this thread may have delayed the others.
        if last_beat.elapsed() >= BEAT_INTERVAL {
            last_beat = Instant::now();
            store.flush();
            if let Err(stuck) = engine.beat() {
                return Ok(Exit::Stuck(stuck));
            }
        }
        let timeout = isolane_shm::timespec(BEAT_INTERVAL.saturating_sub(last_beat.elapsed()));
        let mut watched =
            [PollFd::new(wire, PollFlags::IN), PollFd::from_borrowed_fd(engine.ended(), PollFlags::IN)];
        match poll(&mut watched, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(EngineError::system("cannot wait for the supervisor")(error)),
        }
        let is_broken = !watched[1].revents().is_empty();
        if stray_signals.swap(false, Ordering::Relaxed) {
            log::info!("ignoring signal; send it to the supervisor (pid {})", Pid::as_raw(getppid()));
        }
        match wire.receive(false) {
            Ok(Some(packet)) => match decode(&packet.bytes).map_err(orphaned)? {
                ToEngine::Stored { key } => store.on_stored(key, true),
                ToEngine::StoreFailed { key } => store.on_stored(key, false),
                ToEngine::PrintStatus => engine.print_status(),
                ToEngine::Shutdown => return Ok(Exit::Shutdown),
                ToEngine::Exit => return Ok(Exit::Immediate),
                message => return Err(orphaned(format!("unexpected message {message:?}"))),
            },
            Ok(None) if is_broken => return Err(EngineError::Broken),
            Ok(None) => {}
            Err(PacketError::Closed) => return Err(orphaned("it has ended")),
            Err(error) => return Err(orphaned(error)),
        }
    }
}

fn stuck_error(stuck: Stuck, cores: &[usize]) -> EngineError {
    let thread = match stuck.core.and_then(|at| cores.get(at)) {
        Some(core) => format!("the thread of core {core}"),
        None => "the control thread".into(),
    };
    let session = stuck.session.map_or_else(|| "no session".into(), |session| format!("session {session}"));
    EngineError::Stuck { thread, session, seconds: watch::MAX_MISSED_BEATS * BEAT_INTERVAL.as_secs() }
}

fn orphaned(reason: impl ToString) -> EngineError {
    EngineError::Orphaned { reason: reason.to_string() }
}

/// Time for a clean shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of the heartbeat of the engine's threads.
const BEAT_INTERVAL: Duration = Duration::from_secs(2);

//! Supervisor: starts the engine's process, keeps the records that must outlive it, and replaces it.
//!
//! It owns the clients' socket and the `RecordStore`, which the engine fills and the next one receives
//! (`store`). It reads records only to find the records of a session that has ended two engines,
//! and does no work for clients, so little can crash it. Its own death ends the engine ([`run_engine`]) and all
//! sessions.
//!
//! Repeated deaths of the engine delay its restart increasingly. A program that dies before it serves, or has
//! another version, is replaced by the program that the supervisor runs; an upgrade to such a program keeps the
//! running engine.
//!
//! Invariant: an engine starts to serve only after all threads of the previous one have ended, with all records
//! that it has stored.

mod engine_main;
mod engine_process;
mod quarantine;
mod record_store;
mod socket_lock;

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::EngineError;
use crate::fd_reserve::FdReserve;
use crate::files::UPGRADE_FAILED;
use crate::store::{ToEngine, ToSupervisor};

pub use engine_main::run_engine;
use engine_process::{EngineProcess, ExitReport, Stage};
use quarantine::Quarantine;
use record_store::RecordStore;
use socket_lock::SocketLock;

/// Configuration of a supervisor.
pub struct SupervisorConfig {
    /// Path of the clients' socket.
    pub path: PathBuf,
    /// Users who may attach in addition to root and this process's user, as in
    /// [`EngineConfig`](crate::EngineConfig). If not empty, the socket is writable by all users, and the engine
    /// checks their credentials.
    pub allowed_uids: Vec<u32>,
    /// Returns the command of the engine, which must call [`run_engine`] with its standard input. Called for each
    /// start.
    pub program: Box<dyn FnMut(Binary) -> Command>,
    /// Called once, when the first engine serves.
    pub on_ready: Box<dyn FnMut()>,
}

/// Program of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    /// Current content of the program's file.
    OnDisk,
    /// Program of the supervisor itself, which works and has its version.
    Running,
}

/// Descriptors for requests to a supervisor. Each becomes readable with a request, and is read then.
#[derive(Debug)]
pub struct SignalFds {
    /// Shuts the engine down cleanly; the second request kills it.
    pub stop: OwnedFd,
    /// Replaces the engine, possibly by a newer program.
    pub upgrade: OwnedFd,
    /// Prints clients and their objects.
    pub status: OwnedFd,
}

/// State of a supervisor.
struct Supervisor {
    config: SupervisorConfig,
    signals: SignalFds,
    socket: SocketLock,
    records: RecordStore,
    quarantine: Quarantine,
    /// Descriptors for the start of the next engine.
    reserve: FdReserve,
    epoch: u64,
    /// Program of the next engine.
    binary: Binary,
    /// Next engine of an upgrade, while the current one still serves.
    successor: Option<EngineProcess>,
    was_ready: bool,
    restart_delay: Duration,
}

/// Directive for the running engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Directive {
    Serve,
    /// Exit for the successor; killed after the deadline.
    Replace(Instant),
    /// Shut down cleanly; killed after the deadline.
    Stop(Instant),
}

/// Supervises engines until a request stops it.
///
/// # Errors
/// [`EngineError`], if the first engine does not start. Later engines are restarted after any failure.
pub fn supervise(config: SupervisorConfig, signals: SignalFds) -> Result<(), EngineError> {
    // Each stream needs one descriptor here and two in the engine.
    isolane_reactor::cpu::raise_fd_limit()
        .map_err(EngineError::system("cannot raise the descriptor limit"))?;
    let socket = SocketLock::acquire(&config.path, &config.allowed_uids)?;
    let mut supervisor = Supervisor {
        config,
        signals,
        socket,
        records: RecordStore::default(),
        quarantine: Quarantine::new()?,
        reserve: FdReserve::new(RESERVED_FDS),
        epoch: 0,
        binary: Binary::OnDisk,
        successor: None,
        was_ready: false,
        restart_delay: Duration::ZERO,
    };
    while supervisor.run_one()? {}
    Ok(())
}

impl Supervisor {
    /// Runs one engine to its end. Returns `false` if no other must follow.
    fn run_one(&mut self) -> Result<bool, EngineError> {
        self.epoch += 1;
        let started = Instant::now();
        let mut engine = match self.successor.take().map_or_else(|| self.start(self.binary), Ok) {
            Ok(engine) => engine,
            // The program on disk may be missing.
            Err(error) if self.was_ready || self.binary == Binary::OnDisk => {
                return self.on_spawn_failure(&error);
            }
            Err(error) => return Err(error),
        };
        if engine.stage == Stage::Connected {
            self.hand_off(&mut engine);
        }
        let mut directive = Directive::Serve;
        let exit = loop {
            if let Some(exit) = self.wait_and_handle(&mut engine, &mut directive)? {
                break exit;
            }
        };
        if matches!(directive, Directive::Stop(_)) {
            log::info!("engine has ended ({})", exit.status);
            return Ok(false);
        }
        if !self.was_ready {
            return Err(EngineError::Start { reason: exit.status });
        }
        if matches!(directive, Directive::Replace(_)) {
            return Ok(true);
        }
        if !exit.killed {
            self.quarantine.on_death(&mut self.records);
        }
        if engine.stage != Stage::Ready && engine.binary == Binary::OnDisk && !exit.killed {
            self.fall_back(&format!("{} has ended before it served ({})", engine.file, exit.status));
            return Ok(true);
        }
        log::error!("engine died ({}), restarting", exit.status);
        self.back_off(started.elapsed())
    }

    fn start(&mut self, binary: Binary) -> Result<EngineProcess, EngineError> {
        self.reserve.release();
        let started = EngineProcess::start(binary, &mut (self.config.program)(binary));
        self.reserve.refill();
        started
    }

    fn on_spawn_failure(&mut self, error: &EngineError) -> Result<bool, EngineError> {
        if self.binary == Binary::OnDisk {
            self.fall_back(&error.to_string());
            return Ok(true);
        }
        log::error!("{error}; trying again");
        self.back_off(Duration::ZERO)
    }

    /// Uses the program of the supervisor from now on, because the one on disk does not work.
    fn fall_back(&mut self, reason: &str) {
        self.binary = Binary::Running;
        log::error!(
            "{reason}; the engine continues with the supervisor's program. Install one that works, and send SIGHUP"
        );
    }

    fn hand_off(&self, engine: &mut EngineProcess) {
        self.quarantine.clear();
        engine.hand_off(self.records.keys(), self.epoch);
    }

    /// Waits for the next events, and handles them. Returns the end of the engine, if it has exited.
    fn wait_and_handle(
        &mut self,
        engine: &mut EngineProcess,
        directive: &mut Directive,
    ) -> Result<Option<ExitReport>, EngineError> {
        engine.flush(&self.records, &self.socket, &self.quarantine);
        let deadline = match *directive {
            Directive::Serve => None,
            Directive::Replace(deadline) | Directive::Stop(deadline) => Some(deadline),
        };
        let [exited, link, stop, upgrade, status, successor] = self.wait(engine, deadline)?;
        let now = Instant::now();
        if deadline.is_some_and(|deadline| now >= deadline) {
            engine.kill();
        }
        engine.on_timer(now);
        if link {
            while let Some((message, descriptors)) = engine.receive() {
                self.on_message(engine, directive, message, descriptors);
            }
        }
        if stop && drain_signal_fd(&self.signals.stop) {
            match directive {
                Directive::Stop(_) => {
                    log::info!("second stop request, killing the engine");
                    engine.kill();
                }
                _ => {
                    log::info!("stop request, shutting the engine down");
                    self.stop(engine, directive);
                }
            }
        }
        if status && drain_signal_fd(&self.signals.status) {
            if !engine.is_running() {
                log::info!("the engine is starting; repeat the status request")
            } else {
                engine.send(ToEngine::PrintStatus)
            }
        }
        if upgrade
            && drain_signal_fd(&self.signals.upgrade)
            && *directive == Directive::Serve
            && self.successor.is_none()
        {
            match self.start(Binary::OnDisk) {
                Ok(successor) => self.successor = Some(successor),
                Err(error) => log_no_upgrade(&error.to_string()),
            }
        }
        if self.poll_successor(successor, now)? && *directive == Directive::Serve {
            log::info!(
                "replacing the engine by {}",
                self.successor.as_ref().map_or("", |successor| &successor.file)
            );
            self.binary = Binary::OnDisk;
            *directive = Directive::Replace(now + EXIT_TIMEOUT);
            engine.send(ToEngine::Exit);
        }
        // Its last messages were received above.
        if exited { engine.wait().map(Some) } else { Ok(None) }
    }

    /// Handles events of the successor. Returns whether it can replace the engine.
    fn poll_successor(&mut self, is_ready: bool, now: Instant) -> Result<bool, EngineError> {
        let Some(successor) = &mut self.successor else { return Ok(false) };
        successor.on_timer(now);
        if !is_ready || successor.stage == Stage::Connected {
            return Ok(successor.stage == Stage::Connected);
        }
        if successor.is_link_closed() {
            let exit = successor.wait()?;
            log_no_upgrade(&format!("{} cannot replace it ({})", successor.file, exit.status));
            self.successor = None;
            return Ok(false);
        }
        match successor.receive() {
            Some((ToSupervisor::Hello { version }, _)) => successor.on_hello(version),
            Some(_) => successor.on_startup_timeout(),
            None => {}
        }
        Ok(successor.stage == Stage::Connected)
    }

    fn on_message(
        &mut self,
        engine: &mut EngineProcess,
        directive: &mut Directive,
        message: ToSupervisor,
        descriptors: Vec<OwnedFd>,
    ) {
        match message {
            ToSupervisor::Hello { version } => {
                engine.on_hello(version);
                if engine.stage == Stage::Connected {
                    self.hand_off(engine);
                }
            }
            ToSupervisor::Put { key, record } => {
                self.records.put(key, record, descriptors);
                engine.send(ToEngine::Stored { key });
            }
            ToSupervisor::Remove { key } => self.records.remove(key),
            ToSupervisor::Ready => {
                engine.stage = Stage::Ready;
                if !std::mem::replace(&mut self.was_ready, true) {
                    (self.config.on_ready)();
                }
            }
            ToSupervisor::Idle => {
                log::info!("no client for the idle time, shutting the engine down");
                self.stop(engine, directive);
            }
        }
    }

    fn stop(&mut self, engine: &mut EngineProcess, directive: &mut Directive) {
        // Clients must not connect to an engine that shuts down.
        self.socket.release();
        self.successor = None;
        *directive = Directive::Stop(Instant::now() + SHUTDOWN_TIMEOUT);
        if !engine.is_running() { engine.kill() } else { engine.send(ToEngine::Shutdown) }
    }

    /// Waits until a descriptor is ready: end and link of the engine, the three requests, and the successor.
    fn wait(&self, engine: &EngineProcess, deadline: Option<Instant>) -> Result<[bool; 6], EngineError> {
        let link = PollFlags::IN | if engine.wants_write() { PollFlags::OUT } else { PollFlags::empty() };
        // In place of a descriptor that need not be watched.
        let unwatched = || PollFd::new(&self.signals.stop, PollFlags::empty());
        let is_closed = engine.is_link_closed();
        let mut watched = [
            PollFd::new(&engine.pidfd, PollFlags::IN),
            if is_closed { unwatched() } else { PollFd::new(&engine.link, link) },
            PollFd::new(&self.signals.stop, PollFlags::IN),
            PollFd::new(&self.signals.upgrade, PollFlags::IN),
            PollFd::new(&self.signals.status, PollFlags::IN),
            unwatched(),
        ];
        if let Some(successor) = self.successor.as_ref().filter(|it| it.stage != Stage::Connected) {
            watched[5] = if successor.is_link_closed() {
                PollFd::new(&successor.pidfd, PollFlags::IN)
            } else {
                PollFd::new(&successor.link, PollFlags::IN)
            };
        }
        let engines = [Some(engine), self.successor.as_ref()].into_iter().flatten();
        let deadlines = deadline.into_iter().chain(engines.map(EngineProcess::deadline));
        let remaining = deadlines.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let retry = engine.out_of_fds.then_some(FD_RETRY_DELAY);
        let timeout = remaining.chain(retry).min().map(timespec);
        match poll(&mut watched, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(EngineError::system("cannot wait for the engine")(error)),
        }
        let ready = std::array::from_fn(|at: usize| !watched[at].revents().is_empty());
        let [exited, link, stop, upgrade, status, successor] = ready;
        Ok([exited, (link || exited) && !is_closed, stop, upgrade, status, successor])
    }

    /// Delays the next start, increasingly after short lives. Returns `false` after a stop request.
    fn back_off(&mut self, uptime: Duration) -> Result<bool, EngineError> {
        if uptime >= MIN_UPTIME {
            self.restart_delay = Duration::ZERO;
            return Ok(true);
        }
        let delay = self.restart_delay;
        self.restart_delay = (delay * 2).clamp(MIN_RESTART_DELAY, MAX_RESTART_DELAY);
        let mut watched = [PollFd::new(&self.signals.stop, PollFlags::IN)];
        match poll(&mut watched, Some(&timespec(delay))) {
            Ok(count) => Ok(count == 0),
            Err(Errno::INTR) => Ok(true),
            Err(error) => Err(EngineError::system("cannot wait to start the engine again")(error)),
        }
    }
}

fn log_no_upgrade(reason: &str) {
    log::error!("{UPGRADE_FAILED}{reason}; install a program that works, and repeat SIGHUP");
}

/// Reads a request. Returns `false` without one.
fn drain_signal_fd(signal: &OwnedFd) -> bool {
    let mut bytes = [0u8; 64];
    matches!(rustix::io::read(signal.as_fd(), &mut bytes[..]), Ok(count) if count > 0)
}

fn timespec(timeout: Duration) -> Timespec {
    // Rounded up, because waking early would spin.
    isolane_shm::timespec(Duration::from_millis(timeout.as_nanos().div_ceil(1_000_000) as u64))
}

/// Minimum uptime of an engine that may be restarted without delay.
const MIN_UPTIME: Duration = Duration::from_secs(1);
const MIN_RESTART_DELAY: Duration = Duration::from_millis(50);
const MAX_RESTART_DELAY: Duration = Duration::from_secs(5);
/// Delay before descriptors are sent again that the kernel did not accept.
const FD_RETRY_DELAY: Duration = Duration::from_millis(2);
/// Descriptors for the start of an engine, and a few more.
const RESERVED_FDS: usize = 16;
/// Time for a clean shutdown; the engine itself allows less.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(8);
/// Time for the exit before a replacement.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

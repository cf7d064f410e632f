//! Configuration and errors of an engine.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use isolane_engine_api::{MAX_CORES, SessionLimits, hint};
use isolane_reactor::Mode;

/// Configuration of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// CPUs that the threads are pinned to, one thread each; at least one.
    pub cores: Vec<usize>,
    /// Idle behavior of a core.
    pub mode: Mode,
    /// Spin time of [`Mode::Adaptive`] after the last work.
    pub spin: Duration,
    /// Limits of each client.
    pub limits: SessionLimits,
    /// Maximum number of attached clients. Up to as many again may have left unfinished objects.
    pub max_clients: usize,
    /// Time that a client has for its first message.
    pub hello_timeout: Duration,
    /// Time without clients after which the engine shuts down; never if `None`.
    pub max_idle: Option<Duration>,
    /// Records latencies, their stages, and slow operations ([`Engine::snapshot`](crate::Engine::snapshot)).
    pub observe: bool,
    /// Users who may attach in addition to root and the engine's user.
    pub allowed_uids: Vec<u32>,
}

impl EngineConfig {
    /// Defaults, with these cores.
    pub fn new(cores: Vec<usize>) -> EngineConfig {
        EngineConfig {
            cores,
            mode: Mode::Adaptive,
            spin: isolane_reactor::ReactorConfig::SPIN,
            limits: SessionLimits::default(),
            max_clients: EngineConfig::MAX_CLIENTS,
            hello_timeout: Duration::from_secs(5),
            max_idle: None,
            observe: true,
            allowed_uids: Vec::new(),
        }
    }

    /// Default of [`EngineConfig::max_clients`].
    pub const MAX_CLIENTS: usize = 256;

    pub(crate) fn check(&self) -> Result<(), EngineError> {
        match self.cores.len() {
            1..=MAX_CORES => Ok(()),
            count => Err(EngineError::Cores { count }),
        }
    }
}

/// Failure of an engine or its supervisor.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Too few or too many cores.
    #[error("an engine has 1 to {MAX_CORES} cores, not {count}")]
    Cores {
        /// Number of cores in the configuration.
        count: usize,
    },
    /// A thread cannot be pinned to its core.
    #[error("cannot use core {core}: {source}; choose one that this process may run on")]
    Core {
        /// Number of the CPU.
        core: usize,
        /// Error of the system.
        source: io::Error,
    },
    /// The socket cannot be created.
    #[error("cannot listen on {path}: {reason}")]
    Listen {
        /// Path of the socket.
        path: PathBuf,
        /// Cause and remedy.
        reason: String,
    },
    /// A file next to the socket cannot be used.
    #[error("{path} cannot be used: {reason}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Cause and remedy.
        reason: String,
    },
    /// The engine's program cannot be started.
    #[error("{file} cannot be started: {source}{}", hint(source))]
    Program {
        /// File of the program.
        file: String,
        /// Error of the system.
        source: io::Error,
    },
    /// The first engine ended before it served clients.
    #[error("the engine did not start: {reason}")]
    Start {
        /// Exit status or fault.
        reason: String,
    },
    /// A thread of the engine has ended.
    #[error("the engine is broken: one of its threads has ended; see its log for the reason")]
    Broken,
    /// A thread of the engine no longer responds.
    #[error(
        "{thread} has been stuck for {seconds} s, at work for {session}; the supervisor replaces the engine"
    )]
    Stuck {
        /// Name of the thread.
        thread: String,
        /// Session that the thread works for.
        session: String,
        /// Minimum duration, in seconds.
        seconds: u64,
    },
    /// The supervisor has exited, or the peer is not a supervisor.
    #[error("the engine's supervisor has gone: {reason}; start `isolane engine` again")]
    Orphaned {
        /// Last event of the link.
        reason: String,
    },
    /// A system call failed.
    #[error("{call}: {source}{}", hint(source))]
    System {
        /// Description of the failed operation.
        call: &'static str,
        /// Error of the system.
        source: io::Error,
    },
}

impl EngineError {
    pub(crate) fn system<E: Into<io::Error>>(call: &'static str) -> impl FnOnce(E) -> EngineError {
        move |source| EngineError::System { call, source: source.into() }
    }
}

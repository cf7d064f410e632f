//! What an engine is to be, and why there is none.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use isolane_attach::control::{CORES_MAX, Limits, remedy};
use isolane_reactor::Mode;

/// What an engine is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Numbers of the cores that its threads are pinned to, one each; at least one.
    pub cores: Vec<usize>,
    /// What a core does when there is nothing to do.
    pub mode: Mode,
    /// How long [`Mode::Adaptive`] goes on spinning after the last work.
    pub spin: Duration,
    /// How much each client may have.
    pub limits: Limits,
    /// The most clients that are attached. As many again may have left what is not done.
    pub clients_max: usize,
    /// How long one may be silent before it says hello.
    pub greeting: Duration,
    /// How long nobody may be attached before the engine wants to end; for ever if there is none.
    pub idle_max: Option<Duration>,
    /// Who may attach beside the engine's own user and root.
    pub allowed_uids: Vec<u32>,
    /// Take a lock that nobody else wants at each look at a stream. Only for measuring what such a lock costs.
    pub needless_lock: bool,
}

impl Config {
    /// An engine on these cores, all else by default.
    pub fn new(cores: Vec<usize>) -> Config {
        Config {
            cores,
            mode: Mode::Adaptive,
            spin: isolane_reactor::Config::SPIN,
            limits: Limits::default(),
            clients_max: Config::CLIENTS_MAX,
            greeting: Duration::from_secs(5),
            idle_max: None,
            allowed_uids: Vec::new(),
            needless_lock: false,
        }
    }

    /// The default of [`Config::clients_max`].
    pub const CLIENTS_MAX: usize = 256;

    pub(crate) fn check(&self) -> Result<(), EngineError> {
        match self.cores.len() {
            1..=CORES_MAX => Ok(()),
            count => Err(EngineError::Cores { count }),
        }
    }
}

/// Why there is no engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// It was given none, or too many.
    #[error("an engine has 1 to {CORES_MAX} cores, not {count}")]
    Cores {
        /// How many it was given.
        count: usize,
    },
    /// A thread cannot be kept on its core.
    #[error("cannot use core {core}: {source}; choose one that this process may run on")]
    Core {
        /// Its number.
        core: usize,
        /// What the system said.
        source: io::Error,
    },
    /// Nobody can attach there.
    #[error("cannot listen on {path}: {why}")]
    Listen {
        /// Where.
        path: PathBuf,
        /// Why not, and what to do.
        why: String,
    },
    /// A file next to the socket cannot be used.
    #[error("{path} cannot be used: {why}")]
    File {
        /// Its name.
        path: PathBuf,
        /// Why not, and what to do.
        why: String,
    },
    /// The engine's program cannot be started.
    #[error("{file} cannot be started: {source}{}", remedy(source))]
    Program {
        /// Its file.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// The engine's process has ended before it served anybody.
    #[error("the engine did not start: {why}")]
    Start {
        /// What became of it.
        why: String,
    },
    /// One of the engine's threads has ended.
    #[error("the engine is broken: one of its threads has ended; its log says why")]
    Broken,
    /// One of the engine's threads does not turn any more.
    #[error(
        "{thread} has been stuck for {seconds} s, at work for {session}; the supervisor replaces the engine"
    )]
    Stuck {
        /// Which thread.
        thread: String,
        /// For which session.
        session: String,
        /// How long, at least.
        seconds: u64,
    },
    /// The supervisor has gone, or is none.
    #[error("the engine's supervisor has gone: {why}; start `isolane engine` again")]
    Orphaned {
        /// What it did last.
        why: String,
    },
    /// The system refuses.
    #[error("{what}: {source}{}", remedy(source))]
    System {
        /// What was tried.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
}

impl EngineError {
    pub(crate) fn system(what: &'static str, source: impl Into<io::Error>) -> EngineError {
        EngineError::System { what, source: source.into() }
    }
}

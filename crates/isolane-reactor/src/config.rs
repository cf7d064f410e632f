//! How a reactor is set up, and why it could not be.

use std::io;
use std::time::Duration;

/// What a reactor is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Which interface of the kernel carries sleep, readiness and files.
    pub io: IoChoice,
    /// What to do when there is nothing to do.
    pub mode: Mode,
    /// How long [`Mode::Adaptive`] goes on spinning after the last work.
    pub spin: Duration,
    /// The core that the calling thread is pinned to, if any.
    pub core: Option<usize>,
}

impl Default for Config {
    fn default() -> Self {
        Config { io: IoChoice::Auto, mode: Mode::Adaptive, spin: Config::SPIN, core: None }
    }
}

impl Config {
    /// The default of [`Config::spin`]: a little more than a round trip over loopback.
    pub const SPIN: Duration = Duration::from_micros(50);
}

/// Which interface of the kernel carries sleep, readiness and files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoChoice {
    /// io_uring where it is usable, else epoll; [`Reactor::io_description`](crate::Reactor::io_description)
    /// tells.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// epoll, and a few threads for files.
    Epoll,
}

/// What a reactor does when there is nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Spins for ever: the least latency, one core busy.
    Poll,
    /// Spins a little after work, then sleeps.
    #[default]
    Adaptive,
    /// Sleeps at once.
    Sleep,
}

/// Why there is no reactor.
#[derive(Debug, thiserror::Error)]
pub enum ReactorError {
    /// io_uring was asked for and cannot be used.
    #[error("io_uring is not usable: {0}; use epoll instead")]
    Uring(String),
    /// The kernel refused an object that every reactor needs.
    #[error("cannot set up {what}: {error}")]
    Setup {
        /// The object.
        what: &'static str,
        /// The kernel's answer.
        error: io::Error,
    },
    /// The thread could not be pinned.
    #[error("cannot pin a thread to core {core}: {error}; choose a core that this process may run on")]
    Pin {
        /// The core asked for.
        core: usize,
        /// The kernel's answer.
        error: io::Error,
    },
}

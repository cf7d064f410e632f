//! Configuration and setup errors of a reactor.

use std::io;
use std::time::Duration;

/// Configuration of a reactor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReactorConfig {
    /// Kernel interface for sleep, readiness, and files.
    pub io: IoChoice,
    /// Idle behavior.
    pub mode: Mode,
    /// Spin time of [`Mode::Adaptive`] after the last work.
    pub spin: Duration,
    /// Core to pin the calling thread to, if any.
    pub core: Option<usize>,
}

impl Default for ReactorConfig {
    fn default() -> Self {
        ReactorConfig { io: IoChoice::Auto, mode: Mode::Adaptive, spin: ReactorConfig::SPIN, core: None }
    }
}

impl ReactorConfig {
    /// Default of [`ReactorConfig::spin`]: slightly more than a round trip over loopback.
    pub const SPIN: Duration = Duration::from_micros(50);
}

/// Kernel interface for sleep, readiness, and files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoChoice {
    /// io_uring if usable, else epoll; see
    /// [`Reactor::backend_description`](crate::Reactor::backend_description).
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// epoll, with threads for files.
    Epoll,
}

/// Idle behavior of a reactor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Spin forever: lowest latency, one core always busy.
    Poll,
    /// Spin briefly after work, then sleep.
    #[default]
    Adaptive,
    /// Sleep immediately.
    Sleep,
}

/// Error of creating a reactor.
#[derive(Debug, thiserror::Error)]
pub enum ReactorError {
    /// io_uring was requested and is not usable.
    #[error("io_uring is not usable: {0}; use epoll instead")]
    Uring(String),
    /// The kernel refused a required object.
    #[error("cannot set up {what}: {error}")]
    Setup {
        /// Name of the object.
        what: &'static str,
        /// Error of the system call.
        error: io::Error,
    },
    /// The thread could not be pinned.
    #[error("cannot pin a thread to core {core}: {error}; choose a core that this process may use")]
    Pin {
        /// The requested core.
        core: usize,
        /// Error of the system call.
        error: io::Error,
    },
}

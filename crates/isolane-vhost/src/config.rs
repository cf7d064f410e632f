//! Configuration and errors of a server.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use isolane_reactor::unix_listener::ListenError;
use isolane_reactor::{ReactorConfig, ReactorError};
use isolane_volume::{Volume, VolumeError};

/// Configuration of a server.
pub struct ServerConfig {
    /// The volume to export.
    pub volume: Arc<dyn Volume>,
    /// Path of the socket.
    pub socket: PathBuf,
    /// Configuration of the reactor.
    pub reactor: ReactorConfig,
}

/// Error of a start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The socket cannot be used.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The reactor cannot be created.
    #[error(transparent)]
    Reactor(#[from] ReactorError),
    /// The system refuses a thread or a descriptor.
    #[error("cannot start the server: {0}")]
    System(#[from] std::io::Error),
}

/// Error of a shutdown.
#[derive(Debug, thiserror::Error)]
pub enum ShutdownError {
    /// The volume does not complete its requests, or the final flush.
    #[error("{name} has not completed {requests} requests; check its storage")]
    Hung {
        /// Name of the volume.
        name: String,
        /// Number of requests, with the flush.
        requests: usize,
    },
    /// The final flush failed: completed writes may be lost.
    #[error("{name}: flush failed: {error}")]
    Flush {
        /// Name of the volume.
        name: String,
        /// The error.
        error: VolumeError,
    },
    /// The thread of the server ended early or hangs in the kernel; the log has the cause.
    #[error("the server has ended early, or hangs in the kernel")]
    Thread,
}

/// Time for the requests in flight at the end.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for the final flush.
pub(crate) const FLUSH_TIMEOUT: Duration = Duration::from_secs(12);

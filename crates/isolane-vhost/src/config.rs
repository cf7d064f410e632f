//! Configuration and errors of a server.

use std::path::PathBuf;
use std::sync::Arc;

use isolane_reactor::unix_listener::ListenError;
use isolane_reactor::{ReactorConfig, ReactorError};
use isolane_volume::Volume;

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
    /// The kernel's asynchronous I/O, which notifies drivers, is not available.
    #[error(
        "cannot set up asynchronous I/O, which notifies machines: {0}; raise `fs.aio-max-nr`, or allow `io_setup`"
    )]
    Signals(#[source] std::io::Error),
    /// The system refuses a thread or a descriptor.
    #[error("cannot start the server: {0}")]
    System(#[from] std::io::Error),
}

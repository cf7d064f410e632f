//! Configuration and errors of a server.

use std::sync::Arc;

use isolane_reactor::{ReactorConfig, ReactorError};
use isolane_volume::Volume;

use crate::listen::{Address, ListenError};

/// Configuration of a server.
pub struct ServerConfig {
    /// The volume to export.
    pub volume: Arc<dyn Volume>,
    /// Name of the export, besides the empty name.
    pub name: String,
    /// Addresses to listen on.
    pub listen: Vec<Address>,
    /// Configuration of the reactor.
    pub reactor: ReactorConfig,
}

/// Error of a start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be used.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The reactor cannot be created.
    #[error(transparent)]
    Reactor(#[from] ReactorError),
    /// The system refuses a thread or a descriptor.
    #[error("cannot start the server: {0}")]
    System(#[from] std::io::Error),
}

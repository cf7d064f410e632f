//! The server: one thread with a reactor that drives the queues of all guests and the volume.
//!
//! One thread is enough: a request costs little more than its copy, all requests share one state of the volume without
//! locks, and a flush covers all queues without coordination. Control connections, which are idle while a guest runs,
//! have a thread each.

use std::path::{Path, PathBuf};

use isolane_reactor::retry::HELD_TIMEOUT;
use isolane_reactor::unix_listener::UnixListener;
use isolane_volume::{ServerThread, ShutdownError};

use crate::config::{ServerConfig, StartError};
use crate::core::Core;

/// Server of one volume. Dropping it stops it without waiting for its thread.
pub struct Server {
    socket: PathBuf,
    thread: ServerThread,
}

impl Server {
    /// Listens, and starts the thread.
    ///
    /// # Errors
    /// A path, or a resource that the system refuses.
    pub fn start(config: ServerConfig) -> Result<Server, StartError> {
        let listener = UnixListener::bind(&config.socket, HELD_TIMEOUT)?;
        let socket = config.socket.clone();
        let create = move |shutdown| Core::new(config, listener, shutdown);
        let thread = ServerThread::start("isolane-vhost", create)?;
        Ok(Server { socket, thread })
    }

    /// Returns the path of the socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Stops accepting, completes the requests in flight, flushes the volume, and removes the socket.
    ///
    /// # Errors
    /// Data that may not be durable.
    pub fn shutdown(self) -> Result<(), ShutdownError> {
        self.thread.shutdown()
    }

    /// Starts the shutdown without waiting for it, so that several servers end together.
    pub fn stop(&self) {
        self.thread.stop();
    }
}

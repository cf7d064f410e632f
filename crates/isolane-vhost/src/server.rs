//! The server: one thread with a reactor that drives the queues of all guests and the volume.
//!
//! One thread is enough: a request costs little more than its copy, all requests share one state of the volume without
//! locks, and a flush covers all queues without coordination. Control connections, which are idle while a guest runs,
//! have a thread each.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use isolane_reactor::Waker;
use isolane_reactor::retry::HELD_TIMEOUT;
use isolane_reactor::unix_listener::UnixListener;

use crate::config::{DRAIN_TIMEOUT, FLUSH_TIMEOUT, ServerConfig, ShutdownError, StartError};
use crate::core::Core;

/// Server of one volume. Dropping it stops it without waiting for its thread.
pub struct Server {
    socket: PathBuf,
    is_stopping: Arc<AtomicBool>,
    waker: Waker,
    report: Receiver<Result<(), ShutdownError>>,
}

impl Server {
    /// Listens, and starts the thread.
    ///
    /// # Errors
    /// A path, or a resource that the system refuses.
    pub fn start(config: ServerConfig) -> Result<Server, StartError> {
        let listener = UnixListener::bind(&config.socket, HELD_TIMEOUT)?;
        let socket = config.socket.clone();
        let is_stopping = Arc::new(AtomicBool::new(false));
        let (started, is_started) = mpsc::channel();
        let (reporter, report) = mpsc::channel();
        let stop = Arc::clone(&is_stopping);
        let run = move || match Core::new(config, listener, stop) {
            Ok(mut core) => {
                // The receiver waits for it.
                let _ = started.send(Ok(core.waker()));
                let result = core.run();
                // The drop waits for requests in flight, which a volume that hangs never completes.
                if result.is_ok() {
                    drop(core);
                }
                // The receiver may have stopped waiting.
                let _ = reporter.send(result);
            }
            Err(error) => {
                let _ = started.send(Err(error));
            }
        };
        thread::Builder::new().name("isolane-vhost".to_owned()).spawn(run)?;
        let waker = is_started.recv().map_err(std::io::Error::other)??;
        Ok(Server { socket, is_stopping, waker, report })
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
        self.stop();
        match self.report.recv_timeout(DRAIN_TIMEOUT + FLUSH_TIMEOUT + MARGIN) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Err(ShutdownError::Thread),
        }
    }

    /// Starts the shutdown without waiting for it, so that several servers end together.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.waker.wake();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Time of the thread to end after its own limits.
const MARGIN: Duration = Duration::from_secs(3);

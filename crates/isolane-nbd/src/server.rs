//! The server: one thread with a reactor that drives all connections and the volume.
//!
//! One thread is enough: a request costs little more than its system calls, all requests share one state of the
//! volume without locks, and a flush covers all connections without coordination.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use isolane_reactor::Waker;
use isolane_reactor::retry::HELD_TIMEOUT;

use crate::config::{DRAIN_TIMEOUT, FLUSH_TIMEOUT, ServerConfig, ShutdownError, StartError};
use crate::core::Core;
use crate::listen::{Address, Listener};

/// Server of one export. Dropping it stops it without waiting for its thread.
pub struct Server {
    addresses: Vec<Address>,
    is_stopping: Arc<AtomicBool>,
    waker: Waker,
    report: Receiver<Result<(), ShutdownError>>,
}

impl Server {
    /// Listens, and starts the thread.
    ///
    /// # Errors
    /// An address, or a resource that the system refuses.
    pub fn start(config: ServerConfig) -> Result<Server, StartError> {
        let listeners = config.listen.iter().map(|address| Listener::bind(address, HELD_TIMEOUT));
        let listeners = listeners.collect::<Result<Vec<_>, _>>()?;
        let addresses = listeners.iter().map(|listener| listener.address.clone()).collect();
        let is_stopping = Arc::new(AtomicBool::new(false));
        let (started, is_started) = mpsc::channel();
        let (reporter, report) = mpsc::channel();
        let stop = Arc::clone(&is_stopping);
        let run = move || match Core::new(config, listeners, stop) {
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
        thread::Builder::new().name("isolane-nbd".to_owned()).spawn(run)?;
        let waker = is_started.recv().map_err(std::io::Error::other)??;
        Ok(Server { addresses, is_stopping, waker, report })
    }

    /// Returns the addresses, with the ports that were selected.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Returns the addresses that other machines may reach.
    pub fn exposed(&self) -> impl Iterator<Item = SocketAddr> {
        self.addresses.iter().filter_map(|address| match address {
            Address::Tcp(address) if !address.ip().is_loopback() => Some(*address),
            Address::Tcp(_) | Address::Unix(_) => None,
        })
    }

    /// Stops accepting, completes the requests in flight, flushes the volume, and removes the sockets.
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

#[cfg(test)]
mod tests;

//! The server: one thread with a reactor that drives all connections and the volume.
//!
//! One thread is enough: a request costs little more than its system calls, all requests share one state of the
//! volume without locks, and a flush covers all connections without coordination.

use std::net::SocketAddr;

use isolane_reactor::retry::HELD_TIMEOUT;
use isolane_volume::{ServerThread, ShutdownError};

use crate::config::{ServerConfig, StartError};
use crate::core::Core;
use crate::listen::{Address, Listener};

/// Server of one export. Dropping it stops it without waiting for its thread.
pub struct Server {
    addresses: Vec<Address>,
    thread: ServerThread,
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
        let create = move |shutdown| Core::new(config, listeners, shutdown);
        let thread = ServerThread::start("isolane-nbd", create)?;
        Ok(Server { addresses, thread })
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
        self.thread.shutdown()
    }

    /// Starts the shutdown without waiting for it, so that several servers end together.
    pub fn stop(&self) {
        self.thread.stop();
    }
}

#[cfg(test)]
mod tests;

//! Devices: queue pairs whose lanes are TCP connections, and the drivers of these lanes.
//!
//! ```text
//! QueuePair ── post ──► ReliableConnection ──► Lane ──► TCP
//! CompletionQueue ◄── poll ── Progress drives all lanes of the device
//! ```

mod completion_queue;
mod handshake;
mod lane;
mod progress;
mod queue_pair;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use isolane_reactor::SocketOptions;

pub use completion_queue::{CompletionQueue, WorkCompletion};
pub use handshake::{ConnectError, Listener};
pub use lane::{Lane, MemoryLane, TcpLane};
pub use progress::ProgressMode;
pub use queue_pair::QueuePair;

use crate::connection::{Agreement, Limits, ReliableConnection};
use crate::memory::ProtectionDomain;
use handshake::Identity;
use progress::Progress;

/// Configuration of a device.
#[derive(Clone, Debug, Default)]
pub struct DeviceConfig {
    /// Driver of the lanes.
    pub progress: ProgressMode,
    /// Options of each lane's socket.
    pub socket: SocketOptions,
}

/// Configuration of a queue pair.
#[derive(Clone)]
pub struct QueuePairConfig {
    /// Memory that its requests and the peer's can name.
    pub domain: Arc<ProtectionDomain>,
    /// Where its send requests complete.
    pub send_queue: Arc<CompletionQueue>,
    /// Where its receives complete.
    pub receive_queue: Arc<CompletionQueue>,
    /// Limits.
    pub limits: Limits,
}

/// A set of queue pairs and completion queues that are driven together.
pub struct Device {
    progress: Arc<Progress>,
    socket: SocketOptions,
    next_number: AtomicU32,
    thread: Option<JoinHandle<()>>,
}

impl Device {
    /// Opens a device and starts its thread.
    ///
    /// # Errors
    /// If the system refuses a descriptor or a thread.
    pub fn open(config: DeviceConfig) -> io::Result<Device> {
        let progress = Arc::new(Progress::new(config.progress)?);
        let thread = Some(progress.start()?);
        Ok(Device { progress, socket: config.socket, next_number: AtomicU32::new(1), thread })
    }

    /// Creates a queue for up to `capacity` completions. If more arrive, it and its queue pairs fail.
    pub fn completion_queue(&self, capacity: usize) -> Arc<CompletionQueue> {
        Arc::new(CompletionQueue::new(Arc::clone(&self.progress), capacity))
    }

    /// Listens for queue pairs.
    ///
    /// # Errors
    /// The error of the system.
    pub fn listen(&self, address: impl ToSocketAddrs) -> io::Result<Listener<'_>> {
        Listener::new(self, TcpListener::bind(address)?)
    }

    /// Connects a queue pair to a listener.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect(&self, address: SocketAddr, config: &QueuePairConfig) -> Result<QueuePair, ConnectError> {
        let stream = TcpStream::connect_timeout(&address, handshake::TIMEOUT)?;
        self.prepare(&stream)?;
        let identity = self.identity(config)?;
        let agreement = handshake::connect(&stream, &identity)?;
        self.queue_pair(Box::new(TcpLane(stream)), identity.number, &agreement, config)
    }

    /// Creates a queue pair over a lane that both ends have agreed on.
    ///
    /// # Errors
    /// If the system refuses to watch the lane.
    pub fn queue_pair(
        &self,
        lane: Box<dyn Lane>,
        number: u32,
        agreement: &Agreement,
        config: &QueuePairConfig,
    ) -> Result<QueuePair, ConnectError> {
        let mut connection = ReliableConnection::new(Arc::clone(&config.domain), config.limits, None);
        let _ = connection.initialize() && connection.connect(agreement) && connection.start_sending();
        let (send, receive) = (Arc::clone(&config.send_queue), Arc::clone(&config.receive_queue));
        Ok(QueuePair::new(Arc::clone(&self.progress), number, connection, lane, send, receive)?)
    }

    /// Returns a number for a new queue pair.
    fn next_number(&self) -> u32 {
        self.next_number.fetch_add(1, Ordering::Relaxed) & MAX_NUMBER
    }

    fn identity(&self, config: &QueuePairConfig) -> Result<Identity, ConnectError> {
        Identity::new(self.next_number(), config.limits.responder_resources)
    }

    /// Prepares the socket of a lane.
    fn prepare(&self, stream: &TcpStream) -> Result<(), ConnectError> {
        self.socket.apply(stream)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.progress.stop(thread);
        }
    }
}

/// Numbers of queue pairs have 24 bits.
const MAX_NUMBER: u32 = (1 << 24) - 1;

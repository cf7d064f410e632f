//! Devices: queue pairs whose lanes are TCP connections, and the drivers of these lanes.
//!
//! ```text
//! QueuePair ── post ──► ReliableConnection ──► Lane ──► TCP
//! CompletionQueue ◄── poll ── Progress drives all lanes of the device
//! ```

mod address;
mod completion_queue;
mod datagram;
mod handshake;
mod lane;
mod listener;
mod manager;
mod progress;
mod queue_pair;
mod shared_receives;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use isolane_reactor::SocketOptions;
use parking_lot::Mutex;

pub use address::{LocalAddress, device_name, local_addresses};
pub use completion_queue::{CompletionNotice, CompletionQueue, OnNotice, WorkCompletion};
pub use datagram::DatagramQueuePair;
pub use handshake::{ConnectError, gid};
pub use lane::{Lane, MemoryLane, TcpLane};
pub use listener::Listener;
pub use manager::Peer;
pub use progress::ProgressMode;
pub use queue_pair::{ModifyError, OnEvent, QueuePair, QueuePairConfig};
pub use shared_receives::SharedReceives;

use crate::connection::{Agreement, ReceiveAttributes};
use crate::memory::{ProtectionDomain, Registration};
use datagram::DatagramPort;
use handshake::Identity;
use manager::Manager;
use progress::{Member, Progress};

/// Configuration of a device.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Driver of the lanes.
    pub progress: ProgressMode,
    /// Options of each lane's socket.
    pub socket: SocketOptions,
    /// Local address of the queue pairs of [`Device::create_queue_pair`].
    pub address: IpAddr,
    /// Ports for them; from 0 on, the system chooses.
    pub ports: RangeInclusive<u16>,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        DeviceConfig {
            progress: ProgressMode::default(),
            socket: SocketOptions::default(),
            address: Ipv4Addr::LOCALHOST.into(),
            ports: 0..=0,
        }
    }
}

/// A set of queue pairs and completion queues that are driven together.
pub struct Device {
    progress: Arc<Progress>,
    manager: Arc<Manager>,
    socket: SocketOptions,
    next_number: AtomicU32,
    datagram_ports: Mutex<HashMap<u16, Arc<DatagramPort>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Device {
    /// Opens a device and starts its threads.
    ///
    /// # Errors
    /// If the system refuses a descriptor or a thread.
    pub fn open(config: DeviceConfig) -> io::Result<Device> {
        let progress = Arc::new(Progress::new(config.progress)?);
        let manager = Arc::new(Manager::new(config.address, config.ports, config.socket.clone())?);
        let (socket, next_number) = (config.socket, AtomicU32::new(0));
        let (datagram_ports, threads) = (Mutex::default(), Vec::new());
        let mut device = Device { progress, manager, socket, next_number, datagram_ports, threads };
        device.threads.push(device.progress.start()?);
        device.threads.push(device.manager.start()?);
        Ok(device)
    }

    /// Creates a queue for up to `capacity` completions. If more arrive, it and its queue pairs fail.
    pub fn completion_queue(&self, capacity: usize) -> Arc<CompletionQueue> {
        Arc::new(CompletionQueue::new(Arc::clone(&self.progress), capacity, None))
    }

    /// Creates a queue as [`Device::completion_queue`], which passes notices to `on_notice`.
    pub fn completion_queue_with_notices(
        &self,
        capacity: usize,
        on_notice: OnNotice,
    ) -> Arc<CompletionQueue> {
        Arc::new(CompletionQueue::new(Arc::clone(&self.progress), capacity, Some(on_notice)))
    }

    /// Ends a registration. When it returns, nothing uses the memory: queue pairs with requests in it have failed.
    pub fn deregister(&self, domain: &ProtectionDomain, registration: &Registration) {
        domain.deregister(registration);
        self.progress.revoke(registration.region());
    }

    /// Creates a shared queue of at most `max_receives` receives with up to `max_elements` elements each, in memory of
    /// `domain`.
    pub fn shared_receives(
        &self,
        domain: Arc<ProtectionDomain>,
        max_receives: usize,
        max_elements: usize,
    ) -> Arc<SharedReceives> {
        Arc::new(SharedReceives::new(Arc::clone(&self.progress), domain, max_receives, max_elements))
    }

    /// Creates a queue pair in [`State::Reset`](crate::State::Reset), which connects to its peer by number.
    ///
    /// # Errors
    /// If there is no free port.
    pub fn create_queue_pair(&self, config: &QueuePairConfig) -> io::Result<QueuePair> {
        let number = self.manager.allocate()?;
        let created = QueuePair::new(number, &self.progress, &self.manager, config);
        created.inspect_err(|_| self.manager.release(number))
    }

    /// Creates a queue pair of datagrams in [`State::Reset`](crate::State::Reset).
    ///
    /// # Errors
    /// If there is no free port.
    pub fn create_datagram_queue_pair(&self, config: &QueuePairConfig) -> io::Result<DatagramQueuePair> {
        let number = self.manager.allocate()?;
        let port = self.datagram_port(number).inspect_err(|_| self.manager.release(number))?;
        let (progress, manager) = (Arc::clone(&self.progress), Arc::clone(&self.manager));
        Ok(DatagramQueuePair::new(number, port, progress, manager, config))
    }

    fn datagram_port(&self, number: u32) -> io::Result<Arc<DatagramPort>> {
        let (socket, number) = self.manager.datagram_socket(number).ok_or(io::ErrorKind::AddrNotAvailable)?;
        match self.datagram_ports.lock().entry(number) {
            Entry::Occupied(port) => Ok(Arc::clone(port.get())),
            Entry::Vacant(vacant) => {
                let port = Arc::new(DatagramPort::new(socket, number)?);
                let member: Arc<dyn Member> = port.clone();
                self.progress.add(Arc::clone(&member))?;
                self.progress.watch(&member)?;
                Ok(Arc::clone(vacant.insert(port)))
            }
        }
    }

    /// Listens for queue pairs that connect without a number.
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
        handshake::prepare(&stream, &self.socket)?;
        let identity = self.identity(config)?;
        let agreement = listener::connect(&stream, &identity)?;
        self.queue_pair(Box::new(TcpLane(stream)), identity.number, &agreement, config)
    }

    /// Creates a queue pair over a lane that both ends have agreed on.
    ///
    /// # Errors
    /// If the number is in use.
    pub fn queue_pair(
        &self,
        lane: Box<dyn Lane>,
        number: u32,
        agreement: &Agreement,
        config: &QueuePairConfig,
    ) -> Result<QueuePair, ConnectError> {
        let pair = QueuePair::new(number, &self.progress, &self.manager, config)?;
        pair.start(lane, agreement);
        Ok(pair)
    }

    /// Returns the contents of the hello for a new queue pair. Its number is below the ones of any port.
    fn identity(&self, config: &QueuePairConfig) -> Result<Identity, ConnectError> {
        let first_message = getrandom::u32().map_err(|error| ConnectError::Random(error.to_string()))?;
        let next = || self.next_number.fetch_add(1, Ordering::Relaxed) % MAX_NUMBER + 1;
        let number = std::iter::repeat_with(next).find(|number| !self.progress.has(*number));
        let resources = ReceiveAttributes::default().responder_resources;
        Identity::new(number.unwrap_or(1), first_message, resources, config.shared_receives.is_some())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.progress.stop();
        self.manager.stop();
        let here = std::thread::current().id();
        for thread in self.threads.drain(..).filter(|thread| thread.thread().id() != here) {
            let _ = thread.join();
        }
    }
}

/// Largest number of a queue pair without a port.
const MAX_NUMBER: u32 = (1 << 16) - 1;

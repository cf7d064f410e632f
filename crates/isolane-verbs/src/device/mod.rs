//! Devices: queue pairs whose lanes are TCP connections, and the drivers of these lanes.
//!
//! ```text
//! QueuePair ── post ──► ReliableConnection ──► Lane ──► TCP
//! CompletionQueue ◄── poll ── Progress drives all lanes of the device
//! ```

mod address;
mod completion_queue;
mod contention;
mod context;
mod datagram;
mod datagram_proof;
mod dedicated;
mod environment;
mod guard;
mod handshake;
mod lane;
mod lane_opener;
mod listener;
mod manager;
mod port;
mod progress;
mod queue_pair;
mod reserved_number;
mod shared_receive_queue;
#[cfg(test)]
mod tests;
mod waiting;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::thread::JoinHandle;

use isolane_tcp::SocketOptions;
use parking_lot::Mutex;

pub use address::{LocalAddress, device_name, local_addresses};
pub use completion_queue::CompletionQueue;
pub use datagram::DatagramQueuePair;
pub use environment::VariableError;
pub use handshake::{ConnectError, gid};
pub use lane::{Lane, MemoryLane, TcpLane};
pub use listener::Listener;
pub use progress::ProgressMode;
pub use queue_pair::{ModifyError, QueuePair, QueuePairConfig};
pub use shared_receive_queue::SharedReceiveQueue;

use crate::connection::Received;
use crate::memory::{ProtectionDomain, Registration};
use crate::shared_key::SharedKey;
use crate::types::{ConnectionParameters, OnNotice, Peer, ReceiveAttributes};
use crate::wire::Role;
use datagram::DatagramPort;
use dedicated::DedicatedDriver;
use handshake::{LaneAttempt, LocalHello};
use lane_opener::{FirstLane, FirstLanes, OfferedQueuePair};
use manager::Manager;
use progress::{Driven, Progress};

/// Configuration of a device.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Driver of the lanes.
    pub progress: ProgressMode,
    /// Options of each lane's socket.
    pub socket: SocketOptions,
    /// Local address of the queue pairs of [`Device::create_queue_pair`]. Peers that connect to [`Device::listen`] open
    /// further lanes at this address. An unspecified address stands for all of them: see
    /// [`QueuePair::start_receiving_at`].
    pub address: IpAddr,
    /// Ports for them; from 0 on, the system chooses.
    pub ports: RangeInclusive<u16>,
    /// Maximum number of lanes of a queue pair, 1 to 8; the peer can have fewer.
    pub lanes: u8,
    /// The stages of requests are recorded, and can be read with [`Observable`].
    ///
    /// [`Observable`]: isolane_observe::observable::Observable
    pub observed: bool,
    /// Whether each header and each payload has a CRC32C. A queue pair has them if either end requests them.
    pub checksums: bool,
    /// Key that both ends of a lane must prove.
    pub key: Option<Arc<SharedKey>>,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        DeviceConfig {
            progress: ProgressMode::default(),
            socket: SocketOptions::default(),
            address: Ipv4Addr::LOCALHOST.into(),
            ports: 0..=0,
            lanes: 1,
            observed: false,
            checksums: false,
            key: None,
        }
    }
}

/// A set of queue pairs and completion queues that are driven together.
pub struct Device {
    progress: Arc<Progress>,
    manager: Arc<Manager>,
    datagram_ports: Mutex<HashMap<u16, Arc<DatagramPort>>>,
    threads: Vec<JoinHandle<()>>,
    dedicated: Option<DedicatedDriver>,
}

impl Device {
    /// Opens a device and starts its threads.
    ///
    /// # Errors
    /// If the system refuses a descriptor or a thread, or the core of a dedicated thread.
    pub fn open(config: DeviceConfig) -> io::Result<Device> {
        let progress = Arc::new(Progress::new(config.progress)?);
        let manager = Arc::new(Manager::new(&config)?);
        let (datagram_ports, threads) = (Mutex::default(), Vec::new());
        let mut device = Device { progress, manager, datagram_ports, threads, dedicated: None };
        match config.progress {
            ProgressMode::Polling => device.threads.push(device.progress.start()?),
            ProgressMode::Dedicated { core } => {
                device.dedicated = Some(DedicatedDriver::start(&device.progress, core)?);
            }
        }
        device.threads.push(device.manager.start()?);
        Ok(device)
    }

    /// Creates a queue for up to `capacity` completions. If more arrive, it and its queue pairs fail.
    pub fn completion_queue(&self, capacity: usize) -> Arc<CompletionQueue> {
        self.new_completion_queue(capacity, None)
    }

    /// Creates a queue as [`Device::completion_queue`], which passes notices to `on_notice`.
    pub fn completion_queue_with_notices(
        &self,
        capacity: usize,
        on_notice: OnNotice,
    ) -> Arc<CompletionQueue> {
        self.new_completion_queue(capacity, Some(on_notice))
    }

    fn new_completion_queue(&self, capacity: usize, on_notice: Option<OnNotice>) -> Arc<CompletionQueue> {
        let (progress, is_observed) = (Arc::clone(&self.progress), self.manager.is_observed());
        Arc::new(CompletionQueue::new(progress, capacity, on_notice, is_observed))
    }

    /// Ends a registration. When it returns, nothing uses the memory: queue pairs with requests in it have failed.
    pub fn deregister(&self, domain: &ProtectionDomain, registration: &Registration) {
        domain.deregister(registration);
        self.progress.revoke(registration.region());
    }

    /// Creates a shared queue of at most `max_receives` receives with up to `max_sge` SGEs each, in memory of
    /// `domain`.
    pub fn shared_receive_queue(
        &self,
        domain: Arc<ProtectionDomain>,
        max_receives: usize,
        max_sge: usize,
    ) -> Arc<SharedReceiveQueue> {
        Arc::new(SharedReceiveQueue::new(Arc::clone(&self.progress), domain, max_receives, max_sge))
    }

    /// Creates a queue pair in [`QueuePairState::Reset`](crate::QueuePairState::Reset), which connects to its peer by number.
    ///
    /// # Errors
    /// If there is no free port.
    pub fn create_queue_pair(&self, config: &QueuePairConfig) -> io::Result<QueuePair> {
        let number = self.manager.allocate()?;
        let created = QueuePair::new(number, &self.progress, &self.manager, config);
        created.inspect_err(|_| self.manager.release(number))
    }

    /// Creates a queue pair of datagrams in [`QueuePairState::Reset`](crate::QueuePairState::Reset).
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
                let port = Arc::new(DatagramPort::new(socket, number, self.manager.shared_key())?);
                let driven: Arc<dyn Driven> = port.clone();
                self.progress.add(Arc::clone(&driven))?;
                self.progress.watch(driven.number(), port.descriptor())?;
                Ok(Arc::clone(vacant.insert(port)))
            }
        }
    }

    /// Listens for queue pairs that connect without a number.
    ///
    /// # Errors
    /// The error of the system.
    pub fn listen(&self, address: impl ToSocketAddrs) -> io::Result<Listener<&Device>> {
        Listener::new(self, address)
    }

    /// Connects a queue pair to a listener.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect(&self, address: SocketAddr, config: &QueuePairConfig) -> Result<QueuePair, ConnectError> {
        let number = self.manager.reserve()?;
        let local_hello = self.local_hello(number.get(), config)?;
        let pair = self.started(number.take(), config)?;
        let peer = Peer { address: address.ip(), number: 0 };
        self.manager.connect(pair.opener(local_hello, peer, Role::Connects, true), address)?;
        Ok(pair)
    }

    /// Offers a queue pair to the peer of a first lane, and waits in the background for the proof of its key.
    fn offer_first(
        &self,
        lane: FirstLane,
        config: &QueuePairConfig,
        proven: &Arc<FirstLanes>,
        key: &SharedKey,
    ) -> Result<(), ConnectError> {
        let FirstLane { stream, hello, .. } = lane;
        let number = self.manager.reserve()?;
        let local_hello = self.local_hello(number.get(), config)?;
        let attempt = LaneAttempt { lane: hello.lane, epoch: hello.epoch, received: Received::default() };
        match local_hello.reply(&stream, &hello, attempt, key) {
            Ok(reply) => {
                let offered = OfferedQueuePair { number, local_hello, reply };
                self.manager.await_proof(stream, hello, proven, offered);
            }
            Err(error) => log::debug!("a peer has gone: {error}"),
        }
        Ok(())
    }

    /// Creates the queue pair that a peer connects to, with its first lane. `None` if the peer has gone.
    fn accept_first(
        &self,
        lane: FirstLane,
        config: &QueuePairConfig,
    ) -> Result<Option<QueuePair>, ConnectError> {
        let FirstLane { stream, hello, proven } = lane;
        let Ok(source) = stream.peer_addr() else { return Ok(None) };
        let (number, local_hello, reply) = match proven {
            Some(OfferedQueuePair { number, local_hello, reply }) => (number, local_hello, Some(reply)),
            None => {
                let number = self.manager.reserve()?;
                let local_hello = self.local_hello(number.get(), config)?;
                (number, local_hello, None)
            }
        };
        if local_hello.shares_receives() != config.shared_receive_queue.is_some() {
            log::debug!("{source}: the queue pair was offered for another configuration");
            return Ok(None);
        }
        let pair = self.started(number.take(), config)?;
        let peer = Peer { address: source.ip(), number: hello.source_qpn };
        let opener = Arc::new(pair.opener(local_hello, peer, Role::Accepts, true));
        self.manager.keep_open(Arc::clone(&opener));
        let accepted = match reply {
            Some(reply) => opener.accept_proven(stream, &hello, &reply),
            None => opener.accept(stream, &hello),
        };
        match accepted {
            Ok(()) => Ok(Some(pair)),
            Err(error) => {
                log::debug!("{source}: {error}");
                Ok(None)
            }
        }
    }

    /// Creates a queue pair over a lane that both ends have agreed on.
    ///
    /// # Errors
    /// If the number is in use.
    pub fn queue_pair(
        &self,
        lane: Box<dyn Lane>,
        number: u32,
        parameters: &ConnectionParameters,
        config: &QueuePairConfig,
    ) -> Result<QueuePair, ConnectError> {
        let pair = QueuePair::new(number, &self.progress, &self.manager, config)?;
        pair.start();
        pair.open_local(lane, parameters);
        Ok(pair)
    }

    /// Creates a queue pair that can send, which releases its number when it ends.
    fn started(&self, number: u32, config: &QueuePairConfig) -> Result<QueuePair, ConnectError> {
        let created = QueuePair::new(number, &self.progress, &self.manager, config);
        let pair = created.inspect_err(|_| self.manager.release(number))?;
        pair.start();
        Ok(pair)
    }

    /// Returns the contents of the hellos of a queue pair that connects without a number.
    fn local_hello(&self, number: u32, config: &QueuePairConfig) -> Result<LocalHello, ConnectError> {
        let first_message = getrandom::u32().map_err(|error| ConnectError::Random(error.to_string()))?;
        let resources = ReceiveAttributes::default().responder_resources;
        let shares_receives = config.shared_receive_queue.is_some();
        LocalHello::new(number, first_message, resources, shares_receives, self.manager.offer())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.progress.stop();
        self.manager.stop();
        self.dedicated = None;
        let here = std::thread::current().id();
        for thread in self.threads.drain(..).filter(|thread| thread.thread().id() != here) {
            let _ = thread.join();
        }
    }
}

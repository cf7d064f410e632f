//! Queue pairs of unreliable datagrams, over UDP.
//!
//! A device receives the datagrams of up to 256 queue pairs at one UDP port, which has the number of their TCP port.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};

use isolane_memory::MemoryRegion;
use parking_lot::Mutex;

use super::datagram_proof::{DATAGRAM_PROOF_LEN, DatagramProofs};
use super::guard::{Guard, Settle};
use super::handshake::{ConnectError, gid};
use super::manager::Manager;
use super::progress::{Driven, Progress};
use super::queue_pair::QueuePairConfig;
use crate::datagram::{Arrived, Datagrams};
use crate::shared_key::SharedKey;
use crate::types::{DatagramRequest, PostError, Queue, QueuePairState, ReceiveRequest, WorkCompletion};
use crate::wire::{MAX_DATAGRAM_BYTES, MAX_PREFIX_BYTES};

/// A queue pair of datagrams. Dropping it drops its completions.
pub struct DatagramQueuePair {
    shared: Arc<SharedDatagrams>,
    port: Arc<DatagramPort>,
    manager: Arc<Manager>,
}

struct SharedDatagrams {
    number: u32,
    config: QueuePairConfig,
    progress: Arc<Progress>,
    datagrams: Mutex<Datagrams>,
}

/// A UDP socket of a device.
pub(super) struct DatagramPort {
    socket: Arc<UdpSocket>,
    number: u16,
    local: SocketAddr,
    /// Proofs of the key of the device.
    proofs: Option<DatagramProofs>,
    queue_pairs: Mutex<HashMap<u32, Weak<SharedDatagrams>>>,
}

impl DatagramPort {
    /// The descriptor of its socket.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn new(
        socket: Arc<UdpSocket>,
        number: u16,
        key: Option<Arc<SharedKey>>,
    ) -> io::Result<DatagramPort> {
        let proofs = key.map(DatagramProofs::new).transpose()?;
        let local = socket.local_addr()?;
        if proofs.is_some() && local.ip().is_unspecified() {
            // Proofs cover the addresses of both ends.
            let text = "datagrams with a shared key need a device at one address of this machine";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        // Bursts wait for the next poll. The system can allow less.
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES);
        Ok(DatagramPort { socket, number, local, proofs, queue_pairs: Mutex::default() })
    }

    /// Receives datagrams until none is left, or `max` have arrived. Returns whether some can be left.
    fn receive(&self, max: usize) -> bool {
        let mut bytes = [0; MAX_PREFIX_BYTES + MAX_DATAGRAM_BYTES + DATAGRAM_PROOF_LEN + 1];
        for _ in 0..max {
            match self.socket.recv_from(&mut bytes) {
                Ok((len, source)) => self.deliver(&bytes[..len], source),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                // An earlier datagram has found no receiver.
                Err(_) => {}
            }
        }
        true
    }

    fn deliver(&self, bytes: &[u8], source: SocketAddr) {
        let gids = [gid(source.ip()), gid(self.local.ip())];
        let proven = self.proofs.as_ref().map_or(Some(bytes), |proofs| proofs.open(bytes, &gids));
        let Some(datagram) = proven else {
            return log::limited!(
                Warn,
                "{source}: datagram dropped: it is repeated, or its sender has another shared key or none; set \
                 ISOLANE_VERBS_KEY there to a copy of this end's key file"
            );
        };
        let arrived = match Arrived::decode(datagram, gids[0], gids[1]) {
            Ok(arrived) => arrived,
            Err(_) if self.proofs.is_none() && has_proof(bytes) => {
                return log::limited!(Warn, "{source}: datagram dropped: {}", ConnectError::KeyRequired);
            }
            Err(error) => return log::debug!("{source}: datagram dropped: {error}"),
        };
        let shared = self.queue_pairs.lock().get(&arrived.segment.message).and_then(Weak::upgrade);
        if let Some(shared) = shared {
            Guard::for_driver(&*shared, shared.progress.lock(&shared.datagrams)).handle_arrived(&arrived);
        }
    }
}

/// Whether a datagram is valid but for the proof of a key after it.
fn has_proof(bytes: &[u8]) -> bool {
    let datagram = bytes.len().checked_sub(DATAGRAM_PROOF_LEN).map(|len| &bytes[..len]);
    datagram.is_some_and(|datagram| Arrived::decode(datagram, [0; 16], [0; 16]).is_ok())
}

impl Driven for DatagramPort {
    fn number(&self) -> u32 {
        // Above the numbers of queue pairs.
        (1 << 24) | u32::from(self.number)
    }

    fn revoke(&self, _region: &Arc<MemoryRegion>) {
        // A datagram that is being copied has found its memory before, and nothing else keeps it.
        let pairs: Vec<Arc<SharedDatagrams>> =
            self.queue_pairs.lock().values().filter_map(Weak::upgrade).collect();
        pairs.iter().for_each(|shared| drop(shared.progress.lock(&shared.datagrams)));
    }

    fn mark_pending(&self) -> bool {
        true
    }

    fn send_pending(&self) -> bool {
        true
    }

    fn try_drive(&self) -> bool {
        self.receive(MAX_RECEIVES)
    }

    fn drive(&self) -> bool {
        self.receive(MAX_RECEIVES)
    }
}

impl DatagramQueuePair {
    pub(super) fn new(
        number: u32,
        port: Arc<DatagramPort>,
        progress: Arc<Progress>,
        manager: Arc<Manager>,
        config: &QueuePairConfig,
    ) -> DatagramQueuePair {
        let datagrams = Mutex::new(config.datagrams());
        let shared = Arc::new(SharedDatagrams { number, config: config.clone(), progress, datagrams });
        port.queue_pairs.lock().insert(number, Arc::downgrade(&shared));
        DatagramQueuePair { shared, port, manager }
    }

    /// Number of the queue pair, by which its completions and its peers name it.
    pub fn number(&self) -> u32 {
        self.shared.number
    }

    /// Returns the state.
    pub fn state(&self) -> QueuePairState {
        self.shared.lock().state()
    }

    /// Moves to the next state, in the order reset, init, ready to receive, ready to send. Returns `false` if `to` is
    /// not the next one.
    pub fn advance(&self, to: QueuePairState) -> bool {
        self.shared.lock().advance(to)
    }

    /// Sets the Q_Key that arriving datagrams must have.
    pub fn set_q_key(&self, q_key: u32) {
        self.shared.lock().set_q_key(q_key);
    }

    /// Moves to [`QueuePairState::Error`]: all requests complete as flushed.
    pub fn fail(&self) {
        self.shared.lock().fail();
    }

    /// Moves to [`QueuePairState::Reset`]: all requests and completions are dropped.
    pub fn reset(&self) {
        *self.shared.lock() = self.shared.config.datagrams();
        self.shared.config.send_queue.forget(self.number());
        self.shared.config.receive_queue.forget(self.number());
    }

    /// Sends a datagram. It is lost if the network or the receiver has no space for it.
    ///
    /// # Errors
    /// [`PostError`]; nothing was sent.
    pub fn post_send(&self, request: &DatagramRequest) -> Result<(), PostError> {
        let mut datagrams = self.shared.lock();
        if let Some(mut bytes) = datagrams.encode(self.number(), request)? {
            let port = (request.destination.number >> 8) as u16;
            if let Some(proofs) = &self.port.proofs {
                proofs.seal(&mut bytes, &[gid(self.port.local.ip()), gid(request.destination.address)]);
            }
            let sent = self.port.socket.send_to(&bytes, (request.destination.address, port));
            if let Err(error) = sent {
                log::debug!("datagram to {} lost: {error}", request.destination.address);
            }
            datagrams.handle_sent(request);
        }
        Ok(())
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    pub fn post_receive(&self, request: ReceiveRequest) -> Result<(), PostError> {
        self.shared.lock().post_receive(request)
    }
}

impl Drop for DatagramQueuePair {
    fn drop(&mut self) {
        self.port.queue_pairs.lock().remove(&self.number());
        self.reset();
        self.manager.release(self.number());
    }
}

impl SharedDatagrams {
    fn lock(&self) -> Guard<'_, SharedDatagrams> {
        Guard::new(self, self.progress.lock(&self.datagrams), &self.progress)
    }
}

impl Settle for SharedDatagrams {
    type State = Datagrams;

    fn settle(&self, datagrams: &mut Datagrams) {
        while let Some((queue, completion)) = datagrams.poll_completion() {
            let completions = match queue {
                Queue::Send => &self.config.send_queue,
                Queue::Receive => &self.config.receive_queue,
            };
            let completion = WorkCompletion { queue_pair: self.number, completion };
            if !completions.extend(std::iter::once(completion), None) {
                datagrams.fail();
            }
        }
    }
}

impl QueuePairConfig {
    fn datagrams(&self) -> Datagrams {
        let shared = self.shared_receive_queue.as_ref().map(|shared| Arc::clone(shared.queue()));
        Datagrams::new(Arc::clone(&self.domain), self.limits, shared)
    }
}

/// Number of datagrams after which other lanes have their turn.
const MAX_RECEIVES: usize = 16;
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;

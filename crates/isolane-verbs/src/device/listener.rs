//! Queue pairs that connect to an address instead of a number.
//!
//! Their first hello names no queue pair of this end. The lane manager receives it as any other one, and passes it to the
//! listener, whose next queue pair takes the lane.
//!
//! Invariants:
//! * A peer that does not complete its hello, or its proof of a key, holds up no other peer.
//! * With a key, a peer without a proof has only a number and a place in a list of limited length.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use super::handshake::ConnectError;
use super::lane_opener::FirstLanes;
use super::{Device, QueuePair, QueuePairConfig, manager};

/// Accepts queue pairs of a device, which it borrows or shares.
pub struct Listener<D: Deref<Target = Device>> {
    device: D,
    socket: Arc<TcpListener>,
    first_lanes: Arc<FirstLanes>,
}

impl<D: Deref<Target = Device>> Listener<D> {
    /// Listens as [`Device::listen`], for a device that can be shared.
    ///
    /// # Errors
    /// The error of the system.
    pub fn new(device: D, address: impl ToSocketAddrs) -> io::Result<Listener<D>> {
        let socket = manager::listen(address)?;
        socket.set_nonblocking(true)?;
        let (socket, first_lanes) = (Arc::new(socket), Arc::default());
        device.manager.listen(&socket, &first_lanes);
        Ok(Listener { device, socket, first_lanes })
    }

    /// Returns the address.
    ///
    /// # Errors
    /// The error of the system.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Waits for the next queue pair. Peers with an invalid hello are closed.
    ///
    /// # Errors
    /// [`ConnectError`], if this end fails: also if it has no descriptor for a peer, which then waits for the next call.
    pub fn accept(&self, config: &QueuePairConfig) -> Result<QueuePair, ConnectError> {
        loop {
            if let Some(pair) = self.accept_before(None, config)? {
                return Ok(pair);
            }
        }
    }

    /// Waits for the next queue pair as [`Listener::accept`]. `None` after the deadline, or if a peer has
    /// gone, or must prove its key first.
    ///
    /// # Errors
    /// As [`Listener::accept`].
    pub fn accept_before(
        &self,
        deadline: Option<Instant>,
        config: &QueuePairConfig,
    ) -> Result<Option<QueuePair>, ConnectError> {
        let Some(lane) = self.first_lanes.next(deadline)? else { return Ok(None) };
        // A further peer can be accepted.
        self.device.manager.wake();
        if let (Some(key), None) = (self.device.manager.key(), &lane.proven) {
            self.device.offer_first(lane, config, &self.first_lanes, key)?;
            return Ok(None);
        }
        self.device.accept_first(lane, config)
    }
}

impl<D: Deref<Target = Device>> Drop for Listener<D> {
    fn drop(&mut self) {
        self.device.manager.stop_listening(&self.socket);
    }
}

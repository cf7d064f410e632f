//! Parameters of a stream: its location in the session's memory.

use isolane_shm::bytes;
use serde::{Deserialize, Serialize};

use crate::layout::stream as at;
use crate::{Object, encode, kind};

/// Location of a stream. All offsets and capacities are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamLayout {
    /// Offset of the control block ([`layout::stream`](crate::layout::stream)).
    pub block: u64,
    /// Offset of the receive ring, a multiple of the page size.
    pub rx: u64,
    /// Capacity of the receive ring.
    pub rx_capacity: u64,
    /// Offset of the transmit ring, a multiple of the page size.
    pub tx: u64,
    /// Capacity of the transmit ring.
    pub tx_capacity: u64,
}

impl StreamLayout {
    /// Returns the object to open. Its socket is sent with the request.
    pub fn object(&self) -> Object {
        Object { kind: kind::STREAM, params: encode(self) }
    }

    /// Returns the layout of the receive ring.
    pub fn rx_ring(&self) -> bytes::Layout {
        let indices = self.block.saturating_add(at::RX);
        bytes::Layout { indices, bytes: self.rx, capacity: self.rx_capacity }
    }

    /// Returns the layout of the transmit ring.
    pub fn tx_ring(&self) -> bytes::Layout {
        let indices = self.block.saturating_add(at::TX);
        bytes::Layout { indices, bytes: self.tx, capacity: self.tx_capacity }
    }
}

//! Parameters of a stream: its location in the session's memory.

use isolane_shm::bytes;

use crate::layout::stream as at;
use crate::{DecodeError, Decoder, Encoder, Object, kind};

/// Location of a stream. All offsets and capacities are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        let StreamLayout { block, rx, rx_capacity, tx, tx_capacity } = *self;
        let mut encoder = Encoder::default();
        [block, rx, rx_capacity, tx, tx_capacity].into_iter().for_each(|word| encoder.u64(word));
        Object { kind: kind::STREAM, params: encoder.into_bytes() }
    }

    /// Decodes the parameters of an object.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(params: &[u8]) -> Result<StreamLayout, DecodeError> {
        let mut decoder = Decoder::new(params);
        let layout = StreamLayout {
            block: decoder.u64("control block of the stream")?,
            rx: decoder.u64("receive ring of the stream")?,
            rx_capacity: decoder.u64("capacity of the stream's receive ring")?,
            tx: decoder.u64("transmit ring of the stream")?,
            tx_capacity: decoder.u64("capacity of the stream's transmit ring")?,
        };
        decoder.end()?;
        Ok(layout)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_layout() {
        let layout = StreamLayout { block: 1, rx: 2, rx_capacity: 3, tx: 4, tx_capacity: u64::MAX };
        let params = layout.object().params;
        assert_eq!(StreamLayout::decode(&params), Ok(layout));
        assert!((0..params.len()).all(|len| StreamLayout::decode(&params[..len]).is_err()));
        assert!(StreamLayout::decode(&[&params[..], &[0]].concat()).is_err());
    }
}

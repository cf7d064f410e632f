//! Shared control block of a stream: a page of words and flags alongside its two rings.

use std::sync::atomic::{AtomicU64, Ordering};

use isolane_shm::index::RingIndices;
use isolane_shm::{MemoryError, SharedMemory, ShmRef, WakeFlag};

use super::StreamLayout;
use crate::layout::stream as at;

/// Words and flags of a stream. Each is written by one side; if the other side writes it, it harms only itself.
#[derive(Debug)]
pub struct ControlBlock {
    /// Flag of the engine: it needs a doorbell.
    pub need_wakeup: ShmRef<WakeFlag>,
    /// Flag of the application: a thread sleeps until data arrives.
    pub rx_flag: ShmRef<WakeFlag>,
    /// Flag of the application: a thread sleeps until there is space.
    pub tx_flag: ShmRef<WakeFlag>,
    /// Flag of the application: requests a notification in its queue; of some events, if it only reads.
    pub notify: ShmRef<WakeFlag>,
    tx: ShmRef<RingIndices>,
    rx_end: ShmRef<AtomicU64>,
    tx_end: ShmRef<AtomicU64>,
    tx_draining: ShmRef<AtomicU64>,
    tx_end_pos: ShmRef<AtomicU64>,
    rx_wake_at: ShmRef<AtomicU64>,
    /// Number of bytes that the application sent directly. Set before data that follows them is published.
    pub tx_bypassed: Word,
    /// Number of bytes that the engine has discarded from the kernel's buffer.
    pub rx_discarded: Word,
    /// Position up to which the engine is about to discard. A successor of its process sees all its stores.
    pub rx_discarding: Word,
    /// Latest request of the application: to receive directly ([`requests_bypass`]), or through the ring. After an even
    /// one, it must not receive directly until the engine acknowledges an odd one.
    pub rx_bypass: Word,
    /// Value of `rx_bypass` that the engine has applied. If it is odd, the application has read all data of the ring, and
    /// the engine no longer receives.
    pub rx_bypass_ack: Word,
    /// Number of bytes that the application received directly. Set before it requests the ring again.
    pub rx_bypassed: Word,
}

/// Word of a control block.
#[derive(Debug)]
pub struct Word(ShmRef<AtomicU64>);

impl Word {
    /// Returns the value.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Sets the value. A system call that follows is not reordered before this, because it is opaque to the compiler.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }
}

/// How one direction of a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// The peer sent FIN.
    Finished,
    /// The direction failed with this error number.
    Failed(i32),
}

impl ControlBlock {
    /// Opens the control block of a stream.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    pub fn open(memory: &SharedMemory, layout: &StreamLayout) -> Result<ControlBlock, MemoryError> {
        // A saturated offset is out of bounds.
        let offset = |at: u64| layout.block.saturating_add(at);
        Ok(ControlBlock {
            need_wakeup: memory.flag(offset(at::NEED_WAKEUP))?,
            rx_flag: memory.flag(offset(at::RX_FLAG))?,
            tx_flag: memory.flag(offset(at::TX_FLAG))?,
            notify: memory.flag(offset(at::NOTIFY))?,
            tx: memory.indices(offset(at::TX))?,
            rx_end: memory.atomic_u64(offset(at::RX_END))?,
            tx_end: memory.atomic_u64(offset(at::TX_END))?,
            tx_draining: memory.atomic_u64(offset(at::TX_DRAINING))?,
            tx_end_pos: memory.atomic_u64(offset(at::TX_END_POS))?,
            tx_bypassed: Word(memory.atomic_u64(offset(at::TX_BYPASSED))?),
            rx_wake_at: memory.atomic_u64(offset(at::RX_WAKE_AT))?,
            rx_discarded: Word(memory.atomic_u64(offset(at::RX_DISCARDED))?),
            rx_discarding: Word(memory.atomic_u64(offset(at::RX_DISCARDING))?),
            rx_bypass: Word(memory.atomic_u64(offset(at::RX_BYPASS))?),
            rx_bypass_ack: Word(memory.atomic_u64(offset(at::RX_BYPASS_ACK))?),
            rx_bypassed: Word(memory.atomic_u64(offset(at::RX_BYPASSED))?),
        })
    }

    /// Returns how receiving ended, after the ring's contents: if it did, check the ring again.
    #[inline]
    pub fn rx_end(&self) -> Option<StreamEnd> {
        StreamEnd::decode(self.rx_end.load(Ordering::Acquire))
    }

    /// Returns why nothing more can be sent.
    #[inline]
    pub fn tx_end(&self) -> Option<StreamEnd> {
        StreamEnd::decode(self.tx_end.load(Ordering::Acquire))
    }

    /// Engine: reports that no data follows the published data.
    pub fn end_rx(&self, end: StreamEnd) {
        self.rx_end.store(end.encode(), Ordering::Release);
    }

    /// Engine: reports that nothing more can be sent.
    pub fn end_tx(&self, end: StreamEnd) {
        self.tx_end.store(end.encode(), Ordering::Release);
    }

    /// Returns `true` if the ring has bytes that no engine has reported as sent.
    pub fn has_unsent(&self) -> bool {
        !self.tx.is_empty()
    }

    /// Returns `true` if SO_LINGER makes the last close reset the connection, because data is still to be sent.
    pub fn is_draining(&self) -> bool {
        self.tx_draining.load(Ordering::Acquire) != 0
    }

    /// Both sides: call it before setting SO_LINGER to reset.
    pub fn set_draining(&self) {
        self.tx_draining.store(1, Ordering::Release);
    }

    /// Returns the position at which the application ends the stream.
    #[inline]
    pub fn tx_end_pos(&self) -> Option<u64> {
        self.tx_end_pos.load(Ordering::Acquire).checked_sub(1)
    }

    /// Application: ends the stream at `position`.
    pub fn set_tx_end_pos(&self, position: u64) {
        self.tx_end_pos.store(position.saturating_add(1), Ordering::Release);
    }

    /// Returns the position from which on a reader takes the `need_wakeup` flag. It only grows: a reader that sees an
    /// old value takes the flag too often.
    #[inline]
    pub fn rx_wake_at(&self) -> u64 {
        self.rx_wake_at.load(Ordering::Relaxed)
    }

    /// Engine: sets that position, before it arms the `need_wakeup` flag.
    pub fn set_rx_wake_at(&self, position: u64) {
        self.rx_wake_at.store(position, Ordering::Relaxed);
    }
}

/// Returns `true` if a value of [`ControlBlock::rx_bypass`] requests to receive directly.
#[inline]
pub fn requests_bypass(request: u64) -> bool {
    request % 2 == 1
}

impl StreamEnd {
    fn decode(word: u64) -> Option<StreamEnd> {
        match word {
            0 => None,
            FINISHED => Some(StreamEnd::Finished),
            failed => Some(StreamEnd::Failed(failed as u32 as i32)),
        }
    }

    fn encode(self) -> u64 {
        match self {
            StreamEnd::Finished => FINISHED,
            StreamEnd::Failed(error) => FAILED | u64::from(error as u32),
        }
    }
}

const FINISHED: u64 = 1;
const FAILED: u64 = 1 << 32;

#[cfg(test)]
mod tests {
    use isolane_shm::bytes;

    use super::*;

    #[test]
    fn round_trips_end() {
        for end in [StreamEnd::Finished, StreamEnd::Failed(104), StreamEnd::Failed(1), StreamEnd::Failed(0)] {
            assert_eq!(StreamEnd::decode(end.encode()), Some(end));
        }
        assert_eq!(StreamEnd::decode(0), None);
    }

    #[test]
    fn rejects_block_out_of_bounds() {
        let memory = SharedMemory::create("block", 8192).unwrap();
        for block in [8192, u64::MAX, u64::MAX - 4095, 64] {
            let layout = StreamLayout { block, rx: 0, rx_capacity: 4096, tx: 0, tx_capacity: 4096 };
            assert!(ControlBlock::open(&memory, &layout).is_err(), "{block}");
            if block != 64 {
                assert!(bytes::Writer::open(&memory, layout.rx_ring()).is_err(), "{block}");
            }
        }
    }
}

//! What both sides of a stream see of it besides its two rings: a page of words and flags.

use std::sync::atomic::{AtomicU64, Ordering};

use isolane_ring::index::Words;
use isolane_ring::{Flag, Memory, MemoryError, Shared, bytes};

use crate::control::StreamPlace;
use crate::layout::stream as at;

/// The words and flags of a stream. Each belongs to the side named; the other may write anything there, and
/// harms itself alone.
#[derive(Debug)]
pub struct Block {
    /// The engine's: it asks for a doorbell.
    pub told: Shared<Flag>,
    /// The application's: somebody sleeps until bytes come.
    pub rx_flag: Shared<Flag>,
    /// The application's: somebody sleeps until there is room.
    pub tx_flag: Shared<Flag>,
    /// The application's: it asks for an entry in its queue when anything changes.
    pub notify: Shared<Flag>,
    tx: Shared<Words>,
    rx_end: Shared<AtomicU64>,
    tx_end: Shared<AtomicU64>,
    tx_draining: Shared<AtomicU64>,
    tx_shut: Shared<AtomicU64>,
    tx_native: Shared<AtomicU64>,
    rx_want: Shared<AtomicU64>,
    rx_discarded: Shared<AtomicU64>,
    rx_discarding: Shared<AtomicU64>,
    rx_past: Shared<AtomicU64>,
    rx_yielded: Shared<AtomicU64>,
    rx_native: Shared<AtomicU64>,
}

/// How a direction of a stream has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// In order: the peer has said that it sends nothing more.
    Finished,
    /// With this error number.
    Failed(i32),
}

impl Block {
    /// The block of a stream at that place.
    ///
    /// # Errors
    /// [`MemoryError::Place`].
    pub fn open(memory: &Memory, place: &StreamPlace) -> Result<Block, MemoryError> {
        // What begins beyond the last number is nowhere in the memory, and refused as such.
        let place = |offset: u64| place.block.saturating_add(offset);
        Ok(Block {
            told: memory.flag(place(at::TOLD))?,
            rx_flag: memory.flag(place(at::RX_FLAG))?,
            tx_flag: memory.flag(place(at::TX_FLAG))?,
            notify: memory.flag(place(at::NOTIFY))?,
            tx: memory.words(place(at::TX))?,
            rx_end: memory.number(place(at::RX_END))?,
            tx_end: memory.number(place(at::TX_END))?,
            tx_draining: memory.number(place(at::TX_DRAINING))?,
            tx_shut: memory.number(place(at::TX_SHUT))?,
            tx_native: memory.number(place(at::TX_NATIVE))?,
            rx_want: memory.number(place(at::RX_WANT))?,
            rx_discarded: memory.number(place(at::RX_DISCARDED))?,
            rx_discarding: memory.number(place(at::RX_DISCARDING))?,
            rx_past: memory.number(place(at::RX_PAST))?,
            rx_yielded: memory.number(place(at::RX_YIELDED))?,
            rx_native: memory.number(place(at::RX_NATIVE))?,
        })
    }

    /// Whether what is received has ended, behind what is in the ring. Look at the ring once more if so.
    #[inline]
    pub fn rx_end(&self) -> Option<End> {
        End::decode(self.rx_end.load(Ordering::Acquire))
    }

    /// Why nothing more can be sent.
    #[inline]
    pub fn tx_end(&self) -> Option<End> {
        End::decode(self.tx_end.load(Ordering::Acquire))
    }

    /// The engine's: nothing comes behind what was published.
    pub fn end_rx(&self, end: End) {
        self.rx_end.store(end.encode(), Ordering::Release);
    }

    /// The engine's: nothing more can be sent.
    pub fn end_tx(&self, end: End) {
        self.tx_end.store(end.encode(), Ordering::Release);
    }

    /// Whether there are bytes in the ring that no engine has said to have sent.
    pub fn has_unsent(&self) -> bool {
        !self.tx.is_empty()
    }

    /// Whether the last close of the socket was made to reset, because bytes are to be sent before.
    pub fn is_draining(&self) -> bool {
        self.tx_draining.load(Ordering::Acquire) != 0
    }

    /// That of whoever makes it reset, before.
    pub fn set_draining(&self) {
        self.tx_draining.store(1, Ordering::Release);
    }

    /// Up to which byte the application wants to send, if it has said so.
    #[inline]
    pub fn tx_shut(&self) -> Option<u64> {
        self.tx_shut.load(Ordering::Acquire).checked_sub(1)
    }

    /// The application's: it sends so many bytes and no more.
    pub fn shut_tx(&self, position: u64) {
        self.tx_shut.store(position.saturating_add(1), Ordering::Release);
    }

    /// Bytes that the application has sent itself.
    #[inline]
    pub fn tx_native(&self) -> u64 {
        self.tx_native.load(Ordering::Acquire)
    }

    /// The application's: it has sent so many itself. Before it publishes anything behind them.
    pub fn set_tx_native(&self, count: u64) {
        self.tx_native.store(count, Ordering::Release);
    }

    /// From which byte on whoever reads takes the `told` flag. It only grows: who sees an older one takes the
    /// flag too often.
    #[inline]
    pub fn rx_want(&self) -> u64 {
        self.rx_want.load(Ordering::Relaxed)
    }

    /// The engine's. Before it arms the `told` flag.
    pub fn set_rx_want(&self, position: u64) {
        self.rx_want.store(position, Ordering::Relaxed);
    }

    /// The engine's: how many bytes are out of the kernel, and how many it was about to have out.
    pub fn rx_discarded(&self) -> (u64, u64) {
        (self.rx_discarded.load(Ordering::Acquire), self.rx_discarding.load(Ordering::Acquire))
    }

    /// The engine's: it is about to have so many out of the kernel.
    pub fn set_rx_discarding(&self, position: u64) {
        // Not moved behind the call to the kernel, which is opaque to the compiler; and one who takes up after
        // this process has died sees all that it has stored.
        self.rx_discarding.store(position, Ordering::Release);
    }

    /// The engine's: so many are.
    pub fn set_rx_discarded(&self, position: u64) {
        self.rx_discarded.store(position, Ordering::Release);
    }

    /// What the application wants: to receive itself if it is odd ([`is_past`]), else to have it in the ring.
    #[inline]
    pub fn rx_past(&self) -> u64 {
        self.rx_past.load(Ordering::Acquire)
    }

    /// The application's. Even: it receives no more itself before it has said an odd number again and has been
    /// obeyed.
    pub fn set_rx_past(&self, number: u64) {
        self.rx_past.store(number, Ordering::Release);
    }

    /// Which number of [`Block::rx_past`] the engine obeys.
    #[inline]
    pub fn rx_yielded(&self) -> u64 {
        self.rx_yielded.load(Ordering::Acquire)
    }

    /// The engine's. Odd: all that it took out of the kernel was read, and it receives no more.
    pub fn set_rx_yielded(&self, number: u64) {
        self.rx_yielded.store(number, Ordering::Release);
    }

    /// Bytes that the application has received itself.
    pub fn rx_native(&self) -> u64 {
        self.rx_native.load(Ordering::Acquire)
    }

    /// The application's: it has received so many itself. Before it wants the others in the ring.
    #[inline]
    pub fn set_rx_native(&self, count: u64) {
        self.rx_native.store(count, Ordering::Release);
    }
}

/// Whether a number of [`Block::rx_past`] says that the application receives itself.
#[inline]
pub fn is_past(number: u64) -> bool {
    number % 2 == 1
}

impl StreamPlace {
    /// The ring of what is received.
    pub fn rx_ring(&self) -> bytes::Place {
        let words = self.block.saturating_add(at::RX);
        bytes::Place { words, bytes: self.rx, capacity: self.rx_capacity }
    }

    /// The ring of what is to be sent.
    pub fn tx_ring(&self) -> bytes::Place {
        let words = self.block.saturating_add(at::TX);
        bytes::Place { words, bytes: self.tx, capacity: self.tx_capacity }
    }
}

impl End {
    fn decode(word: u64) -> Option<End> {
        match word {
            0 => None,
            FINISHED => Some(End::Finished),
            failed => Some(End::Failed(failed as u32 as i32)),
        }
    }

    fn encode(self) -> u64 {
        match self {
            End::Finished => FINISHED,
            End::Failed(error) => FAILED | u64::from(error as u32),
        }
    }
}

const FINISHED: u64 = 1;
const FAILED: u64 = 1 << 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_one_word() {
        for end in [End::Finished, End::Failed(104), End::Failed(1), End::Failed(0)] {
            assert_eq!(End::decode(end.encode()), Some(end));
        }
        assert_eq!(End::decode(0), None);
    }

    #[test]
    fn a_place_beyond_the_memory_is_refused() {
        let memory = Memory::create("block", 8192).unwrap();
        for block in [8192, u64::MAX, u64::MAX - 4095, 64] {
            let place = StreamPlace { block, rx: 0, rx_capacity: 4096, tx: 0, tx_capacity: 4096 };
            assert!(Block::open(&memory, &place).is_err(), "{block}");
            if block != 64 {
                assert!(bytes::Writer::resume(&memory, place.rx_ring()).is_err(), "{block}");
            }
        }
    }
}

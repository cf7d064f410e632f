//! Ring of records that one thread writes and any thread reads, without a lock.
//!
//! Each slot has a sequence number that is odd while the slot is written. A reader that sees it change discards the
//! slot; the writer never waits.

use std::array;

use crate::sync::{AtomicU64, Ordering, fence};

#[derive(Debug)]
struct Slot<const WORDS: usize> {
    sequence: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// The ring, of records of `WORDS` numbers.
#[derive(Debug)]
pub struct Ring<const WORDS: usize> {
    slots: Box<[Slot<WORDS>]>,
    /// Records published since the start.
    published: AtomicU64,
}

impl<const WORDS: usize> Ring<WORDS> {
    /// Returns an empty ring for the last `slots` records.
    ///
    /// # Panics
    ///
    /// If `slots` is 0.
    pub fn new(slots: usize) -> Ring<WORDS> {
        assert!(slots > 0, "a ring has slots");
        let slot = || Slot { sequence: AtomicU64::new(0), words: array::from_fn(|_| AtomicU64::new(0)) };
        Ring { slots: (0..slots).map(|_| slot()).collect(), published: AtomicU64::new(0) }
    }

    /// Publishes a record in place of the oldest one. Only one thread calls it.
    pub fn publish(&self, record: [u64; WORDS]) {
        let position = self.published.load(Ordering::Relaxed);
        let slot = self.slot_of(position);
        let sequence = slot.sequence.load(Ordering::Relaxed);
        slot.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        for (word, value) in slot.words.iter().zip(record) {
            word.store(value, Ordering::Relaxed);
        }
        slot.sequence.store(sequence.wrapping_add(2), Ordering::Release);
        self.published.store(position.wrapping_add(1), Ordering::Release);
    }

    /// Returns the records, the oldest first, without records that are overwritten during the call.
    pub fn copy(&self) -> Vec<[u64; WORDS]> {
        let end = self.published.load(Ordering::Acquire);
        let start = end.saturating_sub(self.slots.len() as u64);
        (start..end).filter_map(|position| self.read(position)).collect()
    }

    fn read(&self, position: u64) -> Option<[u64; WORDS]> {
        let slot = self.slot_of(position);
        let wanted = (position / self.slots.len() as u64 + 1) * 2;
        if slot.sequence.load(Ordering::Acquire) != wanted {
            return None;
        }
        let record = array::from_fn(|word| slot.words[word].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        (slot.sequence.load(Ordering::Relaxed) == wanted).then_some(record)
    }

    fn slot_of(&self, position: u64) -> &Slot<WORDS> {
        &self.slots[(position % self.slots.len() as u64) as usize]
    }
}

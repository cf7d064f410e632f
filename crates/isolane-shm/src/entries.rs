//! Ring of 64-byte entries: commands, completions, and notifications.
//!
//! Invariant: an entry is copied out by eight atomic loads before use, so it cannot change between a check and its use.

use std::sync::atomic::Ordering;

use crate::index::{CACHE_PADDED_BYTES, Consumer, InvalidIndex, Producer, RingIndices};
use crate::memory::{MemoryError, SharedMemory, ShmRef, Slot};

/// An entry; its format is up to the users of the ring.
pub type Entry = [u64; 8];

/// Sending side.
#[derive(Debug)]
pub struct Sender {
    index: Producer<ShmRef<RingIndices>>,
    slots: ShmRef<[Slot]>,
}

/// Receiving side.
#[derive(Debug)]
pub struct Receiver {
    index: Consumer<ShmRef<RingIndices>>,
    slots: ShmRef<[Slot]>,
}

/// Location of an entry ring in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Offset of the indices, in bytes.
    pub indices: u64,
    /// Offset of the entries, in bytes; a multiple of 64.
    pub entries: u64,
    /// Number of entries, a power of two.
    pub count: u64,
}

impl Layout {
    /// Returns the layout of a ring at `offset` whose entries follow its indices, or `None` if the offset overflows or
    /// `count` is not a power of two up to `max_count`.
    pub fn at(offset: u64, count: u32, max_count: u32) -> Option<Layout> {
        let entries = offset.checked_add(RingIndices::BYTES as u64)?;
        let valid = count.is_power_of_two() && count <= max_count;
        valid.then_some(Layout { indices: offset, entries, count: count.into() })
    }

    /// Returns the size of such a ring in bytes, in whole cache lines.
    pub const fn bytes(count: u32) -> usize {
        RingIndices::BYTES + (count as usize * size_of::<Entry>()).next_multiple_of(CACHE_PADDED_BYTES)
    }
}

impl Sender {
    /// Opens a ring at the position that an earlier sender published: 0 in a new ring, whose indices are zeroes.
    ///
    /// # Errors
    /// [`MemoryError`] if `layout` or the published indices are invalid.
    pub fn open(memory: &SharedMemory, layout: Layout) -> Result<Sender, MemoryError> {
        let slots = memory.entry_slots(layout.entries, layout.count)?;
        Ok(Sender { index: Producer::open(memory.indices(layout.indices)?, layout.count)?, slots })
    }

    /// Adds an entry without publishing it. Returns `false` if the ring is full.
    ///
    /// # Errors
    /// [`InvalidIndex`].
    #[inline]
    pub fn push(&mut self, entry: &Entry) -> Result<bool, InvalidIndex> {
        if self.index.free_space() == 0 && self.index.refresh()? == 0 {
            return Ok(false);
        }
        for (word, value) in self.slots[self.index.slot()].iter().zip(entry) {
            word.store(*value, Ordering::Relaxed);
        }
        self.index.advance(1);
        Ok(true)
    }

    /// Loads the receiver's position. Returns the number of free slots.
    ///
    /// # Errors
    /// [`InvalidIndex`].
    #[inline]
    pub fn free_space(&mut self) -> Result<u64, InvalidIndex> {
        self.index.refresh()
    }

    /// Publishes all entries added.
    #[inline]
    pub fn publish(&self) {
        self.index.publish();
    }

    /// Returns the number of entries ever added.
    #[inline]
    pub fn position(&self) -> u64 {
        self.index.index()
    }

    /// Loads the receiver's position. Returns the number of entries that it has taken.
    ///
    /// # Errors
    /// [`InvalidIndex`].
    #[inline]
    pub fn taken(&mut self) -> Result<u64, InvalidIndex> {
        self.index.refresh()?;
        Ok(self.index.consumed())
    }

    /// Returns the time at which the receiver says that it took them ([`Receiver::publish_at`]); 0 without one.
    #[inline]
    pub fn taken_at(&self) -> u64 {
        self.index.consumed_at()
    }
}

impl Receiver {
    /// Opens a ring at the position that an earlier receiver published: 0 in a new ring, whose indices are zeroes.
    ///
    /// # Errors
    /// [`MemoryError`] if `layout` or the published indices are invalid.
    pub fn open(memory: &SharedMemory, layout: Layout) -> Result<Receiver, MemoryError> {
        let slots = memory.entry_slots(layout.entries, layout.count)?;
        Ok(Receiver { index: Consumer::open(memory.indices(layout.indices)?, layout.count)?, slots })
    }

    /// Takes the next entry found by the last [`Receiver::refresh`]. [`Receiver::publish`] frees its slot.
    #[inline]
    pub fn pop(&mut self) -> Option<Entry> {
        if self.index.available() == 0 {
            return None;
        }
        let mut entry = [0; 8];
        for (value, word) in entry.iter_mut().zip(&self.slots[self.index.slot()]) {
            *value = word.load(Ordering::Relaxed);
        }
        self.index.advance(1);
        Some(entry)
    }

    /// Loads the sender's position. Returns the number of available entries.
    ///
    /// # Errors
    /// [`InvalidIndex`].
    #[inline]
    pub fn refresh(&mut self) -> Result<u64, InvalidIndex> {
        self.index.refresh()
    }

    /// Publishes all progress, which frees the slots for the sender.
    #[inline]
    pub fn publish(&self) {
        self.index.publish();
    }

    /// As [`Receiver::publish`], with the time at which the entries were taken; 0 reports none.
    #[inline]
    pub fn publish_at(&self, at: u64) {
        self.index.publish_at(at);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{PAGE_SIZE, testing};

    #[test]
    fn full_ring_rejects_entries_until_space_is_published() {
        let (mut sender, mut receiver, _corruptor) = testing::entries(4).unwrap();
        for round in 0..3u64 {
            for number in 0..4 {
                assert_eq!(sender.push(&[round + number; 8]), Ok(true));
            }
            assert_eq!(sender.push(&[0; 8]), Ok(false));
            assert_eq!(receiver.refresh(), Ok(0), "unpublished entries are visible");
            sender.publish();
            assert_eq!(receiver.refresh(), Ok(4));
            let seen: Vec<u64> = std::iter::from_fn(|| receiver.pop()).map(|entry| entry[7]).collect();
            assert_eq!(seen, [round, round + 1, round + 2, round + 3]);
            assert_eq!(sender.push(&[0; 8]), Ok(false), "a slot was reused before it was freed");
            receiver.publish();
        }
    }

    /// An entry refers to payload elsewhere in the memory, which must be visible when the entry is.
    #[test]
    fn payload_is_visible_with_its_entry() {
        const COUNT: u64 = if cfg!(miri) { 60 } else { 20_000 };
        let memory = SharedMemory::create("entries", 2 * PAGE_SIZE).unwrap();
        let layout = Layout { indices: 0, entries: 256, count: 4 };
        let mut sender = Sender::open(&memory, layout).unwrap();
        let mut receiver = Receiver::open(&memory, layout).unwrap();
        let payload = |number: u64| PAGE_SIZE as u64 + number % 4 * 64;
        // Not scoped: if one thread fails, the scope would wait forever for the other.
        let clone = memory.clone();
        let writer = std::thread::spawn(move || {
            for number in 0..COUNT {
                while sender.free_space().unwrap() == 0 {
                    std::thread::yield_now();
                }
                clone.copy_in(payload(number), &[number as u8; 64]).unwrap();
                assert_eq!(sender.push(&[number, payload(number), 0, 0, 0, 0, 0, number]), Ok(true));
                sender.publish();
            }
        });
        for number in 0..COUNT {
            while receiver.refresh().unwrap() == 0 {
                assert!(!writer.is_finished() || receiver.refresh().unwrap() > 0, "the writer failed");
                std::thread::yield_now();
            }
            let entry = receiver.pop().unwrap();
            assert_eq!(entry, [number, payload(number), 0, 0, 0, 0, 0, number]);
            let mut bytes = [0; 64];
            memory.copy_out(entry[1], &mut bytes).unwrap();
            assert_eq!(bytes, [number as u8; 64]);
            receiver.publish();
        }
        writer.join().unwrap();
    }

    proptest! {
        /// For any contents of shared memory, there are at most as many entries as slots, or an error.
        #[test]
        fn corrupted_memory_stays_within_bounds(
            garbage in prop::collection::vec((0usize..2000, any::<u64>()), 0..100),
        ) {
            let (mut sender, mut receiver, corruptor) = testing::entries(8).unwrap();
            for (word, value) in garbage {
                corruptor.scribble(word, value);
                let _ = sender.push(&[value; 8]).map(|_| sender.publish());
                if receiver.refresh().is_ok() {
                    prop_assert!(std::iter::from_fn(|| receiver.pop()).count() <= 8);
                    receiver.publish();
                }
            }
        }
    }
}

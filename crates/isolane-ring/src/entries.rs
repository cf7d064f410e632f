//! Commands, completions and notifications: entries of 64 bytes from one side to the other.
//!
//! An entry is copied out by eight loads before anybody looks at it, so that it cannot change between a check
//! and its use.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::index::{Consumer, Impossible, Producer, Words};
use crate::memory::{Memory, MemoryError, Shared, Slots};

/// What is passed on: eight words. What they mean is agreed on elsewhere.
pub type Entry = [u64; 8];

/// The side that puts entries in.
#[derive(Debug)]
pub struct Sender {
    index: Producer<Shared<Words>>,
    slots: Slots,
}

/// The side that takes entries out.
#[derive(Debug)]
pub struct Receiver {
    index: Consumer<Shared<Words>>,
    slots: Slots,
}

/// Where a ring of entries is in a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Bytes before its indices.
    pub words: u64,
    /// Bytes before its entries, a multiple of 64.
    pub entries: u64,
    /// Entries it holds, a power of two.
    pub count: u64,
}

impl Place {
    /// Of a ring whose entries follow its indices; `None` if it can be nowhere, or if `count` is no power of two
    /// up to `count_max`.
    pub fn at(offset: u64, count: u32, count_max: u32) -> Option<Place> {
        let entries = offset.checked_add(Words::BYTES as u64)?;
        let is_possible = count.is_power_of_two() && count <= count_max;
        is_possible.then_some(Place { words: offset, entries, count: count.into() })
    }

    /// Bytes of such a ring; what follows begins at lines of the cache of its own.
    pub const fn bytes(count: u32) -> usize {
        Words::BYTES + (count as usize * size_of::<Entry>()).next_multiple_of(crate::index::LINE_BYTES)
    }
}

impl Sender {
    /// The sender of a ring that nothing was put in.
    ///
    /// # Errors
    /// [`MemoryError`], if there can be no ring.
    pub fn new(memory: &Memory, place: Place) -> Result<Sender, MemoryError> {
        let slots = memory.entries(place.entries, place.count)?;
        Ok(Sender { index: Producer::new(memory.words(place.words)?, place.count), slots })
    }

    /// The sender of a ring that another has left.
    ///
    /// # Errors
    /// [`MemoryError`], if there can be no ring.
    pub fn resume(memory: &Memory, place: Place) -> Result<Sender, MemoryError> {
        let slots = memory.entries(place.entries, place.count)?;
        Ok(Sender { index: Producer::resume(memory.words(place.words)?, place.count)?, slots })
    }

    /// Puts an entry in; [`Sender::publish`] shows it. Says whether there was room.
    ///
    /// # Errors
    /// [`Impossible`], if the other side is hostile.
    #[inline]
    pub fn push(&mut self, entry: &Entry) -> Result<bool, Impossible> {
        if self.index.room() == 0 && self.index.refresh()? == 0 {
            return Ok(false);
        }
        for (word, value) in words(&self.slots, self.index.place()).zip(entry) {
            word.store(*value, Ordering::Relaxed);
        }
        self.index.advance(1);
        Ok(true)
    }

    /// Looks how many entries there is room for.
    ///
    /// # Errors
    /// [`Impossible`].
    #[inline]
    pub fn room(&mut self) -> Result<u64, Impossible> {
        self.index.refresh()
    }

    /// Shows the other side all that was put in.
    #[inline]
    pub fn publish(&self) {
        self.index.publish();
    }
}

impl Receiver {
    /// The receiver of a ring that nothing was taken out of.
    ///
    /// # Errors
    /// [`MemoryError`], if there can be no ring.
    pub fn new(memory: &Memory, place: Place) -> Result<Receiver, MemoryError> {
        let slots = memory.entries(place.entries, place.count)?;
        Ok(Receiver { index: Consumer::new(memory.words(place.words)?, place.count), slots })
    }

    /// The receiver of a ring that another has left.
    ///
    /// # Errors
    /// [`MemoryError`], if there can be no ring.
    pub fn resume(memory: &Memory, place: Place) -> Result<Receiver, MemoryError> {
        let slots = memory.entries(place.entries, place.count)?;
        Ok(Receiver { index: Consumer::resume(memory.words(place.words)?, place.count)?, slots })
    }

    /// The next entry of those seen by the last [`Receiver::refresh`]. [`Receiver::publish`] gives its place
    /// back.
    #[inline]
    pub fn pop(&mut self) -> Option<Entry> {
        if self.index.available() == 0 {
            return None;
        }
        let mut entry = [0; 8];
        for (value, word) in entry.iter_mut().zip(words(&self.slots, self.index.place())) {
            *value = word.load(Ordering::Relaxed);
        }
        self.index.advance(1);
        Some(entry)
    }

    /// Looks how many entries there are.
    ///
    /// # Errors
    /// [`Impossible`], if the other side is hostile.
    #[inline]
    pub fn refresh(&mut self) -> Result<u64, Impossible> {
        self.index.refresh()
    }

    /// Gives the places of all that was taken out back.
    #[inline]
    pub fn publish(&self) {
        self.index.publish();
    }
}

/// The words of a place, which the other side may change at any time.
#[inline]
fn words(slots: &Slots, index: usize) -> impl Iterator<Item = &AtomicU64> {
    let first = slots.at(index).cast::<AtomicU64>();
    // SAFETY: eight aligned words inside of a mapping that the slots hold; every pattern of bits is a value.
    (0..8).map(move |word| unsafe { first.add(word).as_ref() })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{PAGE_SIZE, mock};

    #[test]
    fn entries_come_out_as_they_went_in_and_a_full_ring_says_so() {
        let (mut sender, mut receiver, _vandal) = mock::entries(4).unwrap();
        for round in 0..3u64 {
            for number in 0..4 {
                assert_eq!(sender.push(&[round + number; 8]), Ok(true));
            }
            assert_eq!(sender.push(&[0; 8]), Ok(false));
            assert_eq!(receiver.refresh(), Ok(0), "nothing is seen before it is published");
            sender.publish();
            assert_eq!(receiver.refresh(), Ok(4));
            let seen: Vec<u64> = std::iter::from_fn(|| receiver.pop()).map(|entry| entry[7]).collect();
            assert_eq!(seen, [round, round + 1, round + 2, round + 3]);
            assert_eq!(sender.push(&[0; 8]), Ok(false), "no place is used again before it is given back");
            receiver.publish();
        }
    }

    /// What an entry names lies elsewhere in the memory, as payload does: it is there when the entry is.
    #[test]
    fn entries_between_two_threads_bring_what_they_name() {
        const COUNT: u64 = if cfg!(miri) { 60 } else { 20_000 };
        let memory = Memory::create("entries", 2 * PAGE_SIZE).unwrap();
        let place = Place { words: 0, entries: 256, count: 4 };
        let mut sender = Sender::new(&memory, place).unwrap();
        let mut receiver = Receiver::new(&memory, place).unwrap();
        let payload = |number: u64| PAGE_SIZE as u64 + number % 4 * 64;
        // Not scoped: if one of them fails, the other would be waited for in vain.
        let theirs = memory.clone();
        let writer = std::thread::spawn(move || {
            for number in 0..COUNT {
                while sender.room().unwrap() == 0 {
                    std::thread::yield_now();
                }
                theirs.copy_in(payload(number), &[number as u8; 64]).unwrap();
                assert_eq!(sender.push(&[number, payload(number), 0, 0, 0, 0, 0, number]), Ok(true));
                sender.publish();
            }
        });
        for number in 0..COUNT {
            while receiver.refresh().unwrap() == 0 {
                assert!(!writer.is_finished() || receiver.refresh().unwrap() > 0, "the writer has failed");
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
        /// Whatever stands in shared memory, there are at most as many entries as places, or an error.
        #[test]
        fn a_vandal_gets_an_error_or_its_own_garbage_back(
            garbage in prop::collection::vec((0usize..2000, any::<u64>()), 0..100),
        ) {
            let (mut sender, mut receiver, vandal) = mock::entries(8).unwrap();
            for (place, value) in garbage {
                vandal.scribble(place, value);
                let _ = sender.push(&[value; 8]).map(|_| sender.publish());
                if receiver.refresh().is_ok() {
                    prop_assert!(std::iter::from_fn(|| receiver.pop()).count() <= 8);
                    receiver.publish();
                }
            }
        }
    }
}

//! The two indices of a ring with one producer and one consumer.
//!
//! Both count from the ring's beginning and never go back; where something lies is the index modulo the
//! capacity. Each side keeps its own index and what it last saw of the other's, loads the other's once a
//! turn, and publishes its own when it is done. It is not a ring: what is stored, and where, is the caller's.
//!
//! Invariant: `consumed <= produced <= consumed + capacity`. What the other side writes is believed only
//! within that, and never if it goes back.

use std::ops::Deref;

use crate::sync::{AtomicU64, Ordering};

/// The words of a ring that both sides see, each on lines of the cache of its own.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Words {
    produced: Line<AtomicU64>,
    consumed: Line<AtomicU64>,
}

impl Words {
    /// Bytes in shared memory.
    pub const BYTES: usize = 2 * LINE_BYTES;

    /// Words of a ring that nothing was put in.
    pub fn new() -> Words {
        Words::default()
    }

    /// Whether all that was published was consumed, for somebody who is neither side. False if they cannot be.
    pub fn is_empty(&self) -> bool {
        self.consumed.0.load(Ordering::Acquire) == self.produced.0.load(Ordering::Acquire)
    }
}

/// Two lines of the cache, because processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(crate) struct Line<T>(pub(crate) T);

pub(crate) const LINE_BYTES: usize = 128;

#[cfg(not(loom))]
const _: () = assert!(size_of::<Words>() == Words::BYTES);

/// The other side wrote an index that cannot be. It is hostile or broken, and nothing more it says can be
/// believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other side's index of a ring went from {before} to {now}, but can only be up to {most}")]
pub struct Impossible {
    /// What was seen of it before.
    pub before: u64,
    /// What it is now.
    pub now: u64,
    /// What it could be at most.
    pub most: u64,
}

/// The side that puts in.
#[derive(Debug)]
pub struct Producer<W> {
    words: W,
    capacity: u64,
    /// Put in, published or not.
    produced: u64,
    /// Last seen of the other side.
    consumed: u64,
}

impl<W: Deref<Target = Words>> Producer<W> {
    /// The producer of a ring that nothing was put in.
    ///
    /// # Panics
    /// If the capacity is not a power of two.
    pub fn new(words: W, capacity: u64) -> Self {
        Producer::at(words, capacity, 0)
    }

    /// The producer of a ring in which all was consumed up to `index`.
    ///
    /// # Panics
    /// If the capacity is not a power of two.
    pub fn at(words: W, capacity: u64, index: u64) -> Self {
        assert!(capacity.is_power_of_two(), "a ring's capacity is a power of two, not {capacity}");
        Producer { words, capacity, produced: index, consumed: index }
    }

    /// Takes up where the words say that a producer before has stopped.
    ///
    /// # Errors
    /// [`Impossible`], if they cannot be the words of a ring.
    ///
    /// # Panics
    /// As [`Producer::at`].
    pub fn resume(words: W, capacity: u64) -> Result<Self, Impossible> {
        let (produced, consumed) = resumed(&words, capacity)?;
        Ok(Producer { produced, ..Producer::at(words, capacity, consumed) })
    }

    /// What there is room for, as far as was seen.
    #[inline]
    pub fn room(&self) -> u64 {
        (self.capacity - self.unconsumed()).min(u64::MAX - self.produced)
    }

    /// Put in and, as far as was seen, not taken out.
    #[inline]
    pub fn unconsumed(&self) -> u64 {
        self.produced - self.consumed
    }

    /// Looks what the other side has taken out; returns what there is room for.
    ///
    /// # Errors
    /// [`Impossible`].
    #[inline]
    pub fn refresh(&mut self) -> Result<u64, Impossible> {
        let now = self.words.consumed.0.load(Ordering::Acquire);
        self.consumed = believable(self.consumed, now, self.produced)?;
        Ok(self.room())
    }

    /// Where the next goes.
    #[inline]
    pub fn place(&self) -> usize {
        (self.produced & (self.capacity - 1)) as usize
    }

    /// Counts what was put in.
    ///
    /// # Panics
    /// If there was no room for so many.
    #[inline]
    pub fn advance(&mut self, count: u64) {
        assert!(count <= self.room(), "{count} were put into a ring with room for {}", self.room());
        self.produced += count;
    }

    /// Shows the other side all that was put in.
    #[inline]
    pub fn publish(&self) {
        self.words.produced.0.store(self.produced, Ordering::Release);
    }

    /// Put in since the ring's beginning.
    #[inline]
    pub fn index(&self) -> u64 {
        self.produced
    }
}

/// The side that takes out.
#[derive(Debug)]
pub struct Consumer<W> {
    words: W,
    capacity: u64,
    /// Taken out, published or not.
    consumed: u64,
    /// Last seen of the other side.
    produced: u64,
}

impl<W: Deref<Target = Words>> Consumer<W> {
    /// The consumer of a ring that nothing was taken out of.
    ///
    /// # Panics
    /// If the capacity is not a power of two.
    pub fn new(words: W, capacity: u64) -> Self {
        Consumer::at(words, capacity, 0)
    }

    /// The consumer of a ring from `index` on.
    ///
    /// # Panics
    /// If the capacity is not a power of two.
    pub fn at(words: W, capacity: u64, index: u64) -> Self {
        assert!(capacity.is_power_of_two(), "a ring's capacity is a power of two, not {capacity}");
        Consumer { words, capacity, consumed: index, produced: index }
    }

    /// Takes up where the words say that a consumer before has stopped.
    ///
    /// # Errors
    /// [`Impossible`], if they cannot be the words of a ring.
    ///
    /// # Panics
    /// As [`Consumer::at`].
    pub fn resume(words: W, capacity: u64) -> Result<Self, Impossible> {
        let (produced, consumed) = resumed(&words, capacity)?;
        Ok(Consumer { produced, ..Consumer::at(words, capacity, consumed) })
    }

    /// What there is to take, as far as was seen.
    #[inline]
    pub fn available(&self) -> u64 {
        self.produced - self.consumed
    }

    /// Looks what the other side has put in; returns what there is to take.
    ///
    /// # Errors
    /// [`Impossible`].
    #[inline]
    pub fn refresh(&mut self) -> Result<u64, Impossible> {
        let now = self.words.produced.0.load(Ordering::Acquire);
        self.produced = believable(self.produced, now, self.consumed.saturating_add(self.capacity))?;
        Ok(self.available())
    }

    /// Where the next lies.
    #[inline]
    pub fn place(&self) -> usize {
        (self.consumed & (self.capacity - 1)) as usize
    }

    /// Counts what was taken out.
    ///
    /// # Panics
    /// If there were not so many.
    #[inline]
    pub fn advance(&mut self, count: u64) {
        assert!(count <= self.available(), "{count} were taken of {} in a ring", self.available());
        self.consumed += count;
    }

    /// Gives the room of all that was taken out back to the other side.
    #[inline]
    pub fn publish(&self) {
        self.words.consumed.0.store(self.consumed, Ordering::Release);
    }

    /// Taken out since the ring's beginning.
    #[inline]
    pub fn index(&self) -> u64 {
        self.consumed
    }
}

/// What the words of a ring say, of which one side is ours from a time before: consumed first, because the other
/// side may go on meanwhile, and both only grow.
fn resumed(words: &Words, capacity: u64) -> Result<(u64, u64), Impossible> {
    let consumed = words.consumed.0.load(Ordering::Acquire);
    let produced = words.produced.0.load(Ordering::Acquire);
    believable(consumed, produced, consumed.saturating_add(capacity))?;
    Ok((produced, consumed))
}

#[inline]
fn believable(before: u64, now: u64, most: u64) -> Result<u64, Impossible> {
    if now < before || now > most {
        return Err(Impossible { before, now, most });
    }
    Ok(now)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    fn pair(capacity: u64) -> (Producer<Arc<Words>>, Consumer<Arc<Words>>, Arc<Words>) {
        let words = Arc::new(Words::new());
        (Producer::new(Arc::clone(&words), capacity), Consumer::new(Arc::clone(&words), capacity), words)
    }

    /// Writes whatever one likes, as a hostile other side might.
    fn scribble(words: &Words, produced: u64, consumed: u64) {
        words.produced.0.store(produced, Ordering::Relaxed);
        words.consumed.0.store(consumed, Ordering::Relaxed);
    }

    #[test]
    fn what_is_put_in_is_seen_once_it_is_published() {
        let (mut producer, mut consumer, _) = pair(4);
        producer.advance(3);
        assert_eq!(consumer.refresh(), Ok(0));
        producer.publish();
        assert_eq!(consumer.refresh(), Ok(3));
        consumer.advance(2);
        assert_eq!(producer.refresh(), Ok(1));
        consumer.publish();
        assert_eq!(producer.refresh(), Ok(3));
        assert_eq!((producer.place(), consumer.place()), (3, 2));
    }

    #[test]
    fn an_index_that_goes_back_or_too_far_is_impossible() {
        let (mut producer, mut consumer, words) = pair(4);
        producer.advance(4);
        producer.publish();
        assert_eq!(consumer.refresh(), Ok(4));
        scribble(&words, 5, 5);
        assert_eq!(consumer.refresh(), Err(Impossible { before: 4, now: 5, most: 4 }));
        assert_eq!(producer.refresh(), Err(Impossible { before: 0, now: 5, most: 4 }));
        scribble(&words, 3, 0);
        assert!(consumer.refresh().is_err() && producer.refresh().is_ok());
    }

    #[test]
    fn a_ring_is_taken_up_where_it_was_left() {
        let (mut producer, mut consumer, words) = pair(8);
        producer.advance(5);
        producer.publish();
        producer.advance(1);
        consumer.refresh().unwrap();
        consumer.advance(2);
        consumer.publish();
        consumer.advance(1);
        let mut producer = Producer::resume(Arc::clone(&words), 8).unwrap();
        let mut consumer = Consumer::resume(Arc::clone(&words), 8).unwrap();
        assert_eq!((producer.index(), producer.refresh()), (5, Ok(5)), "what was not published was not");
        assert_eq!((consumer.index(), consumer.available(), consumer.refresh()), (2, 3, Ok(3)));
        for (produced, consumed) in [(9, 0), (0, 1), (u64::MAX, 0)] {
            scribble(&words, produced, consumed);
            assert!(Producer::resume(Arc::clone(&words), 8).is_err(), "{produced} {consumed}");
            assert!(Consumer::resume(Arc::clone(&words), 8).is_err(), "{produced} {consumed}");
        }
    }

    /// Nobody comes there by counting, but a ring may be taken up where the other side says.
    #[test]
    fn a_ring_ends_where_the_numbers_do() {
        let words = Arc::new(Words::new());
        let mut producer = Producer::at(Arc::clone(&words), 4, u64::MAX - 1);
        let mut consumer = Consumer::at(Arc::clone(&words), 4, u64::MAX - 1);
        scribble(&words, u64::MAX - 1, u64::MAX - 1);
        assert_eq!((producer.refresh(), consumer.refresh()), (Ok(1), Ok(0)));
        producer.advance(producer.room());
        producer.publish();
        assert_eq!((producer.refresh(), consumer.refresh()), (Ok(0), Ok(1)));
        consumer.advance(1);
        consumer.publish();
        assert_eq!((producer.refresh(), consumer.refresh()), (Ok(0), Ok(0)));
    }

    #[test]
    #[should_panic(expected = "room for 1")]
    fn more_than_there_is_room_for_is_a_bug_of_ours() {
        let (mut producer, ..) = pair(1);
        producer.advance(2);
    }

    /// What a ring is to the one who looks at it from outside.
    #[derive(Default)]
    struct Oracle {
        unpublished: u64,
        visible: u64,
        taken: u64,
    }

    proptest! {
        #[test]
        fn both_sides_agree_with_the_oracle(
            capacity in (0u32..6).prop_map(|bits| 1u64 << bits),
            steps in prop::collection::vec((0u8..6, 0u64..40), 0..200),
        ) {
            let (mut producer, mut consumer, _) = pair(capacity);
            let mut oracle = Oracle::default();
            for (step, count) in steps {
                match step {
                    0 => {
                        let count = count.min(producer.room());
                        producer.advance(count);
                        oracle.unpublished += count;
                    }
                    1 => {
                        producer.publish();
                        oracle.visible += std::mem::take(&mut oracle.unpublished);
                    }
                    2 => {
                        let room = producer.refresh().unwrap();
                        prop_assert!(room <= capacity - oracle.unpublished - oracle.visible);
                    }
                    3 => {
                        prop_assert_eq!(consumer.refresh().unwrap(), oracle.visible);
                    }
                    4 => {
                        let count = count.min(consumer.available());
                        consumer.advance(count);
                        oracle.visible -= count;
                        oracle.taken += count;
                    }
                    _ => consumer.publish(),
                }
                prop_assert_eq!(consumer.index(), oracle.taken);
                prop_assert_eq!(producer.index(), oracle.taken + oracle.visible + oracle.unpublished);
            }
        }

        #[test]
        fn garbage_is_an_error_or_within_bounds(
            words in prop::collection::vec((any::<u64>(), any::<u64>()), 1..50),
            small in prop::collection::vec((0u64..40, 0u64..40), 1..50),
        ) {
            let (mut producer, mut consumer, shared) = pair(16);
            for (produced, consumed) in words.into_iter().chain(small) {
                scribble(&shared, produced, consumed);
                if let Ok(room) = producer.refresh() {
                    prop_assert!(room <= 16);
                    producer.advance(room / 2);
                }
                if let Ok(available) = consumer.refresh() {
                    prop_assert!(available <= 16);
                    consumer.advance(available / 2);
                }
                prop_assert!(producer.place() < 16 && consumer.place() < 16);
            }
        }
    }
}

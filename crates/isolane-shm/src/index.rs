//! Index protocol of a ring with one producer and one consumer.
//!
//! Both indices count from the start of the stream and only grow; an entry is stored in slot `index % capacity`. Each
//! side keeps its own index and the last value seen of its peer's, loads the peer's once per turn, and publishes its own
//! when done. The caller owns the storage.
//!
//! Invariant: `consumed <= produced <= consumed + capacity`. A value written by the peer that violates it, or that
//! decreases, is rejected.

use std::ops::Deref;

use crate::sync::{AtomicU64, Ordering};

/// Published indices of a ring, in shared memory, on separate cache lines.
#[derive(Debug, Default)]
#[repr(C)]
pub struct RingIndices {
    produced: CachePadded<AtomicU64>,
    consumed: CachePadded<Consumed>,
}

/// The consumer's index, and the time at which it took the entries before it.
#[derive(Debug, Default)]
#[repr(C)]
struct Consumed {
    index: AtomicU64,
    /// 0 if the consumer reports no times, as in a ring of an older program.
    at: AtomicU64,
}

impl RingIndices {
    /// Size in shared memory, in bytes.
    pub const BYTES: usize = 2 * CACHE_PADDED_BYTES;

    /// Creates the indices of an empty ring.
    pub fn new() -> RingIndices {
        RingIndices::default()
    }

    /// Returns `true` if everything published was consumed. For observers; does not validate the indices.
    pub fn is_empty(&self) -> bool {
        self.consumed.0.index.load(Ordering::Acquire) == self.produced.0.load(Ordering::Acquire)
    }
}

/// Occupies two cache lines, because processors prefetch them in pairs.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(crate) struct CachePadded<T>(pub(crate) T);

pub(crate) const CACHE_PADDED_BYTES: usize = 128;

#[cfg(not(loom))]
const _: () = assert!(size_of::<RingIndices>() == RingIndices::BYTES);

/// The peer published an out-of-range index. It is hostile or broken; do not use the ring any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer's ring index went from {before} to {now}; at most {max} is valid")]
pub struct InvalidIndex {
    /// Last valid value.
    pub before: u64,
    /// Value found.
    pub now: u64,
    /// Largest valid value.
    pub max: u64,
}

/// Producing side.
#[derive(Debug)]
pub struct Producer<W> {
    indices: W,
    capacity: u64,
    /// Own index, including unpublished entries.
    produced: u64,
    /// The peer's index, as last seen.
    consumed: u64,
}

impl<W: Deref<Target = RingIndices>> Producer<W> {
    /// Creates the producer of a ring at its published indices: 0, or where an earlier producer stopped.
    ///
    /// # Errors
    /// [`InvalidIndex`] if the published indices are inconsistent.
    ///
    /// # Panics
    /// If `capacity` is not a power of two.
    pub fn open(indices: W, capacity: u64) -> Result<Self, InvalidIndex> {
        let (produced, consumed) = recover(&indices, capacity)?;
        Ok(Producer { indices, capacity, produced, consumed })
    }

    /// Returns the free slots, as last seen.
    #[inline]
    pub fn free_space(&self) -> u64 {
        (self.capacity - self.unconsumed()).min(u64::MAX - self.produced)
    }

    /// Returns the entries produced and, as last seen, not consumed.
    #[inline]
    pub fn unconsumed(&self) -> u64 {
        self.produced - self.consumed
    }

    /// Loads the consumer's index. Returns the free slots.
    ///
    /// # Errors
    /// [`InvalidIndex`].
    #[inline]
    pub fn refresh(&mut self) -> Result<u64, InvalidIndex> {
        let now = self.indices.consumed.0.index.load(Ordering::Acquire);
        self.consumed = validate(self.consumed, now, self.produced)?;
        Ok(self.free_space())
    }

    /// Returns the slot of the next entry to write.
    #[inline]
    pub fn slot(&self) -> usize {
        (self.produced & (self.capacity - 1)) as usize
    }

    /// Adds `count` written entries.
    ///
    /// # Panics
    /// If `count` exceeds the free slots.
    #[inline]
    pub fn advance(&mut self, count: u64) {
        assert!(
            count <= self.free_space(),
            "{count} were put into a ring with room for {}",
            self.free_space()
        );
        self.produced += count;
    }

    /// Publishes all entries written.
    #[inline]
    pub fn publish(&self) {
        self.indices.produced.0.store(self.produced, Ordering::Release);
    }

    /// Returns the time that the consumer has published with its index ([`Consumer::publish_at`]); 0 without one. It can
    /// be later than that of the last [`Producer::refresh`], and a peer can write any value.
    #[inline]
    pub fn consumed_at(&self) -> u64 {
        self.indices.consumed.0.at.load(Ordering::Relaxed)
    }

    /// Returns the number of entries consumed, as last seen.
    #[inline]
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Returns the number of entries ever produced.
    #[inline]
    pub fn index(&self) -> u64 {
        self.produced
    }
}

/// Consuming side.
#[derive(Debug)]
pub struct Consumer<W> {
    indices: W,
    capacity: u64,
    /// Own index, including unpublished progress.
    consumed: u64,
    /// The peer's index, as last seen.
    produced: u64,
}

impl<W: Deref<Target = RingIndices>> Consumer<W> {
    /// Creates the consumer of a ring at its published indices: 0, or where an earlier consumer stopped.
    ///
    /// # Errors
    /// [`InvalidIndex`] if the published indices are inconsistent.
    ///
    /// # Panics
    /// If `capacity` is not a power of two.
    pub fn open(indices: W, capacity: u64) -> Result<Self, InvalidIndex> {
        let (produced, consumed) = recover(&indices, capacity)?;
        Ok(Consumer { indices, capacity, produced, consumed })
    }

    /// Returns the entries that can be consumed, as last seen.
    #[inline]
    pub fn available(&self) -> u64 {
        self.produced - self.consumed
    }

    /// Loads the producer's index. Returns the entries that can be consumed.
    ///
    /// # Errors
    /// [`InvalidIndex`].
    #[inline]
    pub fn refresh(&mut self) -> Result<u64, InvalidIndex> {
        let now = self.indices.produced.0.load(Ordering::Acquire);
        self.produced = validate(self.produced, now, self.consumed.saturating_add(self.capacity))?;
        Ok(self.available())
    }

    /// Returns the slot of the next entry to read.
    #[inline]
    pub fn slot(&self) -> usize {
        (self.consumed & (self.capacity - 1)) as usize
    }

    /// Removes `count` entries.
    ///
    /// # Panics
    /// If `count` exceeds the available entries.
    #[inline]
    pub fn advance(&mut self, count: u64) {
        assert!(count <= self.available(), "{count} were taken of {} in a ring", self.available());
        self.consumed += count;
    }

    /// Publishes all progress, which frees the slots for the producer.
    #[inline]
    pub fn publish(&self) {
        self.indices.consumed.0.index.store(self.consumed, Ordering::Release);
    }

    /// As [`Consumer::publish`], with the time at which the entries were taken; 0 reports none.
    #[inline]
    pub fn publish_at(&self, at: u64) {
        self.indices.consumed.0.at.store(at, Ordering::Relaxed);
        self.publish();
    }

    /// Returns the number of entries ever consumed.
    #[inline]
    pub fn index(&self) -> u64 {
        self.consumed
    }
}

/// Loads the published `(produced, consumed)`, one of them possibly written by an earlier instance of this side.
/// `consumed` comes first, because the peer may still be running and both only grow.
fn recover(indices: &RingIndices, capacity: u64) -> Result<(u64, u64), InvalidIndex> {
    assert!(capacity.is_power_of_two(), "a ring's capacity is a power of two, not {capacity}");
    let consumed = indices.consumed.0.index.load(Ordering::Acquire);
    let produced = indices.produced.0.load(Ordering::Acquire);
    validate(consumed, produced, consumed.saturating_add(capacity))?;
    Ok((produced, consumed))
}

#[inline]
fn validate(before: u64, now: u64, max: u64) -> Result<u64, InvalidIndex> {
    if now < before || now > max {
        return Err(InvalidIndex { before, now, max });
    }
    Ok(now)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    fn pair(capacity: u64) -> (Producer<Arc<RingIndices>>, Consumer<Arc<RingIndices>>, Arc<RingIndices>) {
        let indices = Arc::new(RingIndices::new());
        (
            Producer::open(Arc::clone(&indices), capacity).unwrap(),
            Consumer::open(Arc::clone(&indices), capacity).unwrap(),
            indices,
        )
    }

    /// Writes arbitrary indices, as a hostile peer might.
    fn scribble(indices: &RingIndices, produced: u64, consumed: u64) {
        indices.produced.0.store(produced, Ordering::Relaxed);
        indices.consumed.0.index.store(consumed, Ordering::Relaxed);
    }

    #[test]
    fn publish_makes_entries_visible() {
        let (mut producer, mut consumer, _) = pair(4);
        producer.advance(3);
        assert_eq!(consumer.refresh(), Ok(0));
        producer.publish();
        assert_eq!(consumer.refresh(), Ok(3));
        consumer.advance(2);
        assert_eq!(producer.refresh(), Ok(1));
        consumer.publish();
        assert_eq!(producer.refresh(), Ok(3));
        assert_eq!((producer.slot(), consumer.slot()), (3, 2));
    }

    #[test]
    fn reports_time_of_consumption() {
        let (mut producer, mut consumer, _) = pair(4);
        assert_eq!(producer.consumed_at(), 0);
        producer.advance(3);
        producer.publish();
        consumer.refresh().unwrap();
        consumer.advance(2);
        consumer.publish_at(77);
        assert_eq!((producer.consumed(), producer.refresh()), (0, Ok(3)));
        assert_eq!((producer.consumed(), producer.consumed_at()), (2, 77));
        consumer.advance(1);
        consumer.publish_at(0);
        assert_eq!((producer.refresh(), producer.consumed_at()), (Ok(4), 0));
    }

    #[test]
    fn rejects_index_that_decreases_or_overruns() {
        let (mut producer, mut consumer, indices) = pair(4);
        producer.advance(4);
        producer.publish();
        assert_eq!(consumer.refresh(), Ok(4));
        scribble(&indices, 5, 5);
        assert_eq!(consumer.refresh(), Err(InvalidIndex { before: 4, now: 5, max: 4 }));
        assert_eq!(producer.refresh(), Err(InvalidIndex { before: 0, now: 5, max: 4 }));
        scribble(&indices, 3, 0);
        assert!(consumer.refresh().is_err() && producer.refresh().is_ok());
    }

    #[test]
    fn resumes_from_published_indices() {
        let (mut producer, mut consumer, indices) = pair(8);
        producer.advance(5);
        producer.publish();
        producer.advance(1);
        consumer.refresh().unwrap();
        consumer.advance(2);
        consumer.publish();
        consumer.advance(1);
        let mut producer = Producer::open(Arc::clone(&indices), 8).unwrap();
        let mut consumer = Consumer::open(Arc::clone(&indices), 8).unwrap();
        assert_eq!((producer.index(), producer.refresh()), (5, Ok(5)), "unpublished entries are lost");
        assert_eq!((consumer.index(), consumer.available(), consumer.refresh()), (2, 3, Ok(3)));
        for (produced, consumed) in [(9, 0), (0, 1), (u64::MAX, 0)] {
            scribble(&indices, produced, consumed);
            assert!(Producer::open(Arc::clone(&indices), 8).is_err(), "{produced} {consumed}");
            assert!(Consumer::open(Arc::clone(&indices), 8).is_err(), "{produced} {consumed}");
        }
    }

    /// Not reachable by counting, but the peer chooses where a ring resumes.
    #[test]
    fn stops_at_largest_index() {
        let indices = Arc::new(RingIndices::new());
        scribble(&indices, u64::MAX - 1, u64::MAX - 1);
        let mut producer = Producer::open(Arc::clone(&indices), 4).unwrap();
        let mut consumer = Consumer::open(Arc::clone(&indices), 4).unwrap();
        assert_eq!((producer.refresh(), consumer.refresh()), (Ok(1), Ok(0)));
        producer.advance(producer.free_space());
        producer.publish();
        assert_eq!((producer.refresh(), consumer.refresh()), (Ok(0), Ok(1)));
        consumer.advance(1);
        consumer.publish();
        assert_eq!((producer.refresh(), consumer.refresh()), (Ok(0), Ok(0)));
    }

    #[test]
    #[should_panic(expected = "room for 1")]
    fn advance_beyond_free_space_panics() {
        let (mut producer, ..) = pair(1);
        producer.advance(2);
    }

    /// Reference model of a ring.
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
                        let count = count.min(producer.free_space());
                        producer.advance(count);
                        oracle.unpublished += count;
                    }
                    1 => {
                        producer.publish();
                        oracle.visible += std::mem::take(&mut oracle.unpublished);
                    }
                    2 => {
                        let free = producer.refresh().unwrap();
                        prop_assert!(free <= capacity - oracle.unpublished - oracle.visible);
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
        fn garbage_indices_stay_within_bounds(
            indices in prop::collection::vec((any::<u64>(), any::<u64>()), 1..50),
            small in prop::collection::vec((0u64..40, 0u64..40), 1..50),
        ) {
            let (mut producer, mut consumer, shared) = pair(16);
            for (produced, consumed) in indices.into_iter().chain(small) {
                scribble(&shared, produced, consumed);
                if let Ok(free) = producer.refresh() {
                    prop_assert!(free <= 16);
                    producer.advance(free / 2);
                }
                if let Ok(available) = consumer.refresh() {
                    prop_assert!(available <= 16);
                    consumer.advance(available / 2);
                }
                prop_assert!(producer.slot() < 16 && consumer.slot() < 16);
            }
        }
    }
}

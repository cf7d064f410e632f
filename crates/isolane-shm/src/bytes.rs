//! Ring of bytes: a stream from one process to the other.
//!
//! Readable data and free space are at most two slices, which can be passed to the kernel as they are.

use crate::index::{Consumer, InvalidIndex, Producer, RingIndices};
use crate::memory::{MemoryError, RawSlice, RingStorage, SharedMemory, ShmRef};

/// Writing side.
#[derive(Debug)]
pub struct Writer {
    index: Producer<ShmRef<RingIndices>>,
    storage: RingStorage,
}

/// Reading side.
#[derive(Debug)]
pub struct Reader {
    index: Consumer<ShmRef<RingIndices>>,
    storage: RingStorage,
}

/// Location of a byte ring in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Offset of the indices, in bytes.
    pub indices: u64,
    /// Offset of the storage, in bytes; a multiple of the page size.
    pub bytes: u64,
    /// Capacity in bytes: whole pages, a power of two.
    pub capacity: u64,
}

impl Writer {
    /// Opens a ring at the position that an earlier writer published: 0 in a new ring, whose indices are zeroes.
    ///
    /// # Errors
    /// [`MemoryError`] if `layout` or the published indices are invalid.
    pub fn open(memory: &SharedMemory, layout: Layout) -> Result<Writer, MemoryError> {
        let storage = memory.ring_storage(layout.bytes, layout.capacity)?;
        Ok(Writer { index: Producer::open(memory.indices(layout.indices)?, layout.capacity)?, storage })
    }

    /// Writes and publishes as much as fits. Returns the number of bytes written.
    ///
    /// # Errors
    /// [`InvalidIndex`].
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, InvalidIndex> {
        if self.index.free_space() < bytes.len() as u64 {
            self.index.refresh()?;
        }
        let count = self.index.free_space().min(bytes.len() as u64) as usize;
        self.storage.copy_in(self.index.slot(), &bytes[..count]);
        self.index.advance(count as u64);
        self.publish();
        Ok(count)
    }

    /// Loads the reader's position. Returns the free space in bytes.
    ///
    /// # Errors
    /// [`InvalidIndex`].
    #[inline]
    pub fn refresh(&mut self) -> Result<u64, InvalidIndex> {
        self.index.refresh()
    }

    /// Copies all unread bytes out again. They are unread for certain only if the reader has stopped.
    ///
    /// # Errors
    /// [`InvalidIndex`].
    pub fn reclaim_unread(&mut self) -> Result<Vec<u8>, InvalidIndex> {
        self.index.refresh()?;
        let mut bytes = vec![0; self.index.unconsumed() as usize];
        let start = self.index.index() - self.index.unconsumed();
        self.storage.copy_out((start % self.storage.bytes() as u64) as usize, &mut bytes);
        Ok(bytes)
    }

    /// Returns all free space, to be written by the kernel.
    ///
    /// # Errors
    /// [`InvalidIndex`].
    #[inline]
    pub fn spare_slices(&mut self) -> Result<[RawSlice; 2], InvalidIndex> {
        let free = self.index.refresh()?;
        Ok(self.storage.slices(self.index.slot(), free as usize))
    }

    /// Adds the first `count` bytes of the spare slices to the unpublished data.
    ///
    /// # Panics
    /// If `count` exceeds the free space.
    #[inline]
    pub fn advance(&mut self, count: usize) {
        self.index.advance(count as u64);
    }

    /// Publishes all data written.
    #[inline]
    pub fn publish(&self) {
        self.index.publish();
    }

    /// Returns the free space in bytes, as last seen.
    #[inline]
    pub fn free_space(&self) -> u64 {
        self.index.free_space()
    }

    /// Returns the bytes written and, as last seen, not read.
    pub fn unread(&self) -> u64 {
        self.index.unconsumed()
    }

    /// Returns the number of bytes ever written.
    pub fn position(&self) -> u64 {
        self.index.index()
    }
}

impl Reader {
    /// Opens a ring at the position that an earlier reader published: 0 in a new ring, whose indices are zeroes.
    ///
    /// # Errors
    /// [`MemoryError`] if `layout` or the published indices are invalid.
    pub fn open(memory: &SharedMemory, layout: Layout) -> Result<Reader, MemoryError> {
        let storage = memory.ring_storage(layout.bytes, layout.capacity)?;
        Ok(Reader { index: Consumer::open(memory.indices(layout.indices)?, layout.capacity)?, storage })
    }

    /// Loads the writer's position. Returns the readable bytes.
    ///
    /// # Errors
    /// [`InvalidIndex`].
    #[inline]
    pub fn refresh(&mut self) -> Result<u64, InvalidIndex> {
        self.index.refresh()
    }

    /// Returns the readable bytes, as last seen.
    #[inline]
    pub fn available(&self) -> u64 {
        self.index.available()
    }

    /// Reads as much as is available and frees its space. Returns the number of bytes read.
    ///
    /// # Errors
    /// [`InvalidIndex`].
    #[inline]
    pub fn read(&mut self, bytes: &mut [u8]) -> Result<usize, InvalidIndex> {
        if self.index.available() < bytes.len() as u64 {
            self.index.refresh()?;
        }
        let count = self.index.available().min(bytes.len() as u64) as usize;
        self.storage.copy_out(self.index.slot(), &mut bytes[..count]);
        self.consume(count);
        self.publish();
        Ok(count)
    }

    /// Copies available data without freeing its space. Returns the number of bytes copied.
    ///
    /// # Errors
    /// [`InvalidIndex`].
    pub fn peek(&mut self, bytes: &mut [u8]) -> Result<usize, InvalidIndex> {
        let count = self.index.refresh()?.min(bytes.len() as u64) as usize;
        self.storage.copy_out(self.index.slot(), &mut bytes[..count]);
        Ok(count)
    }

    /// Returns all readable data, to be read by the kernel.
    ///
    /// # Errors
    /// [`InvalidIndex`].
    #[inline]
    pub fn pending(&mut self) -> Result<[RawSlice; 2], InvalidIndex> {
        let available = self.index.refresh()?;
        Ok(self.storage.slices(self.index.slot(), available as usize))
    }

    /// Consumes the first `count` bytes of the pending slices, without publishing it.
    ///
    /// # Panics
    /// If `count` exceeds the available bytes.
    #[inline]
    pub fn consume(&mut self, count: usize) {
        self.index.advance(count as u64);
    }

    /// Publishes all progress, which frees the space for the writer.
    #[inline]
    pub fn publish(&self) {
        self.index.publish();
    }

    /// Returns the number of bytes ever read.
    pub fn position(&self) -> u64 {
        self.index.index()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use crate::testing;

    #[test]
    fn wrapped_data_is_two_slices() {
        let (mut writer, mut reader, _corruptor) = testing::bytes(4096).unwrap();
        assert_eq!(writer.write(&[1; 4000]), Ok(4000));
        assert_eq!(reader.read(&mut [0; 4000]), Ok(4000));
        let long: Vec<u8> = (0..4096).map(|index| index as u8).collect();
        assert_eq!(writer.write(&long), Ok(4096));
        assert_eq!(writer.write(&[1]), Ok(0));
        let mut peeked = vec![0; 200];
        assert_eq!((reader.peek(&mut peeked), &peeked[..]), (Ok(200), &long[..200]));
        assert_eq!(reader.pending().map(|slices| slices.map(|slice| slice.len())), Ok([96, 4000]));
        let mut read = vec![0; 5000];
        assert_eq!(reader.read(&mut read), Ok(4096));
        assert_eq!(read[..4096], long);
    }

    #[test]
    fn reclaims_unread_bytes() {
        let (mut writer, mut reader, _corruptor) = testing::bytes(4096).unwrap();
        writer.write(&[1; 4000]).unwrap();
        reader.read(&mut [0; 3990]).unwrap();
        writer.write(&[2; 200]).unwrap();
        assert_eq!(writer.reclaim_unread().unwrap(), [[1; 10].as_slice(), &[2; 200]].concat());
    }

    #[test]
    fn stream_between_threads_arrives_in_order() {
        let (mut writer, mut reader, _corruptor) = testing::bytes(4096).unwrap();
        let sender = std::thread::spawn(move || {
            let mut sent = 0u64;
            while sent < 2_000_000 {
                let bytes: Vec<u8> = (0..1 + sent % 1500).map(|index| ((sent + index) % 251) as u8).collect();
                let count = writer.write(&bytes).unwrap() as u64;
                sent += count;
                if count == 0 {
                    std::thread::yield_now();
                }
            }
            sent
        });
        let (mut received, mut bytes) = (0u64, [0; 1111]);
        while received < 2_000_000 || !sender.is_finished() || reader.refresh().unwrap() > 0 {
            let count = reader.read(&mut bytes).unwrap();
            for byte in &bytes[..count] {
                assert_eq!(*byte, (received % 251) as u8);
                received += 1;
            }
            if count == 0 {
                std::thread::yield_now();
            }
        }
        assert_eq!(received, sender.join().unwrap());
    }

    proptest! {
        #[test]
        fn matches_queue_of_bytes(steps in prop::collection::vec((any::<bool>(), 0usize..5000), 0..60)) {
            let (mut writer, mut reader, _corruptor) = testing::bytes(4096).unwrap();
            let (mut oracle, mut next) = (VecDeque::<u8>::new(), 0u8);
            for (writes, len) in steps {
                if writes {
                    let bytes: Vec<u8> = (0..len).map(|index| next.wrapping_add(index as u8)).collect();
                    let count = writer.write(&bytes).unwrap();
                    prop_assert_eq!(count, len.min(4096 - oracle.len()));
                    oracle.extend(&bytes[..count]);
                    next = next.wrapping_add(count as u8);
                } else {
                    let mut bytes = vec![0; len];
                    let count = reader.read(&mut bytes).unwrap();
                    prop_assert_eq!(count, len.min(oracle.len()));
                    prop_assert!(oracle.drain(..count).eq(bytes[..count].iter().copied()));
                }
            }
        }
    }
}

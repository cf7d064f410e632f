//! A stream of bytes from one side to the other.
//!
//! What is to be read, and the room for what is to be written, is two pieces where it wraps, which may be given to the
//! kernel as they are.

use crate::index::{Consumer, Impossible, Producer, Words};
use crate::memory::{Circle, Memory, MemoryError, Piece, Shared};

/// The side that writes.
#[derive(Debug)]
pub struct Writer {
    index: Producer<Shared<Words>>,
    circle: Circle,
}

/// The side that reads.
#[derive(Debug)]
pub struct Reader {
    index: Consumer<Shared<Words>>,
    circle: Circle,
}

/// Where a ring of bytes is in a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Bytes before its indices.
    pub words: u64,
    /// Bytes before its bytes, a multiple of the page.
    pub bytes: u64,
    /// What it holds: whole pages, a power of two.
    pub capacity: u64,
}

impl Writer {
    /// The writer of a ring from byte `index` of its stream on, all before which was read.
    ///
    /// # Errors
    /// [`MemoryError`], if there can be no ring.
    pub fn new(memory: &Memory, place: Place, index: u64) -> Result<Writer, MemoryError> {
        let circle = memory.circle(place.bytes, place.capacity)?;
        Ok(Writer { index: Producer::at(memory.words(place.words)?, place.capacity, index), circle })
    }

    /// The writer of a ring that had one before, from where that one has published.
    ///
    /// # Errors
    /// [`MemoryError`], if there can be no ring, or its words cannot be.
    pub fn resume(memory: &Memory, place: Place) -> Result<Writer, MemoryError> {
        let circle = memory.circle(place.bytes, place.capacity)?;
        Ok(Writer { index: Producer::resume(memory.words(place.words)?, place.capacity)?, circle })
    }

    /// Writes as much as there is room for, and shows it to the other side. Returns how much that is.
    ///
    /// # Errors
    /// [`Impossible`], if the other side is hostile.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, Impossible> {
        let count = self.put(bytes)?;
        self.publish();
        Ok(count)
    }

    /// Writes as much as there is room for; [`Writer::publish`] shows it. Returns how much that is.
    ///
    /// # Errors
    /// [`Impossible`].
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> Result<usize, Impossible> {
        if self.index.room() < bytes.len() as u64 {
            self.index.refresh()?;
        }
        let count = self.index.room().min(bytes.len() as u64) as usize;
        self.circle.copy_in(self.index.place(), &bytes[..count]);
        self.index.advance(count as u64);
        Ok(count)
    }

    /// Looks what the other side has read. Returns how many bytes there is room for.
    ///
    /// # Errors
    /// [`Impossible`].
    #[inline]
    pub fn refresh(&mut self) -> Result<u64, Impossible> {
        self.index.refresh()
    }

    /// Copies what the other side has not read out again. Only where it is known not to read any more is that
    /// what nobody has read.
    ///
    /// # Errors
    /// [`Impossible`].
    pub fn take_back(&mut self) -> Result<Vec<u8>, Impossible> {
        self.index.refresh()?;
        let mut bytes = vec![0; self.index.unconsumed() as usize];
        let start = self.index.index() - self.index.unconsumed();
        self.circle.copy_out((start % self.circle.bytes() as u64) as usize, &mut bytes);
        Ok(bytes)
    }

    /// All the room there is, for somebody else to write into.
    ///
    /// # Errors
    /// [`Impossible`].
    #[inline]
    pub fn vacant(&mut self) -> Result<[Piece; 2], Impossible> {
        let room = self.index.refresh()?;
        Ok(self.circle.pieces(self.index.place(), room as usize))
    }

    /// So many bytes of what was vacant were written.
    ///
    /// # Panics
    /// If that is more than was vacant.
    #[inline]
    pub fn fill(&mut self, count: usize) {
        self.index.advance(count as u64);
    }

    /// Shows the other side all that was written.
    #[inline]
    pub fn publish(&self) {
        self.index.publish();
    }

    /// Bytes there is room for, as far as was seen.
    #[inline]
    pub fn room(&self) -> u64 {
        self.index.room()
    }

    /// Bytes that were written and, as far as was seen, not read.
    pub fn unread(&self) -> u64 {
        self.index.unconsumed()
    }

    /// Bytes written since the stream began.
    pub fn position(&self) -> u64 {
        self.index.index()
    }
}

impl Reader {
    /// The reader of a ring from byte `index` of its stream on.
    ///
    /// # Errors
    /// [`MemoryError`], if there can be no ring.
    pub fn new(memory: &Memory, place: Place, index: u64) -> Result<Reader, MemoryError> {
        let circle = memory.circle(place.bytes, place.capacity)?;
        Ok(Reader { index: Consumer::at(memory.words(place.words)?, place.capacity, index), circle })
    }

    /// The reader of a ring that had one before, from where that one has published.
    ///
    /// # Errors
    /// [`MemoryError`], if there can be no ring, or its words cannot be.
    pub fn resume(memory: &Memory, place: Place) -> Result<Reader, MemoryError> {
        let circle = memory.circle(place.bytes, place.capacity)?;
        Ok(Reader { index: Consumer::resume(memory.words(place.words)?, place.capacity)?, circle })
    }

    /// Looks what the other side has written. Returns how many bytes there are to be read.
    ///
    /// # Errors
    /// [`Impossible`].
    #[inline]
    pub fn refresh(&mut self) -> Result<u64, Impossible> {
        self.index.refresh()
    }

    /// Bytes to be read, as far as was seen.
    #[inline]
    pub fn available(&self) -> u64 {
        self.index.available()
    }

    /// Reads as much as there is, and gives its room back. Returns how much that is.
    ///
    /// # Errors
    /// [`Impossible`], if the other side is hostile.
    #[inline]
    pub fn read(&mut self, bytes: &mut [u8]) -> Result<usize, Impossible> {
        if self.index.available() < bytes.len() as u64 {
            self.index.refresh()?;
        }
        let count = self.index.available().min(bytes.len() as u64) as usize;
        self.circle.copy_out(self.index.place(), &mut bytes[..count]);
        self.consume(count);
        self.publish();
        Ok(count)
    }

    /// All there is, for somebody else to read.
    ///
    /// # Errors
    /// [`Impossible`].
    #[inline]
    pub fn pending(&mut self) -> Result<[Piece; 2], Impossible> {
        let available = self.index.refresh()?;
        Ok(self.circle.pieces(self.index.place(), available as usize))
    }

    /// So many bytes of what was pending were read.
    ///
    /// # Panics
    /// If that is more than was pending.
    #[inline]
    pub fn consume(&mut self, count: usize) {
        self.index.advance(count as u64);
    }

    /// Gives the room of all that was read back.
    #[inline]
    pub fn publish(&self) {
        self.index.publish();
    }

    /// Bytes read since the stream began.
    pub fn position(&self) -> u64 {
        self.index.index()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use crate::mock;

    #[test]
    fn what_wraps_is_two_pieces() {
        let (mut writer, mut reader, _vandal) = mock::bytes(4096).unwrap();
        assert_eq!(writer.write(&[1; 4000]), Ok(4000));
        assert_eq!(reader.read(&mut [0; 4000]), Ok(4000));
        let long: Vec<u8> = (0..4096).map(|index| index as u8).collect();
        assert_eq!(writer.write(&long), Ok(4096));
        assert_eq!(writer.write(&[1]), Ok(0));
        assert_eq!(reader.pending().map(|pieces| pieces.map(|piece| piece.len())), Ok([96, 4000]));
        let mut read = vec![0; 5000];
        assert_eq!(reader.read(&mut read), Ok(4096));
        assert_eq!(read[..4096], long);
    }

    #[test]
    fn what_was_not_read_can_be_taken_back() {
        let (mut writer, mut reader, _vandal) = mock::bytes(4096).unwrap();
        writer.write(&[1; 4000]).unwrap();
        reader.read(&mut [0; 3990]).unwrap();
        writer.write(&[2; 200]).unwrap();
        assert_eq!(writer.take_back().unwrap(), [[1; 10].as_slice(), &[2; 200]].concat());
    }

    #[test]
    fn a_stream_between_two_threads_arrives_whole_and_in_order() {
        let (mut writer, mut reader, _vandal) = mock::bytes(4096).unwrap();
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
        fn it_is_a_queue_of_bytes(steps in prop::collection::vec((any::<bool>(), 0usize..5000), 0..60)) {
            let (mut writer, mut reader, _vandal) = mock::bytes(4096).unwrap();
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

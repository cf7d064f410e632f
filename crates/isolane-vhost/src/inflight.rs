//! Requests in flight, in a file that the monitor keeps while the server restarts (vhost-user, "Inflight I/O tracking").
//!
//! Each queue has a region with a header, and an entry for each descriptor:
//!
//! | offset | header | entry |
//! |---|---|---|
//! | 0 | features, 0 | `inflight` in the first byte, `next` in the last two |
//! | 8 | version, number of entries, `last_batch_head`, `used_idx`, of two bytes each | `counter` |
//!
//! A word is written at once, so that a kill leaves each word as before or after. The guest's monitor can write anything
//! here.
//!
//! Invariants:
//! * A request that was taken and not published in the used ring is marked; after recovery no other is.
//! * Every index of the file is checked before use.

use std::sync::atomic::{AtomicU64, Ordering};

use isolane_shm::{MemoryError, PAGE_SIZE, SharedMemory, ShmRef};

/// The file, with regions of all queues.
#[derive(Clone, Debug)]
pub struct InflightFile {
    memory: SharedMemory,
    offset: u64,
    queues: u16,
    queue_size: u16,
}

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InflightError {
    /// Memory that cannot be used.
    #[error("file of requests in flight: {0}")]
    Memory(#[from] MemoryError),
    /// A queue that the file has no region for, or a smaller one.
    #[error("file of requests in flight: no region for queue {index} of {size}")]
    NoRegion {
        /// The queue.
        index: u32,
        /// Its size.
        size: u16,
    },
    /// A file that another program has written.
    #[error("file of requests in flight: version {0}; this server uses {VERSION}")]
    Version(u16),
}

impl InflightFile {
    /// Creates an empty file.
    ///
    /// # Errors
    /// The system's.
    pub fn create(queues: u16, queue_size: u16) -> Result<InflightFile, InflightError> {
        let bytes = (usize::from(queues) * region_bytes(queue_size)).next_multiple_of(PAGE_SIZE);
        let memory = SharedMemory::create("isolane-vhost-inflight", bytes)?;
        Ok(InflightFile { memory, offset: 0, queues, queue_size })
    }

    /// Maps the file of an earlier server.
    ///
    /// # Errors
    /// A file that could fault, or is too small.
    pub fn open(
        file: std::os::fd::OwnedFd,
        offset: u64,
        queues: u16,
        queue_size: u16,
    ) -> Result<InflightFile, InflightError> {
        let memory = SharedMemory::open(file, MAX_FILE_BYTES)?;
        let len = usize::from(queues) * region_bytes(queue_size);
        memory.raw_slice(offset, len as u64)?;
        Ok(InflightFile { memory, offset, queues, queue_size })
    }

    /// Returns the file.
    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// Returns the region of a queue.
    pub(crate) fn queue(&self, index: u32, size: u16) -> Result<Inflight, InflightError> {
        if index >= self.queues.into() || size > self.queue_size {
            return Err(InflightError::NoRegion { index, size });
        }
        let start = self.offset + u64::from(index) * region_bytes(self.queue_size) as u64;
        let words = (0..HEADER_WORDS + 2 * u64::from(size))
            .map(|word| self.memory.atomic_u64(start + 8 * word))
            .collect::<Result<Vec<_>, _>>()?;
        let inflight = Inflight { words, counter: 1 };
        let header = inflight.header();
        match header.version {
            0 => inflight.set_header(Header { version: VERSION, entries: size, ..header }),
            VERSION => {}
            version => return Err(InflightError::Version(version)),
        }
        Ok(inflight)
    }
}

fn region_bytes(queue_size: u16) -> usize {
    (8 * HEADER_WORDS as usize + 16 * usize::from(queue_size)).next_multiple_of(64)
}

/// The region of one queue.
#[derive(Debug)]
pub(crate) struct Inflight {
    words: Vec<ShmRef<AtomicU64>>,
    /// Of the next request.
    counter: u64,
}

#[derive(Clone, Copy)]
struct Header {
    version: u16,
    entries: u16,
    last_batch_head: u16,
    used_idx: u16,
}

impl Inflight {
    /// Recovers the state after the end of a server. Returns the heads of unfinished requests, in the order in which
    /// they were taken.
    pub fn recover(&mut self, used_idx: u16) -> Vec<u16> {
        let header = self.header();
        // The last requests were published; their marks may be left.
        let mut head = header.last_batch_head;
        for _ in 0..used_idx.wrapping_sub(header.used_idx).min(self.entries()) {
            if head >= self.entries() {
                break;
            }
            let next = (self.entry(head).load(Ordering::Relaxed) >> NEXT_SHIFT) as u16;
            self.entry(head).store(u64::from(next) << NEXT_SHIFT, Ordering::Release);
            head = next;
        }
        self.set_header(Header { used_idx, ..header });
        let is_marked = |head: &u16| self.entry(*head).load(Ordering::Acquire) & MARK_MASK != 0;
        let mut heads: Vec<u16> = (0..self.entries()).filter(is_marked).collect();
        heads.sort_by_key(|head| self.count(*head).load(Ordering::Relaxed));
        let last = heads.last().map_or(0, |head| self.count(*head).load(Ordering::Relaxed));
        self.counter = last.wrapping_add(1);
        heads
    }

    /// Marks a request that was taken.
    pub fn start(&mut self, head: u16) {
        self.count(head).store(self.counter, Ordering::Release);
        self.counter = self.counter.wrapping_add(1);
        self.entry(head).store(1, Ordering::Release);
    }

    /// Records that a request is published next.
    pub fn finish(&self, head: u16) {
        let header = self.header();
        self.entry(head).store(1 | u64::from(header.last_batch_head) << NEXT_SHIFT, Ordering::Release);
        self.set_header(Header { last_batch_head: head, ..header });
    }

    /// Removes the mark of a published request.
    pub fn published(&self, head: u16, used_idx: u16) {
        let entry = self.entry(head).load(Ordering::Relaxed);
        self.entry(head).store(entry & !MARK_MASK, Ordering::Release);
        self.set_header(Header { used_idx, ..self.header() });
    }

    fn entries(&self) -> u16 {
        ((self.words.len() as u64 - HEADER_WORDS) / 2) as u16
    }

    fn entry(&self, head: u16) -> &AtomicU64 {
        &self.words[HEADER_WORDS as usize + 2 * usize::from(head)]
    }

    fn count(&self, head: u16) -> &AtomicU64 {
        &self.words[HEADER_WORDS as usize + 2 * usize::from(head) + 1]
    }

    fn header(&self) -> Header {
        let word = self.words[1].load(Ordering::Acquire);
        let field = |index: u32| (word >> (16 * index)) as u16;
        Header { version: field(0), entries: field(1), last_batch_head: field(2), used_idx: field(3) }
    }

    fn set_header(&self, header: Header) {
        let Header { version, entries, last_batch_head, used_idx } = header;
        let fields = [version, entries, last_batch_head, used_idx];
        let word = fields.iter().rev().fold(0, |word, field| word << 16 | u64::from(*field));
        self.words[1].store(word, Ordering::Release);
    }
}

/// Version of the layout.
const VERSION: u16 = 1;
const HEADER_WORDS: u64 = 2;
const MARK_MASK: u64 = 0xff;
const NEXT_SHIFT: u32 = 48;
/// More than all queues need.
const MAX_FILE_BYTES: usize = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    fn open(file: &InflightFile) -> Inflight {
        file.queue(0, 8).unwrap()
    }

    fn file() -> InflightFile {
        InflightFile::create(2, 8).unwrap()
    }

    #[test]
    fn recovers_unfinished_requests_in_order() {
        let file = file();
        let mut inflight = open(&file);
        assert!(inflight.recover(0).is_empty());
        for head in [5, 0, 7, 2] {
            inflight.start(head);
        }
        inflight.finish(0);
        inflight.published(0, 1);
        let mut next = open(&file);
        assert_eq!(next.recover(1), [5, 7, 2]);
        // The order of new requests follows.
        next.start(0);
        assert_eq!(open(&file).recover(1), [5, 7, 2, 0]);
    }

    #[test]
    fn kill_around_publication_repeats_only_unpublished() {
        let file = file();
        let mut inflight = open(&file);
        inflight.recover(65535);
        inflight.start(3);
        inflight.start(4);
        inflight.finish(3);
        assert_eq!(open(&file).recover(65535), [3, 4], "killed before the publication");
        inflight.finish(3);
        assert_eq!(open(&file).recover(0), [4], "killed after the publication");
        inflight.published(3, 0);
        assert_eq!(open(&file).recover(0), [4]);
    }

    #[test]
    fn recovers_from_any_content() {
        for fill in [1, 8, 0x7f, 0xff] {
            let file = file();
            let bytes = [fill; 16 + 16 * 8];
            file.memory().copy_in(0, &bytes).unwrap();
            let opened = file.queue(0, 8);
            if u16::from_le_bytes([fill, fill]) != VERSION {
                assert!(matches!(opened, Err(InflightError::Version(_))));
            }
            file.memory().copy_in(8, &VERSION.to_le_bytes()).unwrap();
            let mut inflight = open(&file);
            let heads = inflight.recover(0x1234);
            assert!(heads.len() <= 8 && heads.iter().all(|head| *head < 8));
            inflight.start(0);
        }
    }

    #[test]
    fn rejects_files_without_the_region() {
        let file = file();
        for (index, size) in [(2, 8), (u32::MAX, 8), (0, 16)] {
            assert!(matches!(file.queue(index, size), Err(InflightError::NoRegion { .. })));
        }
        let open = |offset, queues, size| {
            InflightFile::open(file.memory().memfd().try_clone_to_owned().unwrap(), offset, queues, size)
        };
        assert!(open(0, 2, 8).is_ok());
        for (offset, queues, size) in [(0, 256, 1024), (4096, 1, 8), (u64::MAX, 1, 8)] {
            assert!(open(offset, queues, size).is_err(), "{offset} {queues} {size}");
        }
        let unaligned = open(4, 1, 8).unwrap();
        assert!(unaligned.queue(0, 8).is_err());
    }
}

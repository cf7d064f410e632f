//! Gather list of reference-counted segments to send. Clones and slices copy no payload.
//!
//! Invariant: the bytes do not change while the payload lives, except in shared memory.

use std::fmt;
use std::io::IoSlice;
use std::sync::Arc;

use crate::PAGE_SIZE;
use crate::block::Block;
use crate::memory_region::MemoryRegion;
use crate::page::{Page, PageList};
use crate::shared::Shared;

mod segments;
use segments::{List, Runs, Segment};

/// Bytes to send, gathered from pages, blocks, and constants.
#[derive(Clone, Default)]
pub struct Payload {
    segments: List,
    len: usize,
}

impl Payload {
    /// Returns `len` zeroes from constant memory.
    pub fn zeroes(len: usize) -> Payload {
        let mut payload = Payload::default();
        payload.push_zeroes(len);
        payload
    }

    /// Returns an empty payload with capacity for `segments`.
    pub fn with_capacity(segments: usize) -> Payload {
        Payload { segments: segments::list_with_capacity(segments), len: 0 }
    }

    /// Returns `len` bytes of a page from `start`.
    ///
    /// # Panics
    /// If the range is outside of the page, or empty.
    #[inline]
    pub fn from_page(page: Page, start: usize, len: usize) -> Payload {
        assert!(
            start < PAGE_SIZE && len > 0 && len <= PAGE_SIZE - start,
            "{len} bytes from {start} leave the page"
        );
        Payload::from_segment(Segment::Page { page, start: start as u16, len: len as u16 }, len)
    }

    pub(crate) fn from_pages(pages: PageList, len: usize) -> Payload {
        let mut payload = Payload::with_capacity(pages.len());
        for page in pages {
            let part = (len - payload.len).min(PAGE_SIZE);
            payload.push_page(page, 0, part);
        }
        payload
    }

    #[inline]
    pub(crate) fn from_block(block: Arc<Block>, start: usize, len: usize) -> Payload {
        assert!(start + len <= u32::MAX as usize, "a payload refers only to blocks below 4 GiB");
        Payload::from_segment(Segment::Block { block, start: start as u32, len: len as u32 }, len)
    }

    pub(crate) fn from_shared(range: Arc<Shared>, start: usize, len: usize) -> Payload {
        assert!(
            start + len <= range.len().min(u32::MAX as usize),
            "a payload refers only to ranges below 4 GiB"
        );
        Payload::from_segment(Segment::Shared { range, start: start as u32, len: len as u32 }, len)
    }

    /// Returns a payload of one segment of `len` bytes, without the general path of appending.
    #[inline]
    fn from_segment(segment: Segment, len: usize) -> Payload {
        match len {
            0 => Payload::default(),
            _ => Payload { segments: List::from_buf([segment]), len },
        }
    }

    /// Whether any of it is in shared memory, which another process can change at any time.
    pub fn is_in_shared_memory(&self) -> bool {
        self.segments.iter().any(Segment::is_in_shared_memory)
    }

    /// Copies bytes in shared memory to private memory.
    pub fn into_private(self) -> Payload {
        if self.is_in_shared_memory() { Payload::from(self.to_vec()) } else { self }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends `len` bytes of a page from `start`.
    ///
    /// # Panics
    /// If the range is outside of the page.
    #[inline]
    pub fn push_page(&mut self, page: Page, start: usize, len: usize) {
        assert!(start <= PAGE_SIZE && len <= PAGE_SIZE - start, "{len} bytes from {start} leave the page");
        self.push(Segment::Page { page, start: start as u16, len: len as u16 });
    }

    /// Appends `len` bytes of a region from `start`.
    ///
    /// # Panics
    /// If the range is outside of the region, or has 4 GiB or more.
    pub fn push_region(&mut self, region: Arc<MemoryRegion>, start: usize, len: usize) {
        let is_inside = start.checked_add(len).is_some_and(|end| end <= region.len());
        assert!(is_inside && len <= u32::MAX as usize, "{len} bytes from {start} are outside of the region");
        self.push(Segment::Region { region, start, len: len as u32 });
    }

    /// Appends constant bytes.
    pub fn push_static(&mut self, bytes: &'static [u8]) {
        self.push(Segment::Static(bytes));
    }

    /// Appends `len` zeroes.
    pub fn push_zeroes(&mut self, len: usize) {
        let mut left = len;
        while left > 0 {
            let part = left.min(ZEROES.len());
            self.push_static(&ZEROES[..part]);
            left -= part;
        }
    }

    /// Appends another payload.
    pub fn append(&mut self, mut other: Payload) {
        self.len += other.len;
        self.segments.append(&mut other.segments);
    }

    #[inline]
    fn push(&mut self, segment: Segment) {
        let len = segment.len();
        if len > 0 {
            self.len += len;
            self.segments.push(segment);
        }
    }

    /// Returns references to a range.
    ///
    /// # Panics
    /// If the range is outside of the payload.
    pub fn slice(&self, offset: usize, len: usize) -> Payload {
        self.check_range(offset, len);
        let (mut part, mut skip) = (Payload::default(), offset);
        for segment in &self.segments {
            let from = skip.min(segment.len());
            let count = (len - part.len).min(segment.len() - from);
            if count > 0 {
                part.push(segment.slice(from, count));
            }
            skip -= from;
        }
        part
    }

    /// Splits off the first `len` bytes. Complete segments move without a change of their counters.
    ///
    /// # Panics
    /// If there are fewer bytes.
    pub fn split_to(&mut self, len: usize) -> Payload {
        assert!(len <= self.len, "{len} bytes were taken from a payload of {}", self.len);
        if len == self.len {
            return std::mem::take(self);
        }
        let (mut count, mut cut) = (0, len);
        while self.segments[count].len() <= cut {
            cut -= self.segments[count].len();
            count += 1;
        }
        let mut front = Payload::with_capacity(count + usize::from(cut > 0));
        front.segments.extend(self.segments.drain(..count));
        front.len = len - cut;
        if cut > 0 {
            let segment = &mut self.segments[0];
            front.push(segment.slice(0, cut));
            *segment = segment.slice(cut, segment.len() - cut);
        }
        self.len -= len;
        front
    }

    /// Returns the slices of a range for the kernel to read, each with its length, because `IoSlice::len` forms a
    /// reference to the bytes.
    ///
    /// # Panics
    /// If the range is outside of the payload.
    #[inline]
    pub fn io_slices(&self, offset: usize, len: usize) -> impl Iterator<Item = (IoSlice<'_>, usize)> {
        // SAFETY: the segments keep the memory alive, and memory of a payload is not written.
        self.runs(offset, len).map(|run| unsafe { run.io_slice() })
    }

    /// Returns the slices of a range; adjacent pages are one slice.
    ///
    /// # Panics
    /// If the range is outside of the payload, or any of the payload is in shared memory.
    #[inline]
    pub fn slices(&self, offset: usize, len: usize) -> impl Iterator<Item = &[u8]> {
        assert!(!self.is_in_shared_memory(), "shared memory has no slices; copy it, or use `io_slices`");
        // SAFETY: the segments keep the memory alive, and memory of a payload is not written.
        self.runs(offset, len).map(|run| unsafe { run.bytes() })
    }

    #[inline]
    fn runs(&self, offset: usize, len: usize) -> Runs<'_> {
        self.check_range(offset, len);
        Runs { segments: &self.segments, skip: offset, left: len }
    }

    /// Returns all bytes if they are one segment and not in shared memory.
    #[inline]
    pub fn as_slice(&self) -> Option<&[u8]> {
        match &self.segments[..] {
            [segment] => segment.private_bytes(),
            _ => None,
        }
    }

    /// Returns a checksum of the bytes if they are one complete page. The page caches it until it can be written.
    /// All callers pass the same function.
    #[inline]
    pub fn page_checksum(&self, compute: impl FnOnce(&[u8]) -> u32) -> Option<u32> {
        match &self.segments[..] {
            [segment] => segment.page_checksum(compute),
            _ => None,
        }
    }

    /// Copies all bytes.
    ///
    /// # Panics
    /// If memory of a region is not mapped.
    pub fn to_vec(&self) -> Vec<u8> {
        self.try_to_vec().expect("the memory of the payload is mapped")
    }

    /// Copies all bytes. `None` if memory of a region is not mapped.
    pub fn try_to_vec(&self) -> Option<Vec<u8>> {
        let mut bytes = Vec::with_capacity(self.len);
        self.segments.iter().all(|segment| segment.copy_to(&mut bytes)).then_some(bytes)
    }

    /// Passes the pages to `recycle`.
    #[inline]
    pub(crate) fn recycle(mut self, recycle: impl FnMut(Page)) {
        match self.segments.len() {
            1 => self.segments.pop().and_then(Segment::into_page).into_iter().for_each(recycle),
            _ => self.segments.drain(..).filter_map(Segment::into_page).for_each(recycle),
        }
    }

    fn check_range(&self, offset: usize, len: usize) {
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(is_inside, "{len} bytes from {offset} are outside of a payload of {} bytes", self.len);
    }
}

impl Drop for Payload {
    #[inline]
    fn drop(&mut self) {
        if self.segments.spilled() {
            segments::recycle_list(std::mem::take(&mut self.segments));
        }
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Payload {
        let len = bytes.len();
        Payload::from_block(Block::from_vec(bytes), 0, len)
    }
}

impl From<Page> for Payload {
    fn from(page: Page) -> Payload {
        Payload::from_page(page, 0, PAGE_SIZE)
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes in {} segments)", self.len, self.segments.len())
    }
}

/// Memory of a zero-copy send, which the kernel reads after the call has returned.
///
/// Invariant: none of it changes or is freed while this value lives.
#[derive(Debug, Default)]
pub struct ZeroCopySend {
    /// Memory of headers, which can contain older headers.
    pub headers: Vec<u8>,
    /// Payloads that were sent, at least in part.
    pub payloads: Vec<Payload>,
    /// Number of sent bytes.
    pub bytes: usize,
}

static ZEROES: [u8; 16 * PAGE_SIZE] = [0; 16 * PAGE_SIZE];
const _: () = assert!(PAGE_SIZE <= u16::MAX as usize);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> (Payload, Vec<u8>) {
        let mut page = Page::zeroed();
        page.bytes_mut().unwrap().fill(3);
        let mut payload = Payload::from(vec![1; 100]);
        payload.push_page(page, 96, 4000);
        payload.push_static(b"static");
        payload.append(Payload::zeroes(70_000));
        let bytes = [vec![1; 100], vec![3; 4000], b"static".to_vec(), vec![0; 70_000]].concat();
        (payload, bytes)
    }

    #[test]
    fn gathers_its_parts_in_order() {
        let (payload, bytes) = sample();
        assert_eq!(payload.len(), bytes.len());
        assert_eq!(payload.to_vec(), bytes);
        assert!(Payload::from(Vec::new()).is_empty());
    }

    #[test]
    fn segments_are_small() {
        assert!(size_of::<Segment>() <= 24);
    }

    #[test]
    fn caches_a_checksum_until_the_page_is_written() {
        let sum = |bytes: &[u8]| bytes.iter().map(|&byte| u32::from(byte)).sum();
        let mut page = Page::zeroed();
        page.bytes_mut().unwrap().fill(2);
        let payload = Payload::from(page.clone());
        assert_eq!(payload.page_checksum(sum), Some(8192));
        assert_eq!(payload.clone().page_checksum(|_| unreachable!("the checksum is cached")), Some(8192));
        assert_eq!(payload.slice(0, 4095).page_checksum(sum), None);
        assert!(page.bytes_mut().is_none());
        drop(payload);
        page.bytes_mut().unwrap()[4095] = 3;
        assert_eq!(Payload::from(page).page_checksum(sum), Some(8193));
    }

    proptest! {
        #[test]
        fn slices_of_slices_keep_the_bytes(a in 0usize..74_000, b in 0usize..74_000, c in 0usize..74_000) {
            let (payload, bytes) = sample();
            let start = a.min(bytes.len());
            let len = b.min(bytes.len() - start);
            let part = payload.slice(start, len);
            prop_assert_eq!(part.to_vec(), &bytes[start..start + len]);
            let from = c.min(len);
            let tail: Vec<u8> = part.slices(from, len - from).flatten().copied().collect();
            prop_assert_eq!(tail, &bytes[start + from..start + len]);
        }

        #[test]
        fn split_parts_keep_the_bytes(parts in prop::collection::vec(0usize..30_000, 0..20)) {
            let (mut payload, bytes) = sample();
            let mut taken = Vec::new();
            for part in parts {
                let front = payload.split_to(part.min(payload.len()));
                prop_assert_eq!(front.len(), front.to_vec().len());
                taken.extend(front.to_vec());
            }
            prop_assert_eq!(payload.len(), bytes.len() - taken.len());
            taken.extend(payload.to_vec());
            prop_assert_eq!(taken, bytes);
        }
    }
}

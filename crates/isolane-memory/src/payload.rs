//! What is sent: a gather list of counted references. Cloning and slicing copy no payload byte.
//!
//! Invariant: the bytes it refers to do not change while it lives, but for those of foreign memory.

use std::fmt;
use std::io::IoSlice;
use std::sync::Arc;

use crate::PAGE_SIZE;
use crate::block::Block;
use crate::foreign::Foreign;
use crate::guard::PageGuard;
use crate::page::{Page, PageList};
use crate::pool::Pool;

mod segments;
use segments::{IoSlices, Segment, Segments, Slices};

/// Bytes to send, gathered from pages, blocks and constants.
#[derive(Clone, Default)]
pub struct Payload {
    segments: Segments,
    len: usize,
}

impl Payload {
    /// `len` zeroes, from constant memory that no counter guards.
    pub fn zeroes(len: usize) -> Payload {
        let mut payload = Payload::default();
        payload.push_zeroes(len);
        payload
    }

    /// Nothing yet, with room for `segments` pieces.
    pub fn with_capacity(segments: usize) -> Payload {
        Payload { segments: Segments::with_capacity(segments), len: 0 }
    }

    /// `len` bytes from `start` of a page that is looked at.
    ///
    /// # Panics
    /// If the range is outside of the page, or empty.
    #[inline]
    pub fn from_guard(page: PageGuard, start: usize, len: usize) -> Payload {
        assert!(
            start < PAGE_SIZE && len > 0 && len <= PAGE_SIZE - start,
            "{len} bytes from {start} leave the page"
        );
        let segment = Segment::Guard { page, start: start as u16, len: len as u16 };
        Payload { segments: Segments::of(segment), len }
    }

    pub(crate) fn from_pages(pages: PageList, len: usize) -> Payload {
        let mut payload = Payload::with_capacity(pages.len());
        for page in pages {
            let part = (len - payload.len).min(PAGE_SIZE);
            payload.push_page(page, 0, part);
        }
        payload
    }

    pub(crate) fn from_block(block: Arc<Block>, start: usize, len: usize) -> Payload {
        assert!(start + len <= u32::MAX as usize, "a payload refers to blocks below 4 GiB only");
        let segment = Segment::Block { block, start: start as u32, len: len as u32 };
        let segments = if len > 0 { Segments::of(segment) } else { Segments::default() };
        Payload { segments, len }
    }

    pub(crate) fn from_foreign(place: Arc<Foreign>, start: usize, len: usize) -> Payload {
        assert!(
            start + len <= place.len().min(u32::MAX as usize),
            "a payload refers to places below 4 GiB only"
        );
        let segment = Segment::Foreign { place, start: start as u32, len: len as u32 };
        let segments = if len > 0 { Segments::of(segment) } else { Segments::default() };
        Payload { segments, len }
    }

    /// Whether any of it is in memory that another process may change at any time.
    pub fn is_foreign(&self) -> bool {
        self.segments.iter().any(Segment::is_foreign)
    }

    /// The same bytes, in memory of our own, as they are now.
    pub fn into_own(self) -> Payload {
        match self.is_foreign() {
            true => Payload::from(self.to_vec()),
            false => self,
        }
    }

    /// Bytes in all.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing to send.
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

    /// Appends `len` bytes from `start` of a page that is looked at.
    ///
    /// # Panics
    /// If the range is outside of the page.
    #[inline]
    pub fn push_guard(&mut self, page: PageGuard, start: usize, len: usize) {
        assert!(start <= PAGE_SIZE && len <= PAGE_SIZE - start, "{len} bytes from {start} leave the page");
        self.push(Segment::Guard { page, start: start as u16, len: len as u16 });
    }

    /// Counts the pages that `pool` looks at for it, so that it may be kept for longer.
    pub fn count_pages(&mut self, pool: &mut Pool) {
        self.segments.iter_mut().for_each(|segment| segment.count_page(pool));
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

    /// References to a range.
    ///
    /// # Panics
    /// If the range is outside of the payload.
    pub fn slice(&self, offset: usize, len: usize) -> Payload {
        let mut part = Payload::default();
        for (segment, from, count) in self.pieces(offset, len) {
            part.push(segment.part(from, count));
        }
        part
    }

    /// Takes the first `len` bytes away: what lies wholly in them is moved, not counted anew.
    ///
    /// # Panics
    /// If there are fewer bytes.
    pub fn split_to(&mut self, len: usize) -> Payload {
        assert!(len <= self.len, "{len} bytes were taken from a payload of {}", self.len);
        if len == self.len {
            return std::mem::take(self);
        }
        let (mut whole, mut cut) = (0, len);
        while self.segments[whole].len() <= cut {
            cut -= self.segments[whole].len();
            whole += 1;
        }
        let mut front = Payload::with_capacity(whole + usize::from(cut > 0));
        front.segments.extend(self.segments.drain(..whole));
        front.len = len - cut;
        if cut > 0 {
            let segment = &mut self.segments[0];
            front.push(segment.part(0, cut));
            *segment = segment.part(cut, segment.len() - cut);
        }
        self.len -= len;
        front
    }

    /// The pieces of a range, in order, for the kernel to read from, each with its length: to ask a piece
    /// itself would form a reference to its bytes.
    ///
    /// # Panics
    /// If the range is outside of the payload.
    #[inline]
    pub fn io_slices(&self, offset: usize, len: usize) -> impl Iterator<Item = (IoSlice<'_>, usize)> {
        self.check_range(offset, len);
        IoSlices(Slices::new(&self.segments, offset, len))
    }

    /// The pieces of a range, in order; neighbouring pages are one piece.
    ///
    /// # Panics
    /// If the range is outside of the payload, or a piece of it foreign.
    #[inline]
    pub fn slices(&self, offset: usize, len: usize) -> impl Iterator<Item = &[u8]> {
        self.check_range(offset, len);
        Slices::new(&self.segments, offset, len)
    }

    /// All bytes, if they are one piece, and not foreign.
    #[inline]
    pub fn as_slice(&self) -> Option<&[u8]> {
        match &self.segments[..] {
            [segment] => segment.own_bytes(),
            _ => None,
        }
    }

    /// What `compute` makes of all bytes, if they are one whole page: remembered with the page until its owner may
    /// write to it. The whole program has to bring one function.
    #[inline]
    pub fn page_checksum(&self, compute: impl FnOnce(&[u8]) -> u32) -> Option<u32> {
        match &self.segments[..] {
            [segment] => segment.page_checksum(compute),
            _ => None,
        }
    }

    /// All bytes, copied.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len);
        let mut add = |slice: &[u8]| bytes.extend_from_slice(slice);
        self.segments.iter().for_each(|segment| segment.visit(0, segment.len(), &mut add));
        bytes
    }

    /// Gives its pages and guards to `pool`.
    #[inline]
    pub(crate) fn drain_to(mut self, pool: &mut Pool) {
        match self.segments.len() {
            1 => self.segments.pop().into_iter().for_each(|segment| segment.give_to(pool)),
            _ => self.segments.drain(..).for_each(|segment| segment.give_to(pool)),
        }
    }

    fn pieces(&self, offset: usize, len: usize) -> impl Iterator<Item = (&Segment, usize, usize)> {
        self.check_range(offset, len);
        let (mut skip, mut left) = (offset, len);
        self.segments.iter().filter_map(move |segment| {
            let from = skip.min(segment.len());
            skip -= from;
            let count = left.min(segment.len() - from);
            left -= count;
            (count > 0).then_some((segment, from, count))
        })
    }

    fn check_range(&self, offset: usize, len: usize) {
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(is_inside, "{len} bytes from {offset} are outside of a payload of {} bytes", self.len);
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
        let segment = Segment::Page { page, start: 0, len: PAGE_SIZE as u16 };
        Payload { segments: Segments::of(segment), len: PAGE_SIZE }
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes in {} segments)", self.len, self.segments.len())
    }
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
    fn a_gather_list_reads_as_its_parts_in_order() {
        let (payload, bytes) = sample();
        assert_eq!(payload.len(), bytes.len());
        assert_eq!(payload.to_vec(), bytes);
        assert!(Payload::from(Vec::new()).is_empty());
    }

    #[test]
    fn a_segment_stays_small() {
        assert!(size_of::<Segment>() <= 24);
    }

    #[test]
    fn a_checksum_is_computed_once_until_the_page_is_written() {
        let sum = |bytes: &[u8]| bytes.iter().map(|&byte| u32::from(byte)).sum();
        let mut page = Page::zeroed();
        page.bytes_mut().unwrap().fill(2);
        let payload = Payload::from(page.clone());
        assert_eq!(payload.page_checksum(sum), Some(8192));
        assert_eq!(payload.clone().page_checksum(|_| unreachable!("it is known")), Some(8192));
        assert_eq!(payload.slice(0, 4095).page_checksum(sum), None);
        assert!(page.bytes_mut().is_none());
        drop(payload);
        page.bytes_mut().unwrap()[4095] = 3;
        assert_eq!(Payload::from(page).page_checksum(sum), Some(8193));
    }

    proptest! {
        #[test]
        fn any_slice_of_any_slice_is_the_same_bytes(a in 0usize..74_000, b in 0usize..74_000, c in 0usize..74_000) {
            let (payload, bytes) = sample();
            let start = a.min(bytes.len());
            let len = b.min(bytes.len() - start);
            let part = payload.slice(start, len);
            prop_assert_eq!(part.to_vec(), &bytes[start..start + len]);
            let from = c.min(len);
            let rest: Vec<u8> = part.slices(from, len - from).flatten().copied().collect();
            prop_assert_eq!(rest, &bytes[start + from..start + len]);
        }

        #[test]
        fn a_payload_taken_away_in_parts_is_the_same_bytes(parts in prop::collection::vec(0usize..30_000, 0..20)) {
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

//! Segments of a payload, and the lists that store them.
//!
//! A list with heap storage is kept by its thread for the next long payload, so that warm threads send long
//! payloads without allocations.

use std::cell::RefCell;
use std::io::IoSlice;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::PAGE_SIZE;
use crate::block::Block;
use crate::page::Page;
use crate::page_run::PageRun;
use crate::shared::Shared;

pub(super) enum Segment {
    Page { page: Page, start: u16, len: u16 },
    Block { block: Arc<Block>, start: u32, len: u32 },
    Shared { range: Arc<Shared>, start: u32, len: u32 },
    Static(&'static [u8]),
}

impl Segment {
    /// # Panics
    /// If it is in shared memory.
    fn bytes(&self) -> &[u8] {
        match self.private_bytes() {
            Some(bytes) => bytes,
            None => panic!("shared memory has no slices; copy it, or use `io_slices`"),
        }
    }

    /// Returns the bytes, `None` in shared memory.
    #[inline]
    pub(super) fn private_bytes(&self) -> Option<&[u8]> {
        Some(match self {
            Segment::Page { page, start, len } => &page.bytes()[usize::from(*start)..][..usize::from(*len)],
            Segment::Block { block, start, len } => &block.bytes()[*start as usize..][..*len as usize],
            Segment::Static(bytes) => bytes,
            Segment::Shared { .. } => return None,
        })
    }

    pub(super) fn is_in_shared_memory(&self) -> bool {
        matches!(self, Segment::Shared { .. })
    }

    /// Calls a function with a part of the bytes. Shared memory is copied first.
    pub(super) fn for_each_slice(&self, from: usize, count: usize, f: &mut impl FnMut(&[u8])) {
        match self {
            Segment::Shared { range, start, .. } => range.for_each_slice(*start as usize + from, count, f),
            _ => f(&self.bytes()[from..from + count]),
        }
    }

    /// Returns a part of the bytes for the kernel to read.
    fn io_slice(&self, from: usize, count: usize) -> IoSlice<'_> {
        match self {
            Segment::Shared { range, start, .. } => range.io_slice(*start as usize + from, count),
            _ => IoSlice::new(&self.bytes()[from..from + count]),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Segment::Page { len, .. } => usize::from(*len),
            Segment::Block { len, .. } | Segment::Shared { len, .. } => *len as usize,
            Segment::Static(bytes) => bytes.len(),
        }
    }

    /// Returns a run of `count` bytes if they are in a page.
    fn run(&self, from: usize, count: usize) -> Option<PageRun> {
        match self {
            Segment::Page { page, start, .. } => {
                Some(PageRun::new(page.as_ptr(), usize::from(*start) + from, count))
            }
            Segment::Block { .. } | Segment::Shared { .. } | Segment::Static(_) => None,
        }
    }

    /// Returns [`Page::checksum`] of a complete page.
    #[inline]
    pub(super) fn page_checksum(&self, compute: impl FnOnce(&[u8]) -> u32) -> Option<u32> {
        match self {
            Segment::Page { page, start: 0, len } if usize::from(*len) == PAGE_SIZE => {
                Some(page.checksum(compute))
            }
            _ => None,
        }
    }

    #[inline]
    pub(super) fn into_page(self) -> Option<Page> {
        match self {
            Segment::Page { page, .. } => Some(page),
            Segment::Block { .. } | Segment::Shared { .. } | Segment::Static(_) => None,
        }
    }

    /// Returns a reference to a part of the bytes.
    pub(super) fn slice(&self, from: usize, count: usize) -> Segment {
        match self {
            Segment::Page { page, start, .. } => {
                Segment::Page { page: page.clone(), start: start + from as u16, len: count as u16 }
            }
            Segment::Block { block, start, .. } => {
                Segment::Block { block: Arc::clone(block), start: start + from as u32, len: count as u32 }
            }
            Segment::Shared { range, start, .. } => {
                Segment::Shared { range: Arc::clone(range), start: start + from as u32, len: count as u32 }
            }
            Segment::Static(bytes) => Segment::Static(&bytes[from..from + count]),
        }
    }
}

impl Clone for Segment {
    fn clone(&self) -> Segment {
        self.slice(0, self.len())
    }
}

type List = SmallVec<[Segment; 1]>;

/// Segments of a payload.
#[derive(Clone, Default)]
pub(super) struct Segments(List);

impl Segments {
    /// Returns an empty list with capacity for `count`.
    pub(super) fn with_capacity(count: usize) -> Segments {
        if count <= 1 {
            return Segments::default();
        }
        let spare = SPARE.try_with(|spare| spare.borrow_mut().pop()).ok().flatten();
        let mut list = spare.unwrap_or_default();
        list.reserve(count);
        Segments(list)
    }

    /// Returns a list of one segment.
    pub(super) fn from_segment(segment: Segment) -> Segments {
        Segments(SmallVec::from_buf([segment]))
    }
}

impl Deref for Segments {
    type Target = List;

    fn deref(&self) -> &List {
        &self.0
    }
}

impl DerefMut for Segments {
    fn deref_mut(&mut self) -> &mut List {
        &mut self.0
    }
}

impl Drop for Segments {
    #[inline]
    fn drop(&mut self) {
        if self.0.spilled() {
            recycle_list(mem::take(&mut self.0));
        }
    }
}

/// Iterator over the slices of a range; adjacent pages are one slice.
pub(super) struct Slices<'a> {
    segments: &'a [Segment],
    /// Bytes to skip before the range.
    skip: usize,
    left: usize,
}

impl<'a> Slices<'a> {
    /// Returns the `left` bytes after the first `skip` bytes of `segments`, which are long enough.
    pub(super) fn new(segments: &'a [Segment], skip: usize, left: usize) -> Slices<'a> {
        Slices { segments, skip, left }
    }

    /// Appends adjacent pages.
    fn extend(&mut self, run: &mut PageRun) {
        while self.left > 0
            && let Some((segment, tail)) = self.segments.split_first()
        {
            let count = self.left.min(segment.len());
            if !segment.run(0, count).is_some_and(|next| run.join(next)) {
                return;
            }
            self.segments = tail;
            self.left -= count;
        }
    }
}

impl<'a> Iterator for Slices<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        while self.left > 0
            && let Some((segment, tail)) = self.segments.split_first()
        {
            self.segments = tail;
            let from = mem::take(&mut self.skip);
            if from >= segment.len() {
                self.skip = from - segment.len();
                continue;
            }
            let count = self.left.min(segment.len() - from);
            self.left -= count;
            let bytes = &segment.bytes()[from..from + count];
            if self.left == 0 {
                return Some(bytes);
            }
            let Some(mut run) = segment.run(from, count) else { return Some(bytes) };
            self.extend(&mut run);
            // SAFETY: the segments keep the pages alive, and a page of a payload is not written.
            return Some(unsafe { run.bytes() });
        }
        None
    }
}

/// As [`Slices`], for the kernel, including shared memory; each slice with its length.
pub(super) struct IoSlices<'a>(pub(super) Slices<'a>);

impl<'a> Iterator for IoSlices<'a> {
    type Item = (IoSlice<'a>, usize);

    fn next(&mut self) -> Option<(IoSlice<'a>, usize)> {
        let slices = &mut self.0;
        while slices.left > 0
            && let Some((segment, tail)) = slices.segments.split_first()
            && (segment.is_in_shared_memory() || slices.skip >= segment.len())
        {
            slices.segments = tail;
            let from = mem::take(&mut slices.skip);
            if from >= segment.len() {
                slices.skip = from - segment.len();
                continue;
            }
            let count = slices.left.min(segment.len() - from);
            slices.left -= count;
            return Some((segment.io_slice(from, count), count));
        }
        slices.next().map(|slice| (IoSlice::new(slice), slice.len()))
    }
}

/// Keeps a list for the next long payload of this thread, within limits.
fn recycle_list(mut list: List) {
    list.clear();
    // A thread that ends has no spare lists.
    let _ = SPARE.try_with(|spare| {
        let mut spare = spare.borrow_mut();
        if spare.len() < MAX_SPARE_LISTS && list.capacity() <= MAX_SPARE_SEGMENTS {
            spare.push(list);
        }
    });
}

/// Maximum number of spare lists of a thread.
const MAX_SPARE_LISTS: usize = 128;
/// Enough for 2 MiB of pages.
const MAX_SPARE_SEGMENTS: usize = 513;

thread_local! {
    static SPARE: RefCell<Vec<List>> = const { RefCell::new(Vec::new()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reuses_long_lists() {
        let list = Segments::with_capacity(40);
        let range = list.as_ptr();
        drop(list);
        let mut again = Segments::with_capacity(30);
        assert!(again.is_empty() && again.as_ptr() == range);
        again.push(Segment::Static(b"piece"));
        drop(again);
        assert!(Segments::with_capacity(2).is_empty());
    }

    #[test]
    fn bounds_spare_lists() {
        let lists: Vec<Segments> = (0..2 * MAX_SPARE_LISTS).map(|_| Segments::with_capacity(8)).collect();
        drop(lists);
        assert_eq!(SPARE.with(|spare| spare.borrow().len()), MAX_SPARE_LISTS);
    }
}

//! The pieces of a payload, and the memory that lists of them stand in.
//!
//! A list that has outgrown the value itself is not given back to the allocator: it waits on its thread for
//! the next long payload, so that warm threads send long payloads without allocating.

use std::cell::RefCell;
use std::io::IoSlice;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::PAGE_SIZE;
use crate::block::Block;
use crate::foreign::Foreign;
use crate::guard::PageGuard;
use crate::page::Page;
use crate::pool::Pool;
use crate::run::Run;

pub(super) enum Segment {
    Page { page: Page, start: u16, len: u16 },
    Guard { page: PageGuard, start: u16, len: u16 },
    Block { block: Arc<Block>, start: u32, len: u32 },
    Foreign { place: Arc<Foreign>, start: u32, len: u32 },
    Static(&'static [u8]),
}

impl Segment {
    /// # Panics
    /// If it is foreign.
    fn bytes(&self) -> &[u8] {
        match self.own_bytes() {
            Some(bytes) => bytes,
            None => panic!("foreign memory has no slices: copy it, or tell the kernel where it is"),
        }
    }

    /// The bytes; none if they are foreign.
    #[inline]
    pub(super) fn own_bytes(&self) -> Option<&[u8]> {
        Some(match self {
            Segment::Page { page, start, len } => &page.bytes()[usize::from(*start)..][..usize::from(*len)],
            Segment::Guard { page, start, len } => &page.bytes()[usize::from(*start)..][..usize::from(*len)],
            Segment::Block { block, start, len } => &block.bytes()[*start as usize..][..*len as usize],
            Segment::Static(bytes) => bytes,
            Segment::Foreign { .. } => return None,
        })
    }

    pub(super) fn is_foreign(&self) -> bool {
        matches!(self, Segment::Foreign { .. })
    }

    /// Shows a part of the bytes; foreign ones in copies.
    pub(super) fn visit(&self, from: usize, count: usize, look: &mut impl FnMut(&[u8])) {
        match self {
            Segment::Foreign { place, start, .. } => place.visit(*start as usize + from, count, look),
            _ => look(&self.bytes()[from..from + count]),
        }
    }

    /// A part of the bytes for the kernel to read from.
    fn io_slice(&self, from: usize, count: usize) -> IoSlice<'_> {
        match self {
            Segment::Foreign { place, start, .. } => place.io_slice(*start as usize + from, count),
            _ => IoSlice::new(&self.bytes()[from..from + count]),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Segment::Page { len, .. } | Segment::Guard { len, .. } => usize::from(*len),
            Segment::Block { len, .. } | Segment::Foreign { len, .. } => *len as usize,
            Segment::Static(bytes) => bytes.len(),
        }
    }

    /// Where so many bytes from there are, if they are in a page.
    fn run(&self, from: usize, count: usize) -> Option<Run> {
        match self {
            Segment::Page { page, start, .. } => {
                Some(Run::of(page.as_ptr(), usize::from(*start) + from, count))
            }
            Segment::Guard { page, start, .. } => {
                Some(Run::of(page.as_ptr(), usize::from(*start) + from, count))
            }
            Segment::Block { .. } | Segment::Foreign { .. } | Segment::Static(_) => None,
        }
    }

    /// [`Page::checksum`], if this is all of a page.
    #[inline]
    pub(super) fn page_checksum(&self, compute: impl FnOnce(&[u8]) -> u32) -> Option<u32> {
        match self {
            Segment::Page { page, start: 0, len } if usize::from(*len) == PAGE_SIZE => {
                Some(page.checksum(compute))
            }
            Segment::Guard { page, start: 0, len } if usize::from(*len) == PAGE_SIZE => {
                Some(page.checksum(compute))
            }
            _ => None,
        }
    }

    /// Counts the page, if `pool` looks at it.
    pub(super) fn count_page(&mut self, pool: &mut Pool) {
        if let Segment::Guard { page, start, len } = self {
            let counted = Segment::Page { page: page.page(), start: *start, len: *len };
            mem::replace(self, counted).give_to(pool);
        }
    }

    /// Gives a page or a guard back.
    #[inline]
    pub(super) fn give_to(self, pool: &mut Pool) {
        match self {
            Segment::Page { page, .. } => pool.recycle_page(page),
            Segment::Guard { page, .. } => pool.end_guard(page),
            Segment::Block { .. } | Segment::Foreign { .. } | Segment::Static(_) => {}
        }
    }

    /// The same memory, fewer bytes of it.
    pub(super) fn part(&self, from: usize, count: usize) -> Segment {
        match self {
            Segment::Page { page, start, .. } => {
                Segment::Page { page: page.clone(), start: start + from as u16, len: count as u16 }
            }
            Segment::Guard { page, start, .. } => {
                Segment::Page { page: page.page(), start: start + from as u16, len: count as u16 }
            }
            Segment::Block { block, start, .. } => {
                Segment::Block { block: Arc::clone(block), start: start + from as u32, len: count as u32 }
            }
            Segment::Foreign { place, start, .. } => {
                Segment::Foreign { place: Arc::clone(place), start: start + from as u32, len: count as u32 }
            }
            Segment::Static(bytes) => Segment::Static(&bytes[from..from + count]),
        }
    }
}

impl Clone for Segment {
    fn clone(&self) -> Segment {
        self.part(0, self.len())
    }
}

type List = SmallVec<[Segment; 1]>;

/// The pieces of a payload.
#[derive(Clone, Default)]
pub(super) struct Segments(List);

impl Segments {
    /// Nothing yet, with room for `count`.
    pub(super) fn with_capacity(count: usize) -> Segments {
        if count <= 1 {
            return Segments::default();
        }
        let spare = SPARE.try_with(|spare| spare.borrow_mut().pop()).ok().flatten();
        let mut list = spare.unwrap_or_default();
        list.reserve(count);
        Segments(list)
    }

    /// One piece.
    pub(super) fn of(segment: Segment) -> Segments {
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
            keep(mem::take(&mut self.0));
        }
    }
}

/// The bytes of a range, piece by piece; those of neighbouring pages are one piece.
pub(super) struct Slices<'a> {
    segments: &'a [Segment],
    /// Bytes to pass over before the range.
    skip: usize,
    left: usize,
}

impl<'a> Slices<'a> {
    /// The `left` bytes behind the first `skip` of `segments`, which have so many.
    pub(super) fn new(segments: &'a [Segment], skip: usize, left: usize) -> Slices<'a> {
        Slices { segments, skip, left }
    }

    /// Goes on with the pages that are neighbours.
    fn extend(&mut self, run: &mut Run) {
        while self.left > 0
            && let Some((segment, rest)) = self.segments.split_first()
        {
            let count = self.left.min(segment.len());
            if !segment.run(0, count).is_some_and(|next| run.join(next)) {
                return;
            }
            self.segments = rest;
            self.left -= count;
        }
    }
}

impl<'a> Iterator for Slices<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        while self.left > 0
            && let Some((segment, rest)) = self.segments.split_first()
        {
            self.segments = rest;
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
            // SAFETY: the segments hold the pages, and nobody writes to a page that is held by a payload.
            return Some(unsafe { run.bytes() });
        }
        None
    }
}

/// As [`Slices`], for the kernel; each piece with its length. What is foreign is among them.
pub(super) struct IoSlices<'a>(pub(super) Slices<'a>);

impl<'a> Iterator for IoSlices<'a> {
    type Item = (IoSlice<'a>, usize);

    fn next(&mut self) -> Option<(IoSlice<'a>, usize)> {
        let slices = &mut self.0;
        while slices.left > 0
            && let Some((segment, rest)) = slices.segments.split_first()
            && (segment.is_foreign() || slices.skip >= segment.len())
        {
            slices.segments = rest;
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

/// Keeps a list for the next long payload of this thread, if there are few and it is not huge.
fn keep(mut list: List) {
    list.clear();
    // A thread that ends has no spare lists any more.
    let _ = SPARE.try_with(|spare| {
        let mut spare = spare.borrow_mut();
        if spare.len() < SPARE_MAX && list.capacity() <= SPARE_SEGMENTS_MAX {
            spare.push(list);
        }
    });
}

/// Lists that wait on one thread.
const SPARE_MAX: usize = 128;
/// Enough for 2 MiB of pages.
const SPARE_SEGMENTS_MAX: usize = 513;

thread_local! {
    static SPARE: RefCell<Vec<List>> = const { RefCell::new(Vec::new()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_is_used_again_and_comes_back_empty() {
        let list = Segments::with_capacity(40);
        let place = list.as_ptr();
        drop(list);
        let mut again = Segments::with_capacity(30);
        assert!(again.is_empty() && again.as_ptr() == place);
        again.push(Segment::Static(b"piece"));
        drop(again);
        assert!(Segments::with_capacity(2).is_empty());
    }

    #[test]
    fn spare_lists_are_few() {
        let lists: Vec<Segments> = (0..2 * SPARE_MAX).map(|_| Segments::with_capacity(8)).collect();
        drop(lists);
        assert_eq!(SPARE.with(|spare| spare.borrow().len()), SPARE_MAX);
    }
}

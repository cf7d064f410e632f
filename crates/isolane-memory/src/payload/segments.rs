//! Segments of a payload, and the lists that store them.
//!
//! A list with heap storage is kept by its thread for the next long payload, so that warm threads send long
//! payloads without allocations.

use std::cell::RefCell;
use std::mem;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::PAGE_SIZE;
use crate::block::Block;
use crate::memory_region::MemoryRegion;
use crate::page::Page;
use crate::run::Run;
use crate::shared::Shared;

pub(super) enum Segment {
    Page { page: Page, start: u16, len: u16 },
    Block { block: Arc<Block>, start: u32, len: u32 },
    Shared { range: Arc<Shared>, start: u32, len: u32 },
    Region { region: Arc<MemoryRegion>, start: usize, len: u32 },
    Static(&'static [u8]),
}

impl Segment {
    /// Returns the bytes, `None` in shared memory.
    #[inline]
    pub(super) fn private_bytes(&self) -> Option<&[u8]> {
        Some(match self {
            Segment::Page { page, start, len } => &page.bytes()[usize::from(*start)..][..usize::from(*len)],
            Segment::Block { block, start, len } => &block.bytes()[*start as usize..][..*len as usize],
            Segment::Static(bytes) => bytes,
            Segment::Shared { .. } | Segment::Region { .. } => return None,
        })
    }

    pub(super) fn is_in_shared_memory(&self) -> bool {
        matches!(self, Segment::Shared { .. } | Segment::Region { .. })
    }

    /// Appends the bytes to `target`. Returns `false` if memory of a region is not mapped; the bytes are then undefined.
    pub(super) fn copy_to(&self, target: &mut Vec<u8>) -> bool {
        let mut add = |slice: &[u8]| target.extend_from_slice(slice);
        match self {
            Segment::Shared { range, start, len } => {
                range.for_each_slice(*start as usize, *len as usize, add);
            }
            Segment::Region { region, start, len } => {
                let end = target.len();
                target.resize(end + *len as usize, 0);
                return region.try_copy_out(*start, &mut target[end..]);
            }
            _ => self.private_bytes().into_iter().for_each(&mut add),
        }
        true
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Segment::Page { len, .. } => usize::from(*len),
            Segment::Block { len, .. } | Segment::Shared { len, .. } | Segment::Region { len, .. } => {
                *len as usize
            }
            Segment::Static(bytes) => bytes.len(),
        }
    }

    /// Returns the run of a part of the bytes.
    fn run(&self, from: usize, count: usize) -> Run {
        match self {
            Segment::Page { page, start, .. } => Run::in_page(page, usize::from(*start) + from, count),
            Segment::Block { block, start, .. } => {
                Run::from(&block.bytes()[*start as usize + from..][..count])
            }
            Segment::Shared { range, start, .. } => range.run(*start as usize + from, count),
            Segment::Region { region, start, .. } => region.run(*start + from, count),
            Segment::Static(bytes) => Run::from(&bytes[from..from + count]),
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
            _ => None,
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
            Segment::Region { region, start, .. } => {
                Segment::Region { region: Arc::clone(region), start: start + from, len: count as u32 }
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

/// Segments of a payload.
pub(super) type List = SmallVec<[Segment; 1]>;

/// Returns an empty list with capacity for `count`.
pub(super) fn list_with_capacity(count: usize) -> List {
    if count <= 1 {
        return List::new();
    }
    let spare = SPARE.try_with(|spare| spare.borrow_mut().pop()).ok().flatten();
    let mut list = spare.unwrap_or_default();
    list.reserve(count);
    list
}

/// Iterator over the runs of a range of segments, which are long enough; in order, not empty, adjacent pages as
/// one run.
pub(super) struct Runs<'a> {
    pub(super) segments: &'a [Segment],
    /// Bytes to skip before the range.
    pub(super) skip: usize,
    pub(super) left: usize,
}

impl Runs<'_> {
    /// Appends adjacent pages.
    fn extend(&mut self, run: &mut Run) {
        while self.left > 0
            && let Some((segment @ Segment::Page { .. }, tail)) = self.segments.split_first()
        {
            let count = self.left.min(segment.len());
            if !run.join(segment.run(0, count)) {
                return;
            }
            self.segments = tail;
            self.left -= count;
        }
    }
}

impl Iterator for Runs<'_> {
    type Item = Run;

    #[inline]
    fn next(&mut self) -> Option<Run> {
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
            let mut run = segment.run(from, count);
            if let Segment::Page { .. } = segment {
                self.extend(&mut run);
            }
            return Some(run);
        }
        None
    }
}

/// Keeps a list for the next long payload of this thread, within limits.
pub(super) fn recycle_list(mut list: List) {
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
    use crate::Payload;

    #[test]
    fn reuses_long_lists() {
        let payload = Payload::with_capacity(40);
        let range = payload.segments.as_ptr();
        drop(payload);
        let mut again = Payload::with_capacity(30);
        assert!(again.segments.is_empty() && again.segments.as_ptr() == range);
        again.push_static(b"piece");
        drop(again);
        assert!(Payload::with_capacity(2).segments.is_empty());
    }

    #[test]
    fn bounds_spare_lists() {
        let payloads: Vec<_> = (0..2 * MAX_SPARE_LISTS).map(|_| Payload::with_capacity(8)).collect();
        drop(payloads);
        assert_eq!(SPARE.with(|spare| spare.borrow().len()), MAX_SPARE_LISTS);
    }
}

//! Page allocator for shared memory: rings, and payload of commands.
//!
//! Its state is private to the allocating side; the peer only checks that offsets are within bounds
//! ([`SharedMemory::raw_slice`](crate::SharedMemory::raw_slice)). Spans are whole pages, allocated next fit.

use crate::PAGE_SIZE;

/// Consecutive pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// Offset in bytes, a multiple of [`PAGE_SIZE`].
    pub offset: usize,
    /// Length in bytes, a multiple of [`PAGE_SIZE`].
    pub len: usize,
}

/// Allocator state of one memory.
#[derive(Debug)]
pub struct Arena {
    /// One bit per page, set while allocated.
    allocated: Vec<u64>,
    pages: usize,
    free_pages: usize,
    /// Page at which the next search starts.
    next: usize,
    /// Pages freed since [`Arena::stale`] last returned spans.
    freed: usize,
}

impl Arena {
    /// Creates an arena of `bytes`, all free. A partial page at the end is not used.
    pub fn new(bytes: usize) -> Arena {
        let pages = bytes / PAGE_SIZE;
        Arena { allocated: vec![0; pages.div_ceil(WORD_BITS)], pages, free_pages: pages, next: 0, freed: 0 }
    }

    /// Allocates consecutive pages for `bytes`. Returns `None` if there are too few; 0 bytes need no page.
    pub fn alloc(&mut self, bytes: usize) -> Option<Span> {
        let count = bytes.div_ceil(PAGE_SIZE);
        if count > self.free_pages {
            return None;
        }
        let first = self.find(self.next, self.pages, count).or_else(|| self.find(0, self.pages, count))?;
        (first..first + count).for_each(|page| self.allocated[page / WORD_BITS] |= bit(page));
        self.free_pages -= count;
        self.next = first + count;
        Some(Span { offset: first * PAGE_SIZE, len: count * PAGE_SIZE })
    }

    /// Frees pages.
    ///
    /// # Panics
    /// If one of them is not allocated: it would be allocated twice.
    pub fn free(&mut self, span: Span) {
        let first = span.offset / PAGE_SIZE;
        for page in first..first + span.len / PAGE_SIZE {
            let word = &mut self.allocated[page / WORD_BITS];
            assert!(*word & bit(page) != 0, "page {page} was freed but is not allocated");
            *word &= !bit(page);
            self.free_pages += 1;
        }
        self.freed += span.len / PAGE_SIZE;
    }

    /// Returns the free bytes.
    pub fn free_bytes(&self) -> usize {
        self.free_pages * PAGE_SIZE
    }

    /// Returns all free spans if at least `bytes` were freed since the last time, so that the caller can return them to
    /// the system; otherwise, none.
    pub fn stale(&mut self, bytes: usize) -> Vec<Span> {
        let mut spans = Vec::new();
        if self.freed * PAGE_SIZE >= bytes {
            self.freed = 0;
            let mut from = 0;
            while let Some(first) = self.find(from, self.pages, 1) {
                let is_allocated = |page: &usize| self.allocated[page / WORD_BITS] & bit(*page) != 0;
                from = (first..self.pages).find(is_allocated).unwrap_or(self.pages);
                spans.push(Span { offset: first * PAGE_SIZE, len: (from - first) * PAGE_SIZE });
            }
        }
        spans
    }

    /// Returns the first of `count` consecutive free pages in a range.
    fn find(&self, from: usize, to: usize, count: usize) -> Option<usize> {
        let (mut first, mut page) = (from, from);
        while page - first < count {
            if page >= to {
                return None;
            }
            let word = self.allocated[page / WORD_BITS];
            if page.is_multiple_of(WORD_BITS) && word == u64::MAX {
                page += WORD_BITS;
                first = page;
            } else if word & bit(page) != 0 {
                page += 1;
                first = page;
            } else {
                page += 1;
            }
        }
        Some(first)
    }
}

const WORD_BITS: usize = u64::BITS as usize;

fn bit(page: usize) -> u64 {
    1 << (page % WORD_BITS)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reuses_freed_consecutive_pages() {
        let mut arena = Arena::new(130 * PAGE_SIZE + 7);
        let large = arena.alloc(100 * PAGE_SIZE).unwrap();
        let small = arena.alloc(1).unwrap();
        assert_eq!((small.len, arena.free_pages), (PAGE_SIZE, 29));
        assert_eq!(arena.alloc(30 * PAGE_SIZE), None);
        arena.free(large);
        assert_eq!(arena.alloc(100 * PAGE_SIZE), Some(large));
        assert_eq!(arena.alloc(0).map(|span| span.len), Some(0));
    }

    #[test]
    fn reports_stale_spans_above_threshold() {
        let mut arena = Arena::new(130 * PAGE_SIZE);
        let [first, second, third] = [70, 20, 10].map(|pages| arena.alloc(pages * PAGE_SIZE).unwrap());
        arena.free(first);
        assert_eq!(arena.stale(71 * PAGE_SIZE), []);
        arena.free(third);
        let tail = Span { offset: third.offset, len: 40 * PAGE_SIZE };
        assert_eq!(arena.stale(71 * PAGE_SIZE), [first, tail]);
        assert_eq!((arena.stale(PAGE_SIZE), arena.free_bytes()), (vec![], 110 * PAGE_SIZE));
        arena.free(second);
        assert_eq!(arena.stale(PAGE_SIZE), [Span { offset: 0, len: 130 * PAGE_SIZE }]);
    }

    #[test]
    #[should_panic(expected = "is not allocated")]
    fn double_free_panics() {
        let mut arena = Arena::new(4 * PAGE_SIZE);
        let span = arena.alloc(1).unwrap();
        arena.free(span);
        arena.free(span);
    }

    proptest! {
        #[test]
        fn never_allocates_a_page_twice(
            pages in 1usize..300,
            steps in prop::collection::vec((any::<bool>(), 0usize..40), 0..200),
        ) {
            let mut arena = Arena::new(pages * PAGE_SIZE);
            let mut out: Vec<Span> = Vec::new();
            for (allocate, count) in steps {
                if allocate {
                    out.extend(arena.alloc(count * PAGE_SIZE));
                } else if !out.is_empty() {
                    arena.free(out.swap_remove(count % out.len()));
                }
                let pages_of = |span: &Span| (span.offset..span.offset + span.len).step_by(PAGE_SIZE);
                let offsets: Vec<usize> = out.iter().flat_map(pages_of).collect();
                let different: HashSet<usize> = offsets.iter().copied().collect();
                prop_assert_eq!(different.len(), offsets.len());
                prop_assert!(offsets.iter().all(|offset| offset / PAGE_SIZE < pages));
                prop_assert_eq!(arena.free_pages, pages - offsets.len());
            }
        }
    }
}

//! Which pages of a memory its owner has given to what: rings, or the payload of a command.
//!
//! Kept in private memory by the side that hands pages out; the other side only checks that what it is told
//! lies inside of the memory ([`Memory::piece`](crate::Memory::piece)). It is not a general allocator: spans
//! are whole pages, found first fit from where the last one was found.

use crate::PAGE_SIZE;

/// Pages in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// Bytes before it, a multiple of [`PAGE_SIZE`].
    pub offset: usize,
    /// Bytes in it, a multiple of [`PAGE_SIZE`].
    pub len: usize,
}

/// The pages of a memory, each free or taken.
#[derive(Debug)]
pub struct Arena {
    /// One bit a page, set while it is taken.
    taken: Vec<u64>,
    pages: usize,
    free: usize,
    /// Where the next search begins.
    next: usize,
    /// Pages that came back since [`Arena::stale`] returned some.
    returned: usize,
}

impl Arena {
    /// All pages of a memory of so many bytes are free; a rest that is no page is nobody's.
    pub fn new(bytes: usize) -> Arena {
        let pages = bytes / PAGE_SIZE;
        Arena { taken: vec![0; pages.div_ceil(WORD_BITS)], pages, free: pages, next: 0, returned: 0 }
    }

    /// Pages for `bytes`, in a row; `None` if there are not so many in a row. Nothing needs no page.
    pub fn take(&mut self, bytes: usize) -> Option<Span> {
        let count = bytes.div_ceil(PAGE_SIZE);
        if count > self.free {
            return None;
        }
        let first = self.find(self.next, self.pages, count).or_else(|| self.find(0, self.pages, count))?;
        (first..first + count).for_each(|page| self.taken[page / WORD_BITS] |= bit(page));
        self.free -= count;
        self.next = first + count;
        Some(Span { offset: first * PAGE_SIZE, len: count * PAGE_SIZE })
    }

    /// Takes pages back.
    ///
    /// # Panics
    /// If one of them is not out: it would be given to two.
    pub fn give(&mut self, span: Span) {
        let first = span.offset / PAGE_SIZE;
        for page in first..first + span.len / PAGE_SIZE {
            let word = &mut self.taken[page / WORD_BITS];
            assert!(*word & bit(page) != 0, "page {page} was given back but is not out");
            *word &= !bit(page);
            self.free += 1;
        }
        self.returned += span.len / PAGE_SIZE;
    }

    /// Bytes that are free.
    pub fn free_bytes(&self) -> usize {
        self.free * PAGE_SIZE
    }

    /// All free spans, if at least `bytes` came back since this last returned some: the system may have them again.
    pub fn stale(&mut self, bytes: usize) -> Vec<Span> {
        let mut spans = Vec::new();
        if self.returned * PAGE_SIZE >= bytes {
            self.returned = 0;
            let mut from = 0;
            while let Some(first) = self.find(from, self.pages, 1) {
                let is_taken = |page: &usize| self.taken[page / WORD_BITS] & bit(*page) != 0;
                from = (first..self.pages).find(is_taken).unwrap_or(self.pages);
                spans.push(Span { offset: first * PAGE_SIZE, len: (from - first) * PAGE_SIZE });
            }
        }
        spans
    }

    /// Pages that nothing was given.
    #[cfg(test)]
    fn free_pages(&self) -> usize {
        self.free
    }

    /// The first `count` free pages in a row between two pages.
    fn find(&self, from: usize, to: usize, count: usize) -> Option<usize> {
        let (mut first, mut page) = (from, from);
        while page - first < count {
            if page >= to {
                return None;
            }
            let word = self.taken[page / WORD_BITS];
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
    fn pages_in_a_row_are_found_again_once_they_are_back() {
        let mut arena = Arena::new(130 * PAGE_SIZE + 7);
        let large = arena.take(100 * PAGE_SIZE).unwrap();
        let small = arena.take(1).unwrap();
        assert_eq!((small.len, arena.free_pages()), (PAGE_SIZE, 29));
        assert_eq!(arena.take(30 * PAGE_SIZE), None);
        arena.give(large);
        assert_eq!(arena.take(100 * PAGE_SIZE), Some(large));
        assert_eq!(arena.take(0).map(|span| span.len), Some(0));
    }

    #[test]
    fn free_spans_go_back_to_the_system_in_steps() {
        let mut arena = Arena::new(130 * PAGE_SIZE);
        let [first, second, third] = [70, 20, 10].map(|pages| arena.take(pages * PAGE_SIZE).unwrap());
        arena.give(first);
        assert_eq!(arena.stale(71 * PAGE_SIZE), []);
        arena.give(third);
        let rest = Span { offset: third.offset, len: 40 * PAGE_SIZE };
        assert_eq!(arena.stale(71 * PAGE_SIZE), [first, rest]);
        assert_eq!((arena.stale(PAGE_SIZE), arena.free_bytes()), (vec![], 110 * PAGE_SIZE));
        arena.give(second);
        assert_eq!(arena.stale(PAGE_SIZE), [Span { offset: 0, len: 130 * PAGE_SIZE }]);
    }

    #[test]
    #[should_panic(expected = "is not out")]
    fn a_page_that_comes_back_twice_is_a_bug_of_ours() {
        let mut arena = Arena::new(4 * PAGE_SIZE);
        let span = arena.take(1).unwrap();
        arena.give(span);
        arena.give(span);
    }

    proptest! {
        #[test]
        fn no_page_is_given_to_two(
            pages in 1usize..300,
            steps in prop::collection::vec((any::<bool>(), 0usize..40), 0..200),
        ) {
            let mut arena = Arena::new(pages * PAGE_SIZE);
            let mut out: Vec<Span> = Vec::new();
            for (takes, count) in steps {
                if takes {
                    out.extend(arena.take(count * PAGE_SIZE));
                } else if !out.is_empty() {
                    arena.give(out.swap_remove(count % out.len()));
                }
                let pages_of = |span: &Span| (span.offset..span.offset + span.len).step_by(PAGE_SIZE);
                let places: Vec<usize> = out.iter().flat_map(pages_of).collect();
                let different: HashSet<usize> = places.iter().copied().collect();
                prop_assert_eq!(different.len(), places.len());
                prop_assert!(places.iter().all(|place| place / PAGE_SIZE < pages));
                prop_assert_eq!(arena.free_pages(), pages - places.len());
            }
        }
    }
}

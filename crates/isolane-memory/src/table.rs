//! Large array of optional pages that every core reads and replaces: the body of a memory volume.
//!
//! Each entry is one word. Readers take a reference without a lock; writers swap the entry, and hold its lock
//! only to modify a part of a page.
//!
//! Invariant: a page is modified in place only under the lock of its entry, and without other references.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Range;
use std::ptr::{self, NonNull};

use crate::entry::{Entry, Locked};
use crate::page::{self, Page};
use crate::pool::Pool;
use crate::prefetch;

/// Optional pages by index, shared by all cores.
pub struct PageTable {
    entries: NonNull<Entry>,
    len: usize,
}

// SAFETY: entries are atomic, and their pages are `Send + Sync`.
unsafe impl Send for PageTable {}
// SAFETY: as above.
unsafe impl Sync for PageTable {}

impl PageTable {
    /// Creates a table of `len` entries without pages. An entry uses 8 bytes once it is written. `None` if the
    /// address space is exhausted.
    pub fn new(len: usize) -> Option<PageTable> {
        let layout = layout(len)?;
        // SAFETY: the layout is not empty; zeroed memory is a valid array of entries without pages.
        let entries = NonNull::new(unsafe { alloc_zeroed(layout) }.cast::<Entry>())?;
        Some(PageTable { entries, len })
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the page at `index`. Waits while it is being modified.
    #[inline]
    pub fn get(&self, index: usize) -> Option<Page> {
        // SAFETY: the entry transfers one of its references.
        self.entry(index).get::<Page>().map(|page| unsafe { Page::from_raw(page) })
    }

    /// Fetches the entry at `index` into the cache, if it exists.
    #[inline]
    pub fn prefetch_entry(&self, index: usize) {
        if index < self.len {
            prefetch::prefetch_at::<1>(ptr::from_ref(self.entry(index)).cast());
        }
    }

    /// Fetches `count` entries from `first` on, as far as they exist.
    #[inline]
    pub fn prefetch_entries(&self, first: usize, count: usize) {
        let line = first - first % LINE_ENTRIES;
        (line..first + count).step_by(LINE_ENTRIES).for_each(|index| self.prefetch_entry(index));
    }

    /// Fetches the counter of the page at `index`, and the page as [`Page::prefetch`] if it will be read. Fast if
    /// the entry is in the cache.
    #[inline]
    pub fn prefetch_page(&self, index: usize, with_bytes: bool) {
        if index < self.len
            && let Some(page) = self.entry(index).peek()
        {
            page::prefetch_page(page, with_bytes);
        }
    }

    /// Stores `page` at `index`, where it is charged to no pool. Its predecessor goes to `pool`, or to the
    /// last reader.
    #[inline]
    pub fn put(&self, index: usize, page: Page, pool: &mut Pool) {
        pool.disown(&page);
        if let Some(old) = self.swap(index, Some(page)) {
            pool.recycle_page(old);
        }
    }

    /// Stores `pages` from `first` on, in order, as [`PageTable::put`] does.
    ///
    /// # Panics
    /// If they leave the table.
    pub fn put_all(&self, first: usize, pages: impl ExactSizeIterator<Item = Page>, pool: &mut Pool) {
        let count = pages.len();
        let inside = first.checked_add(count).is_some_and(|end| end <= self.len);
        assert!(inside, "{count} pages from {first} leave a table of {} pages", self.len);
        self.prefetch_entries(first, count);
        pages.zip(first..).for_each(|(page, index)| self.put(index, page, pool));
    }

    /// Removes the page at `index`. Cheap if there is no page.
    pub fn take(&self, index: usize, pool: &mut Pool) {
        if !self.is_empty_at(index)
            && let Some(old) = self.swap(index, None)
        {
            pool.recycle_page(old);
        }
    }

    /// Stores a page at `index` without a pool, as when a table is filled for the first time.
    pub fn set(&self, index: usize, page: Page) {
        drop(self.swap(index, Some(page)));
    }

    /// Number of pages. Counts all entries: not for the data path.
    pub fn count_pages(&self) -> usize {
        (0..self.len).filter(|index| !self.is_empty_at(*index)).count()
    }

    /// Returns the number of pages that [`PageTable::update_copy`] would change now.
    pub fn count_changed(&self, copy: &PageTable) -> usize {
        (0..self.len).filter(|index| self.entry(*index).peek() != copy.entry(*index).peek()).count()
    }

    /// Makes `copy` the same as this table: calls `changed` with each index at which they differ, in order, and with the
    /// page that both have afterwards. A page in both tables is not modified in place, so the next call finds all changes.
    ///
    /// # Errors
    /// That of `changed`, which ends it.
    ///
    /// # Panics
    /// If `copy` is shorter.
    pub fn update_copy<E>(
        &self,
        copy: &PageTable,
        mut changed: impl FnMut(usize, Option<&Page>) -> Result<(), E>,
    ) -> Result<(), E> {
        for index in 0..self.len {
            if self.entry(index).peek() == copy.entry(index).peek() {
                continue;
            }
            let page = self.get(index);
            changed(index, page.as_ref())?;
            drop(copy.swap(index, page));
        }
        Ok(())
    }

    /// Calls `fill` with exclusive access to a part of the page at `index`; a missing page is one of
    /// zeroes. A page without readers is modified in place, another one is replaced by a copy.
    pub fn modify(&self, index: usize, part: Range<usize>, pool: &mut Pool, fill: impl FnOnce(&mut [u8])) {
        // Before the lock, because it may allocate.
        let mut copy = pool.unbudgeted_page();
        let unused = {
            let (prepaid, locked) = self.entry(index).lock_entry();
            // SAFETY: the entry's references are the lock holder's.
            let page = prepaid.map(|prepaid| unsafe { Page::from_prepaid(prepaid) });
            let mut current = Current { page, locked: Some(locked) };
            match (current.page.as_mut().and_then(Page::bytes_mut), copy.bytes_mut()) {
                (Some(bytes), _) => {
                    fill(&mut bytes[part]);
                    Some(copy)
                }
                (None, Some(bytes)) => {
                    match &current.page {
                        Some(page) => bytes.copy_from_slice(page.bytes()),
                        None => bytes.fill(0),
                    }
                    fill(&mut bytes[part]);
                    current.page.replace(copy)
                }
                (None, None) => unreachable!("a new page is not shared"),
            }
        };
        unused.into_iter().for_each(|page| pool.recycle_page(page));
    }

    /// Whether there is no page at `index`.
    pub fn is_empty_at(&self, index: usize) -> bool {
        self.entry(index).peek().is_none()
    }

    #[inline]
    fn swap(&self, index: usize, page: Option<Page>) -> Option<Page> {
        let old = self.entry(index).swap(page.map(Page::into_prepaid));
        // SAFETY: the entry's references are now the caller's.
        old.map(|prepaid| unsafe { Page::from_prepaid(prepaid) })
    }

    fn entry(&self, index: usize) -> &Entry {
        assert!(index < self.len, "page {index} is outside of a table of {} pages", self.len);
        // SAFETY: inside of the allocation, as checked; entries are only used through shared references.
        unsafe { self.entries.add(index).as_ref() }
    }
}

impl Drop for PageTable {
    fn drop(&mut self) {
        (0..self.len)
            .filter(|index| !self.is_empty_at(*index))
            .for_each(|index| drop(self.swap(index, None)));
        if let Some(layout) = layout(self.len) {
            // SAFETY: allocated in `new` with this layout; there are no references.
            unsafe { dealloc(self.entries.as_ptr().cast(), layout) };
        }
    }
}

impl std::fmt::Debug for PageTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PageTable({} pages)", self.len)
    }
}

/// Page of a locked entry, stored again when dropped, also if the modification panics.
struct Current<'a> {
    page: Option<Page>,
    locked: Option<Locked<'a>>,
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        if let Some(locked) = self.locked.take() {
            locked.store(self.page.take().map(Page::into_prepaid));
        }
    }
}

/// `None` for a table that is larger than the address space.
fn layout(len: usize) -> Option<Layout> {
    Layout::array::<Entry>(len.max(1)).ok()?.align_to(LINE_ENTRIES * size_of::<Entry>()).ok()
}

/// Entries in a cache line.
const LINE_ENTRIES: usize = 8;

#[cfg(test)]
mod tests;

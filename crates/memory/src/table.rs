//! A large array of optional pages that any core reads and swaps: the body of a memory volume.
//!
//! Each entry is one word: the page's address, with its lowest bit as a lock that is held for at most one copy of a page.
//! It is not a map that grows. Invariant: who holds an entry's lock is alone with that entry; a reader takes
//! its own counted reference under the lock, so a page that is swapped out lives until its last reader ends.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::hint::spin_loop;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::cache;
use crate::page::{self, Page};

/// Optional pages by index, shared by all cores.
pub struct PageTable {
    entries: NonNull<Entry>,
    len: usize,
}

type Entry = AtomicPtr<u8>;

// SAFETY: entries are atomic, and the pages behind them are `Send + Sync`.
unsafe impl Send for PageTable {}
// SAFETY: as above.
unsafe impl Sync for PageTable {}

impl PageTable {
    /// A table of `len` entries without pages. Costs 8 bytes an entry, and those only once touched. `None` if the system
    /// does not even give the addresses.
    pub fn new(len: usize) -> Option<PageTable> {
        let layout = layout(len)?;
        // SAFETY: the layout is not empty; zeroed memory is a valid array of null `AtomicPtr`s.
        let entries = NonNull::new(unsafe { alloc_zeroed(layout) }.cast::<Entry>())?;
        Some(PageTable { entries, len })
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no entry.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A counted reference to the page at `index`.
    pub fn page(&self, index: usize) -> Option<Page> {
        let entry = self.entry(index);
        if entry.load(Ordering::Relaxed).is_null() {
            return None;
        }
        let raw = lock_raw(entry);
        // SAFETY: the entry owns this page, and does so until it is unlocked; the handle made here is never dropped.
        let page = NonNull::new(raw).map(|raw| ManuallyDrop::new(unsafe { Page::from_raw(raw) }));
        let shared = page.as_deref().cloned();
        entry.store(raw, Ordering::Release);
        shared
    }

    /// Fetches the entry at `index` into the cache, if there is one.
    #[inline]
    pub fn prefetch_entry(&self, index: usize) {
        if index < self.len {
            cache::prefetch::<1>(ptr::from_ref(self.entry(index)).cast());
        }
    }

    /// Fetches the page at `index`, as [`Page::prefetch`] does. Quick if the entry is in the cache.
    #[inline]
    pub fn prefetch_page(&self, index: usize) {
        if index < self.len
            && let Some(page) =
                NonNull::new(self.entry(index).load(Ordering::Relaxed).map_addr(|addr| addr & !LOCKED))
        {
            page::prefetch(page);
        }
    }

    /// Puts `page` at `index` and returns what was there.
    pub fn swap(&self, index: usize, page: Option<Page>) -> Option<Page> {
        self.with(index, |current| std::mem::replace(current, page))
    }

    /// Takes out what is at `index`. Costs little where nothing is.
    pub fn take(&self, index: usize) -> Option<Page> {
        if self.entry(index).load(Ordering::Relaxed).is_null() {
            return None;
        }
        self.swap(index, None)
    }

    /// Runs `change` alone with the entry at `index`. It must be short: others spin meanwhile.
    pub fn with<R>(&self, index: usize, change: impl FnOnce(&mut Option<Page>) -> R) -> R {
        let entry = self.entry(index);
        let mut guard = Guard { entry, page: lock(entry) };
        change(&mut guard.page)
    }

    fn entry(&self, index: usize) -> &Entry {
        assert!(index < self.len, "page {index} is outside of a table of {} pages", self.len);
        // SAFETY: inside of the allocation, as checked; entries are only used through shared references.
        unsafe { self.entries.add(index).as_ref() }
    }
}

impl Drop for PageTable {
    fn drop(&mut self) {
        for index in 0..self.len {
            self.take(index);
        }
        if let Some(layout) = layout(self.len) {
            // SAFETY: allocated in `new` with this layout; nobody refers to it any more.
            unsafe { dealloc(self.entries.as_ptr().cast(), layout) };
        }
    }
}

impl std::fmt::Debug for PageTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PageTable({} pages)", self.len)
    }
}

/// Unlocks its entry with whatever page it then holds, also when the change panicked.
struct Guard<'a> {
    entry: &'a Entry,
    page: Option<Page>,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let raw = self.page.take().map_or(ptr::null_mut(), |page| page.into_raw().as_ptr());
        self.entry.store(raw, Ordering::Release);
    }
}

/// Waits for the entry's lock and takes the page out of it.
fn lock(entry: &Entry) -> Option<Page> {
    // SAFETY: the entry owned this page by `into_raw`; the lock makes us the only one to take it.
    NonNull::new(lock_raw(entry)).map(|raw| unsafe { Page::from_raw(raw) })
}

/// Waits for the entry's lock and returns what it holds.
#[inline]
fn lock_raw(entry: &Entry) -> *mut u8 {
    let mut attempts = 0u32;
    loop {
        let seen = entry.fetch_or_lock();
        if seen.addr() & LOCKED == 0 {
            return seen;
        }
        attempts += 1;
        if attempts.is_multiple_of(SPINS_BEFORE_YIELD) { std::thread::yield_now() } else { spin_loop() }
    }
}

trait Lock {
    /// Sets the lock bit and returns what was there.
    fn fetch_or_lock(&self) -> *mut u8;
}

impl Lock for Entry {
    #[inline]
    fn fetch_or_lock(&self) -> *mut u8 {
        let seen = self.load(Ordering::Relaxed);
        if seen.addr() & LOCKED != 0 {
            return seen;
        }
        let locked = seen.map_addr(|addr| addr | LOCKED);
        match self.compare_exchange(seen, locked, Ordering::Acquire, Ordering::Relaxed) {
            Ok(seen) => seen,
            Err(_) => ptr::without_provenance_mut(LOCKED),
        }
    }
}

/// `None` for a table that is larger than the address space.
fn layout(len: usize) -> Option<Layout> {
    Layout::array::<Entry>(len.max(1)).ok()
}

const LOCKED: usize = 1;
const SPINS_BEFORE_YIELD: u32 = 64;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn page_of(byte: u8) -> Page {
        let mut page = Page::zeroed();
        page.bytes_mut().unwrap().fill(byte);
        page
    }

    #[test]
    fn a_table_that_no_machine_can_hold_is_refused() {
        assert!(PageTable::new(usize::MAX / 4).is_none());
        assert!(PageTable::new(1 << 59).is_none());
    }

    #[test]
    fn a_swap_returns_what_was_there_and_readers_keep_theirs() {
        let table = PageTable::new(8).unwrap();
        assert!(table.page(3).is_none());
        assert!(table.swap(3, Some(page_of(1))).is_none());
        let reader = table.page(3).unwrap();
        let old = table.swap(3, Some(page_of(2))).unwrap();
        assert_eq!((reader.bytes()[0], old.bytes()[0], table.page(3).unwrap().bytes()[0]), (1, 1, 2));
        assert!(table.swap(3, None).is_some());
        assert!(table.page(3).is_none());
    }

    #[test]
    fn readers_never_see_half_of_a_page_while_writers_swap() {
        let table = Arc::new(PageTable::new(1).unwrap());
        let threads: Vec<_> = (0..4u8)
            .map(|id| {
                let table = Arc::clone(&table);
                std::thread::spawn(move || {
                    for round in 0..2000u32 {
                        if id % 2 == 0 {
                            table.swap(0, Some(page_of((round % 250) as u8)));
                        } else if let Some(page) = table.page(0) {
                            assert!(page.bytes().iter().all(|&byte| byte == page.bytes()[0]));
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(table.page(0).is_some());
    }

    #[test]
    fn changes_in_place_are_alone_with_their_page() {
        let table = Arc::new(PageTable::new(1).unwrap());
        table.swap(0, Some(Page::zeroed()));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let table = Arc::clone(&table);
                std::thread::spawn(move || {
                    for _ in 0..1000 {
                        table.with(0, |page| {
                            let bytes = page.as_mut().unwrap().bytes_mut().unwrap();
                            let count = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) + 1;
                            bytes[..4].copy_from_slice(&count.to_le_bytes());
                        });
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(table.page(0).unwrap().bytes()[..4], 4000u32.to_le_bytes());
    }
}

//! A large array of optional pages that any core reads and swaps: the body of a memory volume.
//!
//! Each entry is one word, a page's address. Those of one line of the cache share a lock, the lowest bit of
//! the first of them, which is held for at most one copy of a page: to look at one entry costs one locked
//! word, and so does a line of them. It is not a map that grows. Invariant: who holds the lock is alone with
//! its entries; a reader takes its own counted reference under the lock, so a page that is swapped out lives
//! until its last reader ends.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::Cell;
use std::hint::spin_loop;
use std::mem::ManuallyDrop;
use std::ops::Range;
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
    /// A table of `len` entries without pages. Costs 8 bytes an entry, and those only once touched. `None` if
    /// the system does not even give the addresses.
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
        if self.is_vacant(index) {
            return None;
        }
        self.lock(index).shared(index)
    }

    /// Counted references to the pages from `first` on, `count` of them, in order. Those that share a lock
    /// are taken together.
    pub fn pages(&self, first: usize, count: usize, mut each: impl FnMut(Option<Page>)) {
        for range in groups(first, count) {
            let group = self.lock(range.start);
            range.for_each(|index| each(group.shared(index)));
        }
    }

    /// Fetches the entry at `index` into the cache, if there is one.
    #[inline]
    pub fn prefetch_entry(&self, index: usize) {
        if index < self.len {
            cache::prefetch_at::<1>(ptr::from_ref(self.entry(index)).cast());
        }
    }

    /// Fetches the page at `index`, as [`Page::prefetch`] does. Quick if the entry is in the cache.
    #[inline]
    pub fn prefetch_page(&self, index: usize) {
        if index < self.len
            && let Some(page) = NonNull::new(unlocked(self.entry(index).load(Ordering::Relaxed)))
        {
            page::prefetch(page);
        }
    }

    /// Puts `page` at `index` and returns what was there.
    pub fn swap(&self, index: usize, page: Option<Page>) -> Option<Page> {
        self.with(index, |current| std::mem::replace(current, page))
    }

    /// Puts `pages` at the places from `first` on, in order, and hands each that was there to `each`.
    pub fn swap_all(
        &self,
        first: usize,
        pages: impl ExactSizeIterator<Item = Page>,
        mut each: impl FnMut(Page),
    ) {
        let count = pages.len();
        let mut pages = pages.into_iter();
        for range in groups(first, count) {
            let mut old = [const { None }; GROUP_ENTRIES];
            let group = self.lock(range.start);
            for (index, old) in range.zip(&mut old) {
                *old = group.replace(index, pages.next());
            }
            drop(group);
            old.into_iter().flatten().for_each(&mut each);
        }
    }

    /// Takes out what is at `index`. Costs little where nothing is.
    pub fn take(&self, index: usize) -> Option<Page> {
        if self.is_vacant(index) {
            return None;
        }
        self.swap(index, None)
    }

    /// Runs `change` alone with the entry at `index`. It must be short: others spin meanwhile.
    pub fn with<R>(&self, index: usize, change: impl FnOnce(&mut Option<Page>) -> R) -> R {
        let group = self.lock(index);
        let mut guard = Guard { page: group.owned(index), group: &group, index };
        change(&mut guard.page)
    }

    fn is_vacant(&self, index: usize) -> bool {
        unlocked(self.entry(index).load(Ordering::Relaxed)).is_null()
    }

    /// Waits until nobody else is at the entries that share a lock with the one at `index`.
    #[inline]
    fn lock(&self, index: usize) -> Group<'_> {
        let first = index - index % GROUP_ENTRIES;
        let seen = lock_raw(self.entry(first));
        Group { table: self, first, first_raw: Cell::new(seen) }
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

/// Entries that share a lock, held. The pointer of the first, whose lowest bit is the lock, is kept here
/// until it ends.
struct Group<'a> {
    table: &'a PageTable,
    first: usize,
    first_raw: Cell<*mut u8>,
}

impl Group<'_> {
    #[inline]
    fn raw(&self, index: usize) -> *mut u8 {
        match index == self.first {
            true => self.first_raw.get(),
            false => self.table.entry(index).load(Ordering::Relaxed),
        }
    }

    #[inline]
    fn set_raw(&self, index: usize, raw: *mut u8) {
        match index == self.first {
            true => self.first_raw.set(raw),
            false => self.table.entry(index).store(raw, Ordering::Relaxed),
        }
    }

    /// A counted reference to the page at `index`.
    #[inline]
    fn shared(&self, index: usize) -> Option<Page> {
        // SAFETY: the entry owns this page, and does so while the lock is held; the handle made here is never
        // dropped.
        let page = NonNull::new(self.raw(index)).map(|raw| ManuallyDrop::new(unsafe { Page::from_raw(raw) }));
        page.as_deref().cloned()
    }

    /// The page at `index`, owned. The entry goes on to show it, lest somebody who does not wait for the lock
    /// sees none, until [`Group::put`], which must follow.
    #[inline]
    fn owned(&self, index: usize) -> Option<Page> {
        // SAFETY: the entry owned this page by `into_raw`; nobody takes it from there while the lock is held.
        NonNull::new(self.raw(index)).map(|raw| unsafe { Page::from_raw(raw) })
    }

    #[inline]
    fn replace(&self, index: usize, page: Option<Page>) -> Option<Page> {
        let old = self.owned(index);
        self.put(index, page);
        old
    }

    /// From now on the entry owns this page.
    #[inline]
    fn put(&self, index: usize, page: Option<Page>) {
        self.set_raw(index, page.map_or(ptr::null_mut(), |page| page.into_raw().as_ptr()));
    }
}

impl Drop for Group<'_> {
    #[inline]
    fn drop(&mut self) {
        self.table.entry(self.first).store(self.first_raw.get(), Ordering::Release);
    }
}

/// Puts whatever page it then holds back at its place, also when the change panicked.
struct Guard<'a> {
    page: Option<Page>,
    group: &'a Group<'a>,
    index: usize,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.group.put(self.index, self.page.take());
    }
}

/// The parts of a range of entries that share a lock each.
fn groups(first: usize, count: usize) -> impl Iterator<Item = Range<usize>> {
    let (mut at, end) = (first, first + count);
    std::iter::from_fn(move || {
        let part = at..end.min((at / GROUP_ENTRIES + 1) * GROUP_ENTRIES);
        at = part.end;
        (!part.is_empty()).then_some(part)
    })
}

/// Waits for the lock in the first entry of a group and returns what that holds.
#[inline]
fn lock_raw(entry: &Entry) -> *mut u8 {
    let mut attempts = 0u32;
    loop {
        if let Some(seen) = try_lock(entry) {
            return seen;
        }
        attempts += 1;
        if attempts.is_multiple_of(SPINS_BEFORE_YIELD) { std::thread::yield_now() } else { spin_loop() }
    }
}

/// Sets the lock and returns what was there; `None` if somebody else has it.
#[inline]
fn try_lock(entry: &Entry) -> Option<*mut u8> {
    let seen = entry.load(Ordering::Relaxed);
    if seen.addr() & LOCKED != 0 {
        return None;
    }
    let locked = seen.map_addr(|addr| addr | LOCKED);
    entry.compare_exchange(seen, locked, Ordering::Acquire, Ordering::Relaxed).ok()
}

/// `None` for a table that is larger than the address space.
fn layout(len: usize) -> Option<Layout> {
    Layout::array::<Entry>(len.max(1)).ok()?.align_to(GROUP_ENTRIES * size_of::<Entry>()).ok()
}

/// An entry's pointer, whether or not it bears the lock.
fn unlocked(raw: *mut u8) -> *mut u8 {
    raw.map_addr(|addr| addr & !LOCKED)
}

/// A line of the cache.
const GROUP_ENTRIES: usize = 8;

const LOCKED: usize = 1;
const SPINS_BEFORE_YIELD: u32 = 64;

#[cfg(test)]
mod tests;

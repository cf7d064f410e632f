//! A large array of optional pages that any core reads and swaps: the body of a memory volume.
//!
//! Each entry is one word, a page's address. Those of one line of the cache share a lock for who changes them,
//! the lowest bit of the first of them, which is held for at most one copy of a page. Who reads takes no lock
//! and counts nothing: it looks ([`PageGuard`]). It is not a map that grows. Invariants: who holds the lock is
//! alone with changing its entries; what is swapped out goes to the limbo of the pool that did it, and so lives until
//! nobody looks at it; a page is changed where it is only under the lock, while nobody looks at all.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::Cell;
use std::hint::spin_loop;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::cache;
use crate::guard::{self, LOOKERS, PageGuard};
use crate::page::{self, Page};
use crate::pool::Pool;

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

    /// The page at `index`, to be looked at. Waits for who changes it.
    #[inline]
    pub fn look(&self, index: usize, pool: &mut Pool) -> Option<PageGuard> {
        pool.look(|| self.find(index))
    }

    /// What is at `index`, while nobody has the lock.
    #[inline]
    fn find(&self, index: usize) -> Option<NonNull<u8>> {
        let first = self.entry(index - index % GROUP_ENTRIES);
        if first.load(Ordering::Acquire).addr() & LOCKED != 0 {
            wait_until(|| (first.load(Ordering::Acquire).addr() & LOCKED == 0).then_some(()));
        }
        NonNull::new(unlocked(self.entry(index).load(Ordering::Acquire)))
    }

    /// Fetches the entry at `index` into the cache, if there is one.
    #[inline]
    pub fn prefetch_entry(&self, index: usize) {
        if index < self.len {
            cache::prefetch_at::<1>(ptr::from_ref(self.entry(index)).cast());
        }
    }

    /// Fetches the entries from `first` on, `count` of them, as far as they exist.
    #[inline]
    pub fn prefetch_entries(&self, first: usize, count: usize) {
        groups(first, count).for_each(|range| self.prefetch_entry(range.start));
    }

    /// Fetches the page at `index`, as [`PageGuard::prefetch`] does, and its counter. Quick if the entry is in the cache.
    #[inline]
    pub fn prefetch_page(&self, index: usize) {
        if index < self.len
            && let Some(page) = NonNull::new(unlocked(self.entry(index).load(Ordering::Relaxed)))
        {
            page::prefetch(page);
        }
    }

    /// Puts `page` at `index`, for good: it counts against no pool any more. What was there goes to `pool`
    /// once nobody looks at it.
    #[inline]
    pub fn put(&self, index: usize, page: Page, pool: &mut Pool) {
        pool.forget(&page);
        let old = self.lock(index).replace(index, Some(page));
        pool.retire(old);
    }

    /// Puts `pages` at the places from `first` on, in order, as [`PageTable::put`] does.
    ///
    /// # Panics
    /// If they leave the table.
    pub fn put_all(&self, first: usize, mut pages: impl ExactSizeIterator<Item = Page>, pool: &mut Pool) {
        let count = pages.len();
        let is_inside = first.checked_add(count).is_some_and(|end| end <= self.len);
        assert!(is_inside, "{count} pages from {first} leave a table of {} pages", self.len);
        self.prefetch_entries(first, count);
        for range in groups(first, count) {
            let mut swapped = [const { None }; GROUP_ENTRIES];
            // All before the lock: what breaks off then leaves nothing behind that only limbo may let go of.
            swapped[..range.len()].fill_with(|| pages.next().inspect(|page| pool.forget(page)));
            let group = self.lock(range.start);
            for (index, page) in range.zip(&mut swapped) {
                *page = group.replace(index, page.take());
            }
            drop(group);
            pool.retire(swapped.into_iter().flatten());
        }
    }

    /// Takes out what is at `index`, to `pool`. Costs little where nothing is.
    pub fn take(&self, index: usize, pool: &mut Pool) {
        if self.is_vacant(index) {
            return;
        }
        let old = self.lock(index).replace(index, None);
        pool.retire(old);
    }

    /// Has `fill` change a part of the page at `index`, alone with it; a missing page is one of zeroes. Where
    /// nobody can see the page it is changed where it is, else a copy of it takes its place.
    pub fn change(&self, index: usize, part: Range<usize>, pool: &mut Pool, fill: impl FnOnce(&mut [u8])) {
        // Before the lock: it may have to be made.
        let mut fresh = pool.page();
        let unused = {
            let group = self.lock(index);
            let mut current = Guard { page: group.owned(index), group: &group, index };
            let in_place = current.page.as_mut().filter(|_| LOOKERS.are_away()).and_then(Page::bytes_mut);
            match (in_place, fresh.bytes_mut()) {
                (Some(bytes), _) => {
                    fill(&mut bytes[part]);
                    Err(fresh)
                }
                (None, Some(bytes)) => {
                    match &current.page {
                        Some(page) => bytes.copy_from_slice(page.bytes()),
                        None => bytes.fill(0),
                    }
                    fill(&mut bytes[part]);
                    Ok(current.page.replace(fresh))
                }
                (None, None) => unreachable!("a pool's page is nobody else's"),
            }
        };
        match unused {
            Ok(old) => pool.retire(old),
            Err(fresh) => pool.recycle_page(fresh),
        }
    }

    /// Whether nothing is at `index`.
    pub fn is_vacant(&self, index: usize) -> bool {
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
        guard::orphan((0..self.len).filter_map(|index| match self.is_vacant(index) {
            true => None,
            false => self.lock(index).replace(index, None),
        }));
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
            false => self.table.entry(index).store(raw, Ordering::Release),
        }
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
    match try_lock(entry) {
        Some(seen) => seen,
        None => wait_until(|| try_lock(entry)),
    }
}

/// Tries until there is an outcome.
#[cold]
fn wait_until<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let mut attempts = 0u32;
    loop {
        attempts += 1;
        if attempts.is_multiple_of(SPINS_BEFORE_YIELD) {
            std::thread::yield_now()
        } else {
            spin_loop()
        }
        if let Some(outcome) = attempt() {
            return outcome;
        }
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

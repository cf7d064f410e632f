//! The bounded supply of pages of one core: what was received into comes back here and is received into
//! again.
//!
//! A pool is owned by one thread and is not a cache of zeroes: contents of its buffers are whatever was
//! there. Invariants: at most `pages_max` pages are out as buffers (or as payload made of them) at any time,
//! wherever they end; a page that is recycled is reused without an allocation.
//!
//! It also stands for its core at tables of pages: it looks at them for it ([`PageGuard`]), and keeps what the
//! core has taken out of them until nobody looks at that any more. [`Pool::end_turn`] ends both.

use std::mem;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use crate::PAGE_SIZE;
use crate::buffer::{Buffer, Store};
use crate::guard::{self, Limbo, PageGuard};
use crate::meter::Meter;
use crate::page::{Page, PageList};
use crate::payload::Payload;

/// Bounded page pool of one reactor.
pub struct Pool {
    free: Vec<Page>,
    /// Emptied page lists that had outgrown their inline place.
    lists: Vec<PageList>,
    /// Pages out, as far as this core knows; `meter` counts those that ended elsewhere.
    lent: usize,
    pages_max: usize,
    meter: &'static Meter,
    /// Guards out, as far as this core knows.
    guards: usize,
    /// Whether the looker looks: always while guards are out.
    is_looking: bool,
    limbo: Limbo,
}

impl Pool {
    /// A pool that lends at most `pages_max` pages of 4 KiB at a time. Pages are made when first needed.
    pub fn new(pages_max: usize) -> Pool {
        Pool {
            free: Vec::with_capacity(pages_max.min(FREE_RESERVED)),
            lists: Vec::with_capacity(LISTS_MAX),
            lent: 0,
            pages_max,
            meter: Meter::take(),
            guards: 0,
            is_looking: false,
            limbo: Limbo::new(),
        }
    }

    /// A buffer of `len` bytes in pages; `None` when the bound is reached. Its contents are old bytes.
    pub fn buffer(&mut self, len: usize) -> Option<Buffer> {
        let count = pages_for(len);
        if count > self.free_pages_known() && count > self.free_pages() {
            return None;
        }
        if count == 1 {
            return Some(Buffer::from_page(self.lend_page(), len));
        }
        Some(Buffer::from_pages(self.lend_pages(count), len))
    }

    /// Pages that came back one after the other leave so again: neighbours stay together, through a volume
    /// that keeps them, too.
    fn lend_pages(&mut self, count: usize) -> PageList {
        let mut pages = self.list(count);
        let first = self.free.len().saturating_sub(count);
        pages.extend(self.free.drain(first..));
        pages.resize_with(count, Page::zeroed);
        pages.iter().for_each(|page| page.lend(self.meter));
        self.lent += count;
        pages
    }

    #[inline]
    fn lend_page(&mut self) -> Page {
        let page = self.page();
        page.lend(self.meter);
        self.lent += 1;
        page
    }

    /// Pages that may still be lent.
    pub fn free_pages(&mut self) -> usize {
        // Looked at each turn: a locked instruction only if there is something to take.
        if self.meter.returned.load(Ordering::Relaxed) > 0 {
            self.lent -= self.meter.returned.swap(0, Ordering::Relaxed);
        }
        self.free_pages_known()
    }

    /// Pages that are here already: lending one of them asks the system for nothing.
    pub fn ready_pages(&self) -> usize {
        self.free.len()
    }

    /// The bound this pool was made with.
    pub fn pages_max(&self) -> usize {
        self.pages_max
    }

    /// A writable page that does not count against the bound: for a volume that keeps it.
    #[inline]
    pub fn page(&mut self) -> Page {
        self.free.pop().unwrap_or_else(Page::zeroed)
    }

    /// Takes a buffer back.
    pub fn recycle_buffer(&mut self, buffer: Buffer) {
        if let Store::Pages(mut pages) = buffer.store {
            pages.drain(..).for_each(|page| self.recycle_page(page));
            self.recycle_list(pages);
        }
    }

    /// Takes a page back, whoever lent it. A page that others still hold is only let go of.
    #[inline]
    pub fn recycle_page(&mut self, page: Page) {
        if !page.is_unique() {
            return;
        }
        self.forget(&page);
        if self.free.len() < self.pages_max {
            self.free.push(page);
        }
    }

    /// Takes a payload's pages back.
    pub fn recycle_payload(&mut self, payload: Payload) {
        payload.drain_to(self);
    }

    /// Takes an emptied page list back, so that the next large buffer needs no allocation.
    pub fn recycle_list(&mut self, mut list: PageList) {
        if list.spilled() && self.lists.len() < LISTS_MAX {
            list.clear();
            self.lists.push(list);
        }
    }

    /// The page stays with someone else (a memory volume) for good: it no longer counts against the bound.
    #[inline]
    pub fn forget(&mut self, page: &Page) {
        if page.settle(self.meter) {
            self.lent -= 1;
        }
    }

    /// Looks at what `find` finds in a table, if anything.
    #[inline]
    pub(crate) fn look(&mut self, find: impl FnOnce() -> Option<NonNull<u8>>) -> Option<PageGuard> {
        if !self.is_looking {
            self.meter.looker.begin();
            self.is_looking = true;
        }
        let page = find()?;
        self.guards += 1;
        // SAFETY: the looker looks, the page was found after it had begun to, and the guard is counted.
        Some(unsafe { PageGuard::new(page, self.meter) })
    }

    /// Takes a guard back.
    #[inline]
    pub(crate) fn end_guard(&mut self, guard: PageGuard) {
        if guard.end(self.meter) {
            self.guards -= 1;
        }
    }

    /// Takes what was taken out of a table, where others may still look at it.
    #[inline]
    pub(crate) fn retire(&mut self, pages: impl IntoIterator<Item = Page>) {
        self.limbo.put(pages);
    }

    /// Whether so many more pages may be taken out of tables now: those that wait until nobody looks at them
    /// are bounded. If not, others have to end their turns first.
    #[inline]
    pub fn may_retire(&mut self, pages: usize) -> bool {
        self.limbo.len() + pages <= LIMBO_PAGES_MAX || self.make_room_to_retire(pages)
    }

    #[cold]
    fn make_room_to_retire(&mut self, pages: usize) -> bool {
        self.end_turn();
        self.limbo.is_empty() || self.limbo.len() + pages <= LIMBO_PAGES_MAX
    }

    /// Whether guards are out that somebody waits for: [`Payload::count_pages`] should be called for all
    /// that were not sent, before the turn ends. Otherwise they may stay for more turns.
    #[inline]
    pub fn is_awaited(&mut self) -> bool {
        self.guards_out() > 0 && (self.meter.looker.is_awaited() || !self.limbo.is_empty())
    }

    /// Guards that have not ended.
    #[inline]
    pub fn guards_out(&mut self) -> usize {
        self.guards -= self.meter.take_guards_ended();
        self.guards
    }

    /// Stops looking, if no guard is out, and takes back what nobody looks at any more. To be called often: others
    /// wait for it.
    #[inline]
    pub fn end_turn(&mut self) {
        if self.is_looking && self.guards_out() == 0 {
            self.meter.looker.end();
            self.is_looking = false;
        }
        if !self.limbo.is_empty() {
            self.take_back();
        }
        guard::release_orphans();
    }

    fn take_back(&mut self) {
        let mut limbo = mem::take(&mut self.limbo);
        limbo.release(|page| self.recycle_page(page));
        self.limbo = limbo;
    }

    fn free_pages_known(&self) -> usize {
        self.pages_max - self.lent
    }

    fn list(&mut self, count: usize) -> PageList {
        if count <= 1 {
            return PageList::new();
        }
        self.lists.pop().unwrap_or_else(|| PageList::with_capacity(count))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.end_turn();
        guard::orphan(mem::take(&mut self.limbo).into_pages());
        let is_unseen = !self.is_looking || self.meter.leave_guards(self.guards);
        if is_unseen && self.free_pages() == self.pages_max {
            self.meter.give();
        }
        guard::release_orphans();
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} of {} pages out)", self.lent, self.pages_max)
    }
}

/// Pages that `len` bytes need.
pub const fn pages_for(len: usize) -> usize {
    len.div_ceil(PAGE_SIZE)
}

const FREE_RESERVED: usize = 4096;
const LISTS_MAX: usize = 64;
/// What may wait until nobody looks at it any more: 64 MiB.
const LIMBO_PAGES_MAX: usize = 1 << 14;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_lends_up_to_its_bound_and_again_after_a_return() {
        let mut pool = Pool::new(3);
        let first = pool.buffer(8192).unwrap();
        assert!(pool.buffer(4097).is_none());
        let second = pool.buffer(1).unwrap();
        assert!(pool.buffer(1).is_none());
        pool.recycle_buffer(first);
        assert_eq!(pool.free_pages(), 2);
        pool.recycle_payload(second.into_payload());
        assert_eq!(pool.free_pages(), 3);
    }

    #[test]
    fn pages_that_end_elsewhere_come_back_to_the_bound() {
        let mut pool = Pool::new(4);
        let mut other = Pool::new(4);
        drop(pool.buffer(4096).unwrap());
        other.recycle_buffer(pool.buffer(4096).unwrap());
        let kept = pool.buffer(4096).unwrap().into_pages().unwrap();
        pool.forget(&kept[0]);
        assert_eq!(pool.free_pages(), 4);
        assert_eq!(other.free_pages(), 4);
    }

    #[test]
    fn a_payload_that_was_cloned_is_counted_until_its_last_reference_ends() {
        let mut pool = Pool::new(1);
        let payload = pool.buffer(4096).unwrap().into_payload();
        let clone = payload.clone();
        pool.recycle_payload(payload);
        assert!(pool.buffer(1).is_none());
        drop(clone);
        assert!(pool.buffer(1).is_some());
    }

    #[test]
    fn pages_that_came_back_together_leave_together_and_in_their_order() {
        let mut pool = Pool::new(64);
        let places = |buffer: &Buffer| buffer.raw_parts(0, buffer.len()).collect::<Vec<_>>();
        let buffers: Vec<Buffer> = (0..3).filter_map(|_| pool.buffer(8 * PAGE_SIZE)).collect();
        let before: Vec<_> = buffers.iter().map(places).collect();
        buffers.into_iter().for_each(|buffer| pool.recycle_buffer(buffer));
        let again: Vec<Buffer> = (0..3).filter_map(|_| pool.buffer(8 * PAGE_SIZE)).collect();
        let after: Vec<_> = again.iter().rev().map(places).collect();
        assert_eq!(after, before);
    }

    #[test]
    fn the_same_page_is_used_again() {
        let mut pool = Pool::new(1);
        let buffer = pool.buffer(4096).unwrap();
        let address = buffer.raw_parts(0, 1).next();
        pool.recycle_buffer(buffer);
        assert_eq!(pool.buffer(512).unwrap().raw_parts(0, 1).next(), address);
    }
}

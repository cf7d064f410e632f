//! Bounded page supply of one core, which reuses freed pages.
//!
//! A pool is owned by one thread. It does not zero pages: buffers contain old bytes.
//!
//! Invariant: at most `max_pages` pages are in use as buffers, or as payloads made of them, at any time, on any
//! thread; a recycled page is reused without an allocation.

use std::sync::atomic::Ordering;

use crate::buffer::{Buffer, Storage};
use crate::page::{Page, PageList};
use crate::pages_for;
use crate::payload::Payload;
use crate::pool_account::PoolAccount;

/// Bounded page pool of one core.
pub struct Pool {
    free: Vec<Page>,
    /// Empty page lists with heap storage.
    lists: Vec<PageList>,
    /// Pages in use; `account` counts pages freed elsewhere since.
    outstanding: usize,
    max_pages: usize,
    account: &'static PoolAccount,
    /// The next buffer of its length.
    destination: Option<Buffer>,
}

impl Pool {
    /// Creates a pool of at most `max_pages` pages, which are allocated on first use.
    pub fn new(max_pages: usize) -> Pool {
        Pool {
            free: Vec::with_capacity(max_pages.min(RESERVED_PAGES)),
            lists: Vec::with_capacity(MAX_LISTS),
            outstanding: 0,
            max_pages,
            account: PoolAccount::take(),
            destination: None,
        }
    }

    /// Returns a buffer of `len` bytes in pages, `None` at the limit. It contains old bytes.
    pub fn buffer(&mut self, len: usize) -> Option<Buffer> {
        if let Some(buffer) = self.destination.take_if(|buffer| buffer.len() == len) {
            return Some(buffer);
        }
        let count = pages_for(len);
        if count > self.free_pages_known() && count > self.free_pages() {
            return None;
        }
        if count == 1 {
            return Some(Buffer::from_page(self.charged_page(), len));
        }
        Some(Buffer::from_pages(self.charged_pages(count), len))
    }

    /// Makes the next [`Pool::buffer`] of the same length return this buffer, which does not count against the limit.
    /// Its memory is so the destination of a read that would take pages of the pool.
    pub fn set_destination(&mut self, buffer: Buffer) {
        self.destination = Some(buffer);
    }

    /// Takes the buffer of [`Pool::set_destination`] back, if no call returned it.
    pub fn take_destination(&mut self) -> Option<Buffer> {
        self.destination.take()
    }

    /// Keeps the order of recycled pages, so that adjacent pages stay together.
    fn charged_pages(&mut self, count: usize) -> PageList {
        let mut pages = self.list(count);
        let first = self.free.len().saturating_sub(count);
        pages.extend(self.free.drain(first..));
        pages.resize_with(count, Page::zeroed);
        pages.iter().for_each(|page| page.charge(self.account));
        self.outstanding += count;
        pages
    }

    #[inline]
    fn charged_page(&mut self) -> Page {
        let page = self.unbudgeted_page();
        page.charge(self.account);
        self.outstanding += 1;
        page
    }

    /// Returns the number of pages below the limit.
    pub fn free_pages(&mut self) -> usize {
        // Called each turn: a locked instruction only if pages were freed.
        if self.account.freed_elsewhere.load(Ordering::Relaxed) > 0 {
            self.outstanding -= self.account.freed_elsewhere.swap(0, Ordering::Relaxed);
        }
        self.free_pages_known()
    }

    /// Number of allocated free pages.
    pub fn ready_pages(&self) -> usize {
        self.free.len()
    }

    /// Maximum number of pages in use.
    pub fn max_pages(&self) -> usize {
        self.max_pages
    }

    /// Returns a writable page that does not count against the limit, for a volume that keeps it.
    #[inline]
    pub fn unbudgeted_page(&mut self) -> Page {
        self.free.pop().unwrap_or_else(Page::zeroed)
    }

    /// Recycles a buffer.
    pub fn recycle_buffer(&mut self, buffer: Buffer) {
        if let Storage::Pages(mut pages) = buffer.storage {
            pages.drain(..).for_each(|page| self.recycle_page(page));
            self.recycle_list(pages);
        }
    }

    /// Recycles a page of any pool. A page with other references is only dropped.
    #[inline]
    pub fn recycle_page(&mut self, page: Page) {
        if !page.is_unique() {
            return;
        }
        self.disown(&page);
        if self.free.len() < self.max_pages {
            self.free.push(page);
        }
    }

    /// Recycles the pages of a payload.
    pub fn recycle_payload(&mut self, payload: Payload) {
        payload.recycle(|page| self.recycle_page(page));
    }

    /// Recycles a page list, so that the next large buffer needs no allocation.
    pub fn recycle_list(&mut self, mut list: PageList) {
        if list.spilled() && self.lists.len() < MAX_LISTS {
            list.clear();
            self.lists.push(list);
        }
    }

    /// Stops counting a page that a volume keeps.
    #[inline]
    pub fn disown(&mut self, page: &Page) {
        if page.uncharge(self.account) {
            self.outstanding -= 1;
        }
    }

    fn free_pages_known(&self) -> usize {
        self.max_pages - self.outstanding
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
        if self.free_pages() == self.max_pages {
            self.account.release();
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} of {} pages in use)", self.outstanding, self.max_pages)
    }
}

const RESERVED_PAGES: usize = 4096;
const MAX_LISTS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE_SIZE;

    #[test]
    fn reuses_pages_within_the_limit() {
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
    fn credits_pages_freed_elsewhere() {
        let mut pool = Pool::new(4);
        let mut other = Pool::new(4);
        drop(pool.buffer(4096).unwrap());
        other.recycle_buffer(pool.buffer(4096).unwrap());
        let pages = pool.buffer(4096).unwrap().into_pages().unwrap();
        pool.disown(&pages[0]);
        assert_eq!(pool.free_pages(), 4);
        assert_eq!(other.free_pages(), 4);
    }

    #[test]
    fn counts_a_payload_until_its_last_reference() {
        let mut pool = Pool::new(1);
        let payload = pool.buffer(4096).unwrap().into_payload();
        let clone = payload.clone();
        pool.recycle_payload(payload);
        assert!(pool.buffer(1).is_none());
        drop(clone);
        assert!(pool.buffer(1).is_some());
    }

    #[test]
    fn keeps_the_order_of_recycled_pages() {
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
    fn returns_a_destination_once() {
        let (mut pool, start) = (Pool::new(1), |buffer: &Buffer| buffer.raw_parts(0, 1).next());
        let destination = Buffer::contiguous(8192);
        let address = start(&destination);
        pool.set_destination(destination);
        assert_ne!(pool.buffer(4096).as_ref().map(start), Some(address));
        let taken = pool.buffer(8192).unwrap();
        assert_eq!(start(&taken), address);
        assert!(pool.buffer(8192).is_none());
        pool.set_destination(taken);
        assert!(pool.take_destination().is_some() && pool.take_destination().is_none());
        assert!(pool.buffer(8192).is_none() && pool.free_pages() == 1);
    }

    #[test]
    fn reuses_a_page() {
        let mut pool = Pool::new(1);
        let buffer = pool.buffer(4096).unwrap();
        let address = buffer.raw_parts(0, 1).next();
        pool.recycle_buffer(buffer);
        assert_eq!(pool.buffer(512).unwrap().raw_parts(0, 1).next(), address);
    }
}

//! Reference-counted page of 4 KiB at a 4 KiB boundary.
//!
//! Invariant: bytes change only through an exclusive reference to the only handle.

use std::mem;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use smallvec::SmallVec;

use crate::PAGE_SIZE;
use crate::arena::{self, Frame};
use crate::entry::{Counter, PREPAID, Prepaid};
use crate::pool_account::PoolAccount;
use crate::prefetch;

/// The bytes of a page.
pub type PageBytes = [u8; PAGE_SIZE];

/// List of pages; a single page needs no allocation.
pub type PageList = SmallVec<[Page; 1]>;

/// Handle to a page. A clone is another handle to the same page.
pub struct Page(NonNull<u8>);

// SAFETY: a page is shared like an `Arc`: the count is atomic, and bytes are written only by a sole owner.
unsafe impl Send for Page {}
// SAFETY: as above; a shared reference only reads.
unsafe impl Sync for Page {}

impl Page {
    /// Returns a new page of zeroes.
    pub fn zeroed() -> Page {
        Page(arena::alloc())
    }

    /// Returns the shared page of zeroes, which is never writable. For many zeroes use
    /// [`Payload::zeroes`](crate::Payload::zeroes), which has no counter.
    pub fn zero() -> Page {
        static ZERO: OnceLock<Page> = OnceLock::new();
        ZERO.get_or_init(Page::zeroed).clone()
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &PageBytes {
        // SAFETY: the page is initialized and alive; writers need `&mut` to the only owner.
        unsafe { self.0.cast::<PageBytes>().as_ref() }
    }

    /// Returns the bytes for writing, `None` while there are other handles.
    pub fn bytes_mut(&mut self) -> Option<&mut PageBytes> {
        // SAFETY: there are no other handles, and this one is borrowed exclusively.
        self.is_unique().then(|| unsafe { self.0.cast::<PageBytes>().as_mut() })
    }

    /// Whether this is the only handle, so that the page can be written.
    pub fn is_unique(&self) -> bool {
        let frame = self.frame();
        let is_unique = frame.count.load(Ordering::Relaxed) == 1;
        if is_unique {
            // Reads through dropped handles happened before.
            fence(Ordering::Acquire);
            if frame.checksum.load(Ordering::Relaxed) != 0 {
                frame.checksum.store(0, Ordering::Relaxed);
            }
        }
        is_unique
    }

    /// Returns a checksum of the bytes, cached until the page can be written again. Every caller passes the same
    /// function.
    #[inline]
    pub(crate) fn checksum(&self, compute: impl FnOnce(&[u8]) -> u32) -> u32 {
        let cached = &self.frame().checksum;
        match cached.load(Ordering::Relaxed) {
            0 => {
                let computed = compute(self.bytes());
                cached.store(computed, Ordering::Relaxed);
                computed
            }
            checksum => checksum,
        }
    }

    /// Fetches the first bytes into the cache before the kernel reads them. The processor fetches the
    /// remainder once it detects sequential access.
    #[inline]
    pub fn prefetch(&self) {
        prefetch::prefetch_at::<{ prefetch::FIRST_BYTES }>(self.0.as_ptr());
    }

    /// Converts the only handle into the references of an entry.
    #[inline]
    pub(crate) fn into_prepaid(self) -> NonNull<u8> {
        let count = &self.frame().count;
        if self.is_unique() {
            count.store(PREPAID, Ordering::Relaxed);
        } else {
            count.fetch_add(PREPAID - 1, Ordering::Relaxed);
        }
        self.into_raw()
    }

    /// Converts the references of an entry into one handle.
    ///
    /// # Safety
    /// The references are the caller's.
    #[inline]
    pub(crate) unsafe fn from_prepaid(prepaid: Prepaid) -> Page {
        let page = Page(prepaid.page);
        let count = &page.frame().count;
        // Without other references the counter is the caller's alone, and needs no locked instruction.
        if count.load(Ordering::Acquire) == prepaid.references {
            count.store(1, Ordering::Relaxed);
        } else {
            count.fetch_sub(prepaid.references - 1, Ordering::Release);
        }
        page
    }

    /// Returns the address, which is valid while the handle lives.
    pub(crate) fn as_ptr(&self) -> NonNull<u8> {
        self.0
    }

    /// Converts the handle into an address and keeps its reference.
    pub(crate) fn into_raw(self) -> NonNull<u8> {
        let raw = self.0;
        mem::forget(self);
        raw
    }

    /// # Safety
    /// `raw` comes with one reference that the caller owns.
    pub(crate) unsafe fn from_raw(raw: NonNull<u8>) -> Page {
        Page(raw)
    }

    /// Charges the page to a pool.
    pub(crate) fn charge(&self, account: &'static PoolAccount) {
        self.frame().account.store(ptr::from_ref(account).cast_mut(), Ordering::Relaxed);
    }

    /// Ends the charge. Returns `false`, and credits the other account, if it is not `account`.
    pub(crate) fn uncharge(&self, account: &'static PoolAccount) -> bool {
        let frame = self.frame();
        let charged = frame.account.load(Ordering::Relaxed);
        if charged.is_null() {
            return false;
        }
        frame.account.store(ptr::null_mut(), Ordering::Relaxed);
        let same = ptr::eq(charged, account);
        if !same {
            credit(charged);
        }
        same
    }

    fn frame(&self) -> &Frame {
        arena::frame(self.0)
    }
}

impl Counter for Page {
    fn of<'a>(page: NonNull<u8>) -> &'a AtomicU32 {
        &arena::frame(page).count
    }
}

/// Fetches the counter of a page into the cache, and the first bytes if they will be read. The page can be free
/// already.
#[inline]
pub(crate) fn prefetch_page(page: NonNull<u8>, with_bytes: bool) {
    prefetch::prefetch_write(arena::frame_address(page).cast());
    if with_bytes {
        prefetch::prefetch_at::<{ prefetch::FIRST_BYTES }>(page.as_ptr());
    }
}

fn credit(account: *mut PoolAccount) {
    // SAFETY: accounts are never freed; the account of a frame is null or valid.
    unsafe { (*account).freed_elsewhere.fetch_add(1, Ordering::Relaxed) };
}

impl Clone for Page {
    fn clone(&self) -> Page {
        let handles = self.frame().count.fetch_add(1, Ordering::Relaxed);
        // As `Arc`: a program that leaks references ends before the counter wraps.
        if handles > u32::MAX / 2 {
            std::process::abort();
        }
        Page(self.0)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let frame = self.frame();
        if frame.count.fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        fence(Ordering::Acquire);
        let account = frame.account.swap(ptr::null_mut(), Ordering::Relaxed);
        if !account.is_null() {
            credit(account);
        }
        // SAFETY: this was the last reference.
        unsafe { arena::free(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_page_is_not_writable() {
        let mut page = Page::zeroed();
        page.bytes_mut().unwrap()[7] = 9;
        let other = page.clone();
        assert!(page.bytes_mut().is_none());
        assert_eq!(other.bytes()[7], 9);
        drop(other);
        assert!(page.bytes_mut().is_some());
    }

    #[test]
    fn pages_are_aligned_and_zero_page_is_immutable() {
        assert_eq!(Page::zeroed().as_ptr().addr().get() % PAGE_SIZE, 0);
        let mut zero = Page::zero();
        assert!(zero.bytes_mut().is_none());
        assert_eq!(zero.bytes(), &[0; PAGE_SIZE]);
    }

    #[test]
    fn pages_move_between_threads() {
        let page = Page::zeroed();
        let readers: Vec<_> = (0..4)
            .map(|_| {
                let page = page.clone();
                std::thread::spawn(move || (0..1000).map(|_| page.clone().bytes()[0] as usize).sum::<usize>())
            })
            .collect();
        assert!(readers.into_iter().all(|reader| reader.join().unwrap() == 0));
        assert!(page.is_unique());
    }
}

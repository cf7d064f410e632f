//! One counted page. Not a general buffer: it has no length of its own and is always 4 KiB at a 4 KiB
//! boundary.
//!
//! Invariant: bytes change only through an exclusive reference to the only owner.

use std::fmt;
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{Ordering, fence};

use smallvec::SmallVec;

use crate::PAGE_SIZE;
use crate::arena::{self, Frame};
use crate::cache;
use crate::meter::Meter;

/// The bytes of a page.
pub type PageBytes = [u8; PAGE_SIZE];

/// Pages in order; one of them needs no allocation.
pub type PageList = SmallVec<[Page; 1]>;

/// A counted, aligned page of 4 KiB. Cloning shares it.
pub struct Page(NonNull<u8>);

// SAFETY: a page is shared like an `Arc`: the count is atomic, and bytes are written only by a sole owner.
unsafe impl Send for Page {}
// SAFETY: as above; a shared reference only reads.
unsafe impl Sync for Page {}

impl Page {
    /// A fresh page of zeroes that nobody else holds.
    pub fn zeroed() -> Page {
        Page(arena::take())
    }

    /// The one shared page of zeroes. It is never writable. For bulk zeroes prefer
    /// [`Payload::zeroes`](crate::Payload::zeroes), whose counter no two cores contend for.
    pub fn zero() -> Page {
        static ZERO: OnceLock<Page> = OnceLock::new();
        ZERO.get_or_init(Page::zeroed).clone()
    }

    /// The bytes.
    pub fn bytes(&self) -> &PageBytes {
        // SAFETY: the page is initialised and alive; writers need `&mut` to the only owner.
        unsafe { self.0.cast::<PageBytes>().as_ref() }
    }

    /// The bytes to write to; `None` while the page is shared.
    pub fn bytes_mut(&mut self) -> Option<&mut PageBytes> {
        // SAFETY: nobody else owns the page, and our only handle is borrowed exclusively.
        self.is_unique().then(|| unsafe { self.0.cast::<PageBytes>().as_mut() })
    }

    /// Whether nobody else holds this page, so that its owner may write to it.
    pub fn is_unique(&self) -> bool {
        let frame = self.frame();
        let is_unique = frame.count.load(Ordering::Relaxed) == 1;
        if is_unique {
            // Whatever former owners read happened before they let go.
            fence(Ordering::Acquire);
            if frame.checksum.load(Ordering::Relaxed) != 0 {
                frame.checksum.store(0, Ordering::Relaxed);
            }
        }
        is_unique
    }

    /// What `compute` makes of the bytes; remembered until the page may be written to again, so every caller
    /// has to bring the same function.
    #[inline]
    pub(crate) fn checksum(&self, compute: impl FnOnce(&[u8]) -> u32) -> u32 {
        let known = &self.frame().checksum;
        match known.load(Ordering::Relaxed) {
            0 => {
                let computed = compute(self.bytes());
                known.store(computed, Ordering::Relaxed);
                computed
            }
            checksum => checksum,
        }
    }

    /// The address, for the kernel's use while the page is held.
    pub(crate) fn as_ptr(&self) -> NonNull<u8> {
        self.0
    }

    /// Gives up the handle without letting go of the page.
    pub(crate) fn into_raw(self) -> NonNull<u8> {
        let raw = self.0;
        mem::forget(self);
        raw
    }

    /// # Safety
    /// `raw` came from [`Page::into_raw`], and is made a page again only once.
    pub(crate) unsafe fn from_raw(raw: NonNull<u8>) -> Page {
        Page(raw)
    }

    /// Charges the page to a pool's bound.
    pub(crate) fn lend(&self, meter: &'static Meter) {
        self.frame().lender.store(ptr::from_ref(meter).cast_mut(), Ordering::Relaxed);
    }

    /// Ends the charge. Says whether it was on `meter`; another pool is told by its own meter.
    pub(crate) fn settle(&self, meter: &'static Meter) -> bool {
        let frame = self.frame();
        let lender = frame.lender.load(Ordering::Relaxed);
        if lender.is_null() {
            return false;
        }
        frame.lender.store(ptr::null_mut(), Ordering::Relaxed);
        let is_ours = ptr::eq(lender, meter);
        if !is_ours {
            tell(lender);
        }
        is_ours
    }

    fn frame(&self) -> &Frame {
        arena::frame(self.0)
    }
}

/// Fetches a page's counter and its first bytes. The page may be gone: nothing is looked at.
#[inline]
pub(crate) fn prefetch(page: NonNull<u8>) {
    cache::prefetch_to_write(arena::frame_address(page).cast());
    cache::prefetch_at::<{ cache::FIRST_BYTES }>(page.as_ptr());
}

fn tell(lender: *mut Meter) {
    // SAFETY: meters live for ever; a frame's lender is null or a meter.
    unsafe { (*lender).returned.fetch_add(1, Ordering::Relaxed) };
}

impl Clone for Page {
    fn clone(&self) -> Page {
        let owners = self.frame().count.fetch_add(1, Ordering::Relaxed);
        // As `Arc` does: a program that leaks two thousand million references is stopped before the count
        // wraps.
        if owners > u32::MAX / 2 {
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
        let lender = frame.lender.swap(ptr::null_mut(), Ordering::Relaxed);
        if !lender.is_null() {
            tell(lender);
        }
        // SAFETY: this was the last owner.
        unsafe { arena::give(self.0) };
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Page({:p}, {} owners)", self.0, self.frame().count.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_page_cannot_be_written_until_it_is_alone_again() {
        let mut page = Page::zeroed();
        page.bytes_mut().unwrap()[7] = 9;
        let other = page.clone();
        assert!(page.bytes_mut().is_none());
        assert_eq!(other.bytes()[7], 9);
        drop(other);
        assert!(page.bytes_mut().is_some());
    }

    #[test]
    fn a_page_is_aligned_and_the_zero_page_is_never_writable() {
        assert_eq!(Page::zeroed().as_ptr().addr().get() % PAGE_SIZE, 0);
        let mut zero = Page::zero();
        assert!(zero.bytes_mut().is_none());
        assert_eq!(zero.bytes(), &[0; PAGE_SIZE]);
    }

    #[test]
    fn pages_travel_between_threads() {
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

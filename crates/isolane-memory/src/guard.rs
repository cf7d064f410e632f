//! Pages of a table that are looked at without being counted, and what is done with those that are taken
//! out meanwhile.
//!
//! Reads of a memory volume mostly end in the turn in which they began. A page that is counted for so short a time
//! costs two changes of its counter, which is in no cache, and a lock; a [`PageGuard`] costs neither.
//! Invariant: while one is out, its pool's [`Looker`](crate::grace::Looker) looks; a page that leaves a table goes to
//! limbo, which holds it until all who looked then have stopped.

use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::cache;
use crate::grace::{Grace, Lookers};
use crate::meter::Meter;
use crate::page::{Page, PageBytes};

/// A page of a [`PageTable`](crate::PageTable), not counted: good until the end of the turn, or until
/// it is counted after all. Its bytes do not change meanwhile.
pub struct PageGuard {
    page: NonNull<u8>,
    meter: &'static Meter,
}

// SAFETY: bytes are only read; the page stays where it is until the guard ends, in whatever thread.
unsafe impl Send for PageGuard {}
// SAFETY: as above.
unsafe impl Sync for PageGuard {}

impl PageGuard {
    /// # Safety
    /// The looker of `meter` looks, and did when `page` was found in a table that hands what it loses to
    /// limbo; its pool counts this guard.
    #[inline]
    pub(crate) unsafe fn new(page: NonNull<u8>, meter: &'static Meter) -> PageGuard {
        PageGuard { page, meter }
    }

    /// The bytes.
    pub fn bytes(&self) -> &PageBytes {
        // SAFETY: a table or limbo holds the page, and nobody writes to a page while it does and somebody looks.
        unsafe { self.page.cast::<PageBytes>().as_ref() }
    }

    /// Fetches the first bytes into the cache, for who is going to have the kernel read them soon. The
    /// processor fetches the rest itself once it sees the bytes used in order.
    #[inline]
    pub fn prefetch(&self) {
        cache::prefetch_at::<{ cache::FIRST_BYTES }>(self.page.as_ptr());
    }

    /// The same page, counted.
    pub(crate) fn page(&self) -> Page {
        Page::clone(&self.handle())
    }

    /// [`Page::checksum`].
    #[inline]
    pub(crate) fn checksum(&self, compute: impl FnOnce(&[u8]) -> u32) -> u32 {
        self.handle().checksum(compute)
    }

    /// For use while this guard lives.
    fn handle(&self) -> ManuallyDrop<Page> {
        // SAFETY: a table or limbo owns the page; this handle is never dropped.
        ManuallyDrop::new(unsafe { Page::from_raw(self.page) })
    }

    pub(crate) fn as_ptr(&self) -> NonNull<u8> {
        self.page
    }

    /// Ends it at the pool that made it, which is told by the return; any other is told by its meter.
    #[inline]
    pub(crate) fn end(self, meter: &'static Meter) -> bool {
        let is_ours = ptr::eq(self.meter, meter);
        if is_ours {
            mem::forget(self);
        }
        is_ours
    }
}

impl Drop for PageGuard {
    fn drop(&mut self) {
        self.meter.end_guard();
    }
}

impl fmt::Debug for PageGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageGuard({:p})", self.page)
    }
}

/// Pages that were taken out of tables, in that order, until nobody looks at them any more.
#[derive(Default)]
pub(crate) struct Limbo {
    /// Taken out since `grace` began.
    retired: Vec<Page>,
    /// Taken out before.
    waiting: Vec<Page>,
    grace: Grace,
}

impl Limbo {
    /// An empty one.
    pub(crate) const fn new() -> Limbo {
        Limbo { retired: Vec::new(), waiting: Vec::new(), grace: Grace::new() }
    }

    #[inline]
    pub(crate) fn put(&mut self, pages: impl IntoIterator<Item = Page>) {
        self.retired.extend(pages);
    }

    /// Pages in it.
    pub(crate) fn len(&self) -> usize {
        self.retired.len() + self.waiting.len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them.
    pub(crate) fn into_pages(self) -> impl Iterator<Item = Page> {
        self.waiting.into_iter().chain(self.retired)
    }

    /// Hands out those that nobody looks at any more.
    pub(crate) fn release(&mut self, mut each: impl FnMut(Page)) {
        // Twice: when those that have waited longer are out, the wait of the others may be over at once.
        for _ in 0..2 {
            if self.waiting.is_empty() {
                mem::swap(&mut self.waiting, &mut self.retired);
                self.grace.begin(&LOOKERS);
            }
            if !self.grace.is_over() {
                return;
            }
            self.waiting.drain(..).for_each(&mut each);
            if self.retired.is_empty() {
                return;
            }
        }
    }
}

/// Those who look, of all pools.
pub(crate) static LOOKERS: Lookers = Lookers::new(AtomicPtr::new(ptr::null_mut()));

/// Keeps pages whose table or pool has gone for as long as somebody looks at them.
pub(crate) fn orphan(pages: impl Iterator<Item = Page>) {
    if LOOKERS.are_away() {
        return pages.for_each(drop);
    }
    let mut orphans = ORPHANS.lock().unwrap_or_else(PoisonError::into_inner);
    orphans.put(pages);
    HAS_ORPHANS.store(!orphans.is_empty(), Ordering::Relaxed);
}

/// Lets go of those that nobody looks at any more.
#[inline]
pub(crate) fn release_orphans() {
    if HAS_ORPHANS.load(Ordering::Relaxed) {
        release_orphans_now();
    }
}

#[cold]
fn release_orphans_now() {
    if let Ok(mut orphans) = ORPHANS.try_lock() {
        orphans.release(drop);
        HAS_ORPHANS.store(!orphans.is_empty(), Ordering::Relaxed);
    }
}

static ORPHANS: Mutex<Limbo> = Mutex::new(Limbo::new());
static HAS_ORPHANS: AtomicBool = AtomicBool::new(false);

//! Entry of a page table: the address of a page, the references taken from it, and a lock, in one word.
//!
//! An entry owns [`PREPAID`] references to its page. A reader takes one of them with a single compare and
//! exchange on the entry, and releases it like any other reference, so that a read changes the page's counter
//! once. The entry buys new references before the last one is taken.
//!
//! Invariant: an entry with a page owns at least one reference to it.

use std::ptr::{self, NonNull};

use crate::sync::{AtomicPtr, AtomicU32, Ordering, wait_until};

/// Reference counter of a page.
pub(crate) trait Counter {
    /// Counter of the page at this address, which is alive.
    fn of<'a>(page: NonNull<u8>) -> &'a AtomicU32;
}

/// Optional page, shared by all cores. All zeroes is an entry without a page.
pub(crate) struct Entry(AtomicPtr<u8>);

/// Address of a page and the number of references to it that come with it.
#[derive(Clone, Copy)]
pub(crate) struct Prepaid {
    pub(crate) page: NonNull<u8>,
    pub(crate) references: u32,
}

/// Lock on an entry, until a new value is stored.
pub(crate) struct Locked<'a>(&'a Entry);

impl Entry {
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Takes a reference to the page. Waits while the entry is locked.
    #[inline]
    pub(crate) fn get<C: Counter>(&self) -> Option<NonNull<u8>> {
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            let page = page(seen)?;
            if seen.addr() & LOCKED != 0 {
                seen = wait_until(|| self.unlocked());
            } else if used(seen) == PREPAID - 1 {
                self.refill::<C>();
                seen = self.0.load(Ordering::Relaxed);
            } else {
                // The low bits cannot overflow into the address.
                let taken = seen.map_addr(|addr| addr + ONE_USED);
                match self.0.compare_exchange_weak(seen, taken, Ordering::Acquire, Ordering::Relaxed) {
                    Ok(_) => return Some(page),
                    Err(now) => seen = now,
                }
            }
        }
    }

    /// Buys new references for the taken ones.
    #[cold]
    fn refill<C: Counter>(&self) {
        let (prepaid, locked) = self.lock_entry();
        if let Some(Prepaid { page, references }) = prepaid {
            let count = C::of(page).fetch_add(PREPAID - references, Ordering::Relaxed);
            // As `Arc`: a program that leaks references ends before the counter wraps.
            if count > u32::MAX / 2 {
                std::process::abort();
            }
        }
        locked.store(prepaid.map(|prepaid| prepaid.page));
    }

    /// Replaces the page. The references to the new one are [`PREPAID`].
    #[inline]
    pub(crate) fn swap(&self, new: Option<NonNull<u8>>) -> Option<Prepaid> {
        let new = raw(new);
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            if seen.addr() & LOCKED != 0 {
                seen = wait_until(|| self.unlocked());
            }
            match self.0.compare_exchange_weak(seen, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return prepaid(seen),
                Err(now) => seen = now,
            }
        }
    }

    /// Locks the entry and returns its page, which the entry shows until the lock ends.
    pub(crate) fn lock_entry(&self) -> (Option<Prepaid>, Locked<'_>) {
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            if seen.addr() & LOCKED != 0 {
                seen = wait_until(|| self.unlocked());
            }
            let locked = seen.map_addr(|addr| addr | LOCKED);
            match self.0.compare_exchange_weak(seen, locked, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return (prepaid(seen), Locked(self)),
                Err(now) => seen = now,
            }
        }
    }

    /// Address of the page, which may be gone at any time.
    #[inline]
    pub(crate) fn peek(&self) -> Option<NonNull<u8>> {
        page(self.0.load(Ordering::Relaxed))
    }

    fn unlocked(&self) -> Option<*mut u8> {
        let seen = self.0.load(Ordering::Relaxed);
        (seen.addr() & LOCKED == 0).then_some(seen)
    }
}

impl Locked<'_> {
    /// Unlocks the entry with this page. The references to it are [`PREPAID`].
    pub(crate) fn store(self, page: Option<NonNull<u8>>) {
        self.0.0.store(raw(page), Ordering::Release);
    }
}

fn raw(page: Option<NonNull<u8>>) -> *mut u8 {
    page.map_or(ptr::null_mut(), NonNull::as_ptr)
}

fn page(raw: *mut u8) -> Option<NonNull<u8>> {
    NonNull::new(raw.map_addr(|addr| addr & !LOW_BITS))
}

fn prepaid(raw: *mut u8) -> Option<Prepaid> {
    Some(Prepaid { page: page(raw)?, references: PREPAID - used(raw) })
}

/// References taken since the page was stored.
fn used(raw: *mut u8) -> u32 {
    ((raw.addr() & LOW_BITS) / ONE_USED) as u32
}

/// References that an entry owns when its page is stored. Two under loom, whose runs are short.
pub(crate) const PREPAID: u32 = if cfg!(loom) { 2 } else { 2048 };

/// Addresses of pages are multiples of 4 KiB.
const LOW_BITS: usize = 4095;
const LOCKED: usize = 1;
const ONE_USED: usize = 2;

//! Slab allocator for pages: slabs of 2 MiB, aligned to their size, so that the address of a page leads to its slab
//! and counter, and a slab can be a huge page ([`region`]).
//!
//! This is the slow path, under one lock; a warm core uses its [`Pool`](crate::Pool).
//!
//! Invariant: a slab is freed when all of its pages are free and another slab has free pages.

use std::mem::offset_of;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::PAGE_SIZE;
use crate::pool_account::PoolAccount;
use crate::region::{self, REGION_SIZE};

/// Metadata of one page.
pub(crate) struct Frame {
    /// Number of references; the index of the next free page while the page is free.
    pub(crate) count: AtomicU32,
    /// Cached checksum of the bytes, or 0.
    pub(crate) checksum: AtomicU32,
    /// The pool that the page is charged to, or null.
    pub(crate) account: AtomicPtr<PoolAccount>,
}

#[repr(C)]
struct Slab {
    frames: [Frame; PAGES_PER_SLAB],
    free_head: u32,
    free_count: u32,
    /// Index in [`Arena::partial`] while `free_count` is not 0.
    position: usize,
}

const SLAB_SIZE: usize = REGION_SIZE;
const HEADER_PAGES: usize = 2;
const PAGES_PER_SLAB: usize = SLAB_SIZE / PAGE_SIZE - HEADER_PAGES;
const _: () = assert!(size_of::<Frame>() == 16);
const _: () = assert!(size_of::<Slab>() <= HEADER_PAGES * PAGE_SIZE);

/// Slabs with free pages. The lock protects all fields of a slab except the frames.
struct Arena {
    partial: Vec<NonNull<Slab>>,
}

// SAFETY: the pointers are to slabs of the arena, and are used only under its lock.
unsafe impl Send for Arena {}

static ARENA: Mutex<Arena> = Mutex::new(Arena { partial: Vec::new() });

/// Allocates a page of zeroes with a count of one and no account.
pub(crate) fn alloc() -> NonNull<u8> {
    let page = lock().alloc();
    // SAFETY: the page is 4 KiB inside of a live slab, and has no references.
    unsafe { ptr::write_bytes(page.as_ptr(), 0, PAGE_SIZE) };
    let frame = frame(page);
    frame.account.store(ptr::null_mut(), Ordering::Relaxed);
    frame.checksum.store(0, Ordering::Relaxed);
    frame.count.store(1, Ordering::Relaxed);
    page
}

/// Frees a page.
///
/// # Safety
/// `page` came from [`alloc`] and has no references.
pub(crate) unsafe fn free(page: NonNull<u8>) {
    // SAFETY: guaranteed by the caller.
    unsafe { lock().free(page) }
}

/// Returns the frame of an allocated page.
pub(crate) fn frame<'a>(page: NonNull<u8>) -> &'a Frame {
    // SAFETY: an allocated page keeps its slab alive; frames are only ever used through shared references.
    unsafe { &*frame_address(page) }
}

/// Returns the address of the frame of a page, which can be free.
#[inline]
pub(crate) fn frame_address(page: NonNull<u8>) -> *const Frame {
    let offset = page.addr().get() % SLAB_SIZE;
    let frames = page.as_ptr().wrapping_sub(offset).wrapping_add(offset_of!(Slab, frames));
    frames.cast::<Frame>().wrapping_add(offset / PAGE_SIZE - HEADER_PAGES)
}

fn lock() -> MutexGuard<'static, Arena> {
    ARENA.lock().unwrap_or_else(PoisonError::into_inner)
}

fn locate(page: NonNull<u8>) -> (NonNull<Slab>, usize) {
    let offset = page.addr().get() % SLAB_SIZE;
    // SAFETY: every page lies `offset` bytes inside its slab, which is aligned to its size.
    let slab = unsafe { page.sub(offset) };
    (slab.cast(), offset / PAGE_SIZE - HEADER_PAGES)
}

fn page_of(slab: NonNull<Slab>, index: usize) -> NonNull<u8> {
    // SAFETY: indices are below PAGES_PER_SLAB, so the page lies inside the slab's allocation.
    unsafe { slab.cast::<u8>().add((HEADER_PAGES + index) * PAGE_SIZE) }
}

impl Arena {
    fn alloc(&mut self) -> NonNull<u8> {
        let slab = match self.partial.last() {
            Some(slab) => *slab,
            None => self.grow(),
        };
        // SAFETY: slabs in `partial` are alive, and the lock protects their fields.
        unsafe {
            let slab_ptr = slab.as_ptr();
            let index = (*slab_ptr).free_head as usize;
            let page = page_of(slab, index);
            (*slab_ptr).free_head = frame(page).count.load(Ordering::Relaxed);
            (*slab_ptr).free_count -= 1;
            if (*slab_ptr).free_count == 0 {
                self.partial.pop();
            }
            page
        }
    }

    /// # Safety
    /// As [`free`].
    unsafe fn free(&mut self, page: NonNull<u8>) {
        let (slab, index) = locate(page);
        // SAFETY: the page was allocated, so its slab is alive; the lock protects its fields.
        unsafe {
            let slab_ptr = slab.as_ptr();
            frame(page).count.store((*slab_ptr).free_head, Ordering::Relaxed);
            (*slab_ptr).free_head = index as u32;
            (*slab_ptr).free_count += 1;
            if (*slab_ptr).free_count == 1 {
                self.list(slab);
            } else if (*slab_ptr).free_count as usize == PAGES_PER_SLAB && self.partial.len() > 1 {
                self.shrink(slab);
            }
        }
    }

    fn grow(&mut self) -> NonNull<Slab> {
        let slab: NonNull<Slab> = region::alloc().cast();
        let frames = std::array::from_fn(|index| Frame {
            count: AtomicU32::new(index as u32 + 1),
            checksum: AtomicU32::new(0),
            account: AtomicPtr::new(ptr::null_mut()),
        });
        let header = Slab { frames, free_head: 0, free_count: PAGES_PER_SLAB as u32, position: 0 };
        // SAFETY: the region is large and aligned enough, and has no references.
        unsafe { slab.write(header) };
        self.list(slab);
        slab
    }

    fn list(&mut self, slab: NonNull<Slab>) {
        // SAFETY: the slab is alive, and the lock protects its fields.
        unsafe { (*slab.as_ptr()).position = self.partial.len() };
        self.partial.push(slab);
    }

    fn shrink(&mut self, slab: NonNull<Slab>) {
        // SAFETY: the slab is alive and listed; all of its pages are free, so it has no references.
        unsafe {
            let position = (*slab.as_ptr()).position;
            self.partial.swap_remove(position);
            if let Some(moved) = self.partial.get(position) {
                (*moved.as_ptr()).position = position;
            }
            region::free(slab.cast());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Page;

    #[test]
    fn allocates_and_frees_across_slabs() {
        // Miri is slow, and has smaller slabs.
        let count = if cfg!(miri) { 150 } else { 2000 };
        let mut pages: Vec<_> = (0..count).map(|_| Page::zeroed()).collect();
        for (index, page) in pages.iter_mut().enumerate() {
            page.bytes_mut().unwrap()[..8].copy_from_slice(&(index as u64).to_le_bytes());
        }
        let (odd, even): (Vec<_>, Vec<_>) =
            pages.into_iter().enumerate().partition(|(index, _)| index % 2 == 1);
        drop(odd);
        let again: Vec<_> = (0..count / 2).map(|_| Page::zeroed()).collect();
        assert!(again.iter().all(|page| page.bytes()[..] == [0; PAGE_SIZE]));
        for (index, page) in even {
            assert_eq!(page.bytes()[..8], (index as u64).to_le_bytes());
        }
    }
}

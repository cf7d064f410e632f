//! Slab allocator for pages: slabs of 2 MiB, aligned to their size, so that the address of a page leads to its slab
//! and counter, and a slab can be a huge page ([`region`]).
//!
//! The frames of a slab lie in its header. The offset of the header depends on the address of the slab; at a
//! constant offset, the frames of all slabs would share a small part of the CPU cache.
//!
//! This is the slow path, under one lock; a warm core uses its [`Pool`](crate::Pool).
//!
//! Invariant: a slab is freed when all of its pages are free and another slab has free pages.

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

/// State of a slab, in place of the frame of the page in which the header starts.
struct Slab {
    /// Index of the first free page, if there is one. Pages are numbered from the start of the region.
    free_head: u32,
    free_count: u32,
    /// Index in [`Arena::partial`] while `free_count` is not 0.
    position: usize,
}

const SLAB_SIZE: usize = REGION_SIZE;
const SLAB_PAGES: usize = SLAB_SIZE / PAGE_SIZE;
/// Length of the header: one frame for each page of the slab.
const HEADER_LEN: usize = SLAB_PAGES * size_of::<Frame>();
/// Number of pages that contain a part of the header.
const HEADER_PAGES: usize = HEADER_LEN.div_ceil(PAGE_SIZE);
/// Ratio of the sizes of a slab and its header, and thus the number of offsets of a header.
const BYTES_PER_HEADER_BYTE: usize = PAGE_SIZE / size_of::<Frame>();
const PAGES_PER_SLAB: usize = SLAB_PAGES - HEADER_PAGES;
const _: () = assert!(size_of::<Slab>() <= size_of::<Frame>() && align_of::<Slab>() <= align_of::<Frame>());
const _: () = assert!(HEADER_LEN.is_multiple_of(PAGE_SIZE) || PAGE_SIZE.is_multiple_of(HEADER_LEN));

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

/// Returns the address of the frame of a page, which can be free: in the slab, at the address of the page divided by
/// [`BYTES_PER_HEADER_BYTE`]. The address bits above the slab choose the offset of the header, and the number of
/// the page chooses the frame in it.
#[inline]
pub(crate) fn frame_address(page: NonNull<u8>) -> *const Frame {
    const IN_SLAB: usize = SLAB_SIZE - 1;
    const FRAMES: usize = IN_SLAB & !(size_of::<Frame>() - 1);
    page.as_ptr().map_addr(|page| (page & !IN_SLAB) | ((page / BYTES_PER_HEADER_BYTE) & FRAMES)).cast()
}

fn lock() -> MutexGuard<'static, Arena> {
    ARENA.lock().unwrap_or_else(PoisonError::into_inner)
}

fn locate(page: NonNull<u8>) -> (NonNull<Slab>, usize) {
    let index = page.addr().get() % SLAB_SIZE / PAGE_SIZE;
    // SAFETY: every page lies `index` pages inside its slab, which is aligned to its size.
    (slab_in(unsafe { page.sub(index * PAGE_SIZE) }), index)
}

/// Returns the state of the slab in a region, which is in the header.
fn slab_in(region: NonNull<u8>) -> NonNull<Slab> {
    // SAFETY: the header is inside of the region, and a frame has an address.
    unsafe {
        let header_page = region.add(header_index(region) * PAGE_SIZE);
        NonNull::new_unchecked(frame_address(header_page).cast_mut()).cast()
    }
}

/// Returns the index of the page in which the header of a region starts.
fn header_index(region: NonNull<u8>) -> usize {
    region.addr().get() / BYTES_PER_HEADER_BYTE % SLAB_SIZE / PAGE_SIZE
}

/// Returns the region of a slab.
fn region_of(slab: NonNull<Slab>) -> NonNull<u8> {
    // SAFETY: the state of a slab is inside of its region, which is aligned to its size.
    unsafe { slab.cast::<u8>().sub(slab.addr().get() % SLAB_SIZE) }
}

fn page_of(slab: NonNull<Slab>, index: usize) -> NonNull<u8> {
    // SAFETY: indices are below SLAB_PAGES, so the page lies inside the region.
    unsafe { region_of(slab).add(index * PAGE_SIZE) }
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
        let region = region::alloc();
        let slab = slab_in(region);
        let header = header_index(region)..header_index(region) + HEADER_PAGES;
        let mut free_head = SLAB_PAGES as u32;
        for index in (0..SLAB_PAGES).rev().filter(|index| !header.contains(index)) {
            let frame = Frame {
                count: AtomicU32::new(free_head),
                checksum: AtomicU32::new(0),
                account: AtomicPtr::new(ptr::null_mut()),
            };
            // SAFETY: the frame is inside of the region, which has no references.
            unsafe { frame_address(page_of(slab, index)).cast_mut().write(frame) };
            free_head = index as u32;
        }
        // SAFETY: as above; no page has this frame.
        unsafe { slab.write(Slab { free_head, free_count: PAGES_PER_SLAB as u32, position: 0 }) };
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
            region::free(region_of(slab));
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

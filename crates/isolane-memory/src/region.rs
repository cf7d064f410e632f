//! Memory from the system in pieces of 2 MiB, aligned to their size and on one huge page each where the
//! system has any to give: without configuration, and without harm where it has none.
//!
//! A random 4 KiB read then misses the translation cache seldom. Neighbouring pieces are one mapping to the
//! kernel, whose number of mappings is bounded, so nothing of different kind is left between them.

use std::alloc::{Layout, handle_alloc_error};
use std::ptr::{NonNull, null_mut};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes of a region, and its alignment.
pub(crate) const REGION_SIZE: usize = 2 << 20;
const LAYOUT: Layout = match Layout::from_size_align(REGION_SIZE, REGION_SIZE) {
    Ok(layout) => layout,
    Err(_) => panic!("the size of a region is a power of two"),
};

/// A region of zeroes. Like every allocation it ends the program if there is no memory.
pub(crate) fn take() -> NonNull<u8> {
    let Some(region) = take_aligned().or_else(take_and_trim) else { handle_alloc_error(LAYOUT) };
    // Advice only: without huge pages it is memory nevertheless.
    // SAFETY: the range is a mapping that nobody else knows yet.
    let _ = unsafe { madvise(region.as_ptr().cast(), REGION_SIZE, Advice::LinuxHugepage) };
    region
}

/// Gives a region back.
///
/// # Safety
/// It came from [`take`], and nobody refers to any of its bytes.
pub(crate) unsafe fn give(region: NonNull<u8>) {
    // SAFETY: the caller's promise.
    unsafe { unmap(region.as_ptr(), REGION_SIZE) };
}

/// Kernels place large mappings at huge page boundaries, most of the time.
fn take_aligned() -> Option<NonNull<u8>> {
    let region = map(REGION_SIZE)?;
    if region.addr().get().is_multiple_of(REGION_SIZE) {
        return Some(region);
    }
    // SAFETY: mapped just now, with this length.
    unsafe { unmap(region.as_ptr(), REGION_SIZE) };
    None
}

/// Maps twice as much and gives back what is around the aligned part.
fn take_and_trim() -> Option<NonNull<u8>> {
    let start = map(2 * REGION_SIZE)?;
    let before = start.addr().get().next_multiple_of(REGION_SIZE) - start.addr().get();
    // SAFETY: all three parts lie inside of what was just mapped, and only the middle one is used from now
    // on.
    unsafe {
        let region = start.add(before);
        unmap(start.as_ptr(), before);
        unmap(region.add(REGION_SIZE).as_ptr(), REGION_SIZE - before);
        Some(region)
    }
}

fn map(len: usize) -> Option<NonNull<u8>> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at a place of the kernel's choice touches nothing that exists.
    let mapped = unsafe { mmap_anonymous(null_mut(), len, protection, MapFlags::PRIVATE) };
    NonNull::new(mapped.ok()?.cast())
}

/// # Safety
/// The range is mapped, and nobody refers to it.
unsafe fn unmap(start: *mut u8, len: usize) {
    if len > 0 {
        // SAFETY: the caller's promise. It can only fail if a hole in a mapping were one mapping too many;
        // then the memory stays with us, unused.
        let _ = unsafe { munmap(start.cast(), len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_aligned_zeroed_and_writable_whatever_way_they_come() {
        for take in [take as fn() -> NonNull<u8>, || take_and_trim().expect("there is memory")] {
            let regions: Vec<NonNull<u8>> = (0..4).map(|_| take()).collect();
            for region in &regions {
                assert!(region.addr().get().is_multiple_of(REGION_SIZE));
                // SAFETY: the region is ours alone.
                let bytes = unsafe { std::slice::from_raw_parts_mut(region.as_ptr(), REGION_SIZE) };
                assert_eq!((bytes[0], bytes[REGION_SIZE - 1]), (0, 0));
                bytes.fill(1);
            }
            // SAFETY: each is given back once, and not used any more.
            regions.into_iter().for_each(|region| unsafe { give(region) });
        }
    }
}

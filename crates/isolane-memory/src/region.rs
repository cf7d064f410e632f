//! Regions of 2 MiB from the system, aligned to their size, on a huge page each where the system has one.
//!
//! A random 4 KiB read then rarely misses the TLB. The kernel merges adjacent regions into one mapping, which
//! matters because the number of mappings is limited.

use std::alloc::{Layout, handle_alloc_error};
use std::ptr::{NonNull, null_mut};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Size and alignment of a region in bytes.
pub(crate) const REGION_SIZE: usize = 2 << 20;
const LAYOUT: Layout = match Layout::from_size_align(REGION_SIZE, REGION_SIZE) {
    Ok(layout) => layout,
    Err(_) => panic!("the size of a region is a power of two"),
};

/// Allocates a region of zeroes. Aborts if there is no memory.
pub(crate) fn alloc() -> NonNull<u8> {
    let Some(region) = map_aligned().or_else(map_and_trim) else { handle_alloc_error(LAYOUT) };
    // Without huge pages, the region has ordinary pages.
    // SAFETY: the range is a new mapping without references.
    let _ = unsafe { madvise(region.as_ptr().cast(), REGION_SIZE, Advice::LinuxHugepage) };
    region
}

/// Frees a region.
///
/// # Safety
/// The region came from [`alloc`] and has no references.
pub(crate) unsafe fn free(region: NonNull<u8>) {
    // SAFETY: guaranteed by the caller.
    unsafe { unmap(region.as_ptr(), REGION_SIZE) };
}

/// Kernels place large mappings at huge page boundaries, most of the time.
fn map_aligned() -> Option<NonNull<u8>> {
    let region = map(REGION_SIZE)?;
    if region.addr().get().is_multiple_of(REGION_SIZE) {
        return Some(region);
    }
    // SAFETY: mapped just now, with this length.
    unsafe { unmap(region.as_ptr(), REGION_SIZE) };
    None
}

/// Maps twice the size and unmaps the memory around the aligned part.
fn map_and_trim() -> Option<NonNull<u8>> {
    let start = map(2 * REGION_SIZE)?;
    let before = start.addr().get().next_multiple_of(REGION_SIZE) - start.addr().get();
    // SAFETY: all three parts are inside of the new mapping, and only the middle one is used.
    unsafe {
        let region = start.add(before);
        unmap(start.as_ptr(), before);
        unmap(region.add(REGION_SIZE).as_ptr(), REGION_SIZE - before);
        Some(region)
    }
}

fn map(len: usize) -> Option<NonNull<u8>> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses does not affect others.
    let mapped = unsafe { mmap_anonymous(null_mut(), len, protection, MapFlags::PRIVATE) };
    NonNull::new(mapped.ok()?.cast())
}

/// # Safety
/// The range is mapped and has no references.
unsafe fn unmap(start: *mut u8, len: usize) {
    if len > 0 {
        // SAFETY: guaranteed by the caller. Fails only at the limit of mappings; then the memory stays unused.
        let _ = unsafe { munmap(start.cast(), len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_aligned_zeroed_and_writable() {
        for allocate in [alloc as fn() -> NonNull<u8>, || map_and_trim().expect("out of memory")] {
            let regions: Vec<NonNull<u8>> = (0..4).map(|_| allocate()).collect();
            for region in &regions {
                assert!(region.addr().get().is_multiple_of(REGION_SIZE));
                // SAFETY: the region has no other references.
                let bytes = unsafe { std::slice::from_raw_parts_mut(region.as_ptr(), REGION_SIZE) };
                assert_eq!((bytes[0], bytes[REGION_SIZE - 1]), (0, 0));
                bytes.fill(1);
            }
            // SAFETY: each is freed once and not used again.
            regions.into_iter().for_each(|region| unsafe { free(region) });
        }
    }
}

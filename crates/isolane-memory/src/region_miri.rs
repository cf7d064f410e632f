//! `region` for Miri, which cannot unmap parts of mappings: smaller regions from the allocator.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Size and alignment of a region in bytes.
pub(crate) const REGION_SIZE: usize = 256 << 10;
const LAYOUT: Layout = match Layout::from_size_align(REGION_SIZE, REGION_SIZE) {
    Ok(layout) => layout,
    Err(_) => panic!("the size of a region is a power of two"),
};

/// Allocates a region of zeroes.
pub(crate) fn alloc() -> NonNull<u8> {
    // SAFETY: the layout has a size.
    NonNull::new(unsafe { alloc_zeroed(LAYOUT) }).unwrap_or_else(|| handle_alloc_error(LAYOUT))
}

/// Frees a region.
///
/// # Safety
/// The region came from [`alloc`] and has no references.
pub(crate) unsafe fn free(region: NonNull<u8>) {
    // SAFETY: guaranteed by the caller.
    unsafe { dealloc(region.as_ptr(), LAYOUT) };
}

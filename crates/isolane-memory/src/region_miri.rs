//! `region` for Miri, which unmaps no parts of mappings: the same from the allocator, in smaller pieces, because
//! Miri is slow.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Bytes of a region, and its alignment.
pub(crate) const REGION_SIZE: usize = 256 << 10;
const LAYOUT: Layout = match Layout::from_size_align(REGION_SIZE, REGION_SIZE) {
    Ok(layout) => layout,
    Err(_) => panic!("the size of a region is a power of two"),
};

/// A region of zeroes.
pub(crate) fn take() -> NonNull<u8> {
    // SAFETY: the layout has a size.
    NonNull::new(unsafe { alloc_zeroed(LAYOUT) }).unwrap_or_else(|| handle_alloc_error(LAYOUT))
}

/// Gives a region back.
///
/// # Safety
/// It came from [`take`], and nobody refers to any of its bytes.
pub(crate) unsafe fn give(region: NonNull<u8>) {
    // SAFETY: the caller's promise.
    unsafe { dealloc(region.as_ptr(), LAYOUT) };
}

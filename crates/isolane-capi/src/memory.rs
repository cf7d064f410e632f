//! Memory of requests that the library allocates.
//!
//! Invariant: memory of a request in flight stays allocated, also if the program frees it.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use isolane_memory::PAGE_SIZE;
use parking_lot::RwLock;

use crate::entry::{call, close};
use crate::error::Failure;
use crate::ffi::{as_ref, into_raw};

/// Handle of a program to an allocation.
pub struct Memory(Arc<Allocation>);

/// Zeroed memory at a page boundary.
pub(crate) struct Allocation {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the allocation is owned, and not tied to a thread; this library accesses its bytes only for requests.
unsafe impl Send for Allocation {}
// SAFETY: as above; shared references give no access to the bytes.
unsafe impl Sync for Allocation {}

#[unsafe(no_mangle)]
pub extern "C" fn isolane_memory_new(bytes: usize) -> *mut Memory {
    call("isolane_memory_new", || {
        let rounded = bytes.checked_next_multiple_of(PAGE_SIZE).filter(|bytes| *bytes > 0);
        let layout = rounded.and_then(|bytes| Layout::from_size_align(bytes, PAGE_SIZE).ok());
        let layout = layout.ok_or(Failure::Argument("invalid size: pass 1 byte to SSIZE_MAX"))?;
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(|| {
            Failure::WithErrno(libc::ENOMEM, format!("no memory for {bytes} bytes: request less"))
        })?;
        let allocation = Arc::new(Allocation { start, layout });
        REGISTERED.write().insert(start.addr().get(), Arc::clone(&allocation));
        COUNT.fetch_add(1, Ordering::Relaxed);
        Ok(into_raw(Memory(allocation)))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_memory_data(memory: *const Memory) -> *mut c_void {
    // SAFETY: the header states the requirements.
    call("isolane_memory_data", || Ok(unsafe { as_ref(memory)? }.0.start.as_ptr().cast()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_memory_free(memory: *mut Memory) {
    // SAFETY: the header states the requirements.
    unsafe { close("isolane_memory_free", memory) };
}

impl Drop for Memory {
    fn drop(&mut self) {
        COUNT.fetch_sub(1, Ordering::Relaxed);
        REGISTERED.write().remove(&self.0.start.addr().get());
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and not freed before.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Returns the allocation that has these bytes, which it then keeps.
#[inline]
pub(crate) fn find(start: *const c_void, len: usize) -> Option<Arc<Allocation>> {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let registered = REGISTERED.read();
    let (first, allocation) = registered.range(..=start.addr()).next_back()?;
    (start.addr() + len <= first + allocation.layout.size()).then(|| Arc::clone(allocation))
}

/// Allocations of the program, by their addresses.
static REGISTERED: RwLock<BTreeMap<usize, Arc<Allocation>>> = RwLock::new(BTreeMap::new());
/// Number of them, so that a program without allocations takes no lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_memory_until_it_is_freed() {
        let memory = isolane_memory_new(5000);
        // SAFETY: as in a C program.
        unsafe {
            let start = isolane_memory_data(memory);
            assert!(start.addr().is_multiple_of(4096));
            let found = find(start.byte_add(100), 4996).unwrap();
            assert!(find(start.byte_add(1), 8192).is_none() && find(start.wrapping_byte_sub(1), 1).is_none());
            isolane_memory_free(memory);
            assert!(find(start, 1).is_none());
            assert_eq!(*found.start.as_ptr(), 0);
        }
    }
}

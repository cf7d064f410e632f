//! Memory of another device that the program names by a descriptor.
//!
//! The memory is mapped, and accessed by the CPU. Memory that cannot be mapped, such as that of most GPUs, is not supported:
//! a program registers it by its address.

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};

use rustix::fs::fstat;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::abi;
use crate::ffi::{Errno, Result, check};

/// A mapping of such memory.
pub(crate) struct Mapping {
    start: NonNull<c_void>,
    len: usize,
    /// Offset of the memory in the mapping, which starts at a page.
    offset: usize,
}

// SAFETY: the mapping belongs to the value.
unsafe impl Send for Mapping {}
// SAFETY: the value only has its address.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes from `offset` on.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the memory cannot be mapped with these rights; `EINVAL` if it ends before the range.
    pub(crate) fn new(descriptor: c_int, offset: u64, length: usize, access: c_int) -> Result<Mapping> {
        check(length > 0)?;
        let end = offset.checked_add(length as u64).ok_or(Errno::INVALID)?;
        if descriptor < 0 {
            return Err(Errno(libc::EBADF));
        }
        // SAFETY: the program keeps the descriptor open during the call.
        let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let size = u64::try_from(fstat(descriptor)?.st_size).unwrap_or(0);
        // Memory without a size is mapped or not.
        check(size == 0 || end <= size)?;
        let page = rustix::param::page_size() as u64;
        let (first, offset) = (offset - offset % page, (offset % page) as usize);
        let len = offset.checked_add(length).ok_or(Errno::INVALID)?;
        let is_written = access & abi::ACCESS_LOCAL_WRITE != 0;
        let protection = if is_written { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address that the kernel chooses does not affect others.
        let start = unsafe { mmap(null_mut(), len, protection, MapFlags::SHARED, descriptor, first) };
        let start = NonNull::new(start.map_err(|_| Errno::UNSUPPORTED)?).ok_or(Errno::NO_MEMORY)?;
        Ok(Mapping { start, len, offset })
    }

    /// Returns the address of the memory.
    pub(crate) fn start(&self) -> NonNull<u8> {
        // SAFETY: inside of the mapping.
        unsafe { self.start.cast::<u8>().add(self.offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and its region is deregistered.
        let _ = unsafe { munmap(self.start.as_ptr(), self.len) };
    }
}

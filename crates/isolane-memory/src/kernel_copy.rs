//! Copies by the kernel to and from memory that may be unmapped: the copy fails, where an access would end the program.
//!
//! Bytes pass through a file in memory, so that a copy is one system call, which needs no rights over processes.
//!
//! Invariant: no two threads share a file, also in a child that `fork` has made.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::run::Run;
use crate::{PAGE_SIZE, guarded_copy};

/// Copies bytes to a run. Returns `false` if a part of it is not mapped, or not writable.
///
/// # Safety
/// No reference to the bytes of the run is in use.
pub(crate) unsafe fn write(target: Run, bytes: &[u8]) -> bool {
    let (start, len) = (target.raw().0, bytes.len());
    // SAFETY: guaranteed by the caller.
    let guarded = unsafe { guarded_copy::copy(bytes.as_ptr(), start.cast_mut(), len, start) };
    if let Some(is_copied) = guarded {
        return is_copied;
    }
    target.parts(WINDOW_BYTES).zip(bytes.chunks(WINDOW_BYTES)).all(|(part, bytes)| {
        // SAFETY: guaranteed by the caller; only the kernel uses the slice.
        let (slice, len) = unsafe { part.io_slice_mut() };
        with_window(|window| {
            // SAFETY: the window belongs to this thread, and is long enough.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), window.start.as_ptr(), len) };
            rustix::io::preadv(&window.file, &mut [slice], 0) == Ok(len)
        })
    })
}

/// Copies the bytes of a run. Returns `false` if a part of it is not mapped.
///
/// # Safety
/// No exclusive reference to the bytes of the run is in use.
pub(crate) unsafe fn read(source: Run, bytes: &mut [u8]) -> bool {
    let (start, len) = (source.raw().0, bytes.len());
    // SAFETY: guaranteed by the caller.
    let guarded = unsafe { guarded_copy::copy(start, bytes.as_mut_ptr(), len, start) };
    if let Some(is_copied) = guarded {
        return is_copied;
    }
    source.parts(WINDOW_BYTES).zip(bytes.chunks_mut(WINDOW_BYTES)).all(|(part, bytes)| {
        // SAFETY: guaranteed by the caller; only the kernel uses the slice.
        let (slice, len) = unsafe { part.io_slice() };
        with_window(|window| {
            let is_copied = rustix::io::pwritev(&window.file, &[slice], 0) == Ok(len);
            // SAFETY: the window belongs to this thread, and is long enough.
            unsafe { std::ptr::copy_nonoverlapping(window.start.as_ptr(), bytes.as_mut_ptr(), len) };
            is_copied
        })
    })
}

/// Whether each page of a run is mapped.
///
/// # Safety
/// As [`read`].
pub(crate) unsafe fn is_readable(run: Run) -> bool {
    // SAFETY: guaranteed by the caller.
    run.pages().all(|byte| unsafe { read(byte, &mut [0]) })
}

/// Whether each page of a run is mapped and writable. Kernels before 5.14 only find pages that are not mapped.
///
/// # Safety
/// As [`read`].
pub(crate) unsafe fn is_writable(run: Run) -> bool {
    run.pages().all(|byte| {
        let (start, _) = byte.raw();
        let page = start.wrapping_sub(start.addr() % PAGE_SIZE).cast_mut().cast();
        // SAFETY: populating changes no content.
        let populate = |len| unsafe { madvise(page, len, Advice::LinuxPopulateWrite) };
        match populate(PAGE_SIZE) {
            // The kernel does not know the advice.
            // SAFETY: guaranteed by the caller.
            Err(Errno::INVAL) if populate(0).is_err() => unsafe { read(byte, &mut [0]) },
            populated => populated.is_ok(),
        }
    })
}

/// A file in memory that is mapped.
struct Window {
    file: OwnedFd,
    start: NonNull<u8>,
    /// A page whose first byte is 1, and 0 in a child.
    mark: NonNull<u8>,
}

thread_local! {
    static WINDOW: RefCell<Option<Window>> = const { RefCell::new(None) };
}

/// Calls a function with the window of the thread. Without one, nothing is copied.
fn with_window(copy: impl FnOnce(&Window) -> bool) -> bool {
    WINDOW.with_borrow_mut(|window| {
        if window.as_ref().is_none_or(Window::is_inherited) {
            *window = Window::new().ok();
        }
        window.as_ref().is_some_and(copy)
    })
}

impl Window {
    fn new() -> io::Result<Window> {
        let file = memfd_create(c"isolane-copy", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, WINDOW_BYTES as u64)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses does not affect others.
        let start = unsafe { mmap(null_mut(), WINDOW_BYTES, protection, MapFlags::SHARED, &file, 0)? };
        // SAFETY: as above.
        let mark = unsafe { mmap_anonymous(null_mut(), MARK_BYTES, protection, MapFlags::PRIVATE)? };
        // SAFETY: a new mapping without references.
        unsafe { madvise(mark, MARK_BYTES, Advice::LinuxWipeOnFork)? };
        let no_address = || io::Error::from(io::ErrorKind::OutOfMemory);
        let (start, mark) = (NonNull::new(start.cast()), NonNull::new(mark.cast()));
        let window =
            Window { file, start: start.ok_or_else(no_address)?, mark: mark.ok_or_else(no_address)? };
        window.mark().store(1, Ordering::Relaxed);
        Ok(window)
    }

    fn mark(&self) -> &AtomicU8 {
        // SAFETY: mapped, and used by this function only.
        unsafe { self.mark.cast::<AtomicU8>().as_ref() }
    }

    /// Whether the parent has the same file.
    fn is_inherited(&self) -> bool {
        self.mark().load(Ordering::Relaxed) == 0
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: mapped with these lengths, and no longer used.
        unsafe {
            let _ = munmap(self.start.as_ptr().cast(), WINDOW_BYTES);
            let _ = munmap(self.mark.as_ptr().cast(), MARK_BYTES);
        }
    }
}

const WINDOW_BYTES: usize = 64 * 1024;
const MARK_BYTES: usize = 4096;

#[cfg(all(test, not(miri)))]
mod tests {
    use rustix::mm::{MprotectFlags, mprotect};

    use super::*;

    /// Two pages, of which only the first can be accessed. The other one stays mapped, so that no thread maps it.
    fn half_mapped() -> NonNull<u8> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping that nothing uses.
        unsafe {
            let start = mmap_anonymous(null_mut(), 2 * PAGE_SIZE, protection, MapFlags::PRIVATE).unwrap();
            mprotect(start.wrapping_byte_add(PAGE_SIZE), PAGE_SIZE, MprotectFlags::empty()).unwrap();
            NonNull::new(start.cast()).unwrap()
        }
    }

    #[test]
    fn copies_only_mapped_memory() {
        let start = half_mapped();
        // SAFETY: the address is inside of the two pages.
        let run = |offset, len| Run::new(unsafe { start.add(offset) }, len);
        let mut bytes = [0; 8];
        // SAFETY: there are no references to the memory.
        unsafe {
            assert!(write(run(100, 8), b"mapped!!") && read(run(100, 8), &mut bytes));
            assert_eq!(&bytes, b"mapped!!");
            for at in [PAGE_SIZE - 4, PAGE_SIZE] {
                assert!(!write(run(at, 8), &bytes) && !read(run(at, 8), &mut bytes), "offset {at}");
                assert!(!is_readable(run(at, 8)) && !is_writable(run(at, 8)), "offset {at}");
            }
            assert!(is_readable(run(0, PAGE_SIZE)) && is_writable(run(0, PAGE_SIZE)));
            assert!(!is_readable(run(0, PAGE_SIZE + 1)));
            mprotect(start.as_ptr().cast(), PAGE_SIZE, MprotectFlags::READ).unwrap();
            assert!(is_readable(run(0, 8)) && !is_writable(run(0, 8)) && !write(run(0, 8), &bytes));
            munmap(start.as_ptr().cast(), 2 * PAGE_SIZE).unwrap();
        }
    }

    #[test]
    fn copies_more_than_the_window() {
        let mut target = vec![0; 3 * WINDOW_BYTES + 5];
        let bytes: Vec<u8> = (0..target.len()).map(|at| (at % 251) as u8).collect();
        let mut copied = vec![0; target.len()];
        let run = Run::new(NonNull::from(&mut target[..]).cast(), bytes.len());
        // SAFETY: `target` is not used meanwhile.
        assert!(unsafe { write(run, &bytes) && read(run, &mut copied) });
        assert!(target == bytes && copied == bytes);
    }
}

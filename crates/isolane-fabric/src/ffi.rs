//! Entry from C: errors, panics, and pointers.
//!
//! Every `unsafe` function of a table has the requirements of the manual pages of libfabric: a pointer is null or valid
//! for its type, the program does not close an object that it uses, and structures that a function fills are not used by
//! another thread during the call.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::abi::{Fid, NoFn, Unsupported};

/// Number of an error of the system or of libfabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

impl Errno {
    pub(crate) const INVALID: Errno = Errno(libc::EINVAL);
    pub(crate) const UNSUPPORTED: Errno = Errno(libc::ENOSYS);
    pub(crate) const AGAIN: Errno = Errno(libc::EAGAIN);
    pub(crate) const NO_DATA: Errno = Errno(libc::ENODATA);
    pub(crate) const BUSY: Errno = Errno(libc::EBUSY);
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Errno {
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Errno {
        Errno(error.raw_os_error())
    }
}

pub(crate) type Result<T> = std::result::Result<T, Errno>;

/// Runs a function of the library. A panic becomes an error.
fn run<T>(function: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(function)).unwrap_or(Err(Errno(libc::EIO)))
}

/// Returns 0 or the negative error.
pub(crate) fn status(function: impl FnOnce() -> Result<()>) -> c_int {
    run(function).err().map_or(0, |error| -error.0)
}

/// Returns the number or the negative error.
pub(crate) fn count(function: impl FnOnce() -> Result<usize>) -> isize {
    match run(function) {
        Ok(count) => count as isize,
        Err(error) => -(error.0 as isize),
    }
}

/// Moves an object to the heap, and passes it to the program.
pub(crate) fn into_raw<T>(object: T) -> *mut T {
    Box::into_raw(Box::new(object))
}

/// Borrows an object.
///
/// # Safety
/// `pointer` is null, or a live object that this library made with the type `T`, whose first field is the C structure.
pub(crate) unsafe fn object<'a, C, T>(pointer: *mut C) -> Result<&'a T> {
    // SAFETY: guaranteed by the caller.
    unsafe { pointer.cast::<T>().as_ref() }.ok_or(Errno::INVALID)
}

/// Borrows a structure of the program for reading.
///
/// # Safety
/// `pointer` is null, or a valid structure that no thread changes while it is borrowed.
pub(crate) unsafe fn input<'a, T>(pointer: *const T) -> Result<&'a T> {
    // SAFETY: guaranteed by the caller.
    unsafe { pointer.as_ref() }.ok_or(Errno::INVALID)
}

/// Borrows a structure of the program for writing.
///
/// # Safety
/// `pointer` is null, or a valid structure that no other reference or thread uses while it is borrowed.
pub(crate) unsafe fn output<'a, T>(pointer: *mut T) -> Result<&'a mut T> {
    // SAFETY: guaranteed by the caller.
    unsafe { pointer.as_mut() }.ok_or(Errno::INVALID)
}

/// Borrows `count` values of the program.
///
/// # Safety
/// `pointer` is null, or has `count` valid values that no thread changes while they are borrowed.
pub(crate) unsafe fn values<'a, T>(pointer: *const T, count: usize) -> Result<&'a [T]> {
    match (count, pointer.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(Errno::INVALID),
        // SAFETY: guaranteed by the caller.
        _ => Ok(unsafe { std::slice::from_raw_parts(pointer, count) }),
    }
}

pub(crate) fn check(condition: bool) -> Result<()> {
    if condition { Ok(()) } else { Err(Errno::INVALID) }
}

/// Returns `-FI_ENOSYS` for each function that is not supported.
pub(crate) extern "C" fn unsupported() -> isize {
    -(libc::ENOSYS as isize)
}

/// Refuses to bind an object.
pub(crate) unsafe extern "C" fn no_bind(_: *mut Fid, _: *mut Fid, _: u64) -> c_int {
    -libc::EINVAL
}

/// Refuses a command.
pub(crate) unsafe extern "C" fn no_control(_: *mut Fid, _: c_int, _: *mut c_void) -> c_int {
    -libc::ENOSYS
}

pub(crate) const NO: NoFn = unsupported;

pub(crate) static UNSUPPORTED_OPS: Unsupported<20> =
    Unsupported { size: size_of::<Unsupported<20>>(), functions: [NO; 20] };

/// Number of objects that use an object.
#[derive(Default)]
pub(crate) struct Users(AtomicUsize);

impl Users {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// # Errors
    /// `EBUSY` if objects use it.
    pub(crate) fn check_none(&self) -> Result<()> {
        if self.0.load(Ordering::Acquire) == 0 { Ok(()) } else { Err(Errno::BUSY) }
    }
}

//! Conversions between C arguments and Rust values.
//!
//! Every `unsafe` function here has one requirement, in addition to any that it lists: a pointer is null or
//! valid as the header states, and no other thread uses it in a way that the header forbids.
//!
//! Invariant: null pointers, negative descriptors, and lengths beyond `SSIZE_MAX` become errors.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::slice;
use std::time::Duration;

use crate::error::Failure;

/// Moves an object to the heap and transfers it to C.
pub(crate) fn into_raw<T>(object: T) -> *mut T {
    Box::into_raw(Box::new(object))
}

/// Takes an object back from C; `None` for a null pointer.
///
/// # Safety
/// See the module. The pointer is from [`into_raw`], and its owner does not use it again.
pub(crate) unsafe fn from_raw<T>(object: *mut T) -> Option<Box<T>> {
    // SAFETY: the pointer is from `into_raw`, and the caller transfers its ownership.
    (!object.is_null()).then(|| unsafe { Box::from_raw(object) })
}

/// Borrows an object that several threads can use.
///
/// # Safety
/// See the module.
pub(crate) unsafe fn as_ref<'a, T>(object: *const T) -> Result<&'a T, Failure> {
    // SAFETY: a non-null pointer is from `into_raw`, and the object is not closed while it is in use.
    unsafe { object.as_ref() }.ok_or(NULL)
}

/// Borrows an object, or the location of a result, that only one thread uses.
///
/// # Safety
/// See the module.
pub(crate) unsafe fn as_mut<'a, T>(object: *mut T) -> Result<&'a mut T, Failure> {
    // SAFETY: a non-null pointer is valid for writes, and only this thread uses it.
    unsafe { object.as_mut() }.ok_or(NULL)
}

/// Borrows `count` values for reading.
///
/// # Safety
/// See the module.
pub(crate) unsafe fn slice<'a, T>(values: *const c_void, count: usize) -> Result<&'a [T], Failure> {
    if check(values, count, size_of::<T>())? {
        // SAFETY: the caller provides `count` values, and no thread changes them during the call.
        Ok(unsafe { slice::from_raw_parts(values.cast(), count) })
    } else {
        Ok(&[])
    }
}

/// Borrows space for `count` values.
///
/// # Safety
/// See the module. Every bit pattern is a valid `T`.
pub(crate) unsafe fn slice_mut<'a, T>(values: *mut c_void, count: usize) -> Result<&'a mut [T], Failure> {
    if check(values, count, size_of::<T>())? {
        // SAFETY: the caller provides space for `count` values to this call alone, and any bytes are valid.
        Ok(unsafe { slice::from_raw_parts_mut(values.cast(), count) })
    } else {
        Ok(&mut [])
    }
}

/// Returns `false` if there are no values.
fn check(start: *const c_void, count: usize, size: usize) -> Result<bool, Failure> {
    if count > isize::MAX as usize / size {
        return Err(Failure::Argument("length exceeds SSIZE_MAX: pass a smaller one"));
    }
    match (start.is_null(), count) {
        (_, 0) => Ok(false),
        (true, _) => Err(NULL),
        (false, _) => Ok(true),
    }
}

/// Borrows a string.
///
/// # Safety
/// See the module.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Result<&'a CStr, Failure> {
    if text.is_null() {
        return Err(NULL);
    }
    // SAFETY: the caller provides a zero-terminated string, and no thread changes it during the call.
    Ok(unsafe { CStr::from_ptr(text) })
}

/// Borrows a descriptor of the caller.
///
/// # Safety
/// See the module.
pub(crate) unsafe fn borrowed<'a>(fd: c_int) -> Result<BorrowedFd<'a>, Failure> {
    if fd < 0 {
        let message = format!("{fd} is not a descriptor: pass an open socket");
        return Err(Failure::WithErrno(libc::EBADF, message));
    }
    // SAFETY: the descriptor is not -1; system calls reject one that is not open.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Takes ownership of a descriptor that the caller transfers.
///
/// # Safety
/// See the module. The descriptor is open, and its owner does not use it again.
pub(crate) unsafe fn owned(fd: BorrowedFd<'_>) -> OwnedFd {
    // SAFETY: the descriptor is open, and the caller transfers its ownership.
    unsafe { OwnedFd::from_raw_fd(fd.as_raw_fd()) }
}

/// A wait time; `None`, forever, if negative.
pub(crate) fn timeout(timeout_ns: i64) -> Option<Duration> {
    u64::try_from(timeout_ns).ok().map(Duration::from_nanos)
}

const NULL: Failure = Failure::Argument("pointer is NULL: check the result of the call that returned it");

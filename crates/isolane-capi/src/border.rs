//! What comes from C, and what goes there.
//!
//! Every function here that is `unsafe` asks the same: that a pointer is null, or what the header says that it is, and
//! that nobody else uses it in a way that the header forbids.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::slice;
use std::time::Duration;

use crate::failure::Failure;

/// An object that C has from now on.
pub(crate) fn give<T>(object: T) -> *mut T {
    Box::into_raw(Box::new(object))
}

/// An object that C gives back; `None` of a null pointer.
///
/// # Safety
/// See the module.
pub(crate) unsafe fn take<T>(object: *mut T) -> Option<Box<T>> {
    // SAFETY: it is from `give`, and its owner does not use it any more.
    (!object.is_null()).then(|| unsafe { Box::from_raw(object) })
}

/// An object that several threads may use.
///
/// # Safety
/// See the module.
pub(crate) unsafe fn shared<'a, T>(object: *const T) -> Result<&'a T, Failure> {
    // SAFETY: it is from `give`, and not closed while it is in use.
    unsafe { object.as_ref() }.ok_or(NULL)
}

/// An object, or a place for a result, that is one thread's.
///
/// # Safety
/// See the module.
pub(crate) unsafe fn own<'a, T>(object: *mut T) -> Result<&'a mut T, Failure> {
    // SAFETY: as of `shared`, and only one thread uses it.
    unsafe { object.as_mut() }.ok_or(NULL)
}

/// `count` values to be read.
///
/// # Safety
/// See the module.
pub(crate) unsafe fn values<'a, T>(values: *const c_void, count: usize) -> Result<&'a [T], Failure> {
    match check(values, count, size_of::<T>())? {
        // SAFETY: the caller has so many values there, which nobody changes meanwhile.
        true => Ok(unsafe { slice::from_raw_parts(values.cast(), count) }),
        false => Ok(&[]),
    }
}

/// `count` places to be written.
///
/// # Safety
/// See the module.
pub(crate) unsafe fn places<'a, T>(places: *mut c_void, count: usize) -> Result<&'a mut [T], Failure> {
    match check(places, count, size_of::<T>())? {
        // SAFETY: the caller has so many places there, for this call alone. What lies there are bytes to us,
        // whatever they are.
        true => Ok(unsafe { slice::from_raw_parts_mut(places.cast(), count) }),
        false => Ok(&mut []),
    }
}

/// Whether there are any.
fn check(start: *const c_void, count: usize, bytes: usize) -> Result<bool, Failure> {
    if count > isize::MAX as usize / bytes {
        return Err(Failure::argument("a length is more than SSIZE_MAX: give less"));
    }
    match (start.is_null(), count) {
        (_, 0) => Ok(false),
        (true, _) => Err(NULL),
        (false, _) => Ok(true),
    }
}

/// A text that is there.
///
/// # Safety
/// See the module.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Result<&'a CStr, Failure> {
    if text.is_null() {
        return Err(NULL);
    }
    // SAFETY: the caller has a string there that ends with a zero, and does not change it meanwhile.
    Ok(unsafe { CStr::from_ptr(text) })
}

/// A descriptor of the caller's.
///
/// # Safety
/// See the module.
pub(crate) unsafe fn borrowed<'a>(fd: c_int) -> Result<BorrowedFd<'a>, Failure> {
    if fd < 0 {
        return Err(Failure::Told(libc::EBADF, format!("{fd} is no descriptor: give that of a socket")));
    }
    // SAFETY: not -1; if it is not open, the system says so.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// A descriptor that the caller hands over, which was looked at before.
///
/// # Safety
/// See the module.
pub(crate) unsafe fn owned(fd: BorrowedFd<'_>) -> OwnedFd {
    // SAFETY: it is open, and its owner has given it away.
    unsafe { OwnedFd::from_raw_fd(std::os::fd::AsRawFd::as_raw_fd(&fd)) }
}

/// A time to wait: for ever if negative.
pub(crate) fn timeout(timeout_ns: i64) -> Option<Duration> {
    u64::try_from(timeout_ns).ok().map(Duration::from_nanos)
}

/// Runs what may start threads: they begin with all signals blocked, so that the program's are handled by its own
/// threads.
pub(crate) fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let _restored = Blocked::new();
    start()
}

struct Blocked {
    before: libc::sigset_t,
}

impl Blocked {
    fn new() -> Blocked {
        // SAFETY: sets of signals are plain bits; both are written before they are read, and are our own.
        unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
            Blocked { before }
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set is what the system has given.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}

const NULL: Failure =
    Failure::Argument("a pointer is NULL that must not be: see whether what made it has failed");

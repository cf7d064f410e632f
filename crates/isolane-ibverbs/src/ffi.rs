//! Entry from C: errors, panics, and pointers.
//!
//! Every exported `unsafe` function has the requirements of the manual pages of libibverbs and librdmacm: a pointer is
//! null or valid for its type, the program does not destroy an object that it uses, and structures that a function
//! fills or changes are not used by another thread during the call. Objects count their users, so that an object
//! lives as long as those that were made from it.

use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::time::Duration;

use isolane_shm::with_only_faults_unblocked;

/// Number of an error of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

impl Errno {
    pub(crate) const INVALID: Errno = Errno(libc::EINVAL);
    pub(crate) const UNSUPPORTED: Errno = Errno(libc::EOPNOTSUPP);
    pub(crate) const BUSY: Errno = Errno(libc::EBUSY);
    pub(crate) const NO_MEMORY: Errno = Errno(libc::ENOMEM);

    /// Returns the error that the last function of C has stored for this thread.
    pub(crate) fn last() -> Errno {
        std::io::Error::last_os_error().into()
    }

    /// Stores the error for the program.
    pub(crate) fn set(self) {
        // SAFETY: the location of this thread's error is valid.
        unsafe { *libc::__errno_location() = self.0 };
    }
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

/// Returns 0, or the error, which is also stored.
pub(crate) fn status(function: impl FnOnce() -> Result<()>) -> c_int {
    match run(function) {
        Ok(()) => 0,
        Err(error) => {
            error.set();
            error.0
        }
    }
}

/// Returns the value, or -1 and stores the error.
pub(crate) fn value(function: impl FnOnce() -> Result<c_int>) -> c_int {
    run(function).unwrap_or_else(|error| {
        error.set();
        -1
    })
}

/// Returns the pointer, or a null pointer and stores the error.
pub(crate) fn pointer<T>(function: impl FnOnce() -> Result<*mut T>) -> *mut T {
    run(function).unwrap_or_else(|error| {
        error.set();
        null_mut()
    })
}

/// Moves an object to the heap and passes it to the program.
pub(crate) fn into_raw<T>(object: T) -> *mut T {
    Box::into_raw(Box::new(object))
}

/// Borrows an object.
///
/// # Safety
/// `pointer` is null, or a live object that this library made with the type `T`, whose first field is the C
/// structure.
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

/// Copies a text to a field, with a zero at its end. A longer text is cut.
pub(crate) fn copy_text(field: &mut [c_char], text: &str) {
    let len = text.len().min(field.len() - 1);
    field.fill(0);
    for (to, from) in field.iter_mut().zip(&text.as_bytes()[..len]) {
        *to = *from as c_char;
    }
}

/// Returns a text that lives forever.
pub(crate) const fn text(text: &'static CStr) -> *const c_char {
    text.as_ptr()
}

/// Reports an error on stderr that the interface cannot. Waits for a reader of stderr for a moment, because the program
/// may end now.
pub(crate) fn report(error: &str) {
    with_only_faults_unblocked(|| log::write_stderr(format!("isolane: {error}\n")));
    log::flush(REPORT_TIMEOUT);
}

const REPORT_TIMEOUT: Duration = Duration::from_millis(100);

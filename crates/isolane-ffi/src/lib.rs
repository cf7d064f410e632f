//! Entry from C for libraries that implement an interface of C: errors, panics, and pointers.
//!
//! A function of such an interface runs its body in [`run`], borrows the arguments of the program with [`object`],
//! [`input`], [`output`], and [`values`], and converts the result to the form of its interface. An object starts with
//! its C structure, counts its users with [`Users`], and lives as long as the objects that were made from it.
//!
//! Invariant: a panic never reaches the program, and a null pointer is an error.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod stderr;

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

pub use stderr::{install_logger, refuse, refuse_queue_pair, report};

/// Number of an error of the system or of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub c_int);

impl Errno {
    /// `EINVAL`.
    pub const INVALID: Errno = Errno(libc::EINVAL);
    /// `EBUSY`.
    pub const BUSY: Errno = Errno(libc::EBUSY);
    /// `EAGAIN`.
    pub const AGAIN: Errno = Errno(libc::EAGAIN);
    /// `ENODATA`.
    pub const NO_DATA: Errno = Errno(libc::ENODATA);
    /// `ENOMEM`.
    pub const NO_MEMORY: Errno = Errno(libc::ENOMEM);
    /// `ENOSYS`.
    pub const NO_FUNCTION: Errno = Errno(libc::ENOSYS);
    /// `EOPNOTSUPP`.
    pub const UNSUPPORTED: Errno = Errno(libc::EOPNOTSUPP);

    /// Returns the error that the last function of C has stored for this thread.
    pub fn last() -> Errno {
        std::io::Error::last_os_error().into()
    }

    /// Stores the error for the program.
    pub fn set(self) {
        // SAFETY: the location of this thread's error is valid.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Errno {
        let own = if error.kind() == std::io::ErrorKind::AddrInUse { libc::EADDRINUSE } else { libc::EIO };
        Errno(error.raw_os_error().unwrap_or(own))
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Errno {
        Errno(error.raw_os_error())
    }
}

/// Result of a function of the interface.
pub type Result<T> = std::result::Result<T, Errno>;

/// Runs a function of the interface. A panic becomes `EIO`.
///
/// # Errors
/// Those of the function.
pub fn run<T>(function: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(function)).unwrap_or(Err(Errno(libc::EIO)))
}

/// Moves an object to the heap, and passes it to the program.
pub fn into_raw<T>(object: T) -> *mut T {
    Box::into_raw(Box::new(object))
}

/// Borrows an object.
///
/// # Errors
/// `EINVAL` for a null pointer.
///
/// # Safety
/// `pointer` is null, or a live object that the library made with the type `T`, whose first field is the C structure.
pub unsafe fn object<'a, C, T>(pointer: *mut C) -> Result<&'a T> {
    // SAFETY: guaranteed by the caller.
    unsafe { pointer.cast::<T>().as_ref() }.ok_or(Errno::INVALID)
}

/// Borrows a structure of the program for reading.
///
/// # Errors
/// `EINVAL` for a null pointer.
///
/// # Safety
/// `pointer` is null, or a valid structure that no thread changes while it is borrowed.
pub unsafe fn input<'a, T>(pointer: *const T) -> Result<&'a T> {
    // SAFETY: guaranteed by the caller.
    unsafe { pointer.as_ref() }.ok_or(Errno::INVALID)
}

/// Borrows a structure of the program for writing.
///
/// # Errors
/// `EINVAL` for a null pointer.
///
/// # Safety
/// `pointer` is null, or a valid structure that no other reference or thread uses while it is borrowed.
pub unsafe fn output<'a, T>(pointer: *mut T) -> Result<&'a mut T> {
    // SAFETY: guaranteed by the caller.
    unsafe { pointer.as_mut() }.ok_or(Errno::INVALID)
}

/// Borrows `count` values of the program.
///
/// # Errors
/// `EINVAL` for a null pointer with a count, or for more values than an address space has.
///
/// # Safety
/// `pointer` is null, or has `count` valid values that no thread changes while they are borrowed.
pub unsafe fn values<'a, T>(pointer: *const T, count: usize) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    let bytes = count.checked_mul(size_of::<T>());
    check(!pointer.is_null() && bytes.is_some_and(|bytes| bytes <= isize::MAX as usize))?;
    // SAFETY: guaranteed by the caller, and the slice is not longer than one can be.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// Checks an argument.
///
/// # Errors
/// `EINVAL` if the condition is false.
pub fn check(condition: bool) -> Result<()> {
    if condition { Ok(()) } else { Err(Errno::INVALID) }
}

/// Number of objects that use an object.
#[derive(Debug, Default)]
pub struct Users(AtomicUsize);

impl Users {
    /// Adds a user.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a user, whose work is visible to the thread that finds none.
    pub fn remove(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// Checks that the object can be closed.
    ///
    /// # Errors
    /// `EBUSY` if objects use it.
    pub fn check_none(&self) -> Result<()> {
        if self.0.load(Ordering::Acquire) == 0 { Ok(()) } else { Err(Errno::BUSY) }
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::{null, null_mut};

    use super::*;

    #[test]
    fn refuses_null_and_endless_values() {
        // SAFETY: null pointers, and a count that is refused before the pointer is used.
        unsafe {
            assert_eq!(object::<u8, u32>(null_mut()), Err(Errno::INVALID));
            assert_eq!(input::<u32>(null()), Err(Errno::INVALID));
            assert_eq!(output::<u32>(null_mut()), Err(Errno::INVALID));
            assert_eq!(values::<u32>(null(), 0), Ok(&[][..]));
            assert_eq!(values::<u32>(null(), 1), Err(Errno::INVALID));
            assert_eq!(values::<u32>(&7, usize::MAX / 2), Err(Errno::INVALID));
            assert_eq!(values::<u32>(&7, 1), Ok(&[7][..]));
        }
    }

    #[test]
    fn turns_a_panic_into_an_error() {
        assert_eq!(run(|| check(false)), Err(Errno::INVALID));
        assert_eq!(run::<()>(|| panic!("in a function of the interface")), Err(Errno(libc::EIO)));
    }

    #[test]
    fn an_object_is_busy_while_it_has_users() {
        let users = Users::default();
        users.add();
        assert_eq!(users.check_none(), Err(Errno::BUSY));
        users.remove();
        assert_eq!(users.check_none(), Ok(()));
    }
}

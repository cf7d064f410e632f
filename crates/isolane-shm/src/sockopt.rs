//! Socket options that rustix does not wrap.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::c_int;
use rustix::io::Errno;

/// Reads an option into `value`. Returns its size in bytes.
///
/// # Errors
/// The kernel's.
pub fn getsockopt(
    socket: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &mut [u8],
) -> Result<usize, Errno> {
    let mut len = value.len() as libc::socklen_t;
    let target = value.as_mut_ptr().cast();
    // SAFETY: the kernel writes at most `len` bytes to `target`.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, target, &raw mut len) };
    cvt(result as isize)?;
    Ok(len as usize)
}

/// Reads an integer option.
///
/// # Errors
/// The kernel's.
pub fn getsockopt_int(socket: BorrowedFd<'_>, level: c_int, name: c_int) -> Result<c_int, Errno> {
    let mut value = [0; size_of::<c_int>()];
    getsockopt(socket, level, name, &mut value)?;
    Ok(c_int::from_ne_bytes(value))
}

/// Sets an integer option.
///
/// # Errors
/// The kernel's.
pub fn setsockopt(socket: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> Result<(), Errno> {
    let len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the kernel reads one integer from a value that outlives the call.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), len) };
    cvt(result as isize).map(drop)
}

/// Converts the return value of a system call.
///
/// # Errors
/// The error number, if `result` is negative.
pub fn cvt(result: isize) -> Result<usize, Errno> {
    usize::try_from(result)
        .map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}

//! Entry from C: errors, panics, and pointers.
//!
//! Every `unsafe` function of a table has the requirements of the manual pages of libfabric: a pointer is null or valid
//! for its type, the program does not close an object that it uses, and structures that a function fills are not used by
//! another thread during the call.

use std::ffi::{c_int, c_void};

use isolane_ffi::run;
pub(crate) use isolane_ffi::{
    Errno, Result, Users, check, input, into_raw, object, output, refuse_queue_pair, values,
};

use crate::abi::{self, Fid, NoFn, Unsupported};

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

/// # Errors
/// `FI_EBADFLAGS` for flags that are not known.
pub(crate) fn check_flags(flags: u64, known: u64) -> Result<()> {
    if flags & !known == 0 { Ok(()) } else { Err(Errno(abi::EBADFLAGS)) }
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

/// Refuses to cancel an operation.
pub(crate) unsafe extern "C" fn no_cancel(_: *mut Fid, _: *mut c_void) -> isize {
    -(libc::ENOSYS as isize)
}

pub(crate) const NO: NoFn = unsupported;

pub(crate) static UNSUPPORTED_OPS: Unsupported<20> =
    Unsupported { size: size_of::<Unsupported<20>>(), functions: [NO; 20] };

//! Texts of errors.

use std::ffi::{CStr, c_char, c_int};

use crate::abi;

/// Returns the text of an error of the system or of libfabric.
fn error_text(error: c_int) -> &'static CStr {
    match error.abs() {
        libc::ECONNREFUSED => c"connection refused",
        libc::ETIMEDOUT => c"connection timed out",
        libc::ECONNRESET => c"the peer has ended the connection",
        libc::ECANCELED => c"the connection has ended before the operation",
        libc::EACCES => c"the peer does not allow the access, or has no such memory",
        libc::EFAULT => c"the memory of the operation is not mapped",
        libc::EREMOTEIO => c"the peer cannot execute the operation, or its receive is too short",
        abi::ETRUNC => c"the message is longer than the receive",
        abi::ENORX => c"the peer has posted no receive",
        _ => c"input/output error",
    }
}

/// Copies the text of an error, if there is a buffer, and returns it.
///
/// # Safety
/// `buffer` is null or has `len` bytes.
pub(crate) unsafe fn copy_error_text(error: c_int, buffer: *mut c_char, len: usize) -> *const c_char {
    let text = error_text(error);
    if !buffer.is_null() && len > 0 {
        let copied = text.count_bytes().min(len - 1);
        // SAFETY: guaranteed by the caller: `copied` is below `len`.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), buffer, copied);
            *buffer.add(copied) = 0;
        }
    }
    text.as_ptr()
}

//! Entry from C: errors, panics, and pointers.
//!
//! Every exported `unsafe` function has the requirements of the manual pages of libibverbs and librdmacm: a pointer is
//! null or valid for its type, the program does not destroy an object that it uses, and structures that a function
//! fills or changes are not used by another thread during the call. Objects count their users, so that an object
//! lives as long as those that were made from it.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;

use isolane_ffi::run;
pub(crate) use isolane_ffi::{
    Errno, Result, Users, check, input, into_raw, object, output, refuse_queue_pair, report, values,
};

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

//! C API for streams through an isolated engine: `libisolane` and `include/isolane.h`.
//!
//! The header is the manual: it states what each function takes, returns, and requires. This crate wraps
//! `isolane-attach`:
//!
//! * `call.rs` has the frame of every function: no panic leaves it, and a failure becomes a status and a text
//!   (`failure.rs`).
//! * `border.rs` converts C pointers to references, and results to pointers.
//!
//! Invariant: the code relies on nothing beyond the promises of the header; null pointers and out-of-range
//! arguments are rejected.

mod border;
mod call;
mod failure;
mod listener;
mod options;
mod poller;
mod session;
mod stream;

use std::ffi::{CStr, c_char};

/// As the header says.
#[unsafe(no_mangle)]
pub extern "C" fn isolane_version() -> *const c_char {
    VERSION.as_ptr()
}

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("a version has no zeroes"),
};

//! Streams through an isolated engine, for programs in C: `libisolane` and `include/isolane.h`.
//!
//! The header is the manual: what each function takes, returns, and asks of its caller. Here is what lies
//! behind: `isolane-attach`, and at the border
//!
//! * `call.rs`: every function's frame; no panic leaves it, and a failure becomes a number and a text (`failure.rs`),
//! * `border.rs`: what C hands over becomes references, and what is handed to C a pointer.
//!
//! Invariant: whatever is true of the header's promises, nothing here relies on more; null pointers and wrong numbers
//! are refused.

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

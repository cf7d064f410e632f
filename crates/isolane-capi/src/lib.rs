//! C API for volumes, and for streams through an isolated engine: `libisolane` and `include/isolane.h`.
//!
//! The header documents the parameters, results, and safety requirements of each `isolane_*` function. Streams wrap
//! `isolane-attach`, volumes wrap `isolane-host` and `isolane-volume` (`backend.rs`):
//!
//! * `entry.rs` has the frame of every function: no panic leaves it, and a failure becomes a status and a text
//!   (`error.rs`).
//! * `fork.rs` makes functions fail in a child whose locks can be held.
//! * `ffi.rs` converts C pointers to references, and results to pointers.
//!
//! Invariant: the code relies on nothing beyond the promises of the header; null pointers and out-of-range
//! arguments are rejected.

mod backend;
mod entry;
mod error;
mod ffi;
mod fork;
mod listener;
mod logging;
mod memory;
mod options;
mod poller;
mod queue;
mod session;
mod stream;
mod volume;

use std::ffi::{CStr, c_char};

/// Version of the library; see the header.
#[unsafe(no_mangle)]
pub extern "C" fn isolane_version() -> *const c_char {
    VERSION.as_ptr()
}

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("a version contains no zero byte"),
};

//! Provider of libfabric: FI_EP_MSG over TCP.
//!
//! ```text
//! program ── libfabric ──► tables of functions ──► objects, each with its state ──► isolane-verbs
//! ```
//!
//! * [`abi`]: the binary interface of libfabric.
//! * `host`: the libfabric that has loaded the library. `info`: the offers of the provider.
//! * `fabric`, `domain`, `memory`, `event_queue`, `completion_queue`, `counter`: its objects.
//! * `endpoint`, `passive`, `connect`: endpoints and their connections.
//! * `message`, `rma`: operations.
//!
//! Invariant: a panic never reaches the program, and a null pointer is an error.

#![allow(missing_docs, clippy::missing_safety_doc)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod abi;
mod address;
mod completion_queue;
mod connect;
mod counter;
mod domain;
mod endpoint;
mod error;
mod event_queue;
mod fabric;
mod ffi;
mod host;
mod info;
mod memory;
mod message;
mod objects;
mod passive;
mod post;
mod request;
mod rma;
mod wait;

use std::ptr::null_mut;
use std::sync::OnceLock;

/// A provider, as libfabric changes it.
struct Provider(*mut abi::Provider);

// SAFETY: only libfabric uses the pointer, under its lock.
unsafe impl Send for Provider {}
// SAFETY: as above.
unsafe impl Sync for Provider {}

/// Returns the description of the provider. libfabric calls it after it has loaded the library.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut abi::Provider {
    static PROVIDER: OnceLock<Provider> = OnceLock::new();
    let version = host::version();
    if version == 0 {
        return null_mut();
    }
    let made = PROVIDER.get_or_init(|| {
        Provider(ffi::into_raw(abi::Provider {
            version: info::VERSION,
            // libfabric skips a provider for an older version than the one that the program requests.
            fi_version: version,
            context: [null_mut(); 4],
            name: info::NAME.as_ptr(),
            getinfo: info::getinfo,
            fabric: fabric::open,
            cleanup,
        }))
    });
    made.0
}

/// Objects that the program has not closed live until the process ends.
extern "C" fn cleanup() {}

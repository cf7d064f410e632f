//! The raw TCP floor: a ping-pong with the byte counts of NVMe/TCP and no protocol.
//!
//! Two threads, each pinned to its core, spin over non-blocking sockets. Bytes are read with one `readv` a
//! turn straight into the buffer they belong to, and everything that became due goes out with one `writev`;
//! with `--single` each request of the asking side with one of its own. The served data is spread over
//! [`WORKING_SET_BYTES`] on huge pages, each block is touched before the batch it belongs to is sent, and the
//! reader has one buffer for each request.
//!
//! It is not an NVMe/TCP peer: replies come in the order of the requests, headers carry only what the
//! floor itself needs, and nothing is checked that a protocol would have to check.

mod batch;
mod connection;
mod granted;
mod host;
mod memory;
mod run;
mod target;
mod units;
mod work;

pub use run::{Options, Report, run};
pub use work::Work;

/// How much data the target serves from.
pub const WORKING_SET_BYTES: usize = if cfg!(test) { 8 << 20 } else { 256 << 20 };

//! The raw TCP floor: a ping-pong with the byte counts of NVMe/TCP and no protocol.
//!
//! Two threads, each pinned to a core, spin over non-blocking sockets. One `readv` per turn places bytes in their final
//! buffers, and one `writev` sends everything that became due; with `--unbatched` the host sends each request with its
//! own call. The served data covers [`WORKING_SET_BYTES`] on huge pages, each block is touched before its batch is
//! sent, and the reader has one buffer per request.
//!
//! It is not an NVMe/TCP peer: replies are in the order of the requests, headers carry only the fields that the floor
//! needs, and nothing is checked that a protocol would have to check.

mod host;
mod memory;
mod r2t_write;
mod run;
mod target;
mod units;
mod work;

pub use run::{Options, run};
pub use work::Work;

/// Size of the served data.
pub const WORKING_SET_BYTES: usize = if cfg!(test) { 8 << 20 } else { 256 << 20 };

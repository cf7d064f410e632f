//! The programs that measurements consist of, apart from `isolane` and its peers.
//!
//! The [`floor`] is the lower bound: plain loopback TCP that carries exactly the bytes of NVMe/TCP and does nothing
//! else. The [`minimal_host`] shows what a target does for hosts that are not ours,
//! and [`vhost_load`] what an export does for a machine. [`streams`] compares an engine
//! with native sockets. `bench/measure` runs them together with `isolane` and prints tables of the results.
//!
//! Invariant: no code is shared with the protocol crates, so that a mistake there cannot hide here. Only [`streams`]
//! links the client library of engines.

#![forbid(unsafe_code)]

mod cpu;
pub mod floor;
pub mod minimal_host;
mod report;
mod round_robin;
mod socket;
pub mod streams;
pub mod verbs_floor;
pub mod vhost_load;

pub use report::{Latency, Report, main};

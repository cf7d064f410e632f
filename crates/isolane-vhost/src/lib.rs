//! Virtio block devices for virtual machines, over vhost-user: `isolane export --vhost-user-blk`.
//!
//! * [`GuestMemory`] maps the memory of a guest, and [`GuestBuffer`] is the data of a request in it.
//! * [`Ring`] is one virtqueue without I/O: requests, results, and the file of requests in flight.
//! * [`Device`] has features and configuration of the device.
//! * [`Server`] has the socket, and one thread with a reactor that drives all queues and the volume.
//!
//! The crates `vhost`, `virtio-queue`, and `vm-memory` decode messages, and access rings and memory.
//!
//! Invariants:
//! * Every request gets exactly one result. After a restart, exactly the requests without one are repeated.
//! * Nothing that a guest or its monitor writes faults, blocks the thread, or disturbs another queue.
//! * A flush covers the writes that were completed on any queue, because all use one volume.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod chain;
mod config;
mod control;
mod core;
mod descriptors;
pub mod device;
mod inflight;
mod memory;
pub mod request;
mod ring;
mod server;

pub use chain::ChainError;
pub use config::{ServerConfig, StartError};
pub use device::Device;
pub use inflight::{InflightError, InflightFile};
pub use memory::{GuestBuffer, GuestMemory, RegionError, RegionSpec};
pub use ring::{Permit, Ring, RingConfig, RingError, Taken};
pub use server::Server;

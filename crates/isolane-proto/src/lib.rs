//! State machines of the NVMe/TCP host and target, without I/O.
//!
//! * [`target::Queue`] and [`host::Queue`]: one connection each, from bytes to commands and back.
//! * [`subsystem`]: what a target's controllers answer on the admin queue.
//! * [`queue`]: what the two ends of a connection share.
//!
//! No file descriptor, no clock, no thread: bytes come and go through plans that the driver hands to the
//! kernel, and time is an argument. The grammar is `handle_*` for what comes in and `poll_*` for what comes
//! out. Payload never passes through a machine; it is placed by the kernel, or copied once out of the
//! overflow.
#![forbid(unsafe_code)]

pub mod completion;
pub mod host;
#[cfg(test)]
mod pair;
pub mod queue;
#[cfg(test)]
mod stories;
pub mod subsystem;
pub mod target;

pub use completion::Completion;

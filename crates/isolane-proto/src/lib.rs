//! Sans-IO state machines of the NVMe/TCP host and target.
//!
//! * [`target::Connection`] and [`host::Connection`]: the two ends of one connection, from bytes to
//!   commands and back.
//! * [`subsystem`]: the control path of a target: associations, admin commands, and events.
//! * [`auth`]: the authentication of hosts and targets.
//! * [`connection`]: code that both ends of a connection share.
//!
//! There are no file descriptors, clocks, or threads: bytes arrive and leave through plans that the
//! driver passes to the kernel, and time is an argument. `handle_*` takes input, `poll_*` yields
//! output. `isolane-target` and `isolane-host` drive these machines on a reactor.
//!
//! Invariant: payload never passes through a machine. The kernel places it, or it is copied once
//! out of the overflow buffer.
#![forbid(unsafe_code)]

pub mod auth;
pub mod completion;
pub mod connection;
pub mod failure;
pub mod host;
#[cfg(test)]
mod scenario_tests;
pub mod subsystem;
pub mod target;

pub use completion::Completion;
pub use failure::Failure;

//! Inspection of a running Isolane and of its system.
//!
//! | module | purpose |
//! |---|---|
//! | [`control`] | control socket of a running program |
//! | [`source`] | snapshots of a running program or of a file, for commands |
//! | [`system`] | readers of `/proc` and `/sys` below a replaceable root |
//!
//! Only programs depend on this crate; target, host, and engine do not.
//!
//! Invariant: nothing here runs in the thread of a reactor.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod control;
pub mod source;
pub mod system;
#[cfg(test)]
mod testing;

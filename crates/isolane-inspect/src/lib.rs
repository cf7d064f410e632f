//! Inspection of a running Isolane and of its system.
//!
//! | module | purpose |
//! |---|---|
//! | [`system`] | readers of `/proc` and `/sys` below a replaceable root |
//!
//! Only programs depend on this crate; target, host, and engine do not.
//!
//! Invariant: nothing here runs in the thread of a reactor.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod system;
#[cfg(test)]
mod testing;

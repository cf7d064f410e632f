//! NVMe, NVMe over Fabrics, and NVMe/TCP wire formats (`no_std`).
//!
//! Every PDU, queue entry, command, register, and data structure that the two ends of a connection exchange.
//! Each is decoded once into a type that cannot hold an invalid value, and encoded from that type. Digests and
//! the framing rules of a negotiated direction are here as well. The crate has no state, buffers, sockets, or
//! policy; `isolane-proto` builds on it.
//!
//! Layouts follow the NVM Express Base Specification 1.4 (with the later fields that hosts request), NVMe over
//! Fabrics 1.1, and the NVMe/TCP Transport Specification 1.0. All multi-byte fields are little endian.
//!
//! Invariant: no input panics, and an encoder reproduces whatever its decoder accepts.
#![no_std]
#![forbid(unsafe_code)]

#[macro_use]
extern crate isolane_layout;
#[cfg(test)]
extern crate std;

#[macro_use]
mod command;
pub mod admin;
mod ascii;
pub mod auth;
pub mod entry;
pub mod fabrics;
pub mod feature;
mod framing;
#[cfg(test)]
mod golden;
pub mod identify;
pub mod io;
pub mod log;
mod nqn;
pub mod opcode;
pub mod pdu;
pub mod registers;
mod size_checks;
pub mod status;

pub use ascii::Ascii;
pub use entry::{CompletionEntry, Sgl, SubmissionEntry};
pub use framing::{Direction, Framing};
pub use isolane_layout::{Field, digest};
pub use nqn::{Nqn, NqnError, NqnField};
pub use status::Status;

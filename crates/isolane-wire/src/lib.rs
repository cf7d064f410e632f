//! Bytes and types of NVMe, NVMe over Fabrics and NVMe/TCP.
//!
//! What it is: every PDU, queue entry, command, register and data structure that the two sides of an NVMe/TCP
//! connection exchange, each decoded once into a type and encoded from it; digests; the framing rules that a
//! negotiated direction adds. What it is not: it has no state, no buffer, no socket and no policy.
//!
//! Invariant: no input makes it panic, and what a decoder accepts its encoder writes again.
//!
//! Layouts follow the NVM Express Base Specification 1.4 (with the later fields that hosts ask for), NVMe
//! over Fabrics 1.1 and the NVMe/TCP Transport Specification 1.0. All multi-byte fields are little endian.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

#[macro_use]
mod layout;
pub mod admin;
pub mod digest;
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
mod sizes;
pub mod status;
mod text;

pub use entry::{CompletionEntry, Sgl, SubmissionEntry};
pub use framing::{Direction, Framing};
pub use layout::Field;
pub use nqn::{Nqn, NqnError, NqnField};
pub use status::Status;
pub use text::Ascii;

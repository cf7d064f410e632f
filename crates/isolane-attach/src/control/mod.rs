//! What an application and its engine say to each other over the Unix socket between them.
//!
//! One packet is one message of at most [`BYTES_MAX`] with at most [`DESCRIPTORS_MAX`] descriptors
//! ([`Wire`]). An application asks with a [`Request`], and each has one [`Reply`] of the same serial number;
//! up to [`ASKED_MAX`] may wait for theirs. [`Reply::Ended`] and [`Reply::Restarted`] come unasked, with the serial number 0. A close may be
//! asked with that number, too, beside what else is asked, and nobody waits for the answer; likewise [`Request::Relieve`]. After a
//! restart, what was asked and not answered, and closes whose end was not told, are asked again, for the engine
//! that was asked is dead: so **every request may be repeated**, because its ids are the application's, and the
//! repetition is answered like the first.
//!
//! It is not the data path: nothing is said here for a byte of payload. Invariant: whatever is decoded is
//! within its bounds; all else is a [`Malformed`] that names the first wrong field.

mod fields;
mod object;
mod reply;
mod request;
#[cfg(test)]
mod tests;
mod wire;

pub use fields::{Malformed, Sink, Source};
pub use object::{End, Object, Open, StreamPlace};
pub use reply::{Limits, Reply, Welcome};
pub use request::{Asked, Hello, OpenPort, OpenQueue, Request};
pub use wire::{Packet, Wire, WireError, remedy};

/// What is spoken here. Both sides must speak the same.
pub const VERSION: u32 = 5;
/// Requests of a session that may wait for their answers at the same time.
pub const ASKED_MAX: usize = 32;

/// Bytes of the longest message.
pub const BYTES_MAX: usize = 2048;

/// Descriptors that may come with a message.
pub const DESCRIPTORS_MAX: usize = 4;

/// The most cores of one engine.
pub const CORES_MAX: usize = 128;

/// Bytes of the longest text: of a refusal, or the name of a volume.
pub const TEXT_BYTES_MAX: usize = 1024;

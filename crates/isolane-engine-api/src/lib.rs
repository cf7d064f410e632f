//! Protocol between an application and an isolated engine.
//!
//! `isolane-attach` is the application side, `isolane-engine` the engine side.
//!
//! * [`Request`], [`Reply`]: the control protocol over a Unix socket ([`PacketSocket`]).
//! * [`Object`], [`kind`]: objects of any kind, with the parameters of their kind.
//! * [`encode`], [`decode`]: the encoding of messages, also for parameters.
//! * [`layout`]: the layout of the shared memory.
//! * [`stream`]: the control block of a stream, and the recovery of its positions after a restart.
//!
//! A packet is one message of at most [`MAX_MESSAGE_BYTES`] with at most [`MAX_DESCRIPTORS`] descriptors
//! ([`PacketSocket`]). Each [`Request`] of an application gets one [`Reply`] with the same serial number; up to
//! [`MAX_REQUESTS_IN_FLIGHT`] can wait for theirs. Serial number 0 is for [`Reply::ObjectClosed`] and
//! [`Reply::EngineRestarted`], which are unsolicited, and for closes and [`Request::Relieve`], whose replies nothing waits
//! for; these do not count as in flight.
//!
//! After a restart of the engine, the application repeats all requests without a reply, and all closes without
//! [`Reply::ObjectClosed`]. So **every request can be repeated**: the application chooses the IDs, and a repeated request
//! gets the same reply.
//!
//! The data path uses shared memory only. Invariant: a decoded message is within its bounds; anything else is a
//! [`DecodeError`].

#![forbid(unsafe_code)]

mod codec;
pub mod kind;
pub mod layout;
mod packet_socket;
mod reply;
mod request;
pub mod runtime_dir;
mod socket_path;
pub mod stream;
#[cfg(test)]
mod tests;

pub use codec::{DecodeError, decode, encode};
pub use packet_socket::{Packet, PacketError, PacketSocket, hint};
pub use reply::{Reply, SessionLimits, Welcome};
pub use request::{CloseMode, Hello, Object, OpenDoorbells, OpenNotificationQueue, OpenObject, Request};
pub use socket_path::{default_path, start_command};

/// Version of this protocol; both sides must use the same.
pub const VERSION: u32 = 9;
/// Maximum number of requests of a session without a reply.
pub const MAX_REQUESTS_IN_FLIGHT: usize = 32;
/// Maximum length of a message in bytes.
pub const MAX_MESSAGE_BYTES: usize = 2048;
/// Maximum number of descriptors with a message.
pub const MAX_DESCRIPTORS: usize = 8;
/// Maximum number of cores of one engine.
pub const MAX_CORES: usize = 128;
/// Maximum length of a text in bytes: of a refusal, or the URI of a volume.
pub const MAX_TEXT_BYTES: usize = 1024;

//! NBD server for volumes: `isolane export`.
//!
//! * [`wire`] has the formats.
//! * [`Connection`] is one connection without I/O: handshake, requests, and replies.
//! * [`Server`] has the listeners, and one thread with a reactor that drives all connections and the volume.
//!
//! The server speaks the fixed newstyle handshake with structured replies and the metadata context
//! `base:allocation`. It has neither TLS nor authentication.
//!
//! Invariants:
//! * Every request gets exactly one reply, also a malformed one; only bytes that have no framing end the connection.
//! * Memory is bounded, also of requests whose connections have closed, and of replies that are not read.
//! * A flush covers the writes that were completed on any connection, because all use one volume.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod config;
mod connection;
mod core;
mod export;
mod handshake;
mod listen;
mod request;
mod server;
pub mod wire;

pub use config::{ServerConfig, StartError};
pub use connection::{Connection, Event, Permit, ProtocolError};
pub use export::{Export, MAX_PAYLOAD_BYTES};
pub use listen::{Address, ListenError};
pub use request::Command;
pub use server::Server;

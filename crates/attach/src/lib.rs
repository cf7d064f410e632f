//! What an application links to have its network processing done by an isolated engine.
//!
//! * [`Session`]: the connection to an engine, and the memory that is shared with it.
//! * [`stream`]: connections whose bytes go through the engine.
//! * [`control`]: what both say to each other over the Unix socket between them; the engine uses it, too.
//! * [`layout`]: where what is in the shared memory; as well.
//!
//! Invariant: whatever the engine or another process does to the memory that is shared, an operation ends with
//! a result or an error.

#![forbid(unsafe_code)]

pub mod control;
mod error;
pub mod layout;
mod session;
pub mod stream;

pub use error::AttachError;
pub use session::{Options, Port, Queue, Room, Session, Watcher, default_path};

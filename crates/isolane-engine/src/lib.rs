//! Isolated engine: network processing on dedicated cores for applications that attach through shared memory.
//!
//! * [`Engine`]: one thread per core, and one control thread.
//! * `control/`: clients, their requests, and their limits.
//! * `core/`: event loop of a core, which polls objects.
//! * [`object`]: objects and their lifecycle.
//! * [`stream`]: TCP streams, between a socket and the application's memory.
//! * `volume/`: volumes, whose clients are shared by sessions.
//! * `store/`: records that outlive the engine's process.
//! * [`supervisor`]: process that starts the engine, keeps its records, and replaces it.
//! * [`files`]: directory of the engine's socket, and the files next to it.
//!
//! Invariant: no client is trusted; invalid data in its shared memory affects only that client.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod close_threads;
mod config;
mod control;
mod core;
mod engine;
mod epoll;
mod fd_reserve;
pub mod files;
pub mod object;
mod observed;
mod snapshot;
mod store;
pub mod stream;
pub mod supervisor;
#[cfg(test)]
mod tests;
mod volume;
mod watch;

pub use config::{EngineConfig, EngineError};
pub use control::listen;
pub use engine::Engine;
pub use isolane_engine_api::{SessionLimits, default_path};
pub use observed::CurrentTurn;
pub use snapshot::SnapshotSource;

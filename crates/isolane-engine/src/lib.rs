//! The isolated engine: network processing on cores of its own, for applications that attach through shared
//! memory.
//!
//! * [`Engine`]: threads for the cores, and one for control.
//! * `control/`: who attaches, what they ask for, and what they may have.
//! * `core/`: the loop of a core, which looks at objects.
//! * [`stream`]: one stream, between its socket and the application's memory.
//! * `volume/`: volumes, whose lanes sessions share.
//! * [`supervisor`]: the process that starts the engine's, keeps what must outlive it, and starts the next.
//! * [`files`]: the directory of the engine's socket, and the files next to it.
//! * [`service`]: what an object is, and how a kind of objects (streams, volumes) plugs in.
//!
//! Invariant: no client is trusted; whatever one writes to its memory concerns that client alone.

#![forbid(unsafe_code)]

mod closer;
mod config;
mod control;
mod core;
mod engine;
mod epoll;
pub mod files;
mod reserve;
pub mod service;
mod store;
pub mod stream;
pub mod supervisor;
#[cfg(test)]
mod tests;
mod volume;
mod watch;

pub use config::{Config, EngineError};
pub use engine::{Engine, listen};
pub use isolane_attach::control::Limits;
pub use isolane_attach::default_path;
pub use volume::Keeper;

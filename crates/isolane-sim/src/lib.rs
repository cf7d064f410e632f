//! A seeded world for the state machines: whatever happens, happens again with the same seed.
//!
//! * [`Disk`]: a disk that reorders, tears, fails, and forgets unsynced writes when its power is cut.
//! * [`History`]: which contents of a block are allowed, after everything that was acknowledged.
//! * [`World`]: clients that send random requests to a file volume on such a disk.
//!
//! It is not a model of speed: time is the number of steps.

#![forbid(unsafe_code)]

mod disk;
mod history;
mod world;

pub use disk::{Disk, Faults, Finished};
pub use history::History;
pub use world::{Config, World};

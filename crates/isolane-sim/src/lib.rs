//! Seeded simulation of disks and clients for the state machines of volumes.
//!
//! * [`Disk`]: a disk that reorders, tears, fails, and loses unsynced writes when its power is cut.
//! * [`History`]: the contents that a block may have after everything that was acknowledged.
//! * [`Simulation`]: clients that send random requests to a file volume on such a disk.
//!
//! The same seed reproduces the same run. The simulation is no model of speed: time is the number of steps.

#![forbid(unsafe_code)]

mod disk;
mod history;
mod simulation;

pub use disk::{Disk, DiskCompletion, Faults};
pub use history::History;
pub use simulation::{SimConfig, Simulation};

//! Volumes: what a target serves. Memory, null, file and block device.
//!
//! A [`Volume`] does no I/O and knows no protocol. [`Volume::start`] either finishes a [`Request`] at once,
//! or hands out one file [`Operation`](isolane_reactor::file::Operation) for the reactor to carry out, whose
//! result goes to [`Volume::resume`]; so the same code runs on a real file and on a simulated disk that loses
//! power.
//!
//! Invariants, for every volume:
//! * A block is never torn: no read sees a part of a concurrent write's block, on whatever core either runs,
//!   and a request that is never started changes nothing.
//! * A completed write is seen by every later read.
//! * A completed [`Request::Flush`], and a completed write with `fua`, survives a power cut if the storage
//!   below keeps its promises; if it said that it did not, no flush succeeds any more.

#![forbid(unsafe_code)]

mod error;
pub mod file;
mod generation;
mod identity;
mod memory;
mod null;
mod open;
mod request;
pub mod spec;
mod volume;

pub use error::VolumeError;
pub use generation::{Generation, RestartLoss};
pub use identity::Identity;
pub use memory::MemoryVolume;
pub use null::NullVolume;
pub use open::{OpenError, open};
pub use request::{BlockRange, Outcome, Request, Step};
pub use spec::VolumeSpec;
pub use volume::{Geometry, Soon, Volume};

pub use file::Task;

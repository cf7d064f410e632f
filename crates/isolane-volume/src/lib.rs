//! Volumes that a target serves: memory, null, file, and block device; and the trait and executor for nested ones.
//!
//! A [`Volume`] does no I/O and knows no protocol. [`Volume::start`] returns a [`Step`]: done, a file
//! operation for the reactor, whose result goes to [`Volume::resume`], pending, or a retry. The same code therefore runs on a real file and on a simulated disk that
//! loses power (`isolane-sim`).
//!
//! Invariants, for every volume:
//! * No block is torn: no read sees part of a concurrent write's block, on any core, and a request that is
//!   never started changes nothing.
//! * Every later read sees a completed write.
//! * A completed [`Request::Flush`], and a completed write with `fua`, survives a power cut if the storage
//!   keeps its promises. Once the storage reports that it did not, every later flush fails.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod core_parts;
mod error;
pub mod file;
mod file_watch;
mod generation;
mod identity;
mod info;
mod inherited_files;
pub mod inherited_memory;
mod memory;
pub mod nested;
mod null;
mod open;
mod open_error;
mod request;
mod server_thread;
pub mod shell;
pub mod spec;
pub mod tree;
mod volume;
mod volume_queue;
mod volume_thread;

pub use core_parts::CoreParts;
pub use error::VolumeError;
pub use generation::{Generation, RestartLoss};
pub use identity::Identity;
pub use info::{BlockRange, Condition, Extent, VolumeDescription, VolumeInfo};
pub use memory::{MemoryCopy, MemoryImage, MemoryVolume};
pub use nested::NestedIo;
pub use null::NullVolume;
pub use open::open;
pub use open_error::OpenError;
pub use request::{Completer, Outcome, Pending, Request, Step, Task};
pub use server_thread::{ServerCore, ServerThread, Shutdown, ShutdownError};
pub use spec::VolumeSpec;
pub use tree::VolumeTree;
pub use volume::{CorePart, Upcoming, Volume};
pub use volume_queue::VolumeQueue;
pub use volume_thread::{ThreadQueue, VolumeThread};

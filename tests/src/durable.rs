//! Writer and checker of durable data.
//!
//! A writer gives each block a sequence number that only rises. The journal stores for each block the highest
//! number that was issued and the highest that is durable: acknowledged with FUA, or complete before a Flush
//! that succeeded. After a crash a block must hold one whole write with a number between the two.

mod check;
mod disk;
mod journal;
mod pattern;
mod write;

pub use check::{BrokenPromise, check};
pub use disk::{Disk, open};
pub use journal::{DurabilityLevel, WriteJournal};
pub use write::{WritePlan, write};

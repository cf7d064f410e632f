//! Promises of durability, and whether the disk kept them.
//!
//! A writer gives each block a sequence number that only rises. The ledger knows for each block the highest
//! number that was issued and the highest that is durable: acknowledged with FUA, or complete before a Flush
//! that succeeded. After a crash a block must hold one whole write with a number between the two.

mod check;
mod disk;
mod ledger;
mod pattern;
mod write;

pub use check::{Broken, check};
pub use disk::{Disk, open};
pub use ledger::{Claim, Ledger};
pub use write::{Plan, write};

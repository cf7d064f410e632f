//! Comparison of a disk with its journal.

use std::io;

use super::disk::{Disk, MAX_RUN_BYTES, run};
use super::journal::WriteJournal;
use super::pattern::{Found, read};

/// Block that does not have the promised contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokenPromise {
    /// Block number.
    pub index: u64,
    /// Oldest allowed write.
    pub durable: u64,
    /// Last issued write.
    pub issued: u64,
    /// Actual contents.
    pub found: Found,
}

/// Reads every written block and returns the broken promises. A write found in a block becomes the oldest that
/// the next check allows.
pub fn check(disk: &mut dyn Disk, journal: &mut WriteJournal) -> io::Result<Vec<BrokenPromise>> {
    let mut broken = Vec::new();
    let block_bytes = journal.block_bytes;
    let blocks_per_run = MAX_RUN_BYTES / block_bytes;
    for (number, entries) in journal.entries.chunks_mut(blocks_per_run).enumerate() {
        if entries.iter().all(|entry| entry.issued == 0) {
            continue;
        }
        let mut data = run(entries.len() * block_bytes);
        let first = number * blocks_per_run;
        disk.read((first * block_bytes) as u64, &mut data)?;
        for (offset, (entry, block)) in entries.iter_mut().zip(data.chunks_exact(block_bytes)).enumerate() {
            let index = (first + offset) as u64;
            let found = read(block, index);
            match found {
                Found::Complete(sequence) if (entry.durable..=entry.issued).contains(&sequence) => {
                    entry.durable = sequence;
                    entry.completed = sequence;
                }
                Found::Unwritten if entry.durable == 0 => entry.completed = 0,
                _ => {
                    broken.push(BrokenPromise { index, durable: entry.durable, issued: entry.issued, found })
                }
            }
        }
    }
    Ok(broken)
}

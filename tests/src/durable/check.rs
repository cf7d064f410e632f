//! Holds a disk to its ledger.

use std::io;

use super::disk::{Disk, RUN_BYTES_MAX, run};
use super::ledger::Ledger;
use super::pattern::{Found, read};

/// A promise that was not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The block.
    pub index: u64,
    /// The least write that it had to hold.
    pub durable: u64,
    /// The last one that was ever sent.
    pub issued: u64,
    /// What is there.
    pub found: Found,
}

/// Reads every block that was ever written and returns the broken promises. What was found becomes the least
/// that the next check may find, unless the promise was broken.
pub fn check(disk: &mut dyn Disk, ledger: &mut Ledger) -> io::Result<Vec<Broken>> {
    let mut broken = Vec::new();
    let block_bytes = ledger.block_bytes;
    let blocks_a_run = RUN_BYTES_MAX / block_bytes;
    for (number, entries) in ledger.entries.chunks_mut(blocks_a_run).enumerate() {
        if entries.iter().all(|entry| entry.issued == 0) {
            continue;
        }
        let mut data = run(entries.len() * block_bytes);
        let first = number * blocks_a_run;
        disk.read((first * block_bytes) as u64, &mut data)?;
        for (offset, (entry, block)) in entries.iter_mut().zip(data.chunks_exact(block_bytes)).enumerate() {
            let index = (first + offset) as u64;
            let found = read(block, index);
            match found {
                Found::Whole(sequence) if (entry.durable..=entry.issued).contains(&sequence) => {
                    entry.durable = sequence;
                    entry.completed = sequence;
                }
                Found::Foreign if entry.durable == 0 => entry.completed = 0,
                _ => broken.push(Broken { index, durable: entry.durable, issued: entry.issued, found }),
            }
        }
    }
    Ok(broken)
}

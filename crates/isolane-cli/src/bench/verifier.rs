//! Write and check of patterns, and the report of wrong blocks.

use isolane_memory::Buffer;

use super::access_pattern::AccessPattern;
use super::pattern::{self, Damage, Stamp};
use super::slot_history::SlotHistory;
use crate::failure::Failure;

/// Wrong blocks with a description; further ones are only counted.
const MAX_DESCRIBED: usize = 8;

/// The result of verification.
#[derive(Debug, Default)]
pub struct VerifyReport {
    /// Number of wrong blocks.
    pub errors: u64,
    /// Number of checked blocks.
    pub blocks_checked: u64,
    described: Vec<String>,
}

/// Checks every block of one run.
pub struct Verifier {
    /// Possible contents of each slot.
    pub history: SlotHistory,
    /// The result.
    pub report: VerifyReport,
    run: u64,
    slot_blocks: u64,
    block_bytes: usize,
}

impl Verifier {
    /// Returns a verifier for the region of a pattern. `run` differs between runs.
    pub fn new(pattern: &AccessPattern, run: u64) -> Self {
        Verifier {
            history: SlotHistory::new(pattern.slots as u32),
            report: VerifyReport::default(),
            run,
            slot_blocks: pattern.slot_blocks(),
            block_bytes: pattern.block_bytes as usize,
        }
    }

    /// Fills the buffer of the next write of a slot and returns its sequence number.
    pub fn fill(&mut self, slot: u64, buffer: &mut Buffer) -> u32 {
        let sequence = self.history.next_sequence();
        let bytes = buffer.as_mut_slice().unwrap_or_default();
        for (lba, block) in (slot * self.slot_blocks..).zip(bytes.chunks_exact_mut(self.block_bytes)) {
            pattern::fill(block, Stamp { lba, sequence: u64::from(sequence), run: self.run });
        }
        sequence
    }

    /// Checks a slot after a read, if this run has an acknowledged write of it.
    pub fn check(&mut self, slot: u64, buffer: &Buffer) {
        if self.history.acknowledged(slot as u32) == 0 {
            return;
        }
        let bytes = buffer.as_slice().unwrap_or_default();
        for (lba, block) in (slot * self.slot_blocks..).zip(bytes.chunks_exact(self.block_bytes)) {
            self.report.blocks_checked += 1;
            if let Err(error) = self.check_block(slot as u32, lba, block) {
                self.report.record(format!("block {lba} {error}"));
            }
        }
    }

    fn check_block(&self, slot: u32, lba: u64, block: &[u8]) -> Result<(), String> {
        match pattern::check(block, lba, self.run) {
            Ok(stamp) if self.history.can_hold(slot, stamp.sequence) => Ok(()),
            Ok(stamp) => {
                let acknowledged = self.history.acknowledged(slot);
                Err(format!("holds write {}, but {acknowledged} was acknowledged", stamp.sequence))
            }
            Err(Damage::NoPattern) => Err("holds no pattern of isolane".into()),
            Err(Damage::WrongBlock(Stamp { lba, sequence, run })) => {
                let run = if run == self.run { "this" } else { "another" };
                Err(format!("holds write {sequence} of block {lba} of {run} run"))
            }
            Err(Damage::Torn(stamp, at)) => {
                Err(format!("starts as write {} and differs from byte {at} on", stamp.sequence))
            }
        }
    }
}

impl VerifyReport {
    /// Returns an error if any block was wrong.
    pub fn into_result(self) -> Result<(), Failure> {
        if self.errors == 0 {
            return Ok(());
        }
        let what = format!("verify: {} of {} blocks are wrong", self.errors, self.blocks_checked);
        let remedy = "do not trust the volume or the path to it, which loses data";
        Err(Failure::new(what, self.described.join(", ")).with_hint(remedy))
    }

    fn record(&mut self, error: String) {
        self.errors += 1;
        if self.described.len() < MAX_DESCRIBED {
            self.described.push(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::access_pattern::Kind;

    fn verifier() -> Verifier {
        Verifier::new(&AccessPattern::new(Kind { random: true, reads_percent: 0 }, 4, 1024, 512, 1, 1), 42)
    }

    fn written(verifier: &mut Verifier, slot: u64) -> Buffer {
        let mut buffer = Buffer::contiguous(1024);
        let sequence = verifier.fill(slot, &mut buffer);
        verifier.history.on_acknowledged(slot as u32, sequence);
        buffer
    }

    #[test]
    fn accepts_written_blocks() {
        let mut verifier = verifier();
        let buffer = written(&mut verifier, 2);
        verifier.check(2, &buffer);
        let report = verifier.report;
        assert_eq!((report.errors, report.blocks_checked), (0, 2));
        assert!(report.into_result().is_ok());
    }

    #[test]
    fn detects_lost_writes() {
        let mut verifier = verifier();
        let old = written(&mut verifier, 2);
        written(&mut verifier, 2);
        verifier.check(2, &old);
        let failure = verifier.report.into_result().unwrap_err().to_string();
        assert!(failure.contains("2 of 2 blocks") && failure.contains("but 2 was acknowledged"), "{failure}");
    }

    #[test]
    fn skips_slots_without_writes() {
        let mut verifier = verifier();
        verifier.check(1, &Buffer::contiguous(1024));
        assert_eq!(verifier.report.blocks_checked, 0);
    }
}

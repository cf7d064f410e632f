//! Writes patterns, checks what is read, and remembers what was wrong.

use isolane_memory::Buffer;

use super::ledger::Ledger;
use super::pattern::{self, Damage, Stamp};
use super::plan::Plan;
use crate::failure::Failure;

/// How many wrong blocks are described; the rest is only counted.
const DESCRIBED_MAX: usize = 8;

/// What verifying a run found.
#[derive(Debug, Default)]
pub struct Verdict {
    errors: u64,
    blocks_checked: u64,
    described: Vec<String>,
}

/// Judges every block of one run.
pub struct Verifier {
    /// What each slot may hold.
    pub ledger: Ledger,
    verdict: Verdict,
    run: u64,
    slot_blocks: u64,
    block_bytes: usize,
}

impl Verifier {
    /// A verifier for the region of a plan. `run` differs from run to run.
    pub fn new(plan: &Plan, run: u64) -> Self {
        Verifier {
            ledger: Ledger::new(plan.slots as u32),
            verdict: Verdict::default(),
            run,
            slot_blocks: plan.slot_blocks(),
            block_bytes: plan.block_bytes as usize,
        }
    }

    /// Fills the buffer of the next write of a slot and gives its sequence number.
    pub fn fill(&mut self, slot: u64, buffer: &mut Buffer) -> u32 {
        let sequence = self.ledger.next_sequence();
        let first_lba = slot * self.slot_blocks;
        let bytes = buffer.as_mut_slice().unwrap_or_default();
        for (lba, block) in (first_lba..).zip(bytes.chunks_exact_mut(self.block_bytes)) {
            pattern::fill(block, Stamp { lba, sequence: u64::from(sequence), run: self.run });
        }
        sequence
    }

    /// Judges a slot that was read, if this run knows what it must hold.
    pub fn check(&mut self, slot: u64, buffer: &Buffer) {
        if !self.ledger.is_judged(slot as u32) {
            return;
        }
        let first_lba = slot * self.slot_blocks;
        for (lba, block) in
            (first_lba..).zip(buffer.as_slice().unwrap_or_default().chunks_exact(self.block_bytes))
        {
            self.verdict.blocks_checked += 1;
            if let Err(wrong) = self.judge(slot, lba, block) {
                self.verdict.record(format!("block {lba}: {wrong}"));
            }
        }
    }

    /// What was found.
    pub fn into_verdict(self) -> Verdict {
        self.verdict
    }

    fn judge(&self, slot: u64, lba: u64, block: &[u8]) -> Result<(), String> {
        match pattern::check(block, lba, self.run) {
            Ok(stamp) if self.ledger.may_hold(slot as u32, stamp.sequence) => Ok(()),
            Ok(stamp) => Err(format!(
                "holds write {}, but {} was acknowledged",
                stamp.sequence,
                self.ledger.settled(slot as u32)
            )),
            Err(Damage::Foreign) => Err("holds no pattern of this program".into()),
            Err(Damage::Misplaced(stamp)) => Err(format!(
                "holds write {} of block {} of {} run",
                stamp.sequence,
                stamp.lba,
                if stamp.run == self.run { "this" } else { "another" }
            )),
            Err(Damage::Torn(stamp, at)) => {
                Err(format!("begins as write {} and is something else from byte {at} on", stamp.sequence))
            }
        }
    }
}

impl Verdict {
    /// Blocks that were wrong.
    pub fn errors(&self) -> u64 {
        self.errors
    }

    /// Blocks that were judged.
    pub fn blocks_checked(&self) -> u64 {
        self.blocks_checked
    }

    /// An error if any block was wrong.
    pub fn into_result(self) -> Result<(), Failure> {
        if self.errors == 0 {
            return Ok(());
        }
        let blocks = self.blocks_checked;
        Err(Failure::new(
            format!("verify: {} of {blocks} blocks are wrong", self.errors),
            self.described.join(", "),
        )
        .remedy("the volume or the way to it loses data; do not trust it"))
    }

    fn record(&mut self, wrong: String) {
        self.errors += 1;
        if self.described.len() < DESCRIBED_MAX {
            self.described.push(wrong);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::plan::Kind;

    fn verifier() -> Verifier {
        Verifier::new(&Plan::new(Kind { random: true, reads_percent: 0 }, 4, 1024, 512, 1, 1), 42)
    }

    fn written(verifier: &mut Verifier, slot: u64) -> Buffer {
        let mut buffer = Buffer::contiguous(1024);
        let sequence = verifier.fill(slot, &mut buffer);
        verifier.ledger.acknowledged(slot as u32, sequence);
        buffer
    }

    #[test]
    fn what_was_written_is_accepted() {
        let mut verifier = verifier();
        let buffer = written(&mut verifier, 2);
        verifier.check(2, &buffer);
        let verdict = verifier.into_verdict();
        assert_eq!((verdict.errors(), verdict.blocks_checked()), (0, 2));
        assert!(verdict.into_result().is_ok());
    }

    #[test]
    fn an_older_write_is_a_lost_one() {
        let mut verifier = verifier();
        let old = written(&mut verifier, 2);
        written(&mut verifier, 2);
        verifier.check(2, &old);
        let failure = verifier.into_verdict().into_result().unwrap_err().to_string();
        assert!(failure.contains("2 of 2 blocks") && failure.contains("but 2 was acknowledged"), "{failure}");
    }

    #[test]
    fn a_slot_nobody_wrote_is_not_judged() {
        let mut verifier = verifier();
        verifier.check(1, &Buffer::contiguous(1024));
        assert_eq!(verifier.into_verdict().blocks_checked(), 0);
    }
}

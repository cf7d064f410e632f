//! Sequence of operations: direction and position.
//!
//! The region consists of slots of one operation each.

use fastrand::Rng;

use crate::choice::Choice;

/// Order and direction of the operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// Random slots instead of ascending ones.
    pub random: bool,
    /// Share of reads in percent.
    pub reads_percent: u8,
}

/// Kind of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rw {
    Read,
    Write,
    Randread,
    Randwrite,
    Randrw,
}

/// Kinds of operations.
pub const OPERATION_KINDS: [Choice<Rw>; 5] = [
    ("read", "Reads at ascending addresses", Rw::Read),
    ("write", "Writes at ascending addresses", Rw::Write),
    ("randread", "Reads at random addresses", Rw::Randread),
    ("randwrite", "Writes at random addresses", Rw::Randwrite),
    ("randrw", "Reads and writes at random addresses", Rw::Randrw),
];

impl Rw {
    /// Returns order and direction, for this share of reads in randrw.
    pub fn kind(self, mix: u8) -> Kind {
        let (random, reads_percent) = match self {
            Rw::Read => (false, 100),
            Rw::Write => (false, 0),
            Rw::Randread => (true, 100),
            Rw::Randwrite => (true, 0),
            Rw::Randrw => (true, mix),
        };
        Kind { random, reads_percent }
    }
}

/// Read or write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the volume.
    Read,
    /// To the volume.
    Write,
}

/// Operations and their shape.
#[derive(Debug)]
pub struct AccessPattern {
    /// Order and direction.
    pub kind: Kind,
    /// Slots of the region.
    pub slots: u64,
    /// Size of one operation.
    pub slot_bytes: u64,
    /// Size of a logical block.
    pub block_bytes: u64,
    /// Operations in flight, per lane or in total.
    pub depth: u32,
    first_block: u64,
    next_slot: u64,
    rng: Rng,
}

impl AccessPattern {
    /// Returns the pattern over `slots` slots of `slot_bytes` each.
    pub fn new(kind: Kind, slots: u64, slot_bytes: u64, block_bytes: u64, depth: u32, seed: u64) -> Self {
        let rng = Rng::with_seed(seed);
        AccessPattern { kind, slots, slot_bytes, block_bytes, depth, first_block: 0, next_slot: 0, rng }
    }

    /// Moves the region to this offset, which is a multiple of the size of a block.
    pub fn starting_at(self, offset_bytes: u64) -> Self {
        AccessPattern { first_block: offset_bytes / self.block_bytes, ..self }
    }

    /// Returns direction and slot of the next operation.
    pub fn next(&mut self) -> (Direction, u64) {
        (self.direction(), self.slot())
    }

    /// Returns the first logical block of a slot.
    pub fn lba(&self, slot: u64) -> u64 {
        self.first_block + slot * self.slot_blocks()
    }

    /// Returns the number of logical blocks in a slot.
    pub fn slot_blocks(&self) -> u64 {
        self.slot_bytes / self.block_bytes
    }

    fn direction(&mut self) -> Direction {
        match self.kind.reads_percent {
            100 => Direction::Read,
            0 => Direction::Write,
            percent if self.rng.u8(0..100) < percent => Direction::Read,
            _ => Direction::Write,
        }
    }

    fn slot(&mut self) -> u64 {
        if self.kind.random {
            return self.rng.u64(0..self.slots);
        }
        let slot = self.next_slot;
        self.next_slot = (slot + 1) % self.slots;
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(random: bool, reads_percent: u8) -> AccessPattern {
        AccessPattern::new(Kind { random, reads_percent }, 10, 4096, 512, 1, 1)
    }

    #[test]
    fn sequential_slots_wrap_around() {
        let mut pattern = pattern(false, 100);
        let slots: Vec<u64> = (0..12).map(|_| pattern.next().1).collect();
        assert_eq!(slots, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]);
    }

    #[test]
    fn mixes_reads_as_requested() {
        let mut pattern = pattern(true, 70);
        let reads = (0..10_000).filter(|_| pattern.next().0 == Direction::Read).count();
        assert!((6_700..7_300).contains(&reads), "{reads}");
    }

    #[test]
    fn slots_start_at_block_boundaries() {
        assert_eq!(pattern(true, 0).lba(3), 24);
        assert_eq!(pattern(true, 0).starting_at(1024).lba(3), 26);
    }
}

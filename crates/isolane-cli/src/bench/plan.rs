//! Which operation comes next, and where.
//!
//! The region is cut into slots of one operation each; operations never straddle slots.

use fastrand::Rng;

/// Order and direction of the operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// Random slots instead of rising ones.
    pub random: bool,
    /// Share of reads, in percent.
    pub reads_percent: u8,
}

/// Read or write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the volume.
    Read,
    /// To the volume.
    Write,
}

/// What a run does: the sequence of operations and their shape.
#[derive(Debug)]
pub struct Plan {
    /// Order and direction.
    pub kind: Kind,
    /// Slots of the region.
    pub slots: u64,
    /// Bytes of one operation.
    pub slot_bytes: u64,
    /// Bytes of a logical block.
    pub block_bytes: u64,
    /// Operations in flight, on each lane or altogether.
    pub depth: u32,
    /// Logical blocks of a slot.
    slot_blocks: u64,
    next_slot: u64,
    rng: Rng,
}

impl Plan {
    /// A plan over `slots` slots of `slot_bytes` each.
    pub fn new(kind: Kind, slots: u64, slot_bytes: u64, block_bytes: u64, depth: u32, seed: u64) -> Self {
        let (slot_blocks, rng) = (slot_bytes / block_bytes, Rng::with_seed(seed));
        Plan { kind, slots, slot_bytes, block_bytes, depth, slot_blocks, next_slot: 0, rng }
    }

    /// Direction and slot of the next operation.
    pub fn next(&mut self) -> (Direction, u64) {
        (self.direction(), self.slot())
    }

    /// First logical block of a slot.
    pub fn lba(&self, slot: u64) -> u64 {
        slot * self.slot_blocks
    }

    /// Logical blocks of a slot.
    pub fn slot_blocks(&self) -> u64 {
        self.slot_blocks
    }

    /// Whether any operation reads.
    pub fn reads(&self) -> bool {
        self.kind.reads_percent > 0
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

    fn plan(random: bool, reads_percent: u8) -> Plan {
        Plan::new(Kind { random, reads_percent }, 10, 4096, 512, 1, 1)
    }

    #[test]
    fn sequential_slots_rise_and_start_over() {
        let mut plan = plan(false, 100);
        let slots: Vec<u64> = (0..12).map(|_| plan.next().1).collect();
        assert_eq!(slots, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]);
    }

    #[test]
    fn the_mix_is_about_what_was_asked_for() {
        let mut plan = plan(true, 70);
        let reads = (0..10_000).filter(|_| plan.next().0 == Direction::Read).count();
        assert!((6_700..7_300).contains(&reads), "{reads}");
    }

    #[test]
    fn a_slot_starts_at_a_whole_number_of_blocks() {
        assert_eq!(plan(true, 0).lba(3), 24);
    }
}

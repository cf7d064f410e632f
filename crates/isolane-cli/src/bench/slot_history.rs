//! Possible contents of every slot of the volume, for `bench --verify`.
//!
//! A slot has the size of one operation. An acknowledged write determines its contents; after a write without an
//! acknowledgment each block may be old or new, until the next acknowledged write of the slot.
//!
//! Invariant: at most one operation per slot is in flight, see [`SlotHistory::begin`] and [`SlotHistory::end`].

use std::collections::HashMap;

/// Possible contents of slots, as sequence numbers of writes; 0 stands for no write of this run.
pub struct SlotHistory {
    acknowledged: Vec<u32>,
    busy: Vec<bool>,
    unknown_writes: HashMap<u32, Vec<u32>>,
    sequence: u32,
}

impl SlotHistory {
    /// Returns the history of `slots` slots without writes.
    pub fn new(slots: u32) -> Self {
        let slots = slots as usize;
        let (acknowledged, busy) = (vec![0; slots], vec![false; slots]);
        SlotHistory { acknowledged, busy, unknown_writes: HashMap::new(), sequence: 0 }
    }

    /// Reserves a slot for one operation. Returns `false` if it is reserved.
    pub fn begin(&mut self, slot: u32) -> bool {
        !std::mem::replace(&mut self.busy[slot as usize], true)
    }

    /// Releases the slot.
    pub fn end(&mut self, slot: u32) {
        self.busy[slot as usize] = false;
    }

    /// Returns the sequence number of the next write.
    pub fn next_sequence(&mut self) -> u32 {
        self.sequence += 1;
        self.sequence
    }

    /// Records an acknowledged write, the only contents from now on.
    pub fn on_acknowledged(&mut self, slot: u32, sequence: u32) {
        self.acknowledged[slot as usize] = sequence;
        self.unknown_writes.remove(&slot);
    }

    /// Records a write that may or may not have happened.
    pub fn on_unknown(&mut self, slot: u32, sequence: u32) {
        self.unknown_writes.entry(slot).or_default().push(sequence);
    }

    /// Returns the latest acknowledged write of the slot, or 0.
    pub fn acknowledged(&self, slot: u32) -> u32 {
        self.acknowledged[slot as usize]
    }

    /// Returns `true` if a block of the slot may have this sequence number.
    pub fn can_hold(&self, slot: u32, sequence: u64) -> bool {
        let unknown = self.unknown_writes.get(&slot).into_iter().flatten();
        unknown.chain([&self.acknowledged(slot)]).any(|&one| u64::from(one) == sequence)
    }

    /// Returns the slots with an acknowledged write.
    pub fn checked_slots(&self) -> Vec<u64> {
        (0..self.acknowledged.len() as u64).filter(|&slot| self.acknowledged[slot as usize] != 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledged_write_determines_the_contents() {
        let mut history = SlotHistory::new(4);
        history.on_acknowledged(2, 5);
        assert!(history.can_hold(2, 5));
        assert!(!history.can_hold(2, 4));
        assert_eq!(history.checked_slots(), [2]);
    }

    #[test]
    fn unknown_write_reads_as_old_or_new() {
        let mut history = SlotHistory::new(1);
        history.on_acknowledged(0, 1);
        history.on_unknown(0, 2);
        history.on_unknown(0, 3);
        assert!([1, 2, 3].iter().all(|&sequence| history.can_hold(0, sequence)));
        history.on_acknowledged(0, 4);
        assert!(![1, 2, 3].iter().any(|&sequence| history.can_hold(0, sequence)));
    }

    #[test]
    fn slot_has_one_operation_at_a_time() {
        let mut history = SlotHistory::new(1);
        assert!(history.begin(0));
        assert!(!history.begin(0));
        history.end(0);
        assert!(history.begin(0));
    }
}

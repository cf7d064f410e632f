//! What every slot of the volume may hold, while `bench --verify` runs.
//!
//! A slot is one I/O size of consecutive blocks. An acknowledged write settles what the slot holds; a
//! write that was never acknowledged leaves it undecided between old and new, block by block, until the
//! next acknowledged write of the same slot. The ledger never has two operations in flight on one slot:
//! that is the caller's promise, kept with [`Ledger::begin`] and [`Ledger::end`].

use std::collections::HashMap;

/// What a slot may hold, as sequence numbers of writes; 0 stands for "never written by this run".
pub struct Ledger {
    settled: Vec<u32>,
    busy: Vec<bool>,
    undecided: HashMap<u32, Vec<u32>>,
    sequence: u32,
}

impl Ledger {
    /// A ledger for `slots` slots, none of which was written yet.
    pub fn new(slots: u32) -> Self {
        let slots = slots as usize;
        Ledger { settled: vec![0; slots], busy: vec![false; slots], undecided: HashMap::new(), sequence: 0 }
    }

    /// Takes a slot for one operation; false if another one has it.
    pub fn begin(&mut self, slot: u32) -> bool {
        !std::mem::replace(&mut self.busy[slot as usize], true)
    }

    /// Gives the slot back.
    pub fn end(&mut self, slot: u32) {
        self.busy[slot as usize] = false;
    }

    /// The number of the next write.
    pub fn next_sequence(&mut self) -> u32 {
        self.sequence += 1;
        self.sequence
    }

    /// The write was acknowledged: the slot holds it and nothing else.
    pub fn acknowledged(&mut self, slot: u32, sequence: u32) {
        self.settled[slot as usize] = sequence;
        self.undecided.remove(&slot);
    }

    /// Nobody knows whether the write happened.
    pub fn unknown(&mut self, slot: u32, sequence: u32) {
        self.undecided.entry(slot).or_default().push(sequence);
    }

    /// True once this run wrote the slot, whatever came of it.
    pub fn is_judged(&self, slot: u32) -> bool {
        self.settled[slot as usize] != 0
    }

    /// The sequence number of the last acknowledged write of the slot; 0 for none.
    pub fn settled(&self, slot: u32) -> u32 {
        self.settled[slot as usize]
    }

    /// True if a block of the slot may carry this sequence number.
    pub fn may_hold(&self, slot: u32, sequence: u64) -> bool {
        u64::from(self.settled[slot as usize]) == sequence
            || self
                .undecided
                .get(&slot)
                .is_some_and(|list| list.iter().any(|&one| u64::from(one) == sequence))
    }

    /// The slots that an acknowledged write of this run settled.
    pub fn judged_slots(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.settled.len() as u32).filter(|&slot| self.is_judged(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledged_write_is_the_only_truth() {
        let mut ledger = Ledger::new(4);
        ledger.acknowledged(2, 5);
        assert!(ledger.may_hold(2, 5));
        assert!(!ledger.may_hold(2, 4));
        assert_eq!(ledger.judged_slots().collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn a_write_nobody_acknowledged_may_read_as_old_or_new_until_the_next_one() {
        let mut ledger = Ledger::new(1);
        ledger.acknowledged(0, 1);
        ledger.unknown(0, 2);
        ledger.unknown(0, 3);
        assert!([1, 2, 3].iter().all(|&sequence| ledger.may_hold(0, sequence)));
        ledger.acknowledged(0, 4);
        assert!(![1, 2, 3].iter().any(|&sequence| ledger.may_hold(0, sequence)));
    }

    #[test]
    fn a_slot_has_one_operation_at_a_time() {
        let mut ledger = Ledger::new(1);
        assert!(ledger.begin(0));
        assert!(!ledger.begin(0));
        ledger.end(0);
        assert!(ledger.begin(0));
    }
}

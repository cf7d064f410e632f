//! Lookup of a command by its CID: chains of occupied slots.

use super::Slots;

impl Slots {
    /// The occupied slot of a CID.
    #[inline]
    pub(super) fn find(&self, cid: u16) -> Option<u16> {
        let mut at = self.chains[self.bucket(cid)];
        while at != NONE && self.slots[usize::from(at)].cid != cid {
            at = self.slots[usize::from(at)].next;
        }
        (at != NONE).then_some(at)
    }

    #[inline]
    fn bucket(&self, cid: u16) -> usize {
        // Hosts count in the low bits and put a generation above: both take part.
        usize::from(cid ^ (cid >> 12)) & (self.chains.len() - 1)
    }

    /// Enters an occupied slot.
    #[inline]
    pub(super) fn link(&mut self, at: u16) {
        let bucket = self.bucket(self.slots[usize::from(at)].cid);
        self.slots[usize::from(at)].next = self.chains[bucket];
        self.chains[bucket] = at;
    }

    /// Takes a slot out that was entered.
    #[inline]
    pub(super) fn unlink(&mut self, at: u16) {
        let next = self.slots[usize::from(at)].next;
        let bucket = self.bucket(self.slots[usize::from(at)].cid);
        if self.chains[bucket] == at {
            self.chains[bucket] = next;
            return;
        }
        let mut before = self.chains[bucket];
        while self.slots[usize::from(before)].next != at {
            before = self.slots[usize::from(before)].next;
        }
        self.slots[usize::from(before)].next = next;
    }
}

/// The end of a chain.
pub(super) const NONE: u16 = u16::MAX;

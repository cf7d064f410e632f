//! Commands in flight, found by slot (permits and transfer tags) or by CID (chosen by the host).
//!
//! Invariant: a slot is occupied exactly while a permit for it exists, and the CIDs of occupied slots
//! differ.

mod cid_index;
mod slot;

use isolane_memory::Buffer;
use isolane_wire::SubmissionEntry;

use self::cid_index::NONE;
use self::slot::TAG_SLOT_MASK;
pub(super) use self::slot::{MAX_GRANTS, MAX_SLOTS, Slot};
use super::permit::Permit;
use crate::connection::Watermark;

/// The table.
pub(super) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// Heads of the chains of occupied slots by hash of the CID.
    chains: Vec<u16>,
    limit: usize,
    occupied: usize,
    /// The slot of the last command, if that is neither completed nor entered in `chains` yet: most commands
    /// are completed before the next one arrives.
    newest: u16,
    /// Slots with a buffer that data is to arrive in.
    receiving: usize,
    /// Length of these buffers.
    receiving_bytes: usize,
    /// Transfers ever begun.
    transfers: u64,
}

/// Why a command was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RejectReason {
    /// Another command in flight has this CID.
    CidConflict,
    /// More commands than the queue holds.
    Full,
}

impl Slots {
    /// Room for `limit` commands. Memory grows with the depth that is really used.
    pub(super) fn new(limit: usize) -> Slots {
        let mut slots = Slots {
            slots: Vec::new(),
            free: Vec::new(),
            chains: Vec::new(),
            limit: 0,
            occupied: 0,
            newest: NONE,
            receiving: 0,
            receiving_bytes: 0,
            transfers: 0,
        };
        slots.set_limit(limit);
        slots
    }

    /// The queue's size became known.
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.enter_newest();
        self.limit = limit.min(MAX_SLOTS);
        self.chains = vec![NONE; self.limit.next_power_of_two()];
        for at in 0..self.slots.len() {
            if self.slots[at].occupied {
                self.link(at as u16);
            }
        }
    }

    /// Commands in flight.
    pub(super) fn occupied(&self) -> usize {
        self.occupied + usize::from(self.newest != NONE)
    }

    /// The most commands in flight.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// The transfers that were begun, and up to which of them all are complete.
    pub(super) fn transfers(&self) -> Watermark {
        let expected = self.transfers;
        if self.receiving == 0 {
            return Watermark { expected, done: expected };
        }
        let open = self.slots.iter().filter(|slot| slot.occupied && slot.buffer.is_some());
        let oldest = open.map(|slot| slot.transfer).min();
        Watermark { expected, done: oldest.map_or(expected, |oldest| oldest - 1) }
    }

    /// Length of the buffers that data is to arrive in.
    pub(super) fn receiving_bytes(&self) -> usize {
        self.receiving_bytes
    }

    /// Accepts a command, whose entry is decoded into its slot.
    #[inline]
    pub(super) fn open(
        &mut self,
        cid: u16,
        decode: impl FnOnce() -> SubmissionEntry,
    ) -> Result<(Permit, &SubmissionEntry), RejectReason> {
        self.enter_newest();
        if self.find(cid).is_some() {
            return Err(RejectReason::CidConflict);
        }
        if self.occupied >= self.limit {
            return Err(RejectReason::Full);
        }
        let at = match self.free.pop() {
            Some(at) => at,
            None => self.grow(),
        };
        let slot = &mut self.slots[usize::from(at)];
        slot.cid = cid;
        slot.entry = decode();
        slot.occupied = true;
        self.newest = at;
        Ok((Permit { slot: at, generation: slot.generation, cid }, &slot.entry))
    }

    /// Enters the last command in the table, because it outlives the call that yielded it.
    #[inline]
    fn enter_newest(&mut self) {
        if self.newest != NONE {
            let at = std::mem::replace(&mut self.newest, NONE);
            self.link(at);
            self.occupied += 1;
        }
    }

    /// The command of a permit.
    #[inline]
    pub(super) fn entry(&self, permit: &Permit) -> &SubmissionEntry {
        &self.slots[usize::from(permit.slot)].entry
    }

    /// Takes a permit back and frees its slot.
    #[inline(always)]
    pub(super) fn close(&mut self, permit: Permit) {
        let at = permit.slot;
        self.check(&permit);
        permit.forfeit();
        let slot = &mut self.slots[usize::from(at)];
        slot.generation = slot.generation.wrapping_add(1);
        slot.occupied = false;
        if self.newest == at {
            self.newest = NONE;
        } else {
            slot.grants.clear();
            self.unlink(at);
            self.occupied -= 1;
        }
        self.free.push(at);
    }

    /// The queue keeps the permit while data arrives into `buffer`.
    pub(super) fn store_permit(&mut self, permit: Permit, buffer: Buffer) -> &mut Slot {
        self.check(&permit);
        self.enter_newest();
        self.receiving += 1;
        self.receiving_bytes += buffer.len();
        self.transfers += 1;
        let slot = &mut self.slots[usize::from(permit.slot)];
        permit.forfeit();
        slot.buffer = Some(buffer);
        slot.transfer = self.transfers;
        slot.digest_ok = true;
        slot.granted = 0;
        slot.received = 0;
        slot.grants.clear();
        slot
    }

    /// The data is complete: the permit and all that belongs to it go to the driver.
    pub(super) fn take_permit(&mut self, at: u16) -> Option<(Permit, Buffer, bool)> {
        let slot = self.slots.get_mut(usize::from(at)).filter(|slot| slot.occupied)?;
        let buffer = slot.buffer.take()?;
        self.receiving -= 1;
        self.receiving_bytes -= buffer.len();
        let permit = Permit { slot: at, generation: slot.generation, cid: slot.cid };
        Some((permit, buffer, slot.digest_ok))
    }

    /// The slot that receives data, if there is one.
    pub(super) fn receiving(&mut self, at: u16) -> Option<&mut Slot> {
        self.slots.get_mut(usize::from(at)).filter(|slot| slot.occupied && slot.buffer.is_some())
    }

    /// The outstanding grant with this tag, and its slot.
    pub(super) fn grant(&mut self, ttag: u16) -> Option<(u16, &mut Slot, usize)> {
        let at = ttag & TAG_SLOT_MASK;
        let slot = self.receiving(at)?;
        let grant = slot.grants.iter().position(|grant| grant.ttag == ttag)?;
        Some((at, slot, grant))
    }

    /// Whether the slot receives data and has fewer than `max` outstanding grants.
    pub(super) fn has_fewer_grants(&self, at: u16, max: usize) -> bool {
        self.slots.get(usize::from(at)).is_some_and(|slot| slot.buffer.is_some() && slot.grants.len() < max)
    }

    /// Takes the buffers of all commands that wait for data; they will not get it any more.
    pub(super) fn take_buffers(&mut self) -> impl Iterator<Item = Buffer> + '_ {
        (self.receiving, self.receiving_bytes) = (0, 0);
        self.slots.iter_mut().filter_map(|slot| slot.buffer.take())
    }

    fn grow(&mut self) -> u16 {
        self.slots.push(Slot::new());
        (self.slots.len() - 1) as u16
    }

    fn check(&self, permit: &Permit) {
        let slot = &self.slots[usize::from(permit.slot)];
        assert!(
            slot.occupied && slot.generation == permit.generation && slot.cid == permit.cid,
            "a permit was given to a queue that did not issue it"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(slots: &mut Slots, cid: u16) -> Result<Permit, RejectReason> {
        slots.open(cid, || SubmissionEntry { cid, ..SubmissionEntry::new(0, 0) }).map(|(permit, _)| permit)
    }

    #[test]
    fn closing_older_command_keeps_newest() {
        let mut slots = Slots::new(4);
        let [first, second] = [1, 2].map(|cid| open(&mut slots, cid).expect("space"));
        slots.close(first);
        let third = open(&mut slots, 3).expect("space");
        assert_ne!(second.slot(), third.slot());
        assert_eq!(open(&mut slots, 2), Err(RejectReason::CidConflict));
        [second, third].into_iter().for_each(|permit| slots.close(permit));
        assert_eq!(slots.occupied(), 0);
    }

    #[test]
    fn distinguishes_all_cid_patterns() {
        let mut slots = Slots::new(4);
        for cids in [[0, 1, 2, 3], [0, 0x1000, 0x2000, 0x3000], [5, 5 | 0x1000, 4 | 0x1000, 4]] {
            let permits: Vec<_> = cids.map(|cid| open(&mut slots, cid).expect("room")).into();
            assert_eq!(open(&mut slots, cids[2]), Err(RejectReason::CidConflict));
            assert_eq!(open(&mut slots, 77), Err(RejectReason::Full));
            permits.into_iter().for_each(|permit| slots.close(permit));
            assert_eq!(slots.occupied(), 0);
        }
    }

    #[test]
    fn growing_keeps_commands_in_flight() {
        let mut slots = Slots::new(1);
        let first = open(&mut slots, 7).expect("room");
        slots.set_limit(128);
        assert_eq!(open(&mut slots, 7), Err(RejectReason::CidConflict));
        let second = open(&mut slots, 8).expect("room");
        slots.close(first);
        slots.close(second);
    }

    #[test]
    fn outstanding_grants_have_different_tags() {
        let mut slots = Slots::new(1);
        let permit = open(&mut slots, 7).expect("room");
        let at = permit.slot();
        slots.store_permit(permit, Buffer::contiguous(100));
        let slot = slots.receiving(at).expect("it receives");
        let tags: Vec<_> =
            (0..4).filter_map(|_| slot.next_grant(at, 10, false)).map(|grant| grant.ttag).collect();
        assert_eq!(tags.len(), 4);
        assert!(slot.next_grant(at, 10, false).is_none());
        slot.grants.remove(1);
        assert_eq!(slot.next_grant(at, 10, false).map(|grant| grant.ttag), Some(tags[1]));
        let mut all: Vec<_> = slot.grants.iter().map(|grant| grant.ttag).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 4);
        slots.take_permit(at).expect("it is there").0.forfeit();
    }

    #[test]
    #[should_panic(expected = "did not issue it")]
    fn rejects_reused_permit() {
        let mut slots = Slots::new(1);
        let permit = open(&mut slots, 7).expect("room");
        let again = Permit { slot: permit.slot, generation: permit.generation, cid: permit.cid };
        slots.close(permit);
        slots.close(again);
    }
}

//! The commands in flight, found by slot (our own permits and transfer tags) or by CID (the host's choice).
//!
//! It does not answer anything. Invariant: a slot is occupied exactly while a permit for it exists, and the
//! CIDs of occupied slots differ.

use arrayvec::ArrayVec;
use isolane_memory::Buffer;
use isolane_wire::SubmissionEntry;

use super::permit::Permit;
use crate::queue::Debt;

/// The most R2Ts outstanding for one command, whatever the host allows.
pub(super) const GRANTS_MAX: usize = 4;
/// The most commands of one queue: what the tag leaves for the slot.
pub(super) const SLOTS_MAX: usize = 1 << TAG_SLOT_BITS;
const TAG_SLOT_BITS: u32 = 14;

/// The table.
pub(super) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// Heads of the chains of occupied slots by hash of the CID.
    chains: Vec<u16>,
    limit: usize,
    occupied: usize,
    /// Slots with a buffer that data is to arrive in.
    receiving: usize,
    /// Length of these buffers.
    receiving_bytes: usize,
    /// Transfers ever begun.
    transfers: u64,
}

/// One command.
pub(super) struct Slot {
    generation: u32,
    cid: u16,
    next: u16,
    is_occupied: bool,
    pub(super) entry: SubmissionEntry,
    /// Write data; present while it arrives.
    pub(super) buffer: Option<Buffer>,
    /// The number of its transfer, counted from 1.
    transfer: u64,
    /// Data digests so far were right.
    pub(super) is_intact: bool,
    /// Bytes that R2Ts asked for, and bytes that arrived.
    granted: u32,
    pub(super) received: u32,
    pub(super) grants: ArrayVec<Grant, GRANTS_MAX>,
}

/// One outstanding R2T.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) ttag: u16,
    /// Its range, from the start of the command's data.
    pub(super) start: u32,
    /// The next byte that must come.
    pub(super) next: u32,
    /// The end of the range.
    pub(super) end: u32,
    /// It was given without a turn.
    pub(super) is_extra: bool,
}

/// Why a command was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
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
            receiving: 0,
            receiving_bytes: 0,
            transfers: 0,
        };
        slots.set_limit(limit);
        slots
    }

    /// The queue's size became known.
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit.min(SLOTS_MAX);
        self.chains = vec![NONE; self.limit.next_power_of_two()];
        for at in 0..self.slots.len() {
            if self.slots[at].is_occupied {
                self.link(at as u16);
            }
        }
    }

    /// Commands in flight.
    pub(super) fn occupied(&self) -> usize {
        self.occupied
    }

    /// The most commands in flight.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// The transfers that were begun, and up to which of them all are complete.
    pub(super) fn transfers(&self) -> Debt {
        let incurred = self.transfers;
        if self.receiving == 0 {
            return Debt { incurred, settled: incurred };
        }
        let open = self.slots.iter().filter(|slot| slot.is_occupied && slot.buffer.is_some());
        let oldest = open.map(|slot| slot.transfer).min();
        Debt { incurred, settled: oldest.map_or(incurred, |oldest| oldest - 1) }
    }

    /// Length of the buffers that data is to arrive in.
    pub(super) fn receiving_bytes(&self) -> usize {
        self.receiving_bytes
    }

    /// Accepts a command.
    #[inline]
    pub(super) fn open(&mut self, entry: &SubmissionEntry) -> Result<Permit, Refused> {
        if self.find(entry.cid).is_some() {
            return Err(Refused::CidConflict);
        }
        if self.occupied >= self.limit {
            return Err(Refused::Full);
        }
        let at = match self.free.pop() {
            Some(at) => at,
            None => self.grow(entry),
        };
        let slot = &mut self.slots[usize::from(at)];
        slot.cid = entry.cid;
        slot.entry = *entry;
        slot.is_occupied = true;
        let generation = slot.generation;
        self.link(at);
        self.occupied += 1;
        Ok(Permit { slot: at, generation, cid: entry.cid })
    }

    /// Takes a permit back and frees its slot.
    #[inline]
    pub(super) fn close(&mut self, permit: Permit) {
        let at = permit.slot;
        self.check(&permit);
        permit.forfeit();
        self.unlink(at);
        let slot = &mut self.slots[usize::from(at)];
        slot.generation = slot.generation.wrapping_add(1);
        slot.is_occupied = false;
        slot.grants.clear();
        self.occupied -= 1;
        self.free.push(at);
    }

    /// The queue keeps the permit while data arrives into `buffer`.
    pub(super) fn deposit(&mut self, permit: Permit, buffer: Buffer) -> &mut Slot {
        self.check(&permit);
        self.receiving += 1;
        self.receiving_bytes += buffer.len();
        self.transfers += 1;
        let slot = &mut self.slots[usize::from(permit.slot)];
        permit.forfeit();
        slot.buffer = Some(buffer);
        slot.transfer = self.transfers;
        slot.is_intact = true;
        slot.granted = 0;
        slot.received = 0;
        slot.grants.clear();
        slot
    }

    /// The data is complete: the permit and all that belongs to it go to the driver.
    pub(super) fn withdraw(&mut self, at: u16) -> Option<(Permit, SubmissionEntry, Buffer, bool)> {
        let slot = self.slots.get_mut(usize::from(at)).filter(|slot| slot.is_occupied)?;
        let buffer = slot.buffer.take()?;
        self.receiving -= 1;
        self.receiving_bytes -= buffer.len();
        let permit = Permit { slot: at, generation: slot.generation, cid: slot.cid };
        Some((permit, slot.entry, buffer, slot.is_intact))
    }

    /// The slot that receives data, if there is one.
    pub(super) fn receiving(&mut self, at: u16) -> Option<&mut Slot> {
        self.slots.get_mut(usize::from(at)).filter(|slot| slot.is_occupied && slot.buffer.is_some())
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

    fn find(&self, cid: u16) -> Option<u16> {
        let mut at = self.chains[self.bucket(cid)];
        while at != NONE && self.slots[usize::from(at)].cid != cid {
            at = self.slots[usize::from(at)].next;
        }
        (at != NONE).then_some(at)
    }

    fn bucket(&self, cid: u16) -> usize {
        // Hosts count in the low bits and put a generation above: both take part.
        usize::from(cid ^ (cid >> 12)) & (self.chains.len() - 1)
    }

    fn link(&mut self, at: u16) {
        let bucket = self.bucket(self.slots[usize::from(at)].cid);
        self.slots[usize::from(at)].next = self.chains[bucket];
        self.chains[bucket] = at;
    }

    fn unlink(&mut self, at: u16) {
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

    fn grow(&mut self, entry: &SubmissionEntry) -> u16 {
        self.slots.push(Slot {
            generation: 0,
            cid: entry.cid,
            next: NONE,
            is_occupied: false,
            entry: *entry,
            buffer: None,
            transfer: 0,
            is_intact: true,
            granted: 0,
            received: 0,
            grants: ArrayVec::new(),
        });
        (self.slots.len() - 1) as u16
    }

    fn check(&self, permit: &Permit) {
        let slot = &self.slots[usize::from(permit.slot)];
        assert!(
            slot.is_occupied && slot.generation == permit.generation && slot.cid == permit.cid,
            "a permit was given to a queue that did not issue it"
        );
    }
}

impl Slot {
    /// The CID of the command.
    pub(super) fn cid(&self) -> u16 {
        self.cid
    }

    /// Whether all data arrived.
    pub(super) fn is_complete(&self) -> bool {
        self.received == self.len()
    }

    fn len(&self) -> u32 {
        self.buffer.as_ref().map_or(0, |buffer| buffer.len() as u32)
    }

    /// Opens the next grant of at most `len_max` bytes, if there is anything left to ask for.
    pub(super) fn next_grant(&mut self, at: u16, len_max: u32, is_extra: bool) -> Option<Grant> {
        let len = self.len();
        if self.granted >= len || self.grants.is_full() {
            return None;
        }
        let in_use = |tag| self.grants.iter().any(|grant| grant.ttag == tag);
        let ttag = (0..GRANTS_MAX as u16).map(|n| at | n << TAG_SLOT_BITS).find(|tag| !in_use(*tag))?;
        let grant = Grant {
            ttag,
            start: self.granted,
            next: self.granted,
            end: len.min(self.granted.saturating_add(len_max)),
            is_extra,
        };
        self.granted = grant.end;
        self.grants.push(grant);
        Some(grant)
    }
}

const NONE: u16 = u16::MAX;
const TAG_SLOT_MASK: u16 = (1 << TAG_SLOT_BITS) - 1;
const _: () = assert!(GRANTS_MAX << TAG_SLOT_BITS == 1 << 16);

#[cfg(test)]
mod tests {
    use super::*;

    fn command(cid: u16) -> SubmissionEntry {
        SubmissionEntry { cid, ..SubmissionEntry::new(0, 0) }
    }

    #[test]
    fn cids_are_told_apart_however_the_host_chooses_them() {
        let mut slots = Slots::new(4);
        for cids in [[0, 1, 2, 3], [0, 0x1000, 0x2000, 0x3000], [5, 5 | 0x1000, 4 | 0x1000, 4]] {
            let permits: Vec<_> = cids.map(|cid| slots.open(&command(cid)).expect("room")).into();
            assert_eq!(slots.open(&command(cids[2])), Err(Refused::CidConflict));
            assert_eq!(slots.open(&command(77)), Err(Refused::Full));
            permits.into_iter().for_each(|permit| slots.close(permit));
            assert_eq!(slots.occupied(), 0);
        }
    }

    #[test]
    fn a_queue_that_grows_keeps_what_is_in_flight() {
        let mut slots = Slots::new(1);
        let first = slots.open(&command(7)).expect("room");
        slots.set_limit(128);
        assert_eq!(slots.open(&command(7)), Err(Refused::CidConflict));
        let second = slots.open(&command(8)).expect("room");
        slots.close(first);
        slots.close(second);
    }

    #[test]
    fn outstanding_grants_have_different_tags() {
        let mut slots = Slots::new(1);
        let permit = slots.open(&command(7)).expect("room");
        let at = permit.slot();
        slots.deposit(permit, Buffer::contiguous(100));
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
        slots.withdraw(at).expect("it is there").0.forfeit();
    }

    #[test]
    #[should_panic(expected = "did not issue it")]
    fn a_permit_cannot_be_used_after_its_command_was_answered() {
        let mut slots = Slots::new(1);
        let permit = slots.open(&command(7)).expect("room");
        let again = Permit { slot: permit.slot, generation: permit.generation, cid: permit.cid };
        slots.close(permit);
        slots.close(again);
    }
}

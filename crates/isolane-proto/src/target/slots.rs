//! Commands in flight, found by slot (permits and transfer tags) or by CID (chosen by the host).
//!
//! Invariant: a slot is occupied exactly while a permit for it exists, and the CIDs of occupied
//! slots differ. The grants of a slot have consecutive ranges and different tags.

use arrayvec::ArrayVec;
use isolane_memory::Buffer;
use isolane_wire::SubmissionEntry;

use super::permit::Permit;
use isolane_connection::Watermark;

/// The commands in flight.
#[derive(Default)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// Heads of the chains of occupied slots, by hash of the CID.
    chains: Vec<u16>,
    limit: usize,
    occupied: usize,
    /// Slot of the last command, if it is neither completed nor linked in `chains` yet: most
    /// commands complete before the next one arrives.
    newest: u16,
    is_newest_open: bool,
    /// Number of slots whose data is arriving.
    receiving: usize,
    /// Total length of their buffers.
    receiving_bytes: usize,
    /// Number of transfers started.
    transfers: u64,
}

impl Slots {
    /// A table of up to `limit` commands. Its memory grows with the depth in use.
    pub(super) fn new(limit: usize) -> Slots {
        let mut slots = Slots { newest: NONE, ..Slots::default() };
        slots.set_limit(limit);
        slots
    }

    /// Sets the maximum number of commands.
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.link_newest();
        self.limit = limit.min(MAX_SLOTS);
        self.chains = vec![NONE; self.limit.next_power_of_two()];
        for at in 0..self.slots.len() {
            if self.slots[at].occupied {
                self.link(at as u16);
            }
        }
    }

    /// Number of commands in flight.
    pub(super) fn occupied(&self) -> usize {
        self.occupied + usize::from(self.is_newest_open)
    }

    /// Maximum number of commands in flight.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Number of transfers started, and number of the last one before the oldest incomplete one.
    pub(super) fn transfers(&self) -> Watermark {
        let expected = self.transfers;
        if self.receiving == 0 {
            return Watermark { expected, done: expected };
        }
        let open = self.slots.iter().filter(|slot| slot.occupied && slot.buffer.is_some());
        let oldest = open.map(|slot| slot.transfer).min();
        Watermark { expected, done: oldest.map_or(expected, |oldest| oldest - 1) }
    }

    /// Total length of the buffers whose data is arriving.
    pub(super) fn receiving_bytes(&self) -> usize {
        self.receiving_bytes
    }

    /// Accepts a command, whose entry is decoded into its slot. `None`: another command in flight has this CID,
    /// or all entries of the queue are in use.
    #[inline(always)]
    pub(super) fn open(
        &mut self,
        cid: u16,
        decode: impl FnOnce() -> SubmissionEntry,
    ) -> Option<(Permit, &SubmissionEntry)> {
        self.link_newest();
        if self.find(cid).is_some() || self.occupied >= self.limit {
            return None;
        }
        if self.newest == NONE {
            self.newest = self.free.pop().unwrap_or_else(|| self.grow());
        }
        let slot = &mut self.slots[usize::from(self.newest)];
        slot.cid = cid;
        slot.entry = decode();
        slot.occupied = true;
        self.is_newest_open = true;
        Some((Permit { slot: self.newest, generation: slot.generation, cid }, &slot.entry))
    }

    /// Whether a command in flight has this CID. Call this after [`Slots::open`] has refused it.
    pub(super) fn is_open(&self, cid: u16) -> bool {
        self.find(cid).is_some()
    }

    /// Links the last command, because it outlives the call that returned it.
    #[inline]
    fn link_newest(&mut self) {
        if self.is_newest_open {
            self.is_newest_open = false;
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

    /// Consumes a permit and frees its slot.
    #[inline(always)]
    pub(super) fn close(&mut self, permit: Permit) {
        let at = permit.slot;
        self.check(&permit);
        permit.forfeit();
        let slot = &mut self.slots[usize::from(at)];
        slot.generation = slot.generation.wrapping_add(1);
        slot.occupied = false;
        if self.newest == at {
            self.is_newest_open = false;
        } else {
            slot.grants.clear();
            self.unlink(at);
            self.occupied -= 1;
            self.free.push(at);
        }
    }

    /// Stores the permit while data arrives into `buffer`.
    pub(super) fn park(&mut self, permit: Permit, buffer: Buffer) -> &mut Slot {
        self.check(&permit);
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

    /// Returns the stored permit with its buffer and the result of its data digests, when the data
    /// is complete.
    pub(super) fn unpark(&mut self, at: u16) -> Option<(Permit, Buffer, bool)> {
        let slot = self.slots.get_mut(usize::from(at)).filter(|slot| slot.occupied)?;
        let buffer = slot.buffer.take()?;
        self.receiving -= 1;
        self.receiving_bytes -= buffer.len();
        let permit = Permit { slot: at, generation: slot.generation, cid: slot.cid };
        Some((permit, buffer, slot.digest_ok))
    }

    /// The slot, if its data is arriving.
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

    /// Takes the buffers of all commands whose data is incomplete.
    pub(super) fn take_buffers(&mut self) -> impl Iterator<Item = Buffer> + '_ {
        (self.receiving, self.receiving_bytes) = (0, 0);
        self.slots.iter_mut().filter_map(|slot| slot.buffer.take())
    }

    /// The commands whose data is arriving, with their slots, in the order of their starts.
    pub(super) fn arriving(&self) -> Vec<(u16, &Slot)> {
        let all = (0..).zip(&self.slots);
        let mut arriving: Vec<_> = all.filter(|(_, slot)| slot.occupied && slot.buffer.is_some()).collect();
        arriving.sort_by_key(|(_, slot)| slot.transfer);
        arriving
    }

    /// Inserts a command whose data is arriving at a free slot. Returns `false` if that is not possible.
    pub(super) fn insert(&mut self, at: u16, slot: Slot) -> bool {
        self.link_newest();
        let index = usize::from(at);
        if index >= self.limit || self.occupied >= self.limit || self.find(slot.cid).is_some() {
            return false;
        }
        while self.slots.len() <= index {
            let free = self.grow();
            self.free.push(free);
        }
        let Some(position) = self.free.iter().position(|free| *free == at) else { return false };
        self.free.swap_remove(position);
        self.transfers += 1;
        self.receiving += 1;
        self.receiving_bytes += slot.buffer.as_ref().map_or(0, Buffer::len);
        self.slots[index] = Slot { transfer: self.transfers, occupied: true, ..slot };
        self.link(at);
        self.occupied += 1;
        true
    }

    fn grow(&mut self) -> u16 {
        self.slots.push(Slot::default());
        (self.slots.len() - 1) as u16
    }

    fn check(&self, permit: &Permit) {
        let slot = &self.slots[usize::from(permit.slot)];
        assert!(
            slot.occupied && slot.generation == permit.generation && slot.cid == permit.cid,
            "the permit was not issued by this connection"
        );
    }
}

/// Lookup of a command by its CID: chains of occupied slots.
impl Slots {
    /// The occupied slot of a CID.
    #[inline]
    fn find(&self, cid: u16) -> Option<u16> {
        let mut at = self.chains[self.bucket(cid)];
        while at != NONE && self.slots[usize::from(at)].cid != cid {
            at = self.slots[usize::from(at)].next;
        }
        (at != NONE).then_some(at)
    }

    #[inline]
    fn bucket(&self, cid: u16) -> usize {
        // Hosts count in the low bits and put a generation above: the hash uses both.
        usize::from(cid ^ (cid >> 12)) & (self.chains.len() - 1)
    }

    /// Links an occupied slot.
    #[inline]
    fn link(&mut self, at: u16) {
        let bucket = self.bucket(self.slots[usize::from(at)].cid);
        self.slots[usize::from(at)].next = self.chains[bucket];
        self.chains[bucket] = at;
    }

    /// Unlinks a slot.
    #[inline]
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
}

/// One command; the default is not in flight yet.
#[derive(Default)]
pub(super) struct Slot {
    pub(super) generation: u32,
    pub(super) cid: u16,
    pub(super) next: u16,
    pub(super) occupied: bool,
    pub entry: SubmissionEntry,
    /// Buffer of write data; present while the data arrives.
    pub buffer: Option<Buffer>,
    /// Number of its transfer, from 1.
    pub(super) transfer: u64,
    /// Whether all data digests were correct so far.
    pub digest_ok: bool,
    /// Bytes requested by R2Ts, and bytes received.
    pub(super) granted: u32,
    pub received: u32,
    pub grants: ArrayVec<Grant, MAX_GRANTS>,
}

/// One outstanding R2T.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub ttag: u16,
    /// Start of its range in the command's data.
    pub start: u32,
    /// Offset of the next byte.
    pub next: u32,
    /// End of the range.
    pub end: u32,
    /// Whether it was issued without scheduling.
    pub unscheduled: bool,
}

impl Slot {
    /// Whether all data has arrived.
    pub fn is_complete(&self) -> bool {
        self.received == self.len()
    }

    fn len(&self) -> u32 {
        self.buffer.as_ref().map_or(0, |buffer| buffer.len() as u32)
    }

    /// Creates the next grant of up to `max_len` bytes; `None` if all data is requested.
    pub fn next_grant(&mut self, at: u16, max_len: u32, unscheduled: bool) -> Option<Grant> {
        let len = self.len();
        if self.granted >= len || self.grants.is_full() {
            return None;
        }
        let in_use = |tag| self.grants.iter().any(|grant| grant.ttag == tag);
        let ttag = (0..MAX_GRANTS as u16).map(|n| at | n << TAG_SLOT_BITS).find(|tag| !in_use(*tag))?;
        let grant = Grant {
            ttag,
            start: self.granted,
            next: self.granted,
            end: len.min(self.granted.saturating_add(max_len)),
            unscheduled,
        };
        self.granted = grant.end;
        self.grants.push(grant);
        Some(grant)
    }
}

/// Whether a tag can belong to a grant of this slot.
pub(super) fn is_tag_of(ttag: u16, slot: u16) -> bool {
    ttag & TAG_SLOT_MASK == slot
}

/// Maximum number of outstanding R2Ts of one command.
pub(super) const MAX_GRANTS: usize = 4;
/// Maximum number of commands of one queue: the slots that a tag can address.
pub(super) const MAX_SLOTS: usize = 1 << TAG_SLOT_BITS;
const TAG_SLOT_BITS: u32 = 14;
const TAG_SLOT_MASK: u16 = (1 << TAG_SLOT_BITS) - 1;
const _: () = assert!(MAX_GRANTS << TAG_SLOT_BITS == 1 << 16);
/// The end of a chain.
const NONE: u16 = u16::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    fn open(slots: &mut Slots, cid: u16) -> Option<Permit> {
        slots.open(cid, || SubmissionEntry { cid, ..SubmissionEntry::new(0, 0) }).map(|(permit, _)| permit)
    }

    #[test]
    fn closing_older_command_keeps_newest() {
        let mut slots = Slots::new(4);
        let [first, second] = [1, 2].map(|cid| open(&mut slots, cid).expect("free slot"));
        slots.close(first);
        let third = open(&mut slots, 3).expect("free slot");
        assert_ne!(second.slot(), third.slot());
        assert_eq!((open(&mut slots, 2), slots.is_open(2)), (None, true));
        [second, third].into_iter().for_each(|permit| slots.close(permit));
        assert_eq!(slots.occupied(), 0);
    }

    #[test]
    fn distinguishes_all_cid_patterns() {
        let mut slots = Slots::new(4);
        for cids in [[0, 1, 2, 3], [0, 0x1000, 0x2000, 0x3000], [5, 5 | 0x1000, 4 | 0x1000, 4]] {
            let permits: Vec<_> = cids.map(|cid| open(&mut slots, cid).expect("free slot")).into();
            assert_eq!((open(&mut slots, cids[2]), slots.is_open(cids[2])), (None, true));
            assert_eq!((open(&mut slots, 77), slots.is_open(77)), (None, false));
            permits.into_iter().for_each(|permit| slots.close(permit));
            assert_eq!(slots.occupied(), 0);
        }
    }

    #[test]
    fn growing_keeps_commands_in_flight() {
        let mut slots = Slots::new(1);
        let first = open(&mut slots, 7).expect("free slot");
        slots.set_limit(128);
        assert_eq!((open(&mut slots, 7), slots.is_open(7)), (None, true));
        let second = open(&mut slots, 8).expect("free slot");
        slots.close(first);
        slots.close(second);
    }

    #[test]
    fn outstanding_grants_have_different_tags() {
        let mut slots = Slots::new(1);
        let permit = open(&mut slots, 7).expect("free slot");
        let at = permit.slot();
        slots.park(permit, Buffer::contiguous(100));
        let slot = slots.receiving(at).expect("receiving slot");
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
        slots.unpark(at).expect("parked permit").0.forfeit();
    }

    #[test]
    #[should_panic(expected = "not issued by this connection")]
    fn rejects_reused_permit() {
        let mut slots = Slots::new(1);
        let permit = open(&mut slots, 7).expect("free slot");
        let again = Permit { slot: permit.slot, generation: permit.generation, cid: permit.cid };
        slots.close(permit);
        slots.close(again);
    }
}

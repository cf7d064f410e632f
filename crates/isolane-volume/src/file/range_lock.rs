//! Range locks of a file across cores: a file system may tear concurrent requests for the same block, so
//! conflicting requests are serialized.
//!
//! * Short ranges, all or nothing ([`RangeLocks::try_lock`]): without a queue; a caller that fails retries in
//!   a later turn. Each slot covers every 4 KiB unit whose number is the slot's modulo the number of slots, so
//!   distant units may conflict, which is harmless.
//! * Long ranges, in order ([`RangeLocks::announce`]): from the announcement on, the range accepts no new
//!   locks; it is granted when every earlier lock is released. It uses no slots, so requests elsewhere in the
//!   file continue.
//!
//! Invariants: a slot is held by one writer or by any number of readers; a stream of readers does not starve
//! a writer; an announced range waits only for the locks held when it was announced and for earlier
//! announcements.
//!
//! No conflict is missed: a lock takes its slots and then checks the announcements; an announcement is
//! published and then checks the slots (all sequentially consistent). So one sees the other.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Range locks of one file.
#[derive(Debug)]
pub(crate) struct RangeLocks {
    /// Number of readers and perhaps [`WANTED`], or [`WRITER`]; plus one [`HOLD`] per long range
    /// that waits for the slot.
    slots: Box<[AtomicU32]>,
    /// Number of announced ranges.
    announced: AtomicU32,
    ranges: [AnnouncedRange; MAX_ANNOUNCED],
    tickets: AtomicU64,
}

/// An announced range, in units.
#[derive(Debug, Default)]
struct AnnouncedRange {
    /// Its position among the announced ranges, or [`FREE`], or [`PENDING`].
    ticket: AtomicU64,
    first: AtomicU64,
    end: AtomicU64,
}

/// Permission to read or write a range, until dropped.
#[derive(Debug)]
pub(crate) enum RangeLock {
    Slots { _slots: HeldSlots },
    Announced { _announcement: Announcement },
}

/// Slots held by a lock.
#[derive(Debug)]
pub(crate) struct HeldSlots {
    locks: Arc<RangeLocks>,
    first: u64,
    count: u64,
    access: Access,
}

/// A long range to be written; withdrawn when dropped.
#[derive(Debug)]
pub(crate) struct Announcement {
    locks: Arc<RangeLocks>,
    entry: usize,
    ticket: u64,
    units: Range<u64>,
    /// Slots of the range that were in use when it was announced and still are, each with a
    /// [`HOLD`]. `None` while an earlier announcement overlaps.
    busy: Option<Vec<u64>>,
}

/// Kind of access that a lock permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

impl RangeLocks {
    pub(crate) fn new() -> Arc<RangeLocks> {
        Arc::new(RangeLocks {
            slots: (0..SLOTS).map(|_| AtomicU32::new(0)).collect(),
            announced: AtomicU32::new(0),
            ranges: Default::default(),
            tickets: AtomicU64::new(PENDING + 1),
        })
    }

    /// Locks `len` bytes from `offset`. Returns `None` while another lock excludes it for any of them.
    pub(crate) fn try_lock(
        self: &Arc<RangeLocks>,
        offset: u64,
        len: u64,
        access: Access,
    ) -> Option<RangeLock> {
        let range = units(offset, len);
        let (first, count) = (range.start, (range.end - range.start).min(SLOTS));
        for taken in 0..count {
            if !self.take(first + taken, access) {
                self.release(first, taken, access);
                self.mark_wanted(first + taken..first + count, access);
                return None;
            }
        }
        let slots = HeldSlots { locks: Arc::clone(self), first, count, access };
        let is_free = self.announced.load(Ordering::SeqCst) == 0 || !self.is_announced(&range);
        is_free.then_some(RangeLock::Slots { _slots: slots })
    }

    /// Announces a write of `len` bytes from `offset`; `None` if too many ranges are announced.
    pub(crate) fn announce(self: &Arc<RangeLocks>, offset: u64, len: u64) -> Option<Announcement> {
        let units = units(offset, len);
        let is_free = |entry: &AnnouncedRange| {
            entry.ticket.compare_exchange(FREE, PENDING, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        let index = self.ranges.iter().position(is_free)?;
        let entry = &self.ranges[index];
        entry.first.store(units.start, Ordering::SeqCst);
        entry.end.store(units.end, Ordering::SeqCst);
        self.announced.fetch_add(1, Ordering::SeqCst);
        let ticket = self.tickets.fetch_add(1, Ordering::SeqCst);
        entry.ticket.store(ticket, Ordering::SeqCst);
        Some(Announcement { locks: Arc::clone(self), entry: index, ticket, units, busy: None })
    }

    #[cold]
    fn is_announced(&self, range: &Range<u64>) -> bool {
        self.ranges.iter().any(|entry| entry.is_used() && entry.overlaps(range))
    }

    fn take(&self, unit: u64, access: Access) -> bool {
        let taken = |state: u32| match (access, state & !WANTED) {
            _ if state & HOLDS != 0 => None,
            (Access::Write, 0) => Some(WRITER),
            (Access::Write, _) | (Access::Read, WRITER | MAX_READERS) => None,
            // The other readers leave first, then the writer may enter. It may have given up, so
            // the first request after that may enter.
            (Access::Read, 1..) if state & WANTED != 0 => None,
            (Access::Read, readers) => Some(readers + 1),
        };
        self.slot(unit).fetch_update(Ordering::SeqCst, Ordering::Relaxed, taken).is_ok()
    }

    /// Marks slots that a writer failed to lock, so that no further readers enter.
    fn mark_wanted(&self, units: Range<u64>, access: Access) {
        if access == Access::Read {
            return;
        }
        let wanted = |state: u32| (1..=MAX_READERS).contains(&state).then_some(state | WANTED);
        for unit in units {
            // A slot without readers needs no mark.
            let _ = self.slot(unit).fetch_update(Ordering::Relaxed, Ordering::Relaxed, wanted);
        }
    }

    fn release(&self, first: u64, count: u64, access: Access) {
        for unit in first..first + count {
            match access {
                Access::Write => drop(self.slot(unit).fetch_and(!WRITER, Ordering::Release)),
                Access::Read => drop(self.slot(unit).fetch_sub(1, Ordering::Release)),
            }
        }
    }

    fn slot(&self, unit: u64) -> &AtomicU32 {
        &self.slots[(unit % SLOTS) as usize]
    }

    fn is_in_use(&self, unit: u64) -> bool {
        self.slot(unit).load(Ordering::SeqCst) & (WRITER | MAX_READERS) != 0
    }
}

impl AnnouncedRange {
    fn is_used(&self) -> bool {
        self.ticket.load(Ordering::SeqCst) != FREE
    }

    fn overlaps(&self, range: &Range<u64>) -> bool {
        let (first, end) = (self.first.load(Ordering::SeqCst), self.end.load(Ordering::SeqCst));
        range.start < end && first < range.end
    }
}

impl Announcement {
    /// Whether it includes `len` bytes from `offset`.
    pub(crate) fn covers(&self, offset: u64, len: u64) -> bool {
        let units = units(offset, len);
        self.units.start <= units.start && units.end <= self.units.end
    }

    /// Converts into a lock if no other request holds any of the range; otherwise retry in a later
    /// turn.
    pub(crate) fn into_lock(mut self) -> Result<RangeLock, Announcement> {
        if self.busy.is_none() {
            if self.is_blocked_by_earlier() {
                return Err(self);
            }
            self.busy = Some(self.hold_busy());
        }
        let locks = &self.locks;
        if let Some(busy) = &mut self.busy {
            busy.retain(|unit| locks.is_in_use(*unit) || locks.release_hold(*unit));
            if !busy.is_empty() {
                return Err(self);
            }
        }
        Ok(RangeLock::Announced { _announcement: self })
    }

    /// Whether an overlapping range was announced earlier or concurrently.
    fn is_blocked_by_earlier(&self) -> bool {
        let mut others = self.locks.ranges.iter().enumerate().filter(|(index, _)| *index != self.entry);
        others.any(|(_, other)| {
            let ticket = other.ticket.load(Ordering::SeqCst);
            ticket != FREE && ticket < self.ticket && other.overlaps(&self.units)
        })
    }

    /// Holds the slots of the range that are in use, so that they accept no new locks.
    fn hold_busy(&self) -> Vec<u64> {
        let units = self.units.start..self.units.end.min(self.units.start + SLOTS);
        let busy: Vec<u64> = units.filter(|unit| self.locks.is_in_use(*unit)).collect();
        for unit in &busy {
            self.locks.slot(*unit).fetch_add(HOLD, Ordering::SeqCst);
        }
        busy
    }
}

impl RangeLocks {
    /// Releases a hold. Returns `false`, for `retain`.
    fn release_hold(&self, unit: u64) -> bool {
        self.slot(unit).fetch_sub(HOLD, Ordering::SeqCst);
        false
    }
}

impl Drop for HeldSlots {
    fn drop(&mut self) {
        self.locks.release(self.first, self.count, self.access);
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        for unit in self.busy.take().unwrap_or_default() {
            self.locks.release_hold(unit);
        }
        self.locks.announced.fetch_sub(1, Ordering::SeqCst);
        self.locks.ranges[self.entry].ticket.store(FREE, Ordering::SeqCst);
    }
}

fn units(offset: u64, len: u64) -> Range<u64> {
    let first = offset / UNIT_BYTES;
    first..(offset + len).div_ceil(UNIT_BYTES).max(first)
}

/// Locks of at least this length should be announced: their slots are hardly ever all free.
pub(crate) const LONG_BYTES: u64 = 128 << 10;
const SLOTS: u64 = 1 << 16;
const UNIT_BYTES: u64 = 4096;
const WRITER: u32 = 1 << 31;
/// A writer waits for the readers of the slot to leave.
const WANTED: u32 = 1 << 30;
/// Counts the announced ranges that wait for the slot.
const HOLD: u32 = 1 << 24;
const HOLDS: u32 = WANTED - HOLD;
const MAX_READERS: u32 = HOLD - 1;
/// Limit of announced ranges.
const MAX_ANNOUNCED: usize = 16;
/// Reserved tickets: of a free entry, and of one being filled.
const FREE: u64 = 0;
const PENDING: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_share_and_writers_exclude() {
        let locks = RangeLocks::new();
        let reader = locks.try_lock(0, 8192, Access::Read).unwrap();
        let other = locks.try_lock(4096, 4096, Access::Read).unwrap();
        assert!(locks.try_lock(4096, 512, Access::Write).is_none());
        drop(reader);
        assert!(locks.try_lock(4608, 512, Access::Write).is_none());
        drop(other);
        let writer = locks.try_lock(4608, 512, Access::Write).unwrap();
        assert!(locks.try_lock(4096, 512, Access::Read).is_none());
        assert!(locks.try_lock(8192, 512, Access::Write).is_some());
        drop(writer);
        assert!(locks.try_lock(0, 1 << 40, Access::Write).is_some());
    }

    #[test]
    fn steady_readers_do_not_starve_a_writer() {
        let locks = RangeLocks::new();
        let [first, second] = [0, 1].map(|_| locks.try_lock(0, 4096, Access::Read).unwrap());
        assert!(locks.try_lock(0, 8192, Access::Write).is_none());
        assert!(locks.try_lock(0, 512, Access::Read).is_none(), "a writer waits");
        drop(first);
        assert!(locks.try_lock(0, 512, Access::Read).is_none(), "a writer still waits");
        drop(second);
        assert!(locks.try_lock(0, 8192, Access::Write).is_some());
    }

    #[test]
    fn abandoned_writer_does_not_block_readers() {
        let locks = RangeLocks::new();
        let reader = locks.try_lock(0, 4096, Access::Read).unwrap();
        assert!(locks.try_lock(0, 4096, Access::Write).is_none());
        drop(reader);
        let _readers = [0, 1].map(|_| locks.try_lock(0, 4096, Access::Read).unwrap());
    }

    #[test]
    fn failed_lock_leaves_no_slots_held() {
        let locks = RangeLocks::new();
        let held = locks.try_lock(8192, 4096, Access::Write).unwrap();
        assert!(locks.try_lock(0, 16_384, Access::Write).is_none());
        assert!(locks.try_lock(0, 16_384, Access::Read).is_none());
        drop(held);
        assert!(locks.slots.iter().all(|slot| slot.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn announced_range_waits_for_earlier_locks_only() {
        let locks = RangeLocks::new();
        let [reader, writer] = [(0, Access::Read), (1 << 20, Access::Write)]
            .map(|(offset, access)| locks.try_lock(offset, 4096, access).unwrap());
        let range = locks.announce(0, 4 << 20).unwrap();
        let range = range.into_lock().unwrap_err();
        for access in [Access::Read, Access::Write] {
            assert!(locks.try_lock(2 << 20, 512, access).is_none(), "inside of the announced range");
            assert!(locks.try_lock(4 << 20, 512, access).is_some(), "outside of it");
        }
        drop(reader);
        let range = range.into_lock().unwrap_err();
        drop(writer);
        let range = range.into_lock().unwrap();
        assert!(locks.try_lock(2 << 20, 512, Access::Read).is_none());
        drop(range);
        assert!(locks.try_lock(2 << 20, 512, Access::Read).is_some());
        assert!(locks.slots.iter().all(|slot| slot.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn overlapping_announcements_are_granted_in_order() {
        let locks = RangeLocks::new();
        let [first, second, other] =
            [0, 1 << 20, 8 << 20].map(|offset| locks.announce(offset, 4 << 20).unwrap());
        let second = second.into_lock().unwrap_err();
        let _other = other.into_lock().unwrap();
        let first = first.into_lock().unwrap();
        let second = second.into_lock().unwrap_err();
        drop(first);
        second.into_lock().unwrap();
    }

    #[test]
    fn withdrawn_announcement_leaves_no_holds() {
        let locks = RangeLocks::new();
        let reader = locks.try_lock(4096, 4096, Access::Read).unwrap();
        let range = locks.announce(0, 4 << 20).unwrap().into_lock().unwrap_err();
        assert!(locks.try_lock(4096, 4096, Access::Read).is_none());
        drop(range);
        assert!(locks.try_lock(4096, 4096, Access::Read).is_some());
        drop(reader);
        assert!(locks.slots.iter().all(|slot| slot.load(Ordering::Relaxed) == 0));
        let ranges: Vec<_> = (0..MAX_ANNOUNCED).map(|_| locks.announce(0, 4 << 20).unwrap()).collect();
        assert!(locks.announce(0, 4 << 20).is_none());
        drop(ranges);
        assert!(locks.announce(0, 4 << 20).is_some());
    }

    /// 512 locks of one unit, half of which are released in every turn and replaced by others,
    /// anywhere in the file.
    struct Load {
        locks: Arc<RangeLocks>,
        held: std::collections::VecDeque<RangeLock>,
        rng: fastrand::Rng,
        granted: u32,
        refused: u32,
    }

    impl Load {
        const DEPTH: usize = 512;
        /// Length of each long range.
        const STEP: u64 = 64 << 20;
        const FILE: u64 = 4 << 30;

        fn new(locks: &Arc<RangeLocks>) -> Load {
            let (locks, held, rng) = (Arc::clone(locks), Default::default(), fastrand::Rng::with_seed(7));
            let mut load = Load { locks, held, rng, granted: 0, refused: 0 };
            load.turn();
            (load.granted, load.refused) = (0, 0);
            load
        }

        fn turn(&mut self) {
            self.held.drain(..self.held.len().min(Load::DEPTH / 2));
            for _ in self.held.len()..Load::DEPTH {
                let access = if self.rng.bool() { Access::Read } else { Access::Write };
                let offset = self.rng.u64(..Load::FILE / 4096) * 4096;
                match self.locks.try_lock(offset, 4096, access) {
                    Some(lock) => (self.granted, _) = (self.granted + 1, self.held.push_back(lock)),
                    None => self.refused += 1,
                }
            }
        }
    }

    #[test]
    fn short_locks_do_not_starve_a_long_one() {
        let locks = RangeLocks::new();
        let mut load = Load::new(&locks);
        for step in 0..16 {
            let mut range = locks.announce(step * Load::STEP, Load::STEP).unwrap();
            let mut turns = 0;
            let _lock = loop {
                match range.into_lock() {
                    Ok(lock) => break lock,
                    Err(waiting) => range = waiting,
                }
                load.turn();
                turns += 1;
                assert!(turns <= 4, "step {step} still waits after {turns} turns");
            };
            (0..4).for_each(|_| load.turn());
        }
        let all = load.granted + load.refused;
        assert!(load.refused * 10 < all, "{} of {all} short locks were refused", load.refused);
    }
}

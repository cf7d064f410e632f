//! Who may take pages of the core's pool.
//!
//! Every lane has room for one command's in-capsule data kept free for it, so that no lane can be starved by
//! others, and a lane that is read from can always go on. Everything else (data that is asked for, data read
//! from files) comes out of what is left, in the order of asking. A turn takes only so much that the system
//! has to find first: a burst of long writes would else keep all other lanes waiting for that.

use isolane_memory::{Buffer, PAGE_SIZE, Page, Pool, pages_for};
use isolane_proto::target::Permit;

use super::lane::Lane;
use super::work::Size;
use crate::config::{MAX_IN_CAPSULE_BYTES, MAX_TRANSFER_BYTES};

/// The pool, and how much of it is not kept for anybody.
pub(crate) struct MemoryBudget {
    pub pool: Pool,
    /// Taken for good, lent to every lane in turn for the time of a receive.
    pub receive_pages: Vec<Page>,
    /// Pages that may be taken by anybody in this turn.
    available_pages: usize,
    /// Those of them that are in the pool already, and those that the system may be asked for in this turn.
    ready_pages: usize,
    new_pages: usize,
    /// How many commands wait for memory, by size: later ones of the same size must not overtake them.
    waiters: [usize; 2],
}

impl MemoryBudget {
    pub(crate) fn new(mut pool: Pool) -> MemoryBudget {
        let pages = pool.buffer(RECEIVE_BYTES).and_then(|buffer| buffer.into_pages().ok());
        let receive_pages = pages.into_iter().flatten().collect();
        let mut memory = MemoryBudget {
            pool,
            receive_pages,
            available_pages: 0,
            ready_pages: 0,
            new_pages: 0,
            waiters: [0; 2],
        };
        memory.measure(0);
        memory
    }

    /// Looks at the pool anew; called once a turn.
    #[inline]
    pub(crate) fn measure(&mut self, lanes: usize) {
        self.available_pages = self.pool.free_pages().saturating_sub(lanes * GUARANTEED_PAGES);
        self.ready_pages = self.pool.ready_pages();
        self.new_pages = NEW_PAGES_PER_TURN;
    }

    /// A command begins to wait for so many bytes, if any.
    pub(crate) fn begin_wait(&mut self, len: usize) {
        self.waiters[Size::of(len) as usize] += usize::from(len > 0);
    }

    /// A command that waited for so many bytes is tried again, or given up.
    pub(crate) fn end_wait(&mut self, len: usize) {
        self.waiters[Size::of(len) as usize] -= usize::from(len > 0);
    }

    /// Counts `len` bytes as taken, if they may be. Whoever waits has the first right.
    pub(crate) fn reserve(&mut self, len: usize) -> bool {
        let can_reserve = self.can_reserve(len);
        if can_reserve {
            self.take(len);
        }
        can_reserve
    }

    /// Whether `len` bytes may be taken without passing a command that waits.
    pub(crate) fn can_reserve(&self, len: usize) -> bool {
        len == 0 || self.waiters[Size::of(len) as usize] == 0 && self.has_room(len)
    }

    /// Whether `len` bytes are left in this turn.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        let kept = if Size::of(len) == Size::Large { self.pool.max_pages() / SMALL_SHARE } else { 0 };
        let pages = pages_for(len);
        pages + kept <= self.available_pages && (pages <= self.ready_pages || self.new_pages > 0)
    }

    /// Counts `len` bytes as taken in this turn.
    pub(crate) fn take(&mut self, len: usize) {
        let pages = pages_for(len);
        let fresh = pages.saturating_sub(self.ready_pages);
        self.available_pages = self.available_pages.saturating_sub(pages);
        self.ready_pages -= pages - fresh;
        self.new_pages = self.new_pages.saturating_sub(fresh);
    }

    /// Whether commands wait for memory.
    pub(crate) fn is_short(&self) -> bool {
        self.waiters != [0; 2]
    }

    /// Memory that is left for large commands, in bytes.
    pub(crate) fn left_for_large(&self) -> usize {
        self.available_pages.saturating_sub(self.pool.max_pages() / SMALL_SHARE) * PAGE_SIZE
    }

    /// Memory for in-capsule data: out of what is spare if `can_share`, else out of what is kept for the lane.
    pub(crate) fn in_capsule_buffer(
        &mut self,
        lane: &mut Lane,
        permit: &Permit,
        len: usize,
        can_share: bool,
    ) -> Option<Buffer> {
        let is_spare = can_share && self.has_room(len);
        if !is_spare && (lane.guaranteed_slot.is_some() || pages_for(len) > GUARANTEED_PAGES) {
            return None;
        }
        let buffer = self.pool.buffer(len)?;
        match is_spare {
            true => self.take(len),
            false => lane.guaranteed_slot = Some(permit.slot()),
        }
        Some(buffer)
    }
}

/// How many pages a core's pool has if so many are asked for.
pub(crate) fn pool_pages(asked: usize) -> usize {
    asked.max(MIN_POOL_PAGES)
}

/// How many lanes a core can keep memory free for.
pub(crate) fn max_lanes(pool_pages_asked: usize) -> usize {
    pool_pages(pool_pages_asked) / 2 / GUARANTEED_PAGES
}

/// Pages kept for each lane: the in-capsule data of one command.
pub(crate) const GUARANTEED_PAGES: usize = pages_for(MAX_IN_CAPSULE_BYTES as usize);
/// What one receive places on a guess at most.
const RECEIVE_BYTES: usize = 128 << 10;
/// New memory that one turn begins to ask the system for: half a region. A region takes 0.3 ms where the
/// machine has it, 5 ms where its hypervisor has to find it.
const NEW_PAGES_PER_TURN: usize = 256;
/// One part in so many of the pool is for small commands only.
const SMALL_SHARE: usize = 8;
/// The least memory of a core: half of it is never kept for lanes, and the largest transfer fits into that
/// half even without the part for small commands and what receives are lent.
const MIN_POOL_PAGES: usize = 4 * pages_for(MAX_TRANSFER_BYTES as usize);
const _: () = assert!(
    MIN_POOL_PAGES / 2 - MIN_POOL_PAGES / SMALL_SHARE - pages_for(RECEIVE_BYTES)
        >= pages_for(MAX_TRANSFER_BYTES as usize)
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turn_bounds_new_memory_but_not_reused() {
        let mut memory = MemoryBudget::new(Pool::new(4 * MIN_POOL_PAGES));
        let len = NEW_PAGES_PER_TURN * PAGE_SIZE;
        let buffers: Vec<Buffer> = (0..3)
            .map(|turn| {
                memory.measure(1);
                assert!(memory.reserve(len), "turn {turn}");
                assert!(!memory.reserve(len) && !memory.reserve(1), "turn {turn}");
                memory.pool.buffer(len).unwrap()
            })
            .collect();
        buffers.into_iter().for_each(|buffer| memory.pool.recycle_buffer(buffer));
        memory.measure(1);
        assert!((0..4).all(|_| memory.reserve(len)), "three that were used, and a new one");
        assert!(!memory.reserve(1));
    }

    #[test]
    fn largest_transfer_fits_into_one_turn() {
        let mut memory = MemoryBudget::new(Pool::new(MIN_POOL_PAGES));
        assert!(memory.reserve(MAX_TRANSFER_BYTES as usize));
    }
}

//! Budget for the pages of the core's pool.
//!
//! Every lane is guaranteed memory for the in-capsule data of one command, so that a lane can always make
//! progress. All other data (requested by R2T, read from files) uses the remaining pages, in the order of the
//! requests. One turn allocates a bounded number of new pages, so that a burst of long writes does not delay
//! the other lanes.

use isolane_memory::{PAGE_SIZE, Page, Pool, pages_for};

use crate::config::{MAX_IN_CAPSULE_BYTES, MAX_TRANSFER_BYTES};
use crate::work::Size;

/// The pool, and the pages of it that no lane is guaranteed.
pub(crate) struct MemoryBudget {
    pub pool: Pool,
    /// Staging pages of receives; each receive borrows them.
    pub receive_pages: Vec<Page>,
    /// Pages that are available to all commands in this turn.
    available_pages: usize,
    /// Pages that the pool has already, and pages that this turn can still allocate.
    ready_pages: usize,
    new_pages: usize,
    /// Number of commands that wait for memory, by size class; later ones of the same class must not pass
    /// them.
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

    /// Updates the budget from the pool; called once per turn.
    #[inline]
    pub(crate) fn measure(&mut self, lanes: usize) {
        self.available_pages = self.pool.free_pages().saturating_sub(lanes * GUARANTEED_PAGES);
        self.ready_pages = self.pool.ready_pages();
        self.new_pages = NEW_PAGES_PER_TURN;
    }

    /// Counts a command that starts to wait for `len` bytes, if any.
    pub(crate) fn begin_wait(&mut self, len: usize) {
        self.waiters[Size::of(len) as usize] += usize::from(len > 0);
    }

    /// Counts the end of such a wait.
    pub(crate) fn end_wait(&mut self, len: usize) {
        self.waiters[Size::of(len) as usize] -= usize::from(len > 0);
    }

    /// Takes `len` bytes from the budget if no earlier command waits for memory.
    pub(crate) fn reserve(&mut self, len: usize) -> bool {
        let can_reserve = self.can_reserve(len);
        if can_reserve {
            self.take(len);
        }
        can_reserve
    }

    /// Returns `true` if `len` bytes can be taken without passing a waiting command.
    pub(crate) fn can_reserve(&self, len: usize) -> bool {
        len == 0 || self.waiters[Size::of(len) as usize] == 0 && self.has_available(len)
    }

    /// Returns `true` if `len` bytes are available in this turn.
    pub(crate) fn has_available(&self, len: usize) -> bool {
        let small_only = if Size::of(len) == Size::Large { self.pool.max_pages() / SMALL_SHARE } else { 0 };
        let pages = pages_for(len);
        pages + small_only <= self.available_pages && (pages <= self.ready_pages || self.new_pages > 0)
    }

    /// Takes `len` bytes from the budget of this turn.
    pub(crate) fn take(&mut self, len: usize) {
        let pages = pages_for(len);
        let fresh = pages.saturating_sub(self.ready_pages);
        self.available_pages = self.available_pages.saturating_sub(pages);
        self.ready_pages -= pages - fresh;
        self.new_pages = self.new_pages.saturating_sub(fresh);
    }

    /// Returns `true` if commands wait for memory.
    pub(crate) fn is_short(&self) -> bool {
        self.waiters != [0; 2]
    }

    /// Returns the memory that is available to large commands, in bytes.
    pub(crate) fn left_for_large(&self) -> usize {
        self.available_pages.saturating_sub(self.pool.max_pages() / SMALL_SHARE) * PAGE_SIZE
    }
}

/// Returns the number of pages of a pool for which `requested` pages are configured.
pub(crate) fn pool_pages(requested: usize) -> usize {
    requested.max(MIN_POOL_PAGES)
}

/// Returns the number of lanes to which a core can guarantee memory.
pub(crate) fn max_lanes(requested: usize) -> usize {
    pool_pages(requested) / 2 / GUARANTEED_PAGES
}

/// Pages guaranteed to each lane: the in-capsule data of one command.
pub(crate) const GUARANTEED_PAGES: usize = pages_for(MAX_IN_CAPSULE_BYTES as usize);
/// Maximum number of bytes that one receive places by prediction.
const RECEIVE_BYTES: usize = 128 << 10;
/// New pages that one turn can allocate: half a region. Allocating a region takes 0.3 ms, or 5 ms if the
/// hypervisor must provide the memory.
const NEW_PAGES_PER_TURN: usize = 256;
/// Inverse of the share of the pool that serves small commands only.
const SMALL_SHARE: usize = 8;
/// Minimum memory of a core. Half of it is never guaranteed to lanes, and the largest transfer fits into that
/// half without the share for small commands and the staging pages.
const MIN_POOL_PAGES: usize = 4 * pages_for(MAX_TRANSFER_BYTES as usize);
const _: () = assert!(
    MIN_POOL_PAGES / 2 - MIN_POOL_PAGES / SMALL_SHARE - pages_for(RECEIVE_BYTES)
        >= pages_for(MAX_TRANSFER_BYTES as usize)
);

#[cfg(test)]
mod tests {
    use isolane_memory::Buffer;

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
        assert!((0..4).all(|_| memory.reserve(len)), "three reused, one new");
        assert!(!memory.reserve(1));
    }

    #[test]
    fn largest_transfer_fits_into_one_turn() {
        let mut memory = MemoryBudget::new(Pool::new(MIN_POOL_PAGES));
        assert!(memory.reserve(MAX_TRANSFER_BYTES as usize));
    }
}

//! Fence: unfinished changes of older associations of a host, which commands of its new association follow.
//!
//! `core/fence.rs` fills it. Its lock is taken only while it exists: without a fence, a command pays for one
//! comparison.

use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Weak};

use isolane_volume::BlockRange;
use parking_lot::{Mutex, MutexGuard};

/// Changes of older associations that the I/O of a new association must follow.
///
/// Invariant: a command that passes once would also pass later, because changes are entered before their
/// connection counts as read.
#[derive(Debug, Default)]
pub(crate) struct Fence {
    /// Older connections that are not drained yet.
    unread: AtomicUsize,
    changes: Mutex<Vec<Change>>,
}

/// An unfinished change of an older association.
#[derive(Debug)]
struct Change {
    /// Position of its namespace.
    position: usize,
    blocks: BlockRange,
    /// Dropped when the change ends.
    mark: Weak<()>,
}

impl Fence {
    /// Returns `true` if a command on these blocks must wait.
    pub(crate) fn holds(&self, position: usize, blocks: BlockRange) -> bool {
        if blocks.blocks == 0 {
            return false;
        }
        if self.unread.load(Ordering::Acquire) > 0 {
            return true;
        }
        self.unfinished().iter().any(|change| change.position == position && change.blocks.overlaps(blocks))
    }

    /// Returns `true` if no command will wait for it again.
    pub(crate) fn is_over(&self) -> bool {
        self.unread.load(Ordering::Acquire) == 0 && self.unfinished().is_empty()
    }

    fn unfinished(&self) -> MutexGuard<'_, Vec<Change>> {
        let mut changes = self.changes.lock();
        changes.retain(|change| change.mark.strong_count() > 0);
        // Synchronizes with the core that finished the change and dropped the mark.
        fence(Ordering::Acquire);
        changes
    }

    /// Adds older connections that must be drained.
    pub(crate) fn add_unread(&self, connections: usize) {
        self.unread.fetch_add(connections, Ordering::AcqRel);
    }

    /// Returns `true` if `changes` more entries fit.
    pub(crate) fn has_capacity(&self, changes: usize) -> bool {
        self.unfinished().len() + changes <= MAX_CHANGES
    }

    /// Adds the changes of drained connections.
    pub(crate) fn enter(&self, changes: &[(usize, BlockRange, Arc<()>)], connections: usize) {
        self.changes.lock().extend(changes.iter().map(|(position, blocks, mark)| Change {
            position: *position,
            blocks: *blocks,
            mark: Arc::downgrade(mark),
        }));
        self.unread.fetch_sub(connections, Ordering::AcqRel);
    }
}

/// Maximum number of changes in one fence.
const MAX_CHANGES: usize = 1 << 14;

#[cfg(test)]
mod tests {
    use super::*;

    const FROM_10_TO_19: BlockRange = BlockRange { lba: 10, blocks: 10 };

    #[test]
    fn holds_overlapping_commands_until_change_ends() {
        let (fence, mark) = (Fence::default(), Arc::new(()));
        fence.add_unread(1);
        fence.enter(&[(1, FROM_10_TO_19, Arc::clone(&mark))], 1);
        let holds = |position, lba, blocks| fence.holds(position, BlockRange { lba, blocks });
        assert!(holds(1, 0, 11) && holds(1, 19, 1) && holds(1, 12, 2) && holds(1, 0, u64::MAX));
        assert!(!holds(1, 0, 10) && !holds(1, 20, 5) && !holds(0, 10, 10) && !holds(1, 15, 0));
        assert!(!fence.is_over());
        drop(mark);
        assert!(fence.is_over() && !holds(1, 12, 2));
    }

    #[test]
    fn holds_everything_while_a_connection_is_unread() {
        let fence = Fence::default();
        fence.add_unread(2);
        fence.enter(&[], 1);
        assert!(fence.holds(0, FROM_10_TO_19) && !fence.is_over());
        assert!(!fence.holds(0, BlockRange { lba: 0, blocks: 0 }), "a Flush touches no block");
        fence.enter(&[], 1);
        assert!(!fence.holds(0, FROM_10_TO_19) && fence.is_over());
    }

    #[test]
    fn names_a_bounded_number_of_changes() {
        let (fence, mark) = (Fence::default(), Arc::new(()));
        let changes: Vec<_> = (0..MAX_CHANGES).map(|_| (0, FROM_10_TO_19, Arc::clone(&mark))).collect();
        assert!(fence.has_capacity(changes.len()));
        fence.enter(&changes, 0);
        assert!(!fence.has_capacity(1));
        drop((changes, mark));
        assert!(fence.has_capacity(1));
    }
}

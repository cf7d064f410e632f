//! Orphans: changes that were answered, or whose connection has ended, while their operations are still at the volume.
//!
//! The operation of an orphan can still land, so every later command on its blocks waits until it has ended, on all
//! cores. `core/stalled.rs` makes the orphans. The locks are taken only while there are some: without one, a command pays
//! for one comparison.
//!
//! Invariant: a fence that has a change is the one of its position, and a core keeps its fence until it is over.

use std::collections::BTreeMap;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use isolane_observe::stage::Operation;
use isolane_volume::BlockRange;
use parking_lot::{Mutex, MutexGuard};

/// A change that was answered, or whose connection has ended, while its operation is still at the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// The operation.
    pub operation: Operation,
    /// The first block.
    pub first_block: u64,
    /// The number of blocks from there; for a Deallocate, up to its last block.
    pub blocks: u64,
    /// Time since the start of the command.
    pub age: Duration,
}

/// A change that becomes an orphan.
#[derive(Debug)]
pub(crate) struct OrphanChange {
    pub operation: Operation,
    pub blocks: BlockRange,
    pub started: Instant,
    /// Dropped when the volume lets go.
    pub mark: Weak<()>,
}

/// Orphans of one position, which later commands there follow.
#[derive(Debug, Default)]
pub(crate) struct OrphanFence(Mutex<Changes>);

#[derive(Debug, Default)]
struct Changes {
    list: Vec<OrphanChange>,
    /// A command waits for one of them.
    is_awaited: bool,
}

impl OrphanFence {
    /// Returns `true` if a command on these blocks must wait. [`OrphanFence::take_awaited`] returns `true` then.
    pub(crate) fn holds(&self, blocks: BlockRange) -> bool {
        if blocks.blocks == 0 {
            return false;
        }
        let mut changes = self.unfinished();
        let holds = changes.list.iter().any(|change| change.blocks.overlaps(blocks));
        changes.is_awaited |= holds;
        holds
    }

    /// Returns `true` if no command will wait for it, until another change enters.
    pub(crate) fn is_over(&self) -> bool {
        self.unfinished().list.is_empty()
    }

    /// Returns `true` once if commands wait. Called after the end of a change.
    pub(crate) fn take_awaited(&self) -> bool {
        std::mem::take(&mut self.0.lock().is_awaited)
    }

    fn unfinished(&self) -> MutexGuard<'_, Changes> {
        let mut changes = self.0.lock();
        changes.list.retain(|change| change.mark.strong_count() > 0);
        // Synchronizes with the core that finished the change and dropped the mark.
        fence(Ordering::Acquire);
        changes
    }
}

/// The orphans of all namespaces, by position.
#[derive(Debug, Default)]
pub(crate) struct Orphans(Mutex<BTreeMap<usize, Arc<OrphanFence>>>);

impl Orphans {
    /// Adds changes at a position, and returns its fence, which all cores must get.
    pub(crate) fn enter(
        &self,
        position: usize,
        changes: impl IntoIterator<Item = OrphanChange>,
    ) -> Arc<OrphanFence> {
        let mut fences = self.0.lock();
        fences.retain(|at, fence| *at == position || !fence.is_over());
        let fence = fences.entry(position).or_default();
        fence.0.lock().list.extend(changes);
        Arc::clone(fence)
    }

    /// Returns the orphans at a position, the oldest first.
    pub(crate) fn list(&self, position: usize) -> Vec<Orphan> {
        let Some(fence) = self.0.lock().get(&position).cloned() else { return Vec::new() };
        let orphan = |change: &OrphanChange| Orphan {
            operation: change.operation,
            first_block: change.blocks.lba,
            blocks: change.blocks.blocks,
            age: change.started.elapsed(),
        };
        let mut list: Vec<_> = fence.unfinished().list.iter().map(orphan).collect();
        list.sort_by_key(|orphan| std::cmp::Reverse(orphan.age));
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(lba: u64, mark: &Arc<()>) -> OrphanChange {
        let (operation, blocks) = (Operation::Write, BlockRange { lba, blocks: 10 });
        OrphanChange { operation, blocks, started: Instant::now(), mark: Arc::downgrade(mark) }
    }

    #[test]
    fn holds_overlapping_commands_until_orphan_ends() {
        let (orphans, marks) = (Orphans::default(), [Arc::new(()), Arc::new(())]);
        let fence = orphans.enter(3, [change(10, &marks[0])]);
        let same = orphans.enter(3, [change(40, &marks[1])]);
        assert!(Arc::ptr_eq(&fence, &same), "a core that has the fence knows of both");
        let holds = |lba, blocks| fence.holds(BlockRange { lba, blocks });
        assert!(!holds(0, 10) && !holds(20, 20) && !holds(15, 0) && !fence.take_awaited());
        assert!(holds(19, 1) && holds(0, 41) && holds(49, u64::MAX));
        assert!(fence.take_awaited() && !fence.take_awaited());
        let [first, second] = marks;
        drop(first);
        assert!(!holds(19, 1) && holds(49, 1) && !fence.is_over());
        let listed: Vec<_> =
            orphans.list(3).iter().map(|orphan| (orphan.first_block, orphan.blocks)).collect();
        assert_eq!((listed, orphans.list(2)), (vec![(40, 10)], Vec::new()));
        drop(second);
        assert!(fence.is_over() && orphans.list(3).is_empty());
    }

    #[test]
    fn forgets_fences_that_are_over() {
        let (orphans, mark) = (Orphans::default(), Arc::new(()));
        let first = orphans.enter(1, [change(0, &mark)]);
        orphans.enter(2, [change(0, &mark)]);
        assert_eq!(orphans.0.lock().len(), 2);
        drop(mark);
        let mark = Arc::new(());
        orphans.enter(2, [change(0, &mark)]);
        assert_eq!(orphans.0.lock().len(), 1);
        assert!(!Arc::ptr_eq(&first, &orphans.enter(1, [change(0, &mark)])));
    }
}

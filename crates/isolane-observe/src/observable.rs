//! Volumes and clients whose numbers any thread can read.

use std::sync::Arc;

use crate::snapshot::Snapshot;

/// Volume or client whose numbers any thread can read.
pub trait Observable {
    /// Returns a source of its numbers.
    fn source(&self) -> Arc<dyn SnapshotSource>;
}

/// Source of the numbers of a volume or client, for any thread. It keeps nothing open.
pub trait SnapshotSource: Send + Sync {
    /// Returns the numbers so far, or `None` after the end of the volume or client. Waits for no core.
    fn snapshot(&self) -> Option<Snapshot>;

    /// Returns the CPUs of the threads that its cores are pinned to.
    fn cpus(&self) -> Vec<u32>;

    /// Returns the ID of the process that made it. A forked child cannot use it.
    fn process(&self) -> u32;
}

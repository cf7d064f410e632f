//! The program that side threads describe.

use std::sync::Arc;

use isolane_observe::snapshot::Snapshot;

/// A running program. Its functions are called by side threads, at any time.
pub trait Program: Send + Sync + 'static {
    /// Returns the numbers since the start. Waits for no core.
    fn snapshot(&self) -> Snapshot;

    /// Returns the current turn of each core, or nothing if the program cannot tell.
    fn turns(&self) -> Vec<Turn> {
        Vec::new()
    }
}

/// A program that is shared by side threads.
pub type SharedProgram = Arc<dyn Program>;

impl<F: Fn() -> Snapshot + Send + Sync + 'static> Program for F {
    fn snapshot(&self) -> Snapshot {
        self()
    }
}

/// The current turn of a core. A core is stuck while it stays in one turn and phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// Position of the core, from 0.
    pub core: u32,
    /// Thread ID.
    pub thread: u32,
    /// Number of the turn.
    pub number: u64,
    /// Part of the turn; `None` while the core polls or sleeps.
    pub phase: Option<&'static str>,
}

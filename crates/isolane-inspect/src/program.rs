//! The program that side threads describe.

use std::sync::Arc;

use isolane_observe::snapshot::Snapshot;

/// A running program. Its functions are called by side threads, at any time.
pub trait Program: Send + Sync + 'static {
    /// Returns the numbers since the start. Waits for no core.
    fn snapshot(&self) -> Snapshot;

    /// Lets reads avoid a volume with this ID, a member of a mirror, or ends that. Returns `false` if they cannot.
    fn avoid(&self, _volume: u32, _is_avoided: bool) -> bool {
        false
    }

    /// Returns the current turn of each core, or nothing if the program cannot tell.
    fn turns(&self) -> Vec<Turn> {
        Vec::new()
    }
}

/// Actions for devices that are slower than their peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnSlow {
    /// Lines in the log.
    pub log: bool,
    /// The metrics `isolane_device_slow` and `isolane_device_ratio`.
    pub metric: bool,
    /// The locate light at the slot.
    pub light: bool,
    /// Reads of a mirror avoid the member.
    pub avoid: bool,
}

impl Default for OnSlow {
    fn default() -> OnSlow {
        OnSlow { log: true, metric: true, light: false, avoid: false }
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

//! Shares of the process's descriptors.
//!
//! A monitor sends descriptors, so one without a limit could take all of them, and no other could connect.
//!
//! Invariant: the descriptors of all connections, whatever they send, leave [`RESERVED`] for the rest of the program.

use std::sync::{Arc, Mutex, Weak};

use rustix::process::{Resource, getrlimit};

use crate::device::MAX_QUEUES;
use crate::memory::GuestMemory;

/// Limits that the number of descriptors allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    /// Connections.
    pub sessions: usize,
    /// Queues of each.
    pub queues: u16,
}

impl Shares {
    /// Returns the limits of this process.
    pub fn current() -> Shares {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let shares = Shares::of(limit);
        if shares != Shares::MAX {
            let Shares { sessions, queues } = shares;
            log::warn!(
                "{limit} open files allow {sessions} machines with {queues} queues each; raise the hard limit to {FULL_LIMIT}"
            );
        }
        shares
    }

    const MAX: Shares = Shares { sessions: MAX_SESSIONS as usize, queues: MAX_QUEUES };

    /// Returns the limits of a process that can have this number of descriptors.
    fn of(limit: u64) -> Shares {
        let available = limit.saturating_sub(RESERVED);
        let sessions = (available / session(MIN_QUEUES)).clamp(1, MAX_SESSIONS);
        let queues = (available / sessions).saturating_sub(session(0)) / QUEUE;
        Shares { sessions: sessions as usize, queues: queues.clamp(1, MAX_QUEUES.into()) as u16 }
    }
}

/// Returns the descriptors of a connection.
const fn session(queues: u64) -> u64 {
    SOCKET + MESSAGE + INFLIGHT + MAX_MEMORIES as u64 * MAX_REGIONS as u64 * REGION + queues * QUEUE
}

/// The memories of a connection that are mapped: the current one, and others while requests use them.
#[derive(Clone, Default)]
pub(crate) struct Memories(Arc<Mutex<Vec<Weak<GuestMemory>>>>);

impl Memories {
    /// Returns the number of mapped memories.
    pub fn count(&self) -> usize {
        let mut memories = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        memories.retain(|memory| memory.strong_count() > 0);
        memories.len()
    }

    /// Adds a memory.
    pub fn add(&self, memory: &Arc<GuestMemory>) {
        let mut memories = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        memories.push(Arc::downgrade(memory));
    }
}

/// Regions of a memory.
pub(crate) const MAX_REGIONS: usize = 8;
/// Memories of a connection.
pub(crate) const MAX_MEMORIES: usize = 4;

/// Maximum number of connections.
const MAX_SESSIONS: u64 = 16;
/// A low limit allows fewer connections rather than fewer queues.
const MIN_QUEUES: u64 = 4;
/// For the volume, the reactor, other servers, and connections that are refused or end.
const RESERVED: u64 = 128;
/// One of the control thread, and one of the core.
const SOCKET: u64 = 2;
/// Descriptors of one message.
const MESSAGE: u64 = 32;
/// Files of requests in flight, while one is replaced.
const INFLIGHT: u64 = 4;
/// Each region is mapped twice.
const REGION: u64 = 2;
/// Kick, call, and error.
const QUEUE: u64 = 3;
/// Descriptors for all connections and queues.
const FULL_LIMIT: u64 = RESERVED + MAX_SESSIONS * session(MAX_QUEUES as u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_leave_the_reserve() {
        assert_eq!(Shares::of(u64::MAX), Shares::MAX);
        assert_eq!(Shares::of(FULL_LIMIT), Shares::MAX);
        assert_eq!(Shares::of(FULL_LIMIT - 1), Shares { sessions: 16, queues: 255 });
        assert_eq!(Shares::of(4096), Shares { sessions: 16, queues: 48 });
        assert_eq!(Shares::of(1024), Shares { sessions: 7, queues: 8 });
        assert_eq!(Shares::of(0), Shares { sessions: 1, queues: 1 });
        for limit in RESERVED + session(1)..FULL_LIMIT {
            let Shares { sessions, queues } = Shares::of(limit);
            assert!(RESERVED + sessions as u64 * session(queues.into()) <= limit, "{limit}");
        }
    }
}

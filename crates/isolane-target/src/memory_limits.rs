//! Limits of the memory that commands hold for their data, of the target, each subsystem, and each host.
//!
//! All cores share one counter for each limit. A queue without a limit has no counter, and counts nothing.
//!
//! Invariant: a counter is the sum of what its queues have counted, also of those that end.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use isolane_wire::Nqn;

use crate::config::MAX_TRANSFER_BYTES;
use crate::limits::{LimitKind, LimitReached, LimitScope, TargetLimits};

/// The limits of all objects.
#[derive(Debug, Default)]
pub(crate) struct MemoryLimits {
    target: Option<Arc<MemoryLimit>>,
    subsystems: HashMap<Nqn, Arc<MemoryLimit>>,
    hosts: HashMap<Nqn, Arc<MemoryLimit>>,
}

/// The limit of one object.
#[derive(Debug)]
pub(crate) struct MemoryLimit {
    scope: LimitScope,
    /// In bytes.
    max: usize,
    /// Shared with the limit before a change.
    used: Arc<AtomicUsize>,
    /// Tries in vain; a command that waits adds one in each turn.
    refused: AtomicUsize,
}

/// Memory of one queue with limits.
#[derive(Debug)]
pub(crate) struct LaneMemory {
    limits: Vec<Arc<MemoryLimit>>,
    /// Refusals of each at the last check.
    seen: Vec<usize>,
    /// Bytes that it has added to each of them.
    counted: usize,
    /// Its core compares the count with its memory after this turn.
    pub is_listed: bool,
}

impl MemoryLimits {
    /// Returns the limits of memory, if there are any. They continue the counts of those before.
    pub(crate) fn new(limits: &TargetLimits, before: Option<&MemoryLimits>) -> Option<MemoryLimits> {
        let limit = |scope, max: Option<usize>, before: Option<&Arc<MemoryLimit>>| {
            let used = before.map(|before| Arc::clone(&before.used)).unwrap_or_default();
            max.map(|max| Arc::new(MemoryLimit { scope, max, used, refused: AtomicUsize::new(0) }))
        };
        let of_subsystem = |nqn: &Nqn| before.and_then(|before| before.subsystems.get(nqn));
        let of_host = |nqn: &Nqn| before.and_then(|before| before.hosts.get(nqn));
        let target = before.and_then(|before| before.target.as_ref());
        let subsystems = limits.subsystems.iter().filter_map(|(nqn, limits)| {
            Some((*nqn, limit(LimitScope::Subsystem, limits.memory, of_subsystem(nqn))?))
        });
        let hosts = limits
            .hosts
            .iter()
            .filter_map(|(nqn, limits)| Some((*nqn, limit(LimitScope::Host, limits.memory, of_host(nqn))?)));
        let new = MemoryLimits {
            target: limit(LimitScope::Target, limits.target.memory, target),
            subsystems: subsystems.collect(),
            hosts: hosts.collect(),
        };
        let is_empty = new.target.is_none() && new.subsystems.is_empty() && new.hosts.is_empty();
        (!is_empty).then_some(new)
    }

    /// Returns the count of a queue of this host, if it has limits.
    pub(crate) fn of(&self, subsystem: Option<&Nqn>, host: Option<&Nqn>) -> Option<Box<LaneMemory>> {
        let subsystem = subsystem.and_then(|nqn| self.subsystems.get(nqn));
        let host = host.and_then(|nqn| self.hosts.get(nqn));
        let limits: Vec<_> = self.target.iter().chain(subsystem).chain(host).cloned().collect();
        let seen = limits.iter().map(|limit| limit.refused.load(Ordering::Relaxed)).collect();
        (!limits.is_empty()).then(|| Box::new(LaneMemory { limits, seen, counted: 0, is_listed: false }))
    }
}

impl MemoryLimit {
    /// Counts the data of one command unless the limit could be exceeded; `parts` leaves memory for others. Commands of
    /// all lengths have the same chance, because each must leave space for the longest one.
    fn take(&self, bytes: usize, parts: usize) -> Result<(), LimitReached> {
        let most = (self.max / parts).saturating_sub(MAX_TRANSFER_BYTES as usize);
        let next = |used: usize| (used == 0 || used <= most).then_some(used.saturating_add(bytes));
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        taken.map(drop).map_err(|used| LimitReached {
            scope: self.scope,
            kind: LimitKind::Memory,
            used,
            max: self.max,
        })
    }
}

impl LaneMemory {
    /// Counts the data of one command, of which the limits can leave a part to others.
    ///
    /// # Errors
    /// The first limit that it could exceed; it is not counted.
    pub(crate) fn take(&mut self, bytes: usize, parts: usize) -> Result<(), LimitReached> {
        for (at, limit) in self.limits.iter().enumerate() {
            if let Err(reached) = limit.take(bytes, parts) {
                limit.refused.fetch_add(1, Ordering::Relaxed);
                for limit in &self.limits[..at] {
                    limit.used.fetch_sub(bytes, Ordering::Relaxed);
                }
                return Err(reached);
            }
        }
        self.counted += bytes;
        Ok(())
    }

    /// Whether commands have waited for one of the limits since the last call.
    pub(crate) fn is_short(&mut self) -> bool {
        let most = |limit: &MemoryLimit| limit.max.saturating_sub(MAX_TRANSFER_BYTES as usize);
        let mut is_short = false;
        for (limit, seen) in self.limits.iter().zip(&mut self.seen) {
            let refused = limit.refused.load(Ordering::Relaxed);
            let has_waiters = std::mem::replace(seen, refused) != refused;
            is_short |= has_waiters && limit.used.load(Ordering::Relaxed) > most(limit);
        }
        is_short
    }

    /// Replaces the count by the memory that its commands have.
    pub(crate) fn settle(&mut self, bytes: usize) {
        if bytes == self.counted {
            return;
        }
        for MemoryLimit { used, .. } in self.limits.iter().map(|limit| &**limit) {
            if bytes >= self.counted {
                used.fetch_add(bytes - self.counted, Ordering::Relaxed);
            } else {
                used.fetch_sub(self.counted - bytes, Ordering::Relaxed);
            }
        }
        self.counted = bytes;
    }
}

impl Drop for LaneMemory {
    fn drop(&mut self) {
        self.settle(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::ConnectionLimits;

    const HOST: &str = "nqn.2014-08.org.example:host";
    const MIB: usize = 1 << 20;

    fn memory(bytes: usize) -> ConnectionLimits {
        ConnectionLimits { memory: Some(bytes), ..ConnectionLimits::default() }
    }

    fn host() -> Nqn {
        HOST.parse().unwrap()
    }

    fn limits(target: usize, of_host: usize) -> TargetLimits {
        let hosts = [(host(), memory(of_host))].into();
        TargetLimits { target: memory(target), hosts, ..TargetLimits::default() }
    }

    #[test]
    fn limit_is_never_exceeded_by_commands_of_any_length() {
        let limits = MemoryLimits::new(&limits(64 * MIB, 4 * MIB), None).unwrap();
        let used = || limits.hosts[&host()].used.load(Ordering::Relaxed);
        let mut lanes: Vec<_> = (0..4).map(|_| limits.of(None, Some(&host())).unwrap()).collect();
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..1000 {
            let lane = &mut lanes[random.usize(..4)];
            let taken = lane.take(random.usize(..=MIB), 1);
            assert!(used() <= 4 * MIB);
            if taken.is_err() {
                assert!(used() > 3 * MIB);
                let left = random.usize(..=lane.counted);
                lane.settle(left);
            }
        }
        assert_eq!(used(), limits.target.as_ref().unwrap().used.load(Ordering::Relaxed));
        drop(lanes);
        assert_eq!((used(), limits.target.as_ref().unwrap().used.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn change_continues_the_count() {
        let before = MemoryLimits::new(&limits(64 * MIB, 4 * MIB), None).unwrap();
        let mut lane = before.of(None, Some(&host())).unwrap();
        lane.take(MIB, 1).unwrap();
        let after = MemoryLimits::new(&limits(64 * MIB, 8 * MIB), Some(&before)).unwrap();
        assert_eq!(after.hosts[&host()].used.load(Ordering::Relaxed), MIB);
        let mut other = after.of(None, Some(&host())).unwrap();
        other.settle(8 * MIB);
        assert_eq!(other.take(1, 1).unwrap_err().scope, LimitScope::Host);
        drop(lane);
        other.settle(7 * MIB);
        assert!(other.take(MIB, 1).is_ok() && other.take(1, 1).is_err());
        assert!(MemoryLimits::new(&TargetLimits::default(), Some(&after)).is_none());
        assert!(after.of(None, None).is_some(), "the target has a limit");
    }

    #[test]
    fn memory_is_short_while_a_command_waits() {
        let limits = MemoryLimits::new(&limits(64 * MIB, 4 * MIB), None).unwrap();
        let mut lane = limits.of(None, Some(&host())).unwrap();
        lane.settle(4 * MIB);
        assert!(!lane.is_short(), "none waits");
        let mut other = limits.of(None, Some(&host())).unwrap();
        for _ in 0..2 {
            assert!(other.take(1, 1).is_err());
            assert!(lane.is_short() && !lane.is_short());
        }
        lane.settle(MIB);
        assert!(other.take(1, 1).is_ok());
        assert!(!lane.is_short());
    }

    #[test]
    fn stalled_namespace_leaves_a_part() {
        let limits = MemoryLimits::new(&limits(8 * MIB, 64 * MIB), None).unwrap();
        let mut lane = limits.of(None, Some(&host())).unwrap();
        lane.settle(4 * MIB);
        assert!(lane.take(1, 2).is_err() && lane.take(1, 1).is_ok());
        lane.settle(0);
        assert!(lane.take(MIB, 2).is_ok());
    }
}

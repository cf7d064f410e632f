//! Limits for connected lanes: per core by its guaranteed memory, and for the target by its configuration.
//!
//! A lane is counted when its Connect is admitted, and on another core before it moves there; it is released
//! when it is removed. Connections before Connect are not counted and use no memory of the pool. Invariant:
//! no core ever has more connected lanes than its quota.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts of the connected lanes of all cores.
#[derive(Debug)]
pub(crate) struct LaneQuota {
    used: Vec<AtomicUsize>,
    per_core: usize,
    /// Connected lanes on all cores.
    connected: AtomicUsize,
    max_connected: usize,
}

impl LaneQuota {
    pub(crate) fn new(cores: usize, per_core: usize, max_connected: usize) -> LaneQuota {
        let used = (0..cores).map(|_| AtomicUsize::new(0)).collect();
        LaneQuota { used, per_core, connected: AtomicUsize::new(0), max_connected }
    }

    /// Counts a lane that connects; `lingering` closed connections reduce the limit. Returns `false` if a
    /// limit is reached.
    pub(crate) fn admit(&self, core: usize, lingering: usize) -> bool {
        let has_capacity = raise(&self.connected, self.max_connected.saturating_sub(lingering));
        let is_admitted = has_capacity && self.try_acquire(core);
        if has_capacity && !is_admitted {
            self.connected.fetch_sub(1, Ordering::Relaxed);
        }
        is_admitted
    }

    /// Releases a lane that was removed from the target.
    pub(crate) fn disconnect(&self, core: usize) {
        self.connected.fetch_sub(1, Ordering::Relaxed);
        self.release(core);
    }

    /// Counts a lane that moves to this core. Returns `false` if the core is full.
    pub(crate) fn try_acquire(&self, core: usize) -> bool {
        raise(&self.used[core], self.per_core)
    }

    /// Releases a lane that has moved to another core.
    pub(crate) fn release(&self, core: usize) {
        self.used[core].fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the number of connected lanes of a core.
    pub(crate) fn used(&self, core: usize) -> usize {
        self.used[core].load(Ordering::Relaxed)
    }

    /// Returns the maximum number of connected lanes.
    pub(crate) fn max_connected(&self) -> usize {
        self.max_connected
    }
}

/// Adds one unless the count has reached `max`.
fn raise(count: &AtomicUsize, max: usize) -> bool {
    let more = |count| (count < max).then_some(count + 1);
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_core_rejects_until_release() {
        let lane_quota = LaneQuota::new(2, 2, 8);
        assert_eq!([1, 1, 1, 0].map(|core| lane_quota.try_acquire(core)), [true, true, false, true]);
        lane_quota.release(1);
        assert_eq!([1, 1].map(|core| lane_quota.try_acquire(core)), [true, false]);
    }

    #[test]
    fn bounds_connected_lanes() {
        let lane_quota = LaneQuota::new(2, 2, 3);
        assert_eq!([0, 0, 0, 1, 1].map(|core| lane_quota.admit(core, 0)), [true, true, false, true, false]);
        lane_quota.disconnect(0);
        assert!(!lane_quota.admit(1, 1), "one lingers");
        assert!(lane_quota.admit(1, 0));
    }
}

//! Set of operations in flight. A waiter can wait for all operations that entered before a given
//! time, regardless of later ones. Uses two counters and no lock.
//!
//! Time is counted in epochs. An operation enters the current epoch; the epoch advances only while
//! the previous one is empty, so at most two are populated.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Operations in flight on all cores.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    epoch: AtomicU64,
    /// Number of operations in even and odd epochs.
    counts: [AtomicU32; 2],
}

/// The epoch of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Epoch(u64);

impl InFlight {
    /// Registers an operation; [`InFlight::leave`] must follow.
    pub(crate) fn enter(&self) -> Epoch {
        loop {
            let epoch = Epoch(self.epoch.load(Ordering::SeqCst));
            self.count(epoch).fetch_add(1, Ordering::SeqCst);
            if self.epoch.load(Ordering::SeqCst) == epoch.0 {
                return epoch;
            }
            self.leave(epoch);
        }
    }

    /// Removes an operation whose result is recorded.
    pub(crate) fn leave(&self, epoch: Epoch) {
        self.count(epoch).fetch_sub(1, Ordering::SeqCst);
    }

    /// Returns the current epoch, for [`InFlight::is_empty_up_to`].
    pub(crate) fn now(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::SeqCst))
    }

    /// Whether every operation that entered in this epoch or earlier has left. Must be called
    /// repeatedly until `true`, because it advances the epoch.
    pub(crate) fn is_empty_up_to(&self, epoch: Epoch) -> bool {
        loop {
            let now = self.now();
            let is_previous_empty = self.count(Epoch(now.0 + 1)).load(Ordering::SeqCst) == 0;
            if now.0 > epoch.0 {
                return is_previous_empty || now.0 > epoch.0 + 1;
            }
            if !is_previous_empty {
                return false;
            }
            // Another core may have advanced the epoch.
            let _ = self.epoch.compare_exchange(now.0, now.0 + 1, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    fn count(&self, epoch: Epoch) -> &AtomicU32 {
        &self.counts[(epoch.0 % 2) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_for_earlier_operations_only() {
        let all = InFlight::default();
        assert!(all.is_empty_up_to(all.now()));
        let first = all.enter();
        let now = all.now();
        assert!(!all.is_empty_up_to(now));
        let later = all.enter();
        assert!(!all.is_empty_up_to(now));
        all.leave(first);
        assert!(all.is_empty_up_to(now), "later operations are ignored");
        assert!(!all.is_empty_up_to(all.now()));
        all.leave(later);
        assert!(all.is_empty_up_to(all.now()));
    }

    #[test]
    fn steady_load_does_not_delay_a_wait() {
        let all = InFlight::default();
        let mut running = std::collections::VecDeque::from([all.enter(), all.enter()]);
        for _ in 0..100 {
            let now = all.now();
            let mut rounds = 0;
            while !all.is_empty_up_to(now) {
                running.push_back(all.enter());
                all.leave(running.pop_front().unwrap());
                rounds += 1;
            }
            assert!(rounds <= 4, "{rounds} rounds");
        }
    }

    #[test]
    fn waits_for_operations_of_all_threads() {
        let (all, done) = (InFlight::default(), [const { AtomicU64::new(0) }; 3]);
        std::thread::scope(|scope| {
            for done in &done {
                scope.spawn(|| {
                    for turn in 1..=2000 {
                        let epoch = all.enter();
                        done.store(turn, Ordering::SeqCst);
                        all.leave(epoch);
                    }
                });
            }
            for _ in 0..200 {
                let now = all.now();
                while !all.is_empty_up_to(now) {
                    std::thread::yield_now();
                }
            }
        });
        assert!(done.iter().all(|done| done.load(Ordering::SeqCst) == 2000));
        assert_eq!(all.counts.iter().map(|count| count.load(Ordering::SeqCst)).sum::<u32>(), 0);
    }
}

//! Seats for lanes: a core has as many as its pool can keep memory free for.
//!
//! A lane takes its seat before it is on a core, be it accepted there or moved there from another, and gives
//! it back when it has gone for good (or ends with the target). Invariant: no core ever has more lanes than
//! seats, whoever brings them and from wherever.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The seats of all cores.
#[derive(Debug)]
pub(crate) struct Seats {
    taken: Vec<AtomicUsize>,
    on_each: usize,
}

impl Seats {
    pub(crate) fn new(cores: usize, on_each: usize) -> Seats {
        Seats { taken: (0..cores).map(|_| AtomicUsize::new(0)).collect(), on_each }
    }

    /// Takes a seat on a core; false if all are taken.
    pub(crate) fn take(&self, core: usize) -> bool {
        let more = |taken| (taken < self.on_each).then_some(taken + 1);
        self.taken[core].fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// A lane has left a core.
    pub(crate) fn give_back(&self, core: usize) {
        self.taken[core].fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_core_takes_nobody_until_somebody_leaves_and_others_do_not_care() {
        let seats = Seats::new(2, 2);
        assert_eq!([1, 1, 1, 0].map(|core| seats.take(core)), [true, true, false, true]);
        seats.give_back(1);
        assert_eq!([1, 1].map(|core| seats.take(core)), [true, false]);
    }
}

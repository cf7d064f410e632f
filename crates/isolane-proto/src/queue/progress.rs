//! Whether a connection that owes something still moves, and whether it ever gets done.
//!
//! No clock is read per I/O: counters are looked at when a deadline passes. A connection has stalled if no
//! byte moved for one to two times the limit. Moving is not enough, or a peer that sends a byte now and then,
//! or something else than what it owes, could hold memory for ever: what it owed at one look it must have
//! delivered [`PATIENCE`] limits later.

use std::time::{Duration, Instant};

/// What a peer owes, in numbers that count from the start of the connection and only rise.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Debts {
    /// Bytes that moved in either direction.
    pub(crate) moved_bytes: u64,
    /// PDUs to receive whole.
    pub(crate) pdus: Debt,
    /// Bytes to take from us.
    pub(crate) output: Debt,
    /// Transfers of commands to complete.
    pub(crate) transfers: Debt,
}

/// One kind of debt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Debt {
    pub(crate) incurred: u64,
    /// All up to this number are settled.
    pub(crate) settled: u64,
}

impl Debts {
    fn kinds(&self) -> [Debt; 3] {
        [self.pdus, self.output, self.transfers]
    }

    /// Whether nothing is owed at all.
    pub(crate) fn are_settled(&self) -> bool {
        self.kinds().iter().all(|debt| debt.settled >= debt.incurred)
    }
}

/// What was seen when the debts were last looked at.
#[derive(Debug)]
pub(crate) struct Progress {
    since: Instant,
    moved_bytes: u64,
    /// What must be settled by `due_since` and [`PATIENCE`] limits.
    due: [u64; 3],
    due_since: Instant,
    limit: Duration,
}

impl Progress {
    pub(crate) fn new(now: Instant, limit: Duration) -> Progress {
        Progress { since: now, moved_bytes: 0, due: [0; 3], due_since: now, limit }
    }

    /// When to look again.
    pub(crate) fn deadline(&self) -> Instant {
        self.since + self.limit
    }

    /// The peer could not move for so long, because of us.
    pub(crate) fn excuse(&mut self, wait: Duration) {
        self.since += wait;
        self.due_since += wait;
    }

    /// Looks at the debts; true if the peer has stalled, or has not delivered what it owed long ago.
    pub(crate) fn is_stalled(&mut self, now: Instant, debts: &Debts) -> bool {
        if self.is_overdue(now, debts) {
            return true;
        }
        if debts.moved_bytes != self.moved_bytes {
            self.moved_bytes = debts.moved_bytes;
            self.since = now;
            return false;
        }
        !debts.are_settled() && now >= self.deadline()
    }

    fn is_overdue(&mut self, now: Instant, debts: &Debts) -> bool {
        let mut kinds = debts.kinds().into_iter().zip(&self.due);
        if kinds.all(|(debt, due)| debt.settled >= *due) {
            self.due = debts.kinds().map(|debt| debt.incurred);
            self.due_since = now;
            return false;
        }
        now >= self.due_since + self.limit * PATIENCE
    }
}

/// So many limits a peer has for what it owes, twice that at the most: with 30 s, 1 MiB at 70 kbit/s.
pub(crate) const PATIENCE: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn owing(moved_bytes: u64, incurred: u64, settled: u64) -> Debts {
        Debts { moved_bytes, transfers: Debt { incurred, settled }, ..Debts::default() }
    }

    #[test]
    fn a_connection_that_delivers_is_never_stalled() {
        let start = Instant::now();
        let mut progress = Progress::new(start, 10 * S);
        for second in 1..1000 {
            let number = u64::from(second);
            assert!(!progress.is_stalled(start + second * S, &owing(number, number + 20, number)));
        }
    }

    #[test]
    fn a_connection_without_progress_is_stalled_when_its_deadline_passes() {
        let start = Instant::now();
        let mut progress = Progress::new(start, 10 * S);
        assert!(!progress.is_stalled(start + 10 * S, &owing(7, 1, 0)));
        assert!(!progress.is_stalled(start + 19 * S, &owing(7, 1, 0)));
        assert!(progress.is_stalled(start + 20 * S, &owing(7, 1, 0)));
    }

    #[test]
    fn a_byte_now_and_then_does_not_hold_a_debt_for_ever() {
        let start = Instant::now();
        let mut progress = Progress::new(start, 10 * S);
        let mut is_stalled =
            |second| progress.is_stalled(start + second * S, &owing(u64::from(second), 1, 0));
        assert!(!(1..=36).step_by(5).any(&mut is_stalled));
        assert!(is_stalled(41));
    }

    #[test]
    fn a_long_rest_without_debts_is_not_held_against_the_next() {
        let start = Instant::now();
        let mut progress = Progress::new(start, 10 * S);
        assert!(!progress.is_stalled(start + 10 * S, &owing(7, 1, 1)));
        assert!(!progress.is_stalled(start + 1000 * S, &owing(8, 2, 1)));
        assert!(!progress.is_stalled(start + 1030 * S, &owing(9, 2, 1)));
        assert!(progress.is_stalled(start + 1040 * S, &owing(10, 2, 1)));
    }

    #[test]
    fn a_wait_that_was_ours_does_not_count() {
        let start = Instant::now();
        let mut progress = Progress::new(start, 10 * S);
        assert!(!progress.is_stalled(start + S, &owing(7, 1, 0)));
        progress.excuse(100 * S);
        assert!(!progress.is_stalled(start + 110 * S, &owing(7, 1, 0)));
        assert!(progress.is_stalled(start + 111 * S, &owing(7, 1, 0)));
    }
}

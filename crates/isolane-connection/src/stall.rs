//! Stall detection for one connection.
//!
//! Compares byte and PDU counters at each deadline instead of reading a clock per I/O. A peer
//! stalls when no byte moves for one limit, or when an obligation stays unmet for
//! [`OVERDUE_FACTOR`] limits.
//!
//! Invariant: a peer that trickles bytes cannot hold memory indefinitely.

use std::time::{Duration, Instant};

/// Outstanding obligations of a peer, as counters since the start of the connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outstanding {
    /// Number of bytes moved in either direction.
    pub moved_bytes: u64,
    /// PDUs that the peer must complete.
    pub pdus: Watermark,
    /// Output that the peer must receive, in bytes.
    pub output: Watermark,
    /// Transfers that the peer must complete.
    pub transfers: Watermark,
}

/// Progress of one kind of obligation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watermark {
    /// Number of obligations so far.
    pub expected: u64,
    /// All obligations up to this number are met.
    pub done: u64,
}

impl Outstanding {
    fn kinds(&self) -> [Watermark; 3] {
        [self.pdus, self.output, self.transfers]
    }

    /// Whether all obligations are met.
    pub fn is_idle(&self) -> bool {
        self.kinds().iter().all(|kind| kind.done >= kind.expected)
    }
}

/// Stall detector, with the counters of its last check.
#[derive(Debug)]
pub struct StallDetector {
    since: Instant,
    moved_bytes: u64,
    /// Obligations to meet within [`OVERDUE_FACTOR`] limits after `due_since`.
    due: [u64; 3],
    due_since: Instant,
    limit: Duration,
}

impl StallDetector {
    /// Starts with nothing expected; `limit` is the longest time without progress.
    pub fn new(now: Instant, limit: Duration) -> StallDetector {
        StallDetector { since: now, moved_bytes: 0, due: [0; 3], due_since: now, limit }
    }

    /// Time of the next check.
    pub fn deadline(&self) -> Instant {
        self.since + self.limit
    }

    /// Extends the deadlines by `wait`, during which this side blocked the peer.
    pub fn extend_deadline(&mut self, wait: Duration) {
        self.since += wait;
        self.due_since += wait;
    }

    /// Checks the counters. Returns `true` if the peer has stalled or is overdue.
    pub fn is_stalled(&mut self, now: Instant, outstanding: &Outstanding) -> bool {
        if self.is_overdue(now, outstanding) {
            return true;
        }
        if outstanding.moved_bytes != self.moved_bytes {
            self.moved_bytes = outstanding.moved_bytes;
            self.since = now;
            return false;
        }
        !outstanding.is_idle() && now >= self.deadline()
    }

    fn is_overdue(&mut self, now: Instant, outstanding: &Outstanding) -> bool {
        let mut kinds = outstanding.kinds().into_iter().zip(&self.due);
        if kinds.all(|(kind, due)| kind.done >= *due) {
            self.due = outstanding.kinds().map(|kind| kind.expected);
            self.due_since = now;
            return false;
        }
        now >= self.due_since + self.limit * OVERDUE_FACTOR
    }
}

/// Number of limits within which a peer must meet an obligation; twice that at most. With 30 s: 1
/// MiB at 70 kbit/s.
pub const OVERDUE_FACTOR: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn owing(moved_bytes: u64, expected: u64, done: u64) -> Outstanding {
        Outstanding { moved_bytes, transfers: Watermark { expected, done }, ..Outstanding::default() }
    }

    #[test]
    fn steady_progress_is_no_stall() {
        let start = Instant::now();
        let mut progress = StallDetector::new(start, 10 * S);
        for second in 1..1000 {
            let number = u64::from(second);
            assert!(!progress.is_stalled(start + second * S, &owing(number, number + 20, number)));
        }
    }

    #[test]
    fn detects_stall_at_deadline() {
        let start = Instant::now();
        let mut progress = StallDetector::new(start, 10 * S);
        assert!(!progress.is_stalled(start + 10 * S, &owing(7, 1, 0)));
        assert!(!progress.is_stalled(start + 19 * S, &owing(7, 1, 0)));
        assert!(progress.is_stalled(start + 20 * S, &owing(7, 1, 0)));
    }

    #[test]
    fn trickling_peer_becomes_overdue() {
        let start = Instant::now();
        let mut progress = StallDetector::new(start, 10 * S);
        let mut is_stalled =
            |second| progress.is_stalled(start + second * S, &owing(u64::from(second), 1, 0));
        assert!(!(1..=36).step_by(5).any(&mut is_stalled));
        assert!(is_stalled(41));
    }

    #[test]
    fn idle_time_does_not_count() {
        let start = Instant::now();
        let mut progress = StallDetector::new(start, 10 * S);
        assert!(!progress.is_stalled(start + 10 * S, &owing(7, 1, 1)));
        assert!(!progress.is_stalled(start + 1000 * S, &owing(8, 2, 1)));
        assert!(!progress.is_stalled(start + 1030 * S, &owing(9, 2, 1)));
        assert!(progress.is_stalled(start + 1040 * S, &owing(10, 2, 1)));
    }

    #[test]
    fn extended_deadline_does_not_count() {
        let start = Instant::now();
        let mut progress = StallDetector::new(start, 10 * S);
        assert!(!progress.is_stalled(start + S, &owing(7, 1, 0)));
        progress.extend_deadline(100 * S);
        assert!(!progress.is_stalled(start + 110 * S, &owing(7, 1, 0)));
        assert!(progress.is_stalled(start + 111 * S, &owing(7, 1, 0)));
    }
}

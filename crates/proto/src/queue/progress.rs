//! Whether a connection that owes something still moves.
//!
//! No clock is read per I/O: byte counters are compared when the deadline passes. So a connection that has
//! stalled is found after one to two times the limit, and one that moves never is.

use std::time::{Duration, Instant};

/// The last time at which the byte count was looked at.
#[derive(Debug)]
pub(crate) struct Progress {
    since: Instant,
    bytes: u64,
    limit: Duration,
}

impl Progress {
    pub(crate) fn new(now: Instant, limit: Duration) -> Progress {
        Progress { since: now, bytes: 0, limit }
    }

    /// When to look again.
    pub(crate) fn deadline(&self) -> Instant {
        self.since + self.limit
    }

    /// Looks at the byte count; true if the deadline passed without any progress.
    pub(crate) fn is_stalled(&mut self, now: Instant, bytes: u64) -> bool {
        if bytes != self.bytes {
            self.bytes = bytes;
            self.since = now;
            return false;
        }
        now >= self.deadline()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_moves_is_never_stalled() {
        let start = Instant::now();
        let mut progress = Progress::new(start, Duration::from_secs(10));
        for second in 1..100 {
            assert!(!progress.is_stalled(start + Duration::from_secs(second), second));
        }
    }

    #[test]
    fn a_connection_without_progress_is_stalled_when_its_deadline_passes() {
        let start = Instant::now();
        let mut progress = Progress::new(start, Duration::from_secs(10));
        assert!(!progress.is_stalled(start + Duration::from_secs(10), 7));
        assert!(!progress.is_stalled(start + Duration::from_secs(19), 7));
        assert!(progress.is_stalled(start + Duration::from_secs(20), 7));
    }
}

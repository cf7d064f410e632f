//! Rate limit for log lines that a peer can cause at will: one per second.

use std::time::{Duration, Instant};

/// Time of the last log line.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogLimiter {
    last: Option<Instant>,
}

impl LogLimiter {
    /// Returns `true` if the caller must write the line now. Counters include omitted lines.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.last.is_none_or(|last| now.saturating_duration_since(last) >= INTERVAL);
        if is_due {
            self.last = Some(now);
        }
        is_due
    }
}

const INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_first_line_then_one_per_second() {
        let (start, mut limit) = (Instant::now(), LogLimiter::default());
        let lines = (0..30).filter(|tenths| limit.is_due(start + Duration::from_millis(100 * tenths)));
        assert_eq!(lines.collect::<Vec<_>>(), [0, 10, 20]);
    }
}

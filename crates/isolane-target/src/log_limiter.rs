//! Log lines that somebody else can cause as often as they like: one a second.

use std::time::{Duration, Instant};

/// When a line was written last.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogLimiter {
    last: Option<Instant>,
}

impl LogLimiter {
    /// Whether a line may be written now; it must be, then. What is left out is in the counters.
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
    fn the_first_line_is_written_and_then_one_a_second() {
        let (start, mut limit) = (Instant::now(), LogLimiter::default());
        let lines = (0..30).filter(|tenths| limit.is_due(start + Duration::from_millis(100 * tenths)));
        assert_eq!(lines.collect::<Vec<_>>(), [0, 10, 20]);
    }
}

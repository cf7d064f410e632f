//! Limit of lines with one cause.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

/// Limit of lines with one cause: one per second. The others become one line with their count.
#[derive(Clone, Debug, Default)]
pub struct Limit(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// End of the interval of the last line, in milliseconds since [`START`].
    next: AtomicU64,
    /// Lines since then. The queue has the first of them, if there are any.
    suppressed: AtomicU64,
}

impl Limit {
    /// Decides whether a line is logged at `now`, in milliseconds of [`now`].
    pub(crate) fn admit(&self, now: u64) -> Admission {
        let State { next, suppressed } = &*self.0;
        let due = next.load(Ordering::Relaxed);
        let is_free = now >= due && suppressed.load(Ordering::Relaxed) == 0;
        let end = now + INTERVAL.as_millis() as u64;
        if is_free && next.compare_exchange(due, end, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            return Admission::Line;
        }
        if suppressed.fetch_add(1, Ordering::Relaxed) == 0 { Admission::First } else { Admission::Counted }
    }

    /// Starts another interval, and returns the number of suppressed lines.
    pub(crate) fn take_suppressed(&self) -> u64 {
        self.0.next.store(now() + INTERVAL.as_millis() as u64, Ordering::Relaxed);
        self.0.suppressed.swap(0, Ordering::Relaxed)
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Line,
    /// The first suppressed line.
    First,
    Counted,
}

/// Returns the time since [`START`], in milliseconds.
pub(crate) fn now() -> u64 {
    START.elapsed().as_millis() as u64
}

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Time between two lines with one cause.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admits_one_line_per_interval_and_counts_others() {
        let limit = Limit::default();
        assert_eq!(limit.admit(5), Admission::Line);
        assert_eq!(limit.admit(6), Admission::First);
        assert_eq!(limit.admit(7), Admission::Counted);
        assert_eq!(limit.admit(5000), Admission::Counted, "the count is logged first");
        assert_eq!(limit.take_suppressed(), 3);
        assert_eq!(limit.admit(now()), Admission::First, "the count starts an interval");
        assert_eq!(limit.take_suppressed(), 1);
        assert_eq!(limit.admit(now() + 5000), Admission::Line);
    }
}

//! Times after which a target does not wait for its volumes, which can change while it runs.
//!
//! Each core has a copy, and takes the present times in each tick.

use std::time::Duration;

use parking_lot::Mutex;

/// Times after which a target does not wait for its volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StallTimes {
    /// See [`TargetConfig::stall_after`](crate::TargetConfig::stall_after).
    pub stall_after: Duration,
    /// See [`TargetConfig::answer_within`](crate::TargetConfig::answer_within).
    pub answer_within: Duration,
}

impl Default for StallTimes {
    /// Linux resets the controller after 30 s.
    fn default() -> StallTimes {
        StallTimes { stall_after: Duration::from_secs(10), answer_within: Duration::from_secs(20) }
    }
}

/// The present times of a target.
#[derive(Debug)]
pub(crate) struct PresentTimes(Mutex<StallTimes>);

impl PresentTimes {
    pub(crate) fn new(times: StallTimes) -> PresentTimes {
        PresentTimes(Mutex::new(times))
    }

    pub(crate) fn present(&self) -> StallTimes {
        *self.0.lock()
    }

    pub(crate) fn replace(&self, times: StallTimes) {
        *self.0.lock() = times;
    }
}

//! Test hook that stops an engine between any two of its actions on the socket or the shared memory.

use super::StreamError;

/// Countdown of actions. Zero-sized and never triggered outside tests.
#[derive(Debug, Default)]
pub(super) struct Failpoint {
    #[cfg(test)]
    remaining: std::cell::Cell<Option<u32>>,
}

impl Failpoint {
    /// Counts an action.
    ///
    /// # Errors
    /// `StreamError::Failpoint` in tests, once the countdown has ended.
    #[inline]
    pub fn hit(&self) -> Result<(), StreamError> {
        #[cfg(test)]
        if let Some(remaining) = self.remaining.get() {
            self.remaining.set(Some(remaining.saturating_sub(1)));
            if remaining == 0 {
                return Err(StreamError::Failpoint);
            }
        }
        Ok(())
    }

    /// Triggers after `actions`; never if `None`.
    #[cfg(test)]
    pub fn new(actions: Option<u32>) -> Failpoint {
        Failpoint { remaining: std::cell::Cell::new(actions) }
    }

    /// Restarts the countdown.
    #[cfg(test)]
    pub fn set(&self, actions: Option<u32>) {
        self.remaining.set(actions);
    }
}

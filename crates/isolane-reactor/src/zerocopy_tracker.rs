//! Tracker of one socket's zero-copy sends; no I/O.
//!
//! The kernel numbers the zero-copy sends of a socket from 0 and completes ranges of numbers,
//! mostly in order (`MSG_ZEROCOPY`).
//!
//! Invariant: the memory of a send stays here until its number completes; completions of other
//! numbers are ignored.

use isolane_memory::ZeroCopySend;
use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(crate) struct ZeroCopyTracker {
    /// Number of the next send.
    next: u32,
    /// Sends in flight, oldest first; `None` if completed out of order.
    out: VecDeque<Option<ZeroCopySend>>,
    /// The kernel copies on this route.
    kernel_copied: bool,
    /// The kernel ran out of memory for zero-copy accounting; cleared by the next completion.
    out_of_memory: bool,
}

/// Completion of a range of sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ZeroCopyCompletion {
    pub first: u32,
    pub last: u32,
    /// The kernel copied the data.
    pub kernel_copied: bool,
}

impl ZeroCopyTracker {
    /// Whether a zero-copy send is worth trying.
    pub fn is_useful(&self) -> bool {
        !self.kernel_copied && !self.out_of_memory && self.out.len() < MAX_SENDS
    }

    /// Whether sends are in flight.
    pub fn has_zerocopy_in_flight(&self) -> bool {
        !self.out.is_empty()
    }

    /// Records a send; [`ZeroCopyTracker::track`] adds its memory.
    pub fn on_sent(&mut self) {
        self.next = self.next.wrapping_add(1);
        self.out.push_back(Some(ZeroCopySend::default()));
    }

    /// Attaches the memory of the last send.
    pub fn track(&mut self, lent: ZeroCopySend) {
        if let Some(Some(last)) = self.out.back_mut() {
            *last = lent;
        }
    }

    /// Records that the kernel returned `ENOBUFS`.
    pub fn on_enobufs(&mut self) {
        // Without sends in flight, no completion would clear `out_of_memory`.
        self.out_of_memory = self.has_zerocopy_in_flight();
        self.kernel_copied |= !self.has_zerocopy_in_flight();
    }

    /// Completes a range of sends. Returns `true` when the kernel reports copying for the first
    /// time.
    pub fn complete(&mut self, notice: ZeroCopyCompletion, mut release: impl FnMut(ZeroCopySend)) -> bool {
        let oldest = self.next.wrapping_sub(self.out.len() as u32);
        let first = notice.first.wrapping_sub(oldest) as usize;
        let count = notice.last.wrapping_sub(notice.first) as usize + 1;
        if first < self.out.len() {
            self.out_of_memory = false;
            self.out.iter_mut().skip(first).take(count).filter_map(Option::take).for_each(&mut release);
        }
        while let Some(None) = self.out.front() {
            self.out.pop_front();
        }
        notice.kernel_copied && !std::mem::replace(&mut self.kernel_copied, true)
    }

    /// Leaks the memory of all sends in flight: the kernel may still read it. Returns their number.
    pub fn forget(self) -> usize {
        let out: Vec<ZeroCopySend> = self.out.into_iter().flatten().collect();
        let count = out.len();
        std::mem::forget(out);
        count
    }
}

/// Limit of sends in flight per socket; further sends are copied.
const MAX_SENDS: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    /// Tracker with sends of 1, 2, 3, … bytes.
    fn tracker(sends: usize, first: u32) -> ZeroCopyTracker {
        let mut tracker = ZeroCopyTracker { next: first, ..ZeroCopyTracker::default() };
        for bytes in 1..=sends {
            tracker.on_sent();
            tracker.track(ZeroCopySend { bytes, ..ZeroCopySend::default() });
        }
        tracker
    }

    fn complete(tracker: &mut ZeroCopyTracker, first: u32, last: u32) -> Vec<usize> {
        let mut back = Vec::new();
        tracker
            .complete(ZeroCopyCompletion { first, last, kernel_copied: false }, |lent| back.push(lent.bytes));
        back
    }

    #[test]
    fn completion_releases_sends_by_number() {
        let mut tracker = tracker(3, 0);
        assert_eq!(complete(&mut tracker, 0, 0), [1]);
        assert!(tracker.has_zerocopy_in_flight());
        assert_eq!(complete(&mut tracker, 1, 2), [2, 3]);
        assert!(!tracker.has_zerocopy_in_flight());
    }

    #[test]
    fn out_of_order_completion_keeps_earlier_send() {
        let mut tracker = tracker(3, 0);
        assert_eq!(complete(&mut tracker, 1, 2), [2, 3]);
        assert!(tracker.has_zerocopy_in_flight());
        tracker.on_sent();
        assert_eq!(complete(&mut tracker, 0, 0), [1]);
        assert_eq!(complete(&mut tracker, 3, 3), [0]);
        assert!(!tracker.has_zerocopy_in_flight());
    }

    #[test]
    fn ignores_duplicate_and_unknown_numbers() {
        let mut tracker = tracker(2, 0);
        assert_eq!(complete(&mut tracker, 0, 0), [1]);
        assert_eq!(complete(&mut tracker, 0, 0), [0usize; 0]);
        assert_eq!(complete(&mut tracker, 7, 9), [0usize; 0]);
        assert_eq!(complete(&mut tracker, 1, u32::MAX), [2]);
    }

    #[test]
    fn send_numbers_wrap_around() {
        let mut tracker = tracker(4, u32::MAX - 1);
        assert_eq!(complete(&mut tracker, u32::MAX - 1, 0), [1, 2, 3]);
        assert_eq!(complete(&mut tracker, 1, 1), [4]);
    }

    #[test]
    fn kernel_copies_disable_zerocopy() {
        let mut tracker = tracker(2, 0);
        assert!(tracker.is_useful());
        assert!(tracker.complete(ZeroCopyCompletion { first: 0, last: 0, kernel_copied: true }, drop));
        assert!(!tracker.complete(ZeroCopyCompletion { first: 1, last: 1, kernel_copied: true }, drop));
        assert!(!tracker.is_useful());
    }

    #[test]
    fn enobufs_clears_on_completion_unless_idle() {
        let mut tracker = tracker(1, 0);
        tracker.on_enobufs();
        assert!(!tracker.is_useful());
        complete(&mut tracker, 0, 0);
        assert!(tracker.is_useful());
        tracker.on_enobufs();
        assert!(!tracker.is_useful());
    }
}

//! Speculative receive: predicts the next PDUs, so that one `readv` places their data without a
//! copy.
//!
//! Data usually arrives in the order in which it was requested, so a receive plan continues as
//! header, destination, header, destination, and so on. The caller compares each header with its
//! prediction. After a wrong prediction, the received bytes are collected and read again.
//!
//! Invariant: while predicted bytes are unverified, nothing else is placed into a predicted
//! destination, and none of these bytes leaves the connection.

use std::ops::Range;

use arrayvec::ArrayVec;

/// Maximum number of predicted PDUs in one plan.
pub(crate) const MAX_PREDICTIONS: usize = 32;

/// One predicted PDU: all data of a command. `cid` identifies the destination; a target, which does
/// not know the command yet, numbers its destinations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prediction {
    pub(crate) cid: u16,
    pub(crate) len: usize,
}

/// Predictions for the current receive.
#[derive(Default)]
pub(crate) struct Predictor {
    list: ArrayVec<Prediction, MAX_PREDICTIONS>,
    /// Number of confirmed predictions, from the front.
    verified: usize,
    /// Number of received bytes after the unread ones, from the data of `list[verified]`.
    left: usize,
    /// Planned distance before the first predicted data, and between consecutive data, in bytes.
    first_gap: usize,
    gap: usize,
    /// Distance between the last two runs of data; 0 if it was too long.
    learned_gap: usize,
    /// Position in the stream of the end of the last data.
    data_end: u64,
    /// Maximum number of predictions: twice the number that was confirmed in the last plan, plus 2.
    window: usize,
    /// Number of receives without predictions, now and after the next wrong prediction.
    pause: u32,
    penalty: u32,
}

impl Predictor {
    pub(crate) fn new() -> Predictor {
        Predictor { window: MIN_WINDOW, penalty: 1, ..Predictor::default() }
    }

    /// Begins a plan after `position` received bytes. Returns `true` if the plan should contain
    /// predictions. `prefix` is the distance to the next data if no PDU is incomplete at the
    /// position.
    pub(crate) fn begin(&mut self, position: u64, is_at_boundary: bool, prefix: usize) -> bool {
        debug_assert!(self.left == 0, "predicted bytes were not verified");
        self.end_plan();
        self.gap = self.learned_gap;
        if self.gap == 0 {
            return false;
        }
        if self.pause > 0 {
            self.pause -= 1;
            return false;
        }
        let next = (self.data_end + self.gap as u64).saturating_sub(position) as usize;
        self.first_gap = match next {
            0 if is_at_boundary => prefix,
            _ => next.min(self.gap),
        };
        self.first_gap > 0
    }

    /// Adds a prediction.
    pub(crate) fn push(&mut self, prediction: Prediction) {
        self.list.push(prediction);
    }

    /// Whether the window is full.
    pub(crate) fn is_full(&self) -> bool {
        self.list.len() >= self.window
    }

    /// Distance to the data of the next prediction, in bytes.
    pub(crate) fn gap_before_next(&self) -> usize {
        if self.list.is_empty() { self.first_gap } else { self.gap }
    }

    /// Records `n` received bytes in the predicted part of the plan. Returns the first range of the
    /// overflow.
    pub(crate) fn received(&mut self, n: usize) -> Range<usize> {
        let first = if self.list.is_empty() { n } else { n.min(self.first_gap) };
        self.left = n - first;
        0..first
    }

    /// Whether received bytes are in unverified destinations.
    #[inline]
    pub(crate) fn has_unverified(&self) -> bool {
        self.left > 0
    }

    /// The next prediction to verify.
    #[inline]
    pub(crate) fn next(&self) -> Option<Prediction> {
        self.list.get(self.verified).copied()
    }

    /// Whether the next `len` bytes of data have arrived.
    #[inline]
    pub(crate) fn is_whole(&self, len: usize) -> bool {
        len <= self.left
    }

    /// Whether a prediction for this command is unverified.
    #[inline]
    pub(crate) fn has(&self, cid: u16) -> bool {
        self.list[self.verified..].iter().any(|prediction| prediction.cid == cid)
    }

    /// Length of the received data of the next prediction.
    pub(crate) fn placed(&self, next: Prediction) -> usize {
        next.len.min(self.left)
    }

    /// Confirms the next prediction. Returns the length of its data in place, and the next range of
    /// the overflow.
    pub(crate) fn confirm(&mut self) -> (usize, Range<usize>) {
        let placed = self.next().map_or(0, |next| self.placed(next));
        (placed, self.confirm_placed(placed))
    }

    /// Confirms the next prediction with `placed` bytes of its data in place. Returns the next
    /// range of the overflow.
    #[inline(always)]
    pub(crate) fn confirm_placed(&mut self, placed: usize) -> Range<usize> {
        self.verified += 1;
        let start = self.scratch_start(self.verified);
        let unread = if self.verified < self.list.len() {
            self.gap.min(self.left - placed)
        } else {
            self.left - placed
        };
        self.left -= placed + unread;
        start..start + unread
    }

    /// Handles a wrong prediction: passes the locations of the unverified bytes to `report` in
    /// stream order, and pauses predictions.
    pub(crate) fn rollback(&mut self, mut report: impl FnMut(LandedBytes)) {
        for at in self.verified..self.list.len() {
            let (placed, next) = (self.list[at], at + 1);
            let len = placed.len.min(self.left);
            report(LandedBytes::Data { cid: placed.cid, len });
            self.left -= len;
            let len = if next < self.list.len() { self.gap.min(self.left) } else { self.left };
            let start = self.scratch_start(next);
            report(LandedBytes::Overflow(start..start + len));
            self.left -= len;
        }
        self.list.clear();
        self.verified = 0;
        self.pause = self.penalty;
        self.penalty = (self.penalty * 2).min(MAX_PENALTY);
    }

    /// Records data at this position of the stream, to predict the distance to the next data.
    #[inline]
    pub(crate) fn observe(&mut self, start: u64, len: usize) {
        let gap = start.saturating_sub(self.data_end);
        self.learned_gap = if gap <= MAX_GAP as u64 { gap as usize } else { 0 };
        self.data_end = start + len as u64;
    }

    /// Clears all predictions.
    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.verified = 0;
        self.left = 0;
    }

    /// Ends the last plan, and adapts window and penalty to its result.
    fn end_plan(&mut self) {
        if self.verified > 0 {
            self.window = (2 * self.verified + 2).clamp(MIN_WINDOW, MAX_PREDICTIONS);
            self.penalty = (self.penalty / 2).max(1);
        }
        self.clear();
    }

    /// Offset in the overflow of the bytes in front of prediction `at`.
    #[inline]
    fn scratch_start(&self, at: usize) -> usize {
        if at == 0 { 0 } else { self.first_gap + (at - 1) * self.gap }
    }
}

/// Location of received bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LandedBytes {
    /// At the start of the memory of this command.
    Data { cid: u16, len: usize },
    /// In the overflow.
    Overflow(Range<usize>),
}

/// Maximum length of headers, digests, and responses between two runs of data; predictions stop
/// above it.
const MAX_GAP: usize = 256;
const MIN_WINDOW: usize = 4;
/// Maximum pause between predictions, in receives.
const MAX_PENALTY: u32 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn predictor() -> Predictor {
        let mut predictor = Predictor::new();
        predictor.observe(24, 100);
        assert!(predictor.begin(124, true, 24));
        for cid in [7, 8] {
            assert_eq!(predictor.gap_before_next(), 24);
            predictor.push(Prediction { cid, len: 100 });
        }
        predictor
    }

    #[test]
    fn confirmed_predictions_lead_to_next_header() {
        let mut predictor = predictor();
        assert_eq!(predictor.received(24 + 100 + 24 + 100 + 5), 0..24);
        assert!(predictor.has_unverified() && predictor.next() == Some(Prediction { cid: 7, len: 100 }));
        assert_eq!(predictor.confirm(), (100, 24..48));
        assert_eq!(predictor.confirm(), (100, 48..53));
        assert!(!predictor.has_unverified());
    }

    #[test]
    fn short_receive_leaves_nothing_unverified() {
        let mut short = predictor();
        assert_eq!(short.received(20), 0..20);
        assert!(!short.has_unverified());
        let mut cut = predictor();
        assert_eq!(cut.received(24 + 60), 0..24);
        assert_eq!(cut.confirm(), (60, 24..24));
        assert!(!cut.has_unverified());
    }

    #[test]
    fn rollback_lists_landed_bytes_and_pauses() {
        let mut predictor = predictor();
        predictor.received(24 + 100 + 24 + 30);
        let mut pieces = Vec::new();
        predictor.rollback(|landed| pieces.push(landed));
        let expected = [
            LandedBytes::Data { cid: 7, len: 100 },
            LandedBytes::Overflow(24..48),
            LandedBytes::Data { cid: 8, len: 30 },
            LandedBytes::Overflow(48..48),
        ];
        assert_eq!(pieces, expected);
        assert!(!predictor.has_unverified());
        assert!(!predictor.begin(200, true, 24));
        assert!(predictor.begin(200, true, 24));
    }
}

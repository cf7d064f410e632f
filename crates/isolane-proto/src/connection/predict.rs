//! Speculative receive: predicts the next PDUs, so that one `readv` places their data without a copy.
//!
//! Data usually arrives in the order in which it was requested, so a receive plan continues as header,
//! destination, header, destination, and so on. The caller compares each header with its prediction.
//! After a wrong prediction, the bytes that landed are gathered and read again.
//!
//! Invariant: while predicted bytes are unverified, nothing else is placed into a predicted destination,
//! and none of these bytes leaves the connection.

use std::ops::Range;

use arrayvec::ArrayVec;

/// The most PDUs that one plan predictor.
pub(crate) const MAX_PREDICTIONS: usize = 32;

/// One guessed PDU: all data of a command. The number names the place that it is read to: a target, which
/// does not know the command yet, counts the places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prediction {
    pub(crate) cid: u16,
    pub(crate) len: usize,
}

/// Predictions for the current receive.
pub(crate) struct Predictor {
    list: ArrayVec<Prediction, MAX_PREDICTIONS>,
    /// Number of confirmed predictions, from the front.
    verified: usize,
    /// Received bytes behind the unread ones: from the data of `list[verified]` on.
    left: usize,
    /// Bytes before the first guessed data, and between one and the next, as they were planned.
    first_gap: usize,
    gap: usize,
    /// Bytes between the last data and the one before; 0 if they were too many.
    learned_gap: usize,
    /// Position in the stream where the last data ended.
    data_end: u64,
    /// Predictor worth a try: as many as lately came true at a time, and some.
    window: usize,
    /// Receives without a guess until the next try, and how many there will be after the next wrong one.
    pause: u32,
    penalty: u32,
}

impl Predictor {
    pub(crate) fn new() -> Predictor {
        Predictor {
            list: ArrayVec::new(),
            verified: 0,
            left: 0,
            first_gap: 0,
            gap: 0,
            learned_gap: 0,
            data_end: 0,
            window: MIN_WINDOW,
            pause: 0,
            penalty: 1,
        }
    }

    /// A new plan begins where `position` bytes have been received. Whether to guess. `prefix` bytes come
    /// before data if nothing else does, and no PDU is cut at the position.
    pub(crate) fn begin(&mut self, position: u64, is_at_boundary: bool, prefix: usize) -> bool {
        debug_assert!(self.left == 0, "guessed bytes were not looked at");
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

    /// Notes a guess.
    pub(crate) fn push(&mut self, guess: Prediction) {
        self.list.push(guess);
    }

    /// Whether the window is full.
    pub(crate) fn is_full(&self) -> bool {
        self.list.len() >= self.window
    }

    /// Bytes in front of the data of the next guess.
    pub(crate) fn gap_before_next(&self) -> usize {
        if self.list.is_empty() { self.first_gap } else { self.gap }
    }

    /// `n` bytes of the guessed part of the plan arrived: what of the overflow comes first.
    pub(crate) fn received(&mut self, n: usize) -> Range<usize> {
        let first = match self.list.is_empty() {
            true => n,
            false => n.min(self.first_gap),
        };
        self.left = n - first;
        0..first
    }

    /// Whether bytes lie where they may not belong.
    #[inline]
    pub(crate) fn has_unverified(&self) -> bool {
        self.left > 0
    }

    /// The guess that is to be verified next.
    #[inline]
    pub(crate) fn next(&self) -> Option<Prediction> {
        self.list.get(self.verified).copied()
    }

    /// Whether the next `len` bytes of data have arrived.
    #[inline]
    pub(crate) fn is_whole(&self, len: usize) -> bool {
        len <= self.left
    }

    /// Whether this command is among those that are still to be verified.
    #[inline]
    pub(crate) fn has(&self, cid: u16) -> bool {
        self.list[self.verified..].iter().any(|guess| guess.cid == cid)
    }

    /// How much of the data of the next guess has come.
    pub(crate) fn placed(&self, next: Prediction) -> usize {
        next.len.min(self.left)
    }

    /// The next guess is right: how many bytes of its data are in their place, and what of the overflow
    /// follows.
    pub(crate) fn confirm(&mut self) -> (usize, Range<usize>) {
        let placed = self.next().map_or(0, |guess| self.placed(guess));
        (placed, self.confirm_placed(placed))
    }

    /// The next guess is right, and so many bytes of its data are in their place: what of the overflow
    /// follows.
    #[inline(always)]
    pub(crate) fn confirm_placed(&mut self, placed: usize) -> Range<usize> {
        self.verified += 1;
        let start = self.scratch_start(self.verified);
        let behind = match self.verified < self.list.len() {
            true => self.gap.min(self.left - placed),
            false => self.left - placed,
        };
        self.left -= placed + behind;
        start..start + behind
    }

    /// A guess was wrong: the pieces that the unverified bytes lie in, in their order, each with its length.
    /// Nothing is open afterwards, and it takes a while until the next try.
    pub(crate) fn rollback(&mut self, mut piece: impl FnMut(Piece)) {
        for at in self.verified..self.list.len() {
            let (placed, behind) = (self.list[at], at + 1);
            let len = placed.len.min(self.left);
            piece(Piece::Data { cid: placed.cid, len });
            self.left -= len;
            let len = if behind < self.list.len() { self.gap.min(self.left) } else { self.left };
            let start = self.scratch_start(behind);
            piece(Piece::Overflow(start..start + len));
            self.left -= len;
        }
        self.list.clear();
        self.verified = 0;
        self.pause = self.penalty;
        self.penalty = (self.penalty * 2).min(MAX_PENALTY);
    }

    /// Data begins at this position of the stream and has this length: what lies between two of them is
    /// learned.
    #[inline]
    pub(crate) fn observe(&mut self, start: u64, len: usize) {
        let gap = start.saturating_sub(self.data_end);
        self.learned_gap = if gap <= MAX_GAP as u64 { gap as usize } else { 0 };
        self.data_end = start + len as u64;
    }

    /// Forgets what was guessed.
    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.verified = 0;
        self.left = 0;
    }

    /// The last plan is done with.
    fn end_plan(&mut self) {
        if self.verified > 0 {
            self.window = (2 * self.verified + 2).clamp(MIN_WINDOW, MAX_PREDICTIONS);
            self.penalty = (self.penalty / 2).max(1);
        }
        self.clear();
    }

    /// Where in the overflow the bytes in front of the guess `at` were read to.
    #[inline]
    fn scratch_start(&self, at: usize) -> usize {
        if at == 0 { 0 } else { self.first_gap + (at - 1) * self.gap }
    }
}

/// Where guessed bytes lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// At the start of the memory of this command.
    Data { cid: u16, len: usize },
    /// In the overflow.
    Overflow(Range<usize>),
}

/// Headers, digests and responses between two runs of data are shorter than this, or nothing is guessed.
const MAX_GAP: usize = 256;
const MIN_WINDOW: usize = 4;
/// The longest time without a try, in receives.
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
        predictor.rollback(|piece| pieces.push(piece));
        let expected = [
            Piece::Data { cid: 7, len: 100 },
            Piece::Overflow(24..48),
            Piece::Data { cid: 8, len: 30 },
            Piece::Overflow(48..48),
        ];
        assert_eq!(pieces, expected);
        assert!(!predictor.has_unverified());
        assert!(!predictor.begin(200, true, 24));
        assert!(predictor.begin(200, true, 24));
    }
}

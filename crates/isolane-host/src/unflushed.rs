//! Acknowledged writes that no flush has covered, and the era of the target that acknowledged them.
//!
//! A host cannot tell a target that restarted from a network break, but an Isolane target reports a generation. If
//! that changes while acknowledged writes are not flushed, the target has lost them, and a flush that succeeded
//! would claim the opposite: the next one fails. Against other targets flushes succeed, as they do with Linux,
//! unless [`FlushAfterLoss::Fail`] is chosen; then every loss of the association counts.
//!
//! Invariant: a flush that succeeds covers every write that was acknowledged before it was submitted, unless the
//! target reports no generation and the caller trusts it, or an earlier flush has failed for the write.

use isolane_wire::log::RestartLoss;

use crate::error::{LossCause, RequestError};
use crate::info::{Generation, Info, NamespaceInfo};
use crate::options::FlushAfterLoss;

/// A period in which the target loses no acknowledged write, as one word: the writes that its end takes away,
/// and a mark that differs from the next period.
///
/// Bits 1:0 are the code of [`RestartLoss`], bit 2 is set if the target reports its generation, bits 63:3 are
/// the mark. A mark of 0 equals every other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Era(u64);

impl Era {
    /// Returns the era that an association with a namespace belongs to.
    pub(crate) fn new(info: &Info, namespace: &NamespaceInfo, after_loss: FlushAfterLoss) -> Era {
        let new = |loses: RestartLoss, is_reported: bool, mark: u64| {
            Era(u64::from(loses.code()) | u64::from(is_reported) << 2 | mark << 3)
        };
        match (namespace.generation, after_loss) {
            (Some(Generation { id, loses }), _) => {
                let (high, low) = id.as_u64_pair();
                // An odd factor, so that no two different halves cancel each other out in a pattern.
                new(loses, true, ((high.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ low) >> 3).max(1))
            }
            (None, _) if !info.controller.has_volatile_cache => new(RestartLoss::Nothing, false, 0),
            (None, FlushAfterLoss::Trust) => new(RestartLoss::Cache, false, 0),
            (None, FlushAfterLoss::Fail) => new(RestartLoss::Cache, false, fastrand::u64(1..1 << 61)),
        }
    }

    /// Returns the era as a word.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Decodes a word. Returns `None` if it is not an era.
    pub fn from_bits(bits: u64) -> Option<Era> {
        let era = Era(bits);
        (bits == 0 || era.loses().is_some()).then_some(era)
    }

    fn loses(self) -> Option<RestartLoss> {
        RestartLoss::decode((self.0 & 0b11) as u8)
    }

    fn is_reported(self) -> bool {
        self.0 & 0b100 != 0
    }

    fn mark(self) -> u64 {
        self.0 >> 3
    }

    /// The least change that the end of the era takes away.
    fn least_at_risk(self) -> u8 {
        match self.loses() {
            Some(RestartLoss::Content) => Change::Durable as u8,
            Some(RestartLoss::Cache) => Change::Volatile as u8,
            Some(RestartLoss::Nothing) | None => u8::MAX,
        }
    }
}

/// Kind of change that a command makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Change {
    /// No block.
    Nothing = 0,
    /// Blocks, durably (Force Unit Access).
    Durable = 1,
    /// Blocks, in a cache perhaps.
    Volatile = 2,
}

/// The writes that a flush covers, and the losses that its caller may know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlushMark {
    /// Changes acknowledged before it was sent.
    pub covers: u64,
    /// Losses reported before it was submitted.
    reports: u64,
}

/// Acknowledged changes at risk.
#[derive(Debug, Default)]
pub(crate) struct Unflushed {
    /// The era of the last acknowledgment, with the mark of the last era that has one.
    era: Era,
    /// That era as it was given.
    given: Era,
    least_at_risk: u8,
    /// Changes acknowledged.
    acknowledged: u64,
    /// Of those, the ones that are flushed, or counted as lost.
    covered: u64,
    /// The last loss, and whether a flush still has to report it.
    loss: Option<(u64, LossCause)>,
    pending: bool,
    reports: u64,
    left_to_caller: bool,
}

impl Unflushed {
    /// Nothing is at risk before the first era.
    pub(crate) fn new() -> Unflushed {
        Unflushed { least_at_risk: u8::MAX, ..Unflushed::default() }
    }

    /// Makes all later flushes succeed: the caller tracks losses for each of its users.
    pub(crate) fn leave_to_caller(&mut self) {
        self.left_to_caller = true;
        self.least_at_risk = u8::MAX;
    }

    /// The era of the last acknowledgment.
    pub(crate) fn era(&self) -> Era {
        self.era
    }

    /// Enters the era of the following acknowledgments. Returns the error of the next flush if the end of the
    /// previous era has lost writes.
    #[inline]
    pub(crate) fn enter(&mut self, era: Era) -> Option<RequestError> {
        if era == self.given { None } else { self.change_era(era) }
    }

    #[cold]
    fn change_era(&mut self, era: Era) -> Option<RequestError> {
        let before = std::mem::replace(&mut self.era, era);
        self.given = era;
        if era.mark() == 0 {
            // What it has lost cannot be known before there is a mark again.
            self.era.0 |= before.0 & !0b11;
        }
        if !self.left_to_caller {
            self.least_at_risk = era.least_at_risk();
        }
        let has_ended = before.mark() != 0 && before.mark() != self.era.mark();
        let lost = self.acknowledged - self.covered;
        if !has_ended || lost == 0 {
            return None;
        }
        let cause = match before.loses() {
            _ if !before.is_reported() || !era.is_reported() => LossCause::Unknown,
            Some(RestartLoss::Content) => LossCause::Content,
            _ => LossCause::Cache,
        };
        self.covered = self.acknowledged;
        self.loss = Some((lost, cause));
        self.pending = true;
        self.error()
    }

    /// A command was acknowledged.
    #[inline(always)]
    pub(crate) fn on_change(&mut self, change: Change) {
        self.acknowledged += u64::from(change as u8 >= self.least_at_risk);
    }

    /// Marks a flush that is submitted, or sent, now.
    pub(crate) fn mark(&self) -> FlushMark {
        FlushMark { covers: self.acknowledged, reports: self.reports }
    }

    /// A flush was acknowledged.
    ///
    /// # Errors
    /// It is the first after a loss, or its caller submitted it before another one had reported the loss.
    pub(crate) fn on_flushed(&mut self, mark: FlushMark) -> Result<(), RequestError> {
        if self.pending || mark.reports != self.reports {
            self.reports += u64::from(std::mem::take(&mut self.pending));
            return self.error().map_or(Ok(()), Err);
        }
        if self.era.loses() != Some(RestartLoss::Content) {
            self.covered = self.covered.max(mark.covers);
        }
        Ok(())
    }

    fn error(&self) -> Option<RequestError> {
        self.loss.map(|(writes, cause)| RequestError::WritesLost { writes, cause })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn era(loses: RestartLoss, mark: u64) -> Era {
        Era(u64::from(loses.code()) | 0b100 | mark << 3)
    }

    fn written(loses: RestartLoss, changes: &[Change]) -> Unflushed {
        let mut unflushed = Unflushed::new();
        assert!(unflushed.enter(era(loses, 1)).is_none());
        changes.iter().for_each(|&change| unflushed.on_change(change));
        unflushed
    }

    /// The count that a flush reports now.
    fn lost(unflushed: &mut Unflushed) -> Option<u64> {
        match unflushed.on_flushed(unflushed.mark()) {
            Ok(()) => None,
            Err(RequestError::WritesLost { writes, .. }) => Some(writes),
            Err(error) => panic!("{error}"),
        }
    }

    const ALL: [Change; 4] = [Change::Volatile, Change::Durable, Change::Nothing, Change::Volatile];

    #[test]
    fn reports_each_loss_once() {
        let mut unflushed = written(RestartLoss::Cache, &ALL);
        assert!(unflushed.enter(era(RestartLoss::Cache, 2)).is_some());
        assert_eq!((lost(&mut unflushed), lost(&mut unflushed)), (Some(2), None));
        unflushed.on_change(Change::Volatile);
        unflushed.enter(era(RestartLoss::Cache, 3));
        assert_eq!((lost(&mut unflushed), lost(&mut unflushed)), (Some(1), None));
    }

    #[test]
    fn counts_what_the_era_loses() {
        for (loses, expected) in
            [(RestartLoss::Nothing, None), (RestartLoss::Cache, Some(2)), (RestartLoss::Content, Some(3))]
        {
            let mut unflushed = written(loses, &ALL);
            unflushed.enter(era(loses, 2));
            assert_eq!(lost(&mut unflushed), expected, "{loses:?}");
        }
    }

    #[test]
    fn flush_covers_writes_acknowledged_before() {
        let mut unflushed = written(RestartLoss::Cache, &ALL);
        let mark = unflushed.mark();
        unflushed.on_change(Change::Volatile);
        assert!(unflushed.on_flushed(mark).is_ok());
        unflushed.enter(era(RestartLoss::Cache, 2));
        assert_eq!(lost(&mut unflushed), Some(1));
    }

    #[test]
    fn flush_covers_no_memory_volume() {
        let mut unflushed = written(RestartLoss::Content, &ALL);
        assert_eq!(lost(&mut unflushed), None);
        unflushed.enter(era(RestartLoss::Content, 2));
        assert_eq!(lost(&mut unflushed), Some(3));
    }

    #[test]
    fn fails_flushes_submitted_before_report() {
        let mut unflushed = written(RestartLoss::Cache, &ALL);
        let marks = [unflushed.mark(), unflushed.mark()];
        unflushed.enter(era(RestartLoss::Cache, 2));
        assert!(marks.map(|mark| unflushed.on_flushed(mark).is_err()) == [true, true]);
        assert_eq!(lost(&mut unflushed), None);
    }

    #[test]
    fn association_without_mark_proves_nothing() {
        let mut unflushed = written(RestartLoss::Cache, &ALL);
        let unknown = Era(u64::from(RestartLoss::Cache.code()));
        assert!(unflushed.enter(unknown).is_none());
        unflushed.on_change(Change::Volatile);
        assert!(unflushed.enter(era(RestartLoss::Cache, 1)).is_none());
        assert!(unflushed.enter(unknown).is_none());
        assert!(unflushed.enter(era(RestartLoss::Cache, 2)).is_some());
        assert_eq!(lost(&mut unflushed), Some(3));
    }

    #[test]
    fn nothing_is_reported_where_the_caller_keeps_track() {
        let mut unflushed = written(RestartLoss::Cache, &[]);
        unflushed.leave_to_caller();
        unflushed.on_change(Change::Volatile);
        unflushed.enter(era(RestartLoss::Content, 2));
        unflushed.on_change(Change::Volatile);
        assert!(unflushed.enter(era(RestartLoss::Content, 3)).is_none());
        assert_eq!(lost(&mut unflushed), None);
    }

    #[test]
    fn words_that_are_no_era_are_none() {
        let era = era(RestartLoss::Content, 1 << 60);
        assert_eq!(Era::from_bits(era.bits()), Some(era));
        assert_eq!((Era::from_bits(0), Era::from_bits(8)), (Some(Era::default()), None));
    }
}

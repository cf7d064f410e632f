//! Receive plans: the known destination, predicted destinations, then the overflow.

use std::io::IoSliceMut;

use isolane_memory::Buffer;

use super::Receiver;
use crate::connection::plan::{MAX_RECEIVE_SLICES, ReceivePlan};
use crate::connection::predict::Prediction;

impl Receiver {
    /// Where the next bytes go: `destination` takes the data of the running PDU, and `overflow` what follows.
    pub(crate) fn plan<'a>(
        &mut self,
        plan: &mut ReceivePlan<'a>,
        destination: Option<&'a mut Buffer>,
        overflow: &'a mut [u8],
    ) {
        if self.plan_destination(plan, destination) {
            self.plan_overflow(plan, overflow);
        }
    }

    /// The same, and `guessed` takes what probably follows: each guess with the pieces of its place.
    pub(crate) fn plan_ahead<'a, P: ExactSizeIterator<Item = &'a mut [u8]>>(
        &mut self,
        plan: &mut ReceivePlan<'a>,
        destination: Option<&'a mut Buffer>,
        guessed: impl Iterator<Item = (Prediction, P)>,
        overflow: &'a mut [u8],
    ) {
        if self.plan_destination(plan, destination) {
            self.plan_predicted(plan, guessed, overflow);
        }
    }

    /// Whether more may follow.
    fn plan_destination<'a>(
        &mut self,
        plan: &mut ReceivePlan<'a>,
        destination: Option<&'a mut Buffer>,
    ) -> bool {
        self.planned_direct = 0;
        if self.input.is_deferred() {
            return false;
        }
        let Some(buffer) = destination else { return true };
        let (planned, is_whole) = self.body.plan(buffer, plan);
        self.planned_direct = planned;
        is_whole
    }

    /// Whether the next plan shall go on with predictor.
    pub(crate) fn should_predict(&mut self) -> bool {
        let is_at_boundary = !self.input.is_mid_header() && self.body.is_whole();
        let is_worth_it = self.predictor.begin(self.input.received_bytes(), is_at_boundary, self.prefix);
        is_worth_it && !self.body.is_padded()
    }

    /// Header and data by turns, headers at the front of the overflow; then the rest of it, unless there is
    /// more to guess.
    fn plan_predicted<'a, P: ExactSizeIterator<Item = &'a mut [u8]>>(
        &mut self,
        plan: &mut ReceivePlan<'a>,
        mut guessed: impl Iterator<Item = (Prediction, P)>,
        overflow: &'a mut [u8],
    ) {
        let mut rest = overflow;
        let end = guessed.try_for_each(|(guess, pieces)| {
            if self.predictor.is_full() {
                return Err(Stop::Enough);
            }
            let gap = self.predictor.gap_before_next();
            let has_room = plan.slices.len() + pieces.len() + 2 <= MAX_RECEIVE_SLICES;
            if !has_room || rest.len() < gap + MIN_OVERFLOW_BYTES {
                return Err(Stop::NoRoom);
            }
            let (header, behind) = std::mem::take(&mut rest).split_at_mut(gap);
            plan.slices.push(IoSliceMut::new(header));
            pieces.for_each(|piece| plan.slices.push(IoSliceMut::new(piece)));
            self.predictor.push(guess);
            rest = behind;
            Ok(())
        });
        if end != Err(Stop::Enough) {
            self.plan_overflow(plan, rest);
        }
    }

    fn plan_overflow<'a>(&self, plan: &mut ReceivePlan<'a>, overflow: &'a mut [u8]) {
        let len = if self.long_expected > 0 { overflow.len().min(HEADERS_BYTES) } else { overflow.len() };
        plan.slices.push(IoSliceMut::new(&mut overflow[..len]));
    }
}

/// Why a plan predictor no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// The next plan predictor better than to copy what lands in the overflow.
    Enough,
    NoRoom,
}

/// Room for the headers that come between long data.
const HEADERS_BYTES: usize = 512;
/// What does not fit any guess needs some room, too.
const MIN_OVERFLOW_BYTES: usize = 4096;

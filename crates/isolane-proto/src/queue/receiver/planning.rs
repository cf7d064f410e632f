//! Where the next bytes go: to the known destination, to guessed places, and what is left to the overflow.

use std::io::IoSliceMut;

use isolane_memory::Buffer;

use super::Receiver;
use crate::queue::guess::Guess;
use crate::queue::plan::{RECEIVE_SLICES_MAX, ReceivePlan};

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
        guessed: impl Iterator<Item = (Guess, P)>,
        overflow: &'a mut [u8],
    ) {
        if self.plan_destination(plan, destination) {
            self.plan_guesses(plan, guessed, overflow);
        }
    }

    /// Whether more may follow.
    fn plan_destination<'a>(
        &mut self,
        plan: &mut ReceivePlan<'a>,
        destination: Option<&'a mut Buffer>,
    ) -> bool {
        self.planned_direct = 0;
        if self.inbox.is_deferred() {
            return false;
        }
        let Some(buffer) = destination else { return true };
        let (planned, is_whole) = self.body.plan(buffer, plan);
        self.planned_direct = planned;
        is_whole
    }

    /// Whether the next plan shall go on with guesses.
    pub(crate) fn shall_guess(&mut self) -> bool {
        let is_at_boundary = !self.inbox.is_mid_header() && self.body.is_whole();
        let is_worth_it = self.guesses.begin(self.inbox.received_bytes(), is_at_boundary, self.prefix);
        is_worth_it && !self.body.is_padded()
    }

    /// Header and data by turns, headers at the front of the overflow; then the rest of it, unless there is
    /// more to guess.
    fn plan_guesses<'a, P: ExactSizeIterator<Item = &'a mut [u8]>>(
        &mut self,
        plan: &mut ReceivePlan<'a>,
        mut guessed: impl Iterator<Item = (Guess, P)>,
        overflow: &'a mut [u8],
    ) {
        let mut rest = overflow;
        let end = guessed.try_for_each(|(guess, pieces)| {
            if self.guesses.are_enough() {
                return Err(Stop::Enough);
            }
            let gap = self.guesses.gap_before_next();
            let has_room = plan.slices.len() + pieces.len() + 2 <= RECEIVE_SLICES_MAX;
            if !has_room || rest.len() < gap + OVERFLOW_MIN {
                return Err(Stop::NoRoom);
            }
            let (header, behind) = std::mem::take(&mut rest).split_at_mut(gap);
            plan.slices.push(IoSliceMut::new(header));
            pieces.for_each(|piece| plan.slices.push(IoSliceMut::new(piece)));
            self.guesses.push(guess);
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

/// Why a plan guesses no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// The next plan guesses better than to copy what lands in the overflow.
    Enough,
    NoRoom,
}

/// Room for the headers that come between long data.
const HEADERS_BYTES: usize = 512;
/// What does not fit any guess needs some room, too.
const OVERFLOW_MIN: usize = 4096;

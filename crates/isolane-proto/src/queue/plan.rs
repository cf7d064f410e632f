//! What one `readv` and one `sendmsg` of a turn are given.
//!
//! A plan borrows the machine, so nothing can move under the kernel's pointers. It is never longer than the
//! arrays here: a turn is bounded. Plans are large, so who makes one in every turn has it filled where it
//! stays.

use std::io::{IoSlice, IoSliceMut};
use std::ops::{Deref, DerefMut};

use arrayvec::ArrayVec;

/// The most slices one receive plan holds: 64 of payload and the overflow, with room to spare.
pub const RECEIVE_SLICES_MAX: usize = 66;
/// The most slices one transmit plan holds.
pub const TRANSMIT_SLICES_MAX: usize = 256;
/// The most payload slices of a receive plan.
pub(crate) const DESTINATION_SLICES_MAX: usize = 64;
/// The most bytes of them: a turn is bounded.
pub(crate) const DESTINATION_BYTES_MAX: usize = 256 * 1024;

/// Where the next bytes of the connection go, in order: destinations of payload, then the overflow.
///
/// Empty when the machine must not be given bytes now (input was
/// [deferred](crate::target::Queue::defer_input)).
#[derive(Default)]
pub struct ReceivePlan<'a> {
    pub(crate) slices: ArrayVec<IoSliceMut<'a>, RECEIVE_SLICES_MAX>,
}

impl ReceivePlan<'_> {
    /// An empty plan, to be filled.
    #[inline]
    pub fn new() -> Self {
        ReceivePlan { slices: ArrayVec::new_const() }
    }
}

impl<'a> Deref for ReceivePlan<'a> {
    type Target = [IoSliceMut<'a>];

    fn deref(&self) -> &Self::Target {
        &self.slices
    }
}

impl DerefMut for ReceivePlan<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.slices
    }
}

/// What the connection sends next, in order: headers and counted references to payload.
#[derive(Default)]
pub struct TransmitPlan<'a> {
    slices: ArrayVec<IoSlice<'a>, TRANSMIT_SLICES_MAX>,
    bytes: usize,
}

impl<'a> TransmitPlan<'a> {
    /// An empty plan, to be filled.
    #[inline]
    pub fn new() -> Self {
        TransmitPlan { slices: ArrayVec::new_const(), bytes: 0 }
    }

    /// Bytes of all slices.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a slice; false when the plan is full.
    #[inline]
    pub(crate) fn push(&mut self, slice: &'a [u8]) -> bool {
        let is_taken = self.slices.try_push(IoSlice::new(slice)).is_ok();
        self.bytes += if is_taken { slice.len() } else { 0 };
        is_taken
    }

    /// As [`TransmitPlan::push`], for a piece of so many bytes that may be foreign memory.
    #[inline]
    pub(crate) fn push_piece(&mut self, (piece, len): (IoSlice<'a>, usize)) -> bool {
        let is_taken = self.slices.try_push(piece).is_ok();
        self.bytes += if is_taken { len } else { 0 };
        is_taken
    }
}

impl<'a> Deref for TransmitPlan<'a> {
    type Target = [IoSlice<'a>];

    fn deref(&self) -> &Self::Target {
        &self.slices
    }
}

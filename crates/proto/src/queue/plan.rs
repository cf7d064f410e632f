//! What one `readv` and one `sendmsg` of a turn are given.
//!
//! A plan borrows the machine, so nothing can move under the kernel's pointers. It is never longer than
//! the arrays here: a turn is bounded.

use std::io::{IoSlice, IoSliceMut};
use std::ops::{Deref, DerefMut};

use arrayvec::ArrayVec;

/// The most slices one receive plan holds: 64 of payload and the overflow, with room to spare.
pub const RECEIVE_SLICES_MAX: usize = 66;
/// The most slices one transmit plan holds.
pub const TRANSMIT_SLICES_MAX: usize = 256;
/// The most payload slices of a receive plan.
pub(crate) const DESTINATION_SLICES_MAX: usize = 64;

/// Where the next bytes of the connection go, in order: destinations of payload, then the overflow.
///
/// Empty when the machine must not be given bytes now (input was [deferred](crate::target::Queue::defer_input)).
pub struct ReceivePlan<'a> {
    pub(crate) slices: ArrayVec<IoSliceMut<'a>, RECEIVE_SLICES_MAX>,
}

impl ReceivePlan<'_> {
    pub(crate) fn new() -> Self {
        ReceivePlan { slices: ArrayVec::new() }
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
pub struct TransmitPlan<'a> {
    pub(crate) slices: ArrayVec<IoSlice<'a>, TRANSMIT_SLICES_MAX>,
}

impl<'a> Deref for TransmitPlan<'a> {
    type Target = [IoSlice<'a>];

    fn deref(&self) -> &Self::Target {
        &self.slices
    }
}

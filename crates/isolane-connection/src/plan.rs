//! Slices for one `readv` and one `sendmsg`.
//!
//! A plan borrows the connection, so nothing moves under the kernel's pointers. Plans are bounded
//! and large; callers that need one in every turn fill it in place.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Deref;

use arrayvec::ArrayVec;

/// Maximum number of slices of a receive plan: 64 of payload and the overflow.
pub const MAX_RECEIVE_SLICES: usize = 66;
/// Maximum number of slices of a transmit plan.
pub const MAX_TRANSMIT_SLICES: usize = 256;
/// Maximum number of payload slices of a receive plan.
pub const MAX_DESTINATION_SLICES: usize = 64;
/// Maximum payload bytes of a receive plan: a turn is bounded.
pub const MAX_DESTINATION_BYTES: usize = 256 * 1024;

/// Destinations of the next bytes of the connection, in order: payload, then the overflow.
///
/// Empty if the connection cannot receive now.
pub type ReceivePlan<'a> = ArrayVec<IoSliceMut<'a>, MAX_RECEIVE_SLICES>;

/// Bytes to send next, in order: headers and references to payload.
#[derive(Default)]
pub struct TransmitPlan<'a> {
    slices: ArrayVec<IoSlice<'a>, MAX_TRANSMIT_SLICES>,
    bytes: usize,
}

impl<'a> TransmitPlan<'a> {
    /// Returns an empty plan.
    #[inline]
    pub fn new() -> Self {
        TransmitPlan { slices: ArrayVec::new_const(), bytes: 0 }
    }

    /// Total length of all slices.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a slice. Returns `false` if the plan is full.
    #[inline]
    pub fn push(&mut self, slice: &'a [u8]) -> bool {
        self.push_io_slice((IoSlice::new(slice), slice.len()))
    }

    /// As [`TransmitPlan::push`], for a slice of `len` bytes that can be in shared memory.
    #[inline]
    pub fn push_io_slice(&mut self, (slice, len): (IoSlice<'a>, usize)) -> bool {
        let is_taken = self.slices.try_push(slice).is_ok();
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

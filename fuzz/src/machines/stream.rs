//! How bytes reach a machine: in pieces, through a plan.

use std::io::{IoSlice, IoSliceMut};

use fastrand::Rng;

/// Decides where the stream is cut.
pub(crate) struct Cutter {
    random: Option<Rng>,
    len_bits: std::ops::Range<u32>,
}

impl Cutter {
    /// Not at all: as much as fits.
    pub(crate) fn whole() -> Self {
        Self { random: None, len_bits: 0..14 }
    }

    /// Anywhere.
    pub(crate) fn random(seed: u64) -> Self {
        Self { random: Some(Rng::with_seed(seed)), len_bits: 0..14 }
    }

    /// Anywhere, but mostly behind several PDUs.
    pub(crate) fn bursts(seed: u64) -> Self {
        Self { random: Some(Rng::with_seed(seed)), len_bits: 12..18 }
    }

    /// Length of the next piece: often a few bytes, sometimes many.
    pub(crate) fn piece(&mut self) -> usize {
        match &mut self.random {
            None => usize::MAX,
            Some(random) => {
                let len_max = 1 << random.u32(self.len_bits.clone());
                random.usize(1..=len_max)
            }
        }
    }

    /// Length of the next overflow buffer.
    pub(crate) fn overflow(&mut self) -> usize {
        self.piece().clamp(16, 64 * 1024)
    }

    /// Whether to do something unusual now.
    pub(crate) fn is_whim(&mut self) -> bool {
        self.random.as_mut().is_some_and(|random| random.u8(..) < 24)
    }
}

/// Fills the slices of a receive plan from the front of `bytes`, `len_max` bytes at most.
pub(crate) fn fill(plan: &mut [IoSliceMut<'_>], bytes: &mut &[u8], len_max: usize) -> usize {
    let mut left = len_max;
    for slice in plan {
        let len = slice.len().min(bytes.len()).min(left);
        let (front, rest) = bytes.split_at(len);
        slice[..len].copy_from_slice(front);
        *bytes = rest;
        left -= len;
    }
    len_max - left
}

/// Takes the first bytes of a transmit plan, `len_max` at most.
pub(crate) fn take(plan: &[IoSlice<'_>], len_max: usize, bytes: &mut Vec<u8>) -> usize {
    let start = bytes.len();
    for slice in plan {
        let left = len_max - (bytes.len() - start);
        bytes.extend_from_slice(&slice[..slice.len().min(left)]);
    }
    bytes.len() - start
}

//! Splits a byte stream into pieces that go through receive and transmit plans.

use std::io::{IoSlice, IoSliceMut};

use fastrand::Rng;

/// Chooses where the stream is split.
pub(crate) struct Splitter {
    random: Option<Rng>,
    len_bits: std::ops::Range<u32>,
}

impl Splitter {
    /// Never splits: as much as fits.
    pub(crate) fn whole() -> Self {
        Self { random: None, len_bits: 0..14 }
    }

    /// Splits anywhere.
    pub(crate) fn random(seed: u64) -> Self {
        Self { random: Some(Rng::with_seed(seed)), len_bits: 0..14 }
    }

    /// Splits anywhere, mostly after several PDUs.
    pub(crate) fn bursts(seed: u64) -> Self {
        Self { random: Some(Rng::with_seed(seed)), len_bits: 12..18 }
    }

    /// Length of the next piece: often a few bytes, sometimes many.
    pub(crate) fn piece(&mut self) -> usize {
        match &mut self.random {
            None => usize::MAX,
            Some(random) => {
                let max_len = 1 << random.u32(self.len_bits.clone());
                random.usize(1..=max_len)
            }
        }
    }

    /// Length of the next overflow buffer.
    pub(crate) fn overflow(&mut self) -> usize {
        self.piece().clamp(16, 64 * 1024)
    }

    /// Whether to take a rare path now.
    pub(crate) fn coin_flip(&mut self) -> bool {
        self.random.as_mut().is_some_and(|random| random.u8(..) < 24)
    }
}

/// Fills the slices of a receive plan from the front of `bytes`, `max_len` bytes at most.
pub(crate) fn fill(plan: &mut [IoSliceMut<'_>], bytes: &mut &[u8], max_len: usize) -> usize {
    let mut left = max_len;
    for slice in plan {
        let len = slice.len().min(bytes.len()).min(left);
        let (front, rest) = bytes.split_at(len);
        slice[..len].copy_from_slice(front);
        *bytes = rest;
        left -= len;
    }
    max_len - left
}

/// Takes the first bytes of a transmit plan, `max_len` at most.
pub(crate) fn take(plan: &[IoSlice<'_>], max_len: usize, bytes: &mut Vec<u8>) -> usize {
    let start = bytes.len();
    for slice in plan {
        let left = max_len - (bytes.len() - start);
        bytes.extend_from_slice(&slice[..slice.len().min(left)]);
    }
    bytes.len() - start
}

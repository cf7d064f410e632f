//! Messages of a direction: each follows from the seed of the direction and its number, so both ends know all of them.

use fastrand::Rng;

/// Number of messages in flight in one direction, each with a slot of memory at both ends.
pub(super) const DEPTH: u64 = 32;
/// Maximum length of a message in bytes.
pub(super) const MAX_BYTES: u32 = 1 << 20;
/// Length of the memory that an end offers for READs.
pub(super) const POOL_BYTES: u64 = 2 << 20;

/// Kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Send {
        immediate: bool,
    },
    Write {
        immediate: bool,
    },
    /// Of the pool of the other end, from an offset on.
    Read {
        from: u64,
    },
    /// Of one word of the other end.
    FetchAdd {
        add: u64,
    },
    /// Expects the value that the word has, or another one.
    CompareSwap {
        is_equal: bool,
        swap: u64,
    },
}

/// A message of a direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    pub(super) number: u64,
    pub(super) kind: Kind,
    pub(super) length: u32,
    content: u64,
}

impl Message {
    /// Returns a message of the direction with a seed, which has `count` messages.
    pub(super) fn new(seed: u64, number: u64, count: u64) -> Message {
        let mut rng = Rng::with_seed(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let length = match rng.u16(0..1000) {
            0 => rng.u32(0..=MAX_BYTES),
            1..20 => rng.u32(0..=20_000),
            _ => rng.u32(0..=512),
        };
        // A receive proves the WRITEs before it, so that their slots can be used again.
        let is_proof = number + 1 == count || number.is_multiple_of(DEPTH / 4);
        let kind = match rng.u8(0..6) {
            _ if is_proof => Kind::Send { immediate: rng.bool() },
            0 => Kind::Send { immediate: rng.bool() },
            1 | 2 => Kind::Write { immediate: rng.bool() },
            3 => Kind::Read { from: rng.u64(0..POOL_BYTES - u64::from(length)) },
            4 => Kind::FetchAdd { add: rng.u64(..) },
            _ => Kind::CompareSwap { is_equal: rng.bool(), swap: rng.u64(..) },
        };
        let is_atomic = matches!(kind, Kind::FetchAdd { .. } | Kind::CompareSwap { .. });
        Message { number, kind, length: if is_atomic { 8 } else { length }, content: rng.u64(..) }
    }

    /// Returns the bytes of a SEND or a WRITE.
    pub(super) fn bytes(&self) -> Vec<u8> {
        random_bytes(self.content, self.length as usize)
    }

    /// Returns the immediate data.
    pub(super) fn immediate(&self) -> Option<u32> {
        let has_immediate =
            matches!(self.kind, Kind::Send { immediate: true } | Kind::Write { immediate: true });
        has_immediate.then_some(self.number as u32)
    }

    /// Whether it completes a receive of the other end.
    pub(super) fn consumes_receive(&self) -> bool {
        matches!(self.kind, Kind::Send { .. } | Kind::Write { immediate: true })
    }

    /// Whether it fills its slot at the other end.
    pub(super) fn fills_peer(&self) -> bool {
        matches!(self.kind, Kind::Send { .. } | Kind::Write { .. })
    }
}

/// Returns the bytes that a seed stands for.
pub(super) fn random_bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

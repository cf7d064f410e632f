//! The random values of one transaction, and the sequence numbers of challenges.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use isolane_wire::auth::Hash;
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::dh::Exponent;
use crate::digest::{Digest, MAX_BYTES};

/// Random values and a sequence number, for one transaction of one side.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct Nonces {
    challenge: [u8; MAX_BYTES],
    exponent: [u8; Exponent::BYTES],
    sequence: u32,
}

/// The kernel has no random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the kernel returns no random bytes: {0}")]
pub struct RandomError(getrandom::Error);

impl From<getrandom::Error> for RandomError {
    fn from(error: getrandom::Error) -> RandomError {
        RandomError(error)
    }
}

impl Nonces {
    /// New values from the kernel.
    ///
    /// # Errors
    ///
    /// The kernel has none.
    pub fn generate() -> Result<Nonces, RandomError> {
        let mut random = Nonces { challenge: [0; MAX_BYTES], exponent: [0; Exponent::BYTES], sequence: 0 };
        getrandom::fill(&mut random.challenge).map_err(RandomError)?;
        getrandom::fill(&mut random.exponent).map_err(RandomError)?;
        random.sequence = next_sequence()?;
        Ok(random)
    }

    /// Values that `seed` determines, for tests.
    pub fn from_seed(seed: u8) -> Nonces {
        Nonces {
            challenge: std::array::from_fn(|at| seed.wrapping_mul(31).wrapping_add(at as u8)),
            exponent: std::array::from_fn(|at| seed.wrapping_mul(17).wrapping_add(at as u8)),
            sequence: u32::from(seed) + 1,
        }
    }

    /// The challenge.
    pub fn challenge(&self, hash: Hash) -> Digest {
        Digest::new(&self.challenge[..hash.len_bytes()])
    }

    /// The random bytes of the private exponent.
    pub fn exponent(&self) -> &[u8; Exponent::BYTES] {
        &self.exponent
    }

    /// SEQNUM of the challenge, not 0.
    pub fn sequence(&self) -> u32 {
        self.sequence
    }
}

/// Sequence numbers start at a random number and increase by one; 0 is reserved (Base 2.2 §8.3.4.5.3).
fn next_sequence() -> Result<u32, RandomError> {
    static NEXT: OnceLock<AtomicU32> = OnceLock::new();
    let start = getrandom::u32().map_err(RandomError)?;
    let next = NEXT.get_or_init(|| AtomicU32::new(start));
    match next.fetch_add(1, Ordering::Relaxed) {
        0 => Ok(next.fetch_add(1, Ordering::Relaxed).max(1)),
        sequence => Ok(sequence),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_increase_and_challenges_differ() {
        let (one, two) = (Nonces::generate().unwrap(), Nonces::generate().unwrap());
        assert_ne!(one.sequence(), two.sequence());
        assert_ne!(one.sequence(), 0);
        assert!(!one.challenge(Hash::Sha256).matches(two.challenge(Hash::Sha256).as_bytes()));
        assert_ne!(one.exponent(), two.exponent());
        assert_eq!(one.challenge(Hash::Sha384).as_bytes().len(), 48);
    }
}

//! The Diffie-Hellman exchange of one transaction, in constant time.
//!
//! Values have the width of the modulus: leading zeroes are part of a shared secret (Base 2.2 §8.3.4.5.3).

use crypto_bigint::modular::BoxedMontyForm;
use crypto_bigint::{BoxedUint, CtLt, Resize};
use isolane_wire::auth::DhGroup;
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::ffdhe::{Field, field};

/// A private exponent. Its exponentiations take milliseconds: run them outside of an event loop.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Exponent {
    #[zeroize(skip)]
    group: DhGroup,
    bytes: [u8; Exponent::BYTES],
}

/// A shared secret, with the width of the modulus.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct SharedSecret(Vec<u8>);

/// The value of the peer is 0, 1, p - 1, p or larger, or too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the DH value is not in the range 2 to p - 2 of {0}")]
pub struct UnusableDhValue(pub DhGroup);

impl Exponent {
    /// Length of the random bytes of an exponent: the longest one has 400 bits.
    pub const BYTES: usize = 50;

    /// An exponent of these random bytes; `None` for the NULL group.
    pub fn new(group: DhGroup, random: &[u8; Exponent::BYTES]) -> Option<Exponent> {
        let bits = field(group)?.exponent_bits as usize;
        let mut exponent = Exponent { group, bytes: *random };
        // The highest bit is set, so that an exponent is never short.
        let unused = Exponent::BYTES * 8 - bits;
        exponent.bytes[..unused / 8].fill(0);
        let top = 0x80 >> (unused % 8);
        exponent.bytes[unused / 8] = exponent.bytes[unused / 8] & (top - 1) | top;
        Some(exponent)
    }

    /// The group of the exponent.
    pub fn group(&self) -> DhGroup {
        self.group
    }

    /// Computes the value for the peer, g^x mod p.
    pub fn public_value(&self) -> Vec<u8> {
        let field = self.field();
        let generator = BoxedUint::from(2u64).resize(field.modulus.bits_precision());
        self.power(generator, field)
    }

    /// Computes the shared secret from the value of the peer. A shorter value has leading zeroes.
    ///
    /// # Errors
    ///
    /// The peer's value would lead to a known secret, or is not in the field (RFC 7919 §5.1).
    pub fn shared_secret(&self, peer: &[u8]) -> Result<SharedSecret, UnusableDhValue> {
        let (field, unusable) = (self.field(), UnusableDhValue(self.group));
        let precision = field.modulus.bits_precision();
        let peer = BoxedUint::from_be_slice(peer, precision).map_err(|_| unusable)?;
        let one = BoxedUint::one_with_precision(precision);
        let largest = field.modulus.modulus().as_ref().wrapping_sub(&one);
        if !bool::from(one.ct_lt(&peer) & peer.ct_lt(&largest)) {
            return Err(unusable);
        }
        Ok(SharedSecret(self.power(peer, field)))
    }

    fn power(&self, base: BoxedUint, field: &Field) -> Vec<u8> {
        let exponent = BoxedUint::from_be_slice(&self.bytes, Exponent::BYTES as u32 * 8);
        let mut exponent = exponent.expect("the precision is that of the bytes");
        let power = BoxedMontyForm::new(base, &field.modulus).pow_bounded_exp(&exponent, field.exponent_bits);
        exponent.zeroize();
        power.retrieve().to_be_bytes().into_vec()
    }

    fn field(&self) -> &'static Field {
        field(self.group).expect("the NULL group has no exponents")
    }
}

impl SharedSecret {
    #[cfg(test)]
    pub(crate) fn from_bytes(bytes: Vec<u8>) -> SharedSecret {
        SharedSecret(bytes)
    }

    /// The bytes of the secret.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests;

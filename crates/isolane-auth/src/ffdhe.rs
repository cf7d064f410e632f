//! The finite fields of RFC 7919, computed from their definition.
//!
//! RFC 7919 §A: "p = 2^b - 2^{b-64} + {[2^{b-130} e] + X} * 2^64 - 1", with the generator 2.

use std::sync::OnceLock;

use crypto_bigint::modular::BoxedMontyParams;
use crypto_bigint::{BoxedUint, Odd, Resize};
use isolane_wire::auth::DhGroup;

/// One group: its modulus, prepared for modular arithmetic, and the length of exponents.
pub(crate) struct Field {
    pub(crate) modulus: BoxedMontyParams,
    /// Length of a private exponent in bits: twice the strength of the group (RFC 7919 §5.2).
    pub(crate) exponent_bits: u32,
}

/// Returns the field of a group; `None` for the NULL group.
pub(crate) fn field(group: DhGroup) -> Option<&'static Field> {
    static FIELDS: [OnceLock<Field>; 5] = [const { OnceLock::new() }; 5];
    let (at, x, exponent_bits) = match group {
        DhGroup::Null => return None,
        DhGroup::Ffdhe2048 => (0, 560_316, 225),
        DhGroup::Ffdhe3072 => (1, 2_625_351, 275),
        DhGroup::Ffdhe4096 => (2, 5_736_041, 325),
        DhGroup::Ffdhe6144 => (3, 15_705_020, 375),
        DhGroup::Ffdhe8192 => (4, 10_965_728, 400),
    };
    let bits = group.len_bytes() as u32 * 8;
    Some(FIELDS[at].get_or_init(|| {
        let modulus = Odd::new(prime(bits, x)).expect("p is odd: its lowest 64 bits are set");
        Field { modulus: BoxedMontyParams::new(modulus), exponent_bits }
    }))
}

/// The prime of `bits` bits whose offset in RFC 7919 is `x`. The lowest 64 bits are ones, with a borrow
/// from the bits above: m * 2^64 - 1 = (m - 1) * 2^64 + (2^64 - 1).
fn prime(bits: u32, x: u64) -> BoxedUint {
    let ones = BoxedUint::from(u64::MAX).resize(bits);
    let middle = (euler(bits - 130) + BoxedUint::from(x - 1)).resize(bits);
    ones.shl(bits - 64) | middle.shl(64) | ones
}

/// [2^`bits` e], from the series of 1/k!.
fn euler(bits: u32) -> BoxedUint {
    let precision = bits + GUARD_BITS + 64;
    let mut term = BoxedUint::one_with_precision(precision).shl(bits + GUARD_BITS);
    let mut sum = BoxedUint::zero_with_precision(precision);
    for k in 1u64.. {
        if bool::from(term.is_zero()) {
            break;
        }
        sum = sum.wrapping_add(&term);
        term = term.wrapping_div_vartime(&crypto_bigint::NonZero::new(BoxedUint::from(k)).expect("k > 0"));
    }
    sum.shr(GUARD_BITS)
}

/// Bits that absorb the rounding of the terms of the series.
const GUARD_BITS: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// The last word but one of each prime in RFC 7919 §A; all of them start with the digits of e.
    #[test]
    fn primes_are_those_of_rfc_7919() {
        let words = [
            (DhGroup::Ffdhe2048, 0x886b_4238_6128_5c97_u64),
            (DhGroup::Ffdhe3072, 0x25e4_1d2b_66c6_2e37),
            (DhGroup::Ffdhe4096, 0xc68a_007e_5e65_5f6a),
            (DhGroup::Ffdhe6144, 0xa40e_329c_d0e4_0e65),
            (DhGroup::Ffdhe8192, 0xd68c_8bb7_c5c6_424c),
        ];
        for (group, last) in words {
            let modulus = field(group).unwrap().modulus.modulus().to_be_bytes();
            assert_eq!(modulus.len(), group.len_bytes());
            let word = |at: usize| u64::from_be_bytes(modulus[at * 8..at * 8 + 8].try_into().unwrap());
            assert_eq!((word(0), word(1)), (u64::MAX, 0xadf8_5458_a2bb_4a9a), "{group}");
            let end = group.len_bytes() / 8;
            assert_eq!((word(end - 2), word(end - 1)), (last, u64::MAX), "{group}");
        }
    }
}

//! Hash values and HMAC over the three hash functions.

use hmac::{Hmac, KeyInit, Mac};
use isolane_wire::auth::Hash;
use sha2::{Digest as _, Sha256, Sha384, Sha512};
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// Length of the longest hash value in bytes.
pub(crate) const MAX_BYTES: usize = 64;

/// A value of one of the hash functions. Comparison takes constant time.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Digest {
    bytes: [u8; MAX_BYTES],
    len: usize,
}

impl Digest {
    /// A value of these bytes; those after the longest hash value are dropped.
    pub fn new(value: &[u8]) -> Digest {
        let len = value.len().min(MAX_BYTES);
        let mut bytes = [0; MAX_BYTES];
        bytes[..len].copy_from_slice(&value[..len]);
        Digest { bytes, len }
    }

    /// The bytes of the value.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Whether both are equal, in constant time.
    pub fn matches(&self, other: &[u8]) -> bool {
        self.as_bytes().ct_eq(other).into()
    }
}

/// H(`data`).
pub(crate) fn hash(hash: Hash, data: &[u8]) -> Digest {
    match hash {
        Hash::Sha256 => Digest::new(&Sha256::digest(data)),
        Hash::Sha384 => Digest::new(&Sha384::digest(data)),
        Hash::Sha512 => Digest::new(&Sha512::digest(data)),
    }
}

/// HMAC of the concatenated `parts`.
pub(crate) fn hmac(hash: Hash, key: &[u8], parts: &[&[u8]]) -> Digest {
    match hash {
        Hash::Sha256 => mac::<Hmac<Sha256>>(key, parts),
        Hash::Sha384 => mac::<Hmac<Sha384>>(key, parts),
        Hash::Sha512 => mac::<Hmac<Sha512>>(key, parts),
    }
}

fn mac<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> Digest {
    let mut mac = <M as KeyInit>::new_from_slice(key).expect("HMAC takes a key of any length");
    for part in parts {
        mac.update(part);
    }
    Digest::new(&mac.finalize().into_bytes())
}

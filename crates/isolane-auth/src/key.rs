//! Secrets in the representation `DHHC-1:hh:base64(key || CRC-32):` (Base 2.2 §8.3.4.5.2).

use std::fmt;

use base64ct::{Base64, Encoding};
use crc_fast::{CrcAlgorithm, checksum};
use isolane_wire::auth::Hash;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::digest::{Digest, MAX_BYTES, hmac};
use crate::nonces::RandomError;

/// A secret of a host or of a controller.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Key {
    bytes: [u8; MAX_BYTES],
    len: usize,
    #[zeroize(skip)]
    transform: KeyTransform,
}

/// Hash function that binds a key to the NQN of its side: the number after `DHHC-1:`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyTransform {
    /// 00: the key is used as it is.
    #[default]
    None,
    /// 01 to 03: the HMAC of the NQN by the key is used.
    Hash(Hash),
}

/// Error in the text of a key. It never contains the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Another beginning, or none.
    #[error("not a key: it must have the form DHHC-1:HH:BASE64:, as `isolane key gen` writes it")]
    Form,
    /// The number after `DHHC-1:` is unknown.
    #[error("unknown hash in the key: use 00 (none), 01 (SHA-256), 02 (SHA-384), or 03 (SHA-512)")]
    Hash,
    /// The part after the hash is not Base64.
    #[error("the key is not Base64: copy it again, complete, with its last colon")]
    Base64,
    /// The key has another length than 32, 48, or 64 bytes.
    #[error("the key has {0} bytes, not 32, 48, or 64: copy it again or generate another")]
    Length(usize),
    /// The checksum does not match the key.
    #[error("the CRC of the key is wrong: a character was lost or changed; copy it again")]
    Crc,
}

impl Key {
    /// Lengths that a key can have, in bytes.
    pub const LENGTHS: [usize; 3] = [32, 48, 64];

    /// Maximum length of the text in bytes: prefix, Base64 of 68 bytes, and colon.
    pub const MAX_TEXT: usize = 103;

    /// Parses the text form.
    ///
    /// # Errors
    ///
    /// [`KeyError`] names the part that is wrong.
    pub fn parse(text: &str) -> Result<Key, KeyError> {
        let rest = text.strip_prefix("DHHC-1:").ok_or(KeyError::Form)?;
        let (code, rest) = rest.split_once(':').ok_or(KeyError::Form)?;
        let encoded = rest.strip_suffix(':').ok_or(KeyError::Form)?;
        let transform = match code {
            "00" => KeyTransform::None,
            "01" => KeyTransform::Hash(Hash::Sha256),
            "02" => KeyTransform::Hash(Hash::Sha384),
            "03" => KeyTransform::Hash(Hash::Sha512),
            _ => return Err(KeyError::Hash),
        };
        let decoded = Zeroizing::new(Base64::decode_vec(encoded).map_err(|_| KeyError::Base64)?);
        let Some((secret, crc)) = decoded.split_last_chunk::<CRC_BYTES>() else {
            return Err(KeyError::Length(0));
        };
        let key = Key::new(secret, transform).ok_or(KeyError::Length(secret.len()))?;
        if u32::from_le_bytes(*crc) == key.crc() { Ok(key) } else { Err(KeyError::Crc) }
    }

    /// A key of these bytes; `None` if it has not one of [`Key::LENGTHS`].
    pub fn new(secret: &[u8], transform: KeyTransform) -> Option<Key> {
        if !Self::LENGTHS.contains(&secret.len()) {
            return None;
        }
        let mut key = Key { bytes: [0; MAX_BYTES], len: secret.len(), transform };
        key.bytes[..secret.len()].copy_from_slice(secret);
        Some(key)
    }

    /// A new random key of the length of `hash`.
    ///
    /// # Errors
    ///
    /// The kernel returns no random bytes.
    pub fn generate(hash: Hash, transform: KeyTransform) -> Result<Key, RandomError> {
        let mut key = Key { bytes: [0; MAX_BYTES], len: hash.len_bytes(), transform };
        getrandom::fill(&mut key.bytes[..hash.len_bytes()]).map_err(RandomError::from)?;
        Ok(key)
    }

    /// The text form.
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new(self.secret().to_vec());
        bytes.extend_from_slice(&self.crc().to_le_bytes());
        let encoded = Zeroizing::new(Base64::encode_string(&bytes));
        let code = match self.transform {
            KeyTransform::None => 0,
            KeyTransform::Hash(hash) => hash.code(),
        };
        Zeroizing::new(format!("DHHC-1:{code:02}:{}:", *encoded))
    }

    /// The same secret with another transform.
    pub fn with_transform(mut self, transform: KeyTransform) -> Key {
        self.transform = transform;
        self
    }

    /// Hash function that binds the key to an NQN.
    pub fn transform_hash(&self) -> KeyTransform {
        self.transform
    }

    /// Length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len
    }

    /// Whether both have the same secret, in constant time.
    pub fn is_same_secret(&self, other: &Key) -> bool {
        Digest::new(self.secret()).matches(other.secret())
    }

    /// The key of the side with this NQN.
    pub(crate) fn transform(&self, nqn: &str) -> Digest {
        match self.transform {
            KeyTransform::None => Digest::new(self.secret()),
            KeyTransform::Hash(hash) => hmac(hash, self.secret(), &[nqn.as_bytes(), TRANSFORM_LABEL]),
        }
    }

    pub(crate) fn secret(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn crc(&self) -> u32 {
        checksum(CrcAlgorithm::Crc32IsoHdlc, self.secret()) as u32
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("transform", &self.transform).finish_non_exhaustive()
    }
}

impl fmt::Display for KeyTransform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyTransform::None => f.write_str("no transform"),
            KeyTransform::Hash(hash) => write!(f, "transform by {hash}"),
        }
    }
}

/// End of the HMAC that transforms a key.
const TRANSFORM_LABEL: &[u8] = b"NVMe-over-Fabrics";

/// Length of the checksum after the key.
const CRC_BYTES: usize = 4;

#[cfg(test)]
mod tests;

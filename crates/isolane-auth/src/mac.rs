//! Message authentication codes by keys that are derived from a shared key.

use isolane_wire::auth::Hash;

use crate::digest::{Digest, hmac};
use crate::key::Key;

/// A key for one purpose: HMAC-SHA256 of the name of the purpose by a shared key.
pub struct MacKey(Digest);

impl MacKey {
    /// Length of a code in bytes.
    pub const CODE_LEN: usize = 32;

    /// Derives the key for a purpose. The keys of two purposes reveal nothing about each other.
    pub fn derive(key: &Key, purpose: &str) -> MacKey {
        MacKey(hmac(Hash::Sha256, key.secret(), &[purpose.as_bytes()]))
    }

    /// Returns the code of the concatenated `parts`.
    pub fn sign(&self, parts: &[&[u8]]) -> [u8; Self::CODE_LEN] {
        let mut code = [0; Self::CODE_LEN];
        code.copy_from_slice(hmac(Hash::Sha256, self.0.as_bytes(), parts).as_bytes());
        code
    }

    /// Whether `code` is the code of the concatenated `parts`, in constant time.
    pub fn verifies(&self, parts: &[&[u8]], code: &[u8]) -> bool {
        hmac(Hash::Sha256, self.0.as_bytes(), parts).matches(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::KeyTransform;

    #[test]
    fn codes_depend_on_key_purpose_and_content() {
        let key = |byte| Key::new(&[byte; 32], KeyTransform::None).unwrap();
        let mac = MacKey::derive(&key(1), "one");
        let code = mac.sign(&[b"con", b"tent"]);
        assert!(mac.verifies(&[b"content"], &code));
        assert!(!mac.verifies(&[b"contend"], &code) && !mac.verifies(&[b"content"], &code[..31]));
        assert!(!MacKey::derive(&key(1), "two").verifies(&[b"content"], &code));
        assert!(!MacKey::derive(&key(2), "one").verifies(&[b"content"], &code));
    }
}

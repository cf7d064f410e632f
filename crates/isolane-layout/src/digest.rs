//! CRC32C (Castagnoli), the digest of NVMe/TCP (TCP 1.0 §3.1.1, in the byte order of RFC 3385) and of verbs
//! segments.

use crc_fast::CrcAlgorithm;

/// Returns the digest of one slice.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// A digest computed slice by slice as the bytes arrive.
#[derive(Clone, Debug)]
pub struct Digest(crc_fast::Digest);

impl Digest {
    /// Adds bytes.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the digest of all bytes added.
    #[inline]
    pub fn finish(&self) -> u32 {
        self.0.finalize() as u32
    }

    /// Starts over.
    #[inline]
    pub fn reset(&mut self) {
        self.0.reset();
    }
}

impl Default for Digest {
    #[inline]
    fn default() -> Self {
        Self(crc_fast::Digest::new(CrcAlgorithm::Crc32Iscsi))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check values of RFC 3720 appendix B.4.
    #[test]
    fn it_is_castagnoli_as_iscsi_has_it() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        let rising: [u8; 32] = core::array::from_fn(|index| index as u8);
        assert_eq!(crc32c(&rising), 0x46dd_794e);
    }

    #[test]
    fn pieces_give_the_digest_of_the_whole() {
        let bytes: [u8; 1021] = core::array::from_fn(|index| (index * 7) as u8);
        for cut in [0, 1, 3, 256, 1020, 1021] {
            let (front, back) = bytes.split_at(cut);
            let mut digest = Digest::default();
            digest.update(front);
            digest.update(back);
            assert_eq!(digest.finish(), crc32c(&bytes), "split at {cut}");
        }
    }

    #[test]
    fn reset_restarts_the_digest() {
        let mut digest = Digest::default();
        digest.update(b"something");
        digest.reset();
        digest.update(b"123456789");
        assert_eq!(digest.finish(), 0xe306_9283);
    }
}

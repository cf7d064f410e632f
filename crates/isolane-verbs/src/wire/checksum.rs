//! Checksums of segments: CRC32C after the header, and after the extension and the payload, if there are any.
//!
//! A receiver knows the length of the rest only from a checked header, so it never waits for bytes that do not come.

use isolane_layout::digest::crc32c;

/// Length of a checksum in bytes.
pub const CHECKSUM_BYTES: usize = 4;

/// Returns the checksum of a header, or of an extension with its payload, as it is sent.
pub fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    crc32c(bytes).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_vector() {
        assert_eq!(checksum(b"123456789"), [0x83, 0x92, 0x06, 0xe3]);
    }
}

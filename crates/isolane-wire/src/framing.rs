//! Framing rules of one direction, as negotiated (TCP 1.0 §3.1, §3.3).
//!
//! ```text
//! | header (HLEN) | header digest | pad | data (at PDO) | data digest |   in total: PLEN
//! ```

/// Direction of a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Sent by a host.
    HostToController,
    /// Sent by a controller.
    ControllerToHost,
}

/// Negotiated rules of one direction. The default applies before ICResp: no digests, no padding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Framing {
    /// Every header is followed by its CRC32C.
    pub header_digest: bool,
    /// All data is followed by its CRC32C.
    pub data_digest: bool,
    /// CPDA (towards the controller) or HPDA (towards the host): data alignment in dwords, 0's based, 0 to
    /// 31.
    pub pda: u8,
}

impl Framing {
    /// No digests, no padding.
    pub const PLAIN: Framing = Framing { header_digest: false, data_digest: false, pda: 0 };

    /// Length of a digest in bytes.
    pub const DIGEST_LEN: usize = 4;

    /// Maximum of CPDA and HPDA (TCP 1.0 §3.6.2.3).
    pub const MAX_PDA: u8 = 31;

    /// Returns the length of the header digest in bytes: 4 or 0.
    #[inline]
    pub const fn header_digest_len(&self) -> usize {
        if self.header_digest { Self::DIGEST_LEN } else { 0 }
    }

    /// Returns the length of the data digest in bytes: 4 or 0.
    #[inline]
    pub const fn data_digest_len(&self) -> usize {
        if self.data_digest { Self::DIGEST_LEN } else { 0 }
    }

    /// Returns the alignment of data from the start of its PDU, in bytes: 4 to 128.
    #[inline]
    pub const fn alignment_bytes(&self) -> usize {
        (self.pda as usize + 1) * 4
    }

    /// Returns the PDO of a PDU with a header of `hlen` bytes (a multiple of 4).
    #[inline]
    pub const fn data_offset(&self, hlen: usize) -> usize {
        let end = hlen + self.header_digest_len();
        // Headers are whole dwords; most connections use the minimum alignment.
        if self.pda == 0 { end } else { end.next_multiple_of(self.alignment_bytes()) }
    }

    /// Returns the PLEN of a PDU with a header of `hlen` bytes and `data_len` bytes of data.
    #[inline]
    pub const fn plen(&self, hlen: usize, data_len: u32) -> u64 {
        if data_len == 0 {
            return (hlen + self.header_digest_len()) as u64;
        }
        self.data_offset(hlen) as u64 + data_len as u64 + self.data_digest_len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_negotiated_adds_nothing() {
        let plain = Framing::default();
        assert_eq!((plain.data_offset(72), plain.plen(72, 0), plain.plen(24, 512)), (72, 72, 536));
    }

    #[test]
    fn data_starts_aligned_after_header_digest() {
        let framing = Framing { header_digest: true, data_digest: true, pda: 3 };
        assert_eq!(
            (framing.alignment_bytes(), framing.data_offset(24), framing.data_offset(72)),
            (16, 32, 80)
        );
        assert_eq!(framing.plen(24, 512), 32 + 512 + 4);
        assert_eq!(framing.plen(72, 0), 76);
    }

    #[test]
    fn plen_of_longest_data_does_not_overflow() {
        let framing = Framing { header_digest: true, data_digest: true, pda: 31 };
        assert_eq!(framing.plen(72, u32::MAX), 128 + u64::from(u32::MAX) + 4);
    }
}

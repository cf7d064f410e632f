//! The header at the start of every segment.

use isolane_layout::U24;

isolane_layout::layout! {
    /// Header of a segment: 24 bytes, the complete header of a SEND without immediate data.
    pub struct SegmentHeader[24] {
        /// Number of an [`Opcode`](super::Opcode).
        0 => opcode: u8,
        /// Flags.
        1 => flags: SegmentFlags,
        /// Number of receives that the sender of this segment has posted, modulo 2¹⁶. 0 with a shared receive queue.
        2 => credits: u16,
        /// Number of the message, modulo 2³²; of a response, the number of the request.
        4 => message: u32,
        /// Size of the message in bytes.
        8 => size: U24,
        /// Index of the receive that the request consumes: the number of requests before it that consume one, modulo 2⁸.
        11 => receive: u8,
        /// Offset of this segment in its message in bytes.
        12 => offset: U24,
        /// How often a missing receive was posted later, modulo 2⁸: of a request, as far as its sender knows.
        15 => rnr_count: u8,
        /// Number of payload bytes after the extension.
        16 => length: u32,
        /// Every request of the peer with a lower message number is executed, modulo 2³².
        20 => acknowledged: u32,
    }
}

isolane_layout::bits! {
    /// Flags of a segment.
    pub struct SegmentFlags(u8) {
        /// The completion of the receive wakes a waiting program.
        solicited / with_solicited: bool = [0:0],
        /// The requester waits for an acknowledgment.
        ack_requested / with_ack_requested: bool = [1:1],
        /// The request continues in the next message.
        continued / with_continued: bool = [2:2],
    }
}

impl SegmentFlags {
    /// Bits without a meaning, which must be 0.
    pub(super) const RESERVED: u8 = 0xf8;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_vector() {
        let header = SegmentHeader {
            opcode: 0x0b,
            flags: SegmentFlags(0).with_solicited(true).with_continued(true),
            credits: 0x0201,
            message: 0x0605_0403,
            size: U24::new(0x0009_0807),
            receive: 0,
            offset: U24::new(0x000c_0b0a),
            rnr_count: 0x0d,
            length: 0x1110_0f0e,
            acknowledged: 0x1514_1312,
        };
        let bytes = [
            0x0b, 0x05, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x00, 0x0a, 0x0b, 0x0c, 0x0d,
            0x0e, 0x0f, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15,
        ];
        assert_eq!(header.encode(), bytes);
        assert_eq!(SegmentHeader::decode(&bytes), header);
    }

    #[test]
    fn flags_have_their_bits() {
        assert_eq!(SegmentFlags(0).with_solicited(true).0, 0x01);
        assert_eq!(SegmentFlags(0).with_ack_requested(true).0, 0x02);
        assert_eq!(SegmentFlags(0).with_continued(true).0, 0x04);
    }
}

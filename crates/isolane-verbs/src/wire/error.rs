//! Faults of segments.

/// Fault of a segment, found before any byte of it is placed. It ends the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum SegmentError {
    /// The opcode is not defined.
    #[error("byte 0 of a segment has opcode {0:#04x}, which is not defined")]
    Opcode(u8),
    /// Reserved bits are set.
    #[error("byte 1 of a segment has flags {0:#04x}, some of which are reserved")]
    Flags(u8),
    /// The place in the message contradicts the size or the opcode.
    #[error("{length} bytes at offset {offset} of a message of {size} bytes are not its {stage} segment")]
    Place {
        /// Offset in bytes.
        offset: u32,
        /// Length in bytes.
        length: u32,
        /// Size of the message in bytes.
        size: u32,
        /// Stage that the opcode names.
        stage: &'static str,
    },
    /// The operation carries no payload.
    #[error("a segment with opcode {opcode} has {length} bytes of payload, but must have none")]
    Payload {
        /// Name of the opcode.
        opcode: &'static str,
        /// Length in bytes.
        length: u32,
    },
    /// The segment is longer than the hello allows.
    #[error("a segment of {length} bytes is longer than the negotiated {limit}")]
    TooLong {
        /// Length in bytes.
        length: u32,
        /// Limit in bytes.
        limit: u32,
    },
    /// The syndrome of an acknowledgment is not defined.
    #[error("an acknowledgment has syndrome {0:#04x}, which is not defined")]
    Syndrome(u8),
}

//! Hello: the first 128 bytes in each direction of a lane.
//!
//! Invariant: a lane belongs to the queue pairs that both hellos name, or it is closed.

isolane_layout::layout! {
    /// First bytes of a lane in each direction.
    pub struct Hello[128] {
        /// [`Hello::MAGIC`].
        0 => magic: u32,
        /// Version of the format: [`Hello::VERSION`].
        4 => version: u16,
        /// Code of a [`Role`].
        6 => role: u8,
        /// Index of the lane in its queue pair.
        7 => lane: u8,
        /// Capabilities of the lane that the sender requests; in the reply, CRC32C if either end does.
        8 => capabilities: Capabilities,
        /// Number of lanes of the queue pair.
        12 => lanes: u8,
        /// Number of outstanding READs and atomics that the sender can execute.
        13 => responder_resources: u8,
        /// How often the sender has tried to open the lane; the reply repeats it.
        16 => epoch: u32,
        /// Maximum payload of a segment that the sender accepts, in bytes.
        20 => max_segment_bytes: u32,
        /// GID of the sender.
        24 => source_gid: [u8; 16],
        /// GID of the receiver.
        40 => destination_gid: [u8; 16],
        /// Number of the sender's queue pair, in the low 24 bits.
        56 => source_qpn: u32,
        /// Number of the receiver's queue pair, in the low 24 bits.
        60 => destination_qpn: u32,
        /// Number of the first message that the receiver of the hello sends.
        64 => first_message: u32,
        /// Last epoch of the lane in which the sender of the hello received anything; 0 if none.
        68 => received_epoch: u32,
        /// Random bytes of the queue pair, the same in the hellos of all its lanes.
        72 => nonce: [u8; 16],
        /// Number of segments that arrived completely in `received_epoch`.
        88 => received_segments: u32,
        /// Number of payload bytes of the next segment that arrived.
        92 => received_bytes: u32,
        /// In a reply, HMAC-SHA256 of both hellos with this field 0, if both ends have a key; otherwise 0.
        96 => authentication: [u8; 32],
    }
}

isolane_layout::bits! {
    /// Capabilities of a lane.
    pub struct Capabilities(u32) {
        /// A CRC32C follows each header and each payload.
        crc32c / with_crc32c: bool = [0:0],
        /// The sender has a shared key, and requires a proof of it.
        authenticated / with_authenticated: bool = [1:1],
        /// The sender takes receives from a shared queue, so it promises none.
        shared_receives / with_shared_receives: bool = [2:2],
    }
}

isolane_layout::codes! {
    /// Role of the sender of a hello.
    pub enum Role: u8 {
        Connects = 1, "connects";
        Accepts = 2, "accepts";
    }
}

/// Why a hello is refused; the lane is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// The peer speaks another protocol.
    #[error("the peer does not speak Isolane verbs: its first bytes are {0:#010x}")]
    Magic(u32),
    /// The peer has another version.
    #[error("the peer has version {0} of the format; install the same version on both ends")]
    Version(u16),
    /// The peer has the wrong role for this lane.
    #[error("byte 6 of a hello has role {0}, which is not the other end of this lane")]
    Role(u8),
    /// The lane is not one of the queue pair.
    #[error("a hello names lane {lane} of {lanes}; a queue pair has 1 to 8 lanes")]
    Lane {
        /// Index of the lane.
        lane: u8,
        /// Number of lanes.
        lanes: u8,
    },
    /// The segment limit is too small.
    #[error("a hello allows segments of {0} bytes; at least 4096 are required")]
    SegmentBytes(u32),
}

impl Hello {
    /// "ISLV" in the order of the wire.
    pub const MAGIC: u32 = u32::from_le_bytes(*b"ISLV");
    /// Version that this library speaks.
    pub const VERSION: u16 = 2;
    /// Maximum number of lanes of a queue pair.
    pub const MAX_LANES: u8 = 8;
    /// Smallest valid value of `max_segment_bytes`.
    pub const MIN_SEGMENT_BYTES: u32 = 4096;

    /// Decodes a hello from a peer in this role, and checks each field that does not depend on a queue pair, in
    /// the order of the wire.
    pub fn decode_from(bytes: &[u8; Self::LEN], role: Role) -> Result<Hello, HelloError> {
        let hello = Hello::decode(bytes);
        if hello.magic != Self::MAGIC {
            return Err(HelloError::Magic(hello.magic));
        }
        if hello.version != Self::VERSION {
            return Err(HelloError::Version(hello.version));
        }
        if Role::decode(hello.role) != Some(role) {
            return Err(HelloError::Role(hello.role));
        }
        if hello.lane >= hello.lanes || hello.lanes > Self::MAX_LANES {
            return Err(HelloError::Lane { lane: hello.lane, lanes: hello.lanes });
        }
        if hello.max_segment_bytes < Self::MIN_SEGMENT_BYTES {
            return Err(HelloError::SegmentBytes(hello.max_segment_bytes));
        }
        Ok(hello)
    }
}

#[cfg(test)]
impl Hello {
    /// A valid hello for the first lane of a queue pair.
    pub(crate) fn example() -> Hello {
        Hello {
            magic: Hello::MAGIC,
            version: Hello::VERSION,
            role: Role::Connects.code(),
            lane: 0,
            capabilities: Capabilities(0),
            lanes: 1,
            responder_resources: 16,
            epoch: 1,
            max_segment_bytes: 1 << 20,
            source_gid: [0; 16],
            destination_gid: [0; 16],
            source_qpn: 1,
            destination_qpn: 1,
            first_message: 0,
            received_epoch: 0,
            nonce: [0; 16],
            received_segments: 0,
            received_bytes: 0,
            authentication: [0; 32],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            magic: Hello::MAGIC,
            version: 2,
            role: Role::Connects.code(),
            lane: 3,
            capabilities: Capabilities(0).with_crc32c(true),
            lanes: 4,
            responder_resources: 16,
            epoch: 0x0403_0201,
            max_segment_bytes: 0x0010_0000,
            source_gid: [0xa1; 16],
            destination_gid: [0xa2; 16],
            source_qpn: 0x0007_0605,
            destination_qpn: 0x000a_0908,
            first_message: 0x0e0d_0c0b,
            received_epoch: 0x1211_100f,
            nonce: [0xa3; 16],
            received_segments: 0x1615_1413,
            received_bytes: 0x1a19_1817,
            authentication: [0xa4; 32],
        }
    }

    #[test]
    fn golden_vector() {
        let mut bytes = [0; 128];
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        put(0, b"ISLV");
        put(4, &[2, 0, 1, 3, 1, 0, 0, 0, 4, 16]);
        put(16, &[1, 2, 3, 4, 0, 0, 0x10, 0]);
        put(24, &[0xa1; 16]);
        put(40, &[0xa2; 16]);
        put(56, &[5, 6, 7, 0, 8, 9, 10, 0, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f, 0x10, 0x11, 0x12]);
        put(72, &[0xa3; 16]);
        put(88, &[0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a]);
        put(96, &[0xa4; 32]);
        assert_eq!(hello().encode(), bytes);
        assert_eq!(Hello::decode_from(&bytes, Role::Connects), Ok(hello()));
    }

    #[test]
    fn refuses_each_wrong_field() {
        let refused = |change: fn(&mut Hello)| {
            let mut hello = hello();
            change(&mut hello);
            Hello::decode_from(&hello.encode(), Role::Connects).unwrap_err()
        };
        assert_eq!(refused(|hello| hello.magic = 1), HelloError::Magic(1));
        assert_eq!(refused(|hello| hello.version = 1), HelloError::Version(1));
        assert_eq!(refused(|hello| hello.role = 2), HelloError::Role(2));
        assert_eq!(refused(|hello| hello.lane = 4), HelloError::Lane { lane: 4, lanes: 4 });
        assert_eq!(refused(|hello| hello.lanes = 9), HelloError::Lane { lane: 3, lanes: 9 });
        assert_eq!(refused(|hello| hello.max_segment_bytes = 4095), HelloError::SegmentBytes(4095));
    }
}

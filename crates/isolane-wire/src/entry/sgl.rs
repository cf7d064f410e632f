//! The one SGL descriptor of a command on NVMe/TCP (Base 1.4 §4.4; TCP 1.0 §3.3.2).

use crate::Field;

/// Data pointer of a command. NVMe/TCP allows two kinds only; others are kept as received, so that
/// the command can be rejected with SGL Descriptor Type Invalid (0/11h) and the connection
/// survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sgl {
    /// SGL Data Block with offset (01h): `len` bytes in the capsule, at `offset` in its data.
    InCapsule {
        /// Offset in the in-capsule data, in bytes.
        offset: u64,
        /// Data length in bytes.
        len: u32,
    },
    /// Transport SGL Data Block (5Ah): `len` bytes moved by H2CData or C2HData PDUs.
    Transport {
        /// Data length in bytes.
        len: u32,
    },
    /// A descriptor not allowed by NVMe/TCP.
    Other([u8; 16]),
}

impl Sgl {
    /// Descriptor of a command without data: a transport data block of length 0.
    pub const NONE: Self = Self::Transport { len: 0 };

    const DATA_BLOCK_OFFSET: u8 = 0x01;
    const TRANSPORT_DATA_BLOCK: u8 = 0x5a;
    const LENGTH: usize = 8;
    const IDENTIFIER: usize = 15;

    /// Returns the data length in bytes; `None` for a descriptor not allowed by NVMe/TCP.
    pub const fn len(&self) -> Option<u32> {
        match self {
            Self::InCapsule { len, .. } | Self::Transport { len } => Some(*len),
            Self::Other(_) => None,
        }
    }

    /// Whether this is the descriptor of a command without data.
    pub const fn is_empty(&self) -> bool {
        matches!(self.len(), Some(0))
    }
}

impl Default for Sgl {
    #[inline]
    fn default() -> Self {
        Self::NONE
    }
}

impl Field for Sgl {
    const LEN: usize = 16;

    #[inline]
    fn read(bytes: &[u8]) -> Self {
        let raw = <[u8; 16]>::read(bytes);
        let len = u32::read(&raw[Self::LENGTH..Self::LENGTH + 4]);
        match raw[Self::IDENTIFIER] {
            Self::DATA_BLOCK_OFFSET => Self::InCapsule { offset: u64::read(&raw[..Self::LENGTH]), len },
            Self::TRANSPORT_DATA_BLOCK => Self::Transport { len },
            _ => Self::Other(raw),
        }
    }

    #[inline]
    fn write(&self, bytes: &mut [u8]) {
        let (address, len, identifier) = match *self {
            Self::InCapsule { offset, len } => (offset, len, Self::DATA_BLOCK_OFFSET),
            Self::Transport { len } => (0, len, Self::TRANSPORT_DATA_BLOCK),
            Self::Other(raw) => return bytes.copy_from_slice(&raw),
        };
        bytes.fill(0);
        address.write(&mut bytes[..Self::LENGTH]);
        len.write(&mut bytes[Self::LENGTH..Self::LENGTH + 4]);
        bytes[Self::IDENTIFIER] = identifier;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(sgl: Sgl) -> [u8; 16] {
        let mut bytes = [0xee; 16];
        sgl.write(&mut bytes);
        bytes
    }

    #[test]
    fn encodes_in_capsule_data_block() {
        let sgl = Sgl::InCapsule { offset: 0x0807_0605_0403_0201, len: 0x0c0b_0a09 };
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0, 0, 0x01];
        assert_eq!(encoded(sgl), bytes);
        assert_eq!(Sgl::read(&bytes), sgl);
    }

    #[test]
    fn transport_data_has_a_length_only() {
        let sgl = Sgl::Transport { len: 0x0403_0201 };
        let bytes = [0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0x5a];
        assert_eq!(encoded(sgl), bytes);
        assert_eq!(Sgl::read(&bytes), sgl);
    }

    #[test]
    fn keeps_unknown_descriptor() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0x40];
        assert_eq!(Sgl::read(&bytes), Sgl::Other(bytes));
        assert_eq!(Sgl::read(&bytes).len(), None);
        assert_eq!(encoded(Sgl::Other(bytes)), bytes);
    }
}

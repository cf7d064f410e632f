//! The 64 bits that the kernel hands back with each occurrence: what it concerns, and which life of that
//! slot.

/// What an occurrence concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A socket: bytes to receive (and with epoll also room to send).
    Read = 1,
    /// A socket: room to send.
    Write = 2,
    /// A listener.
    Listener = 3,
    /// The doorbell of the wakers.
    Doorbell = 4,
    /// A file operation.
    File = 5,
}

/// Kind, slot and the slot's generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub kind: Kind,
    pub generation: u32,
    pub index: u32,
}

impl Key {
    /// Generations count to here and begin again.
    pub const GENERATION_MAX: u32 = 0x00ff_ffff;

    pub fn new(kind: Kind, index: u32) -> Key {
        Key { kind, generation: 0, index }
    }

    pub fn to_bits(self) -> u64 {
        (self.kind as u64) << 56
            | u64::from(self.generation & Key::GENERATION_MAX) << 32
            | u64::from(self.index)
    }

    /// As one number for the request that ends the request of this key.
    pub fn to_ending_bits(self) -> u64 {
        self.to_bits() | ENDING
    }

    /// The key whose request was to be ended; `None` for bits of anything else.
    pub fn from_ending_bits(bits: u64) -> Option<Key> {
        (bits & ENDING != 0).then(|| Key::from_bits(bits & !ENDING)).flatten()
    }

    /// `None` for bits that no key has.
    pub fn from_bits(bits: u64) -> Option<Key> {
        let kind = match bits >> 56 {
            1 => Kind::Read,
            2 => Kind::Write,
            3 => Kind::Listener,
            4 => Kind::Doorbell,
            5 => Kind::File,
            _ => return None,
        };
        Some(Key { kind, generation: (bits >> 32) as u32 & Key::GENERATION_MAX, index: bits as u32 })
    }
}

/// No kind has this bit.
const ENDING: u64 = 1 << 63;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_the_kernel() {
        for kind in [Kind::Read, Kind::Write, Kind::Listener, Kind::Doorbell, Kind::File] {
            let key = Key { kind, generation: 0x00ab_cdef, index: 0x1234_5678 };
            assert_eq!(
                (Key::from_bits(key.to_bits()), Key::from_ending_bits(key.to_bits())),
                (Some(key), None)
            );
            let bits = key.to_ending_bits();
            assert_eq!((Key::from_bits(bits), Key::from_ending_bits(bits)), (None, Some(key)));
        }
        let read = Key { kind: Kind::Read, generation: 0x00ab_cdef, index: 0x1234_5678 };
        assert_eq!(read.to_bits(), 0x01ab_cdef_1234_5678);
        assert_eq!(Key::from_bits(0), None);
    }
}

//! The 64-bit user data of backend requests: event kind, slot, and generation.

/// Source of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Socket readable (with epoll also writable).
    Read = 1,
    /// Socket writable.
    Write = 2,
    /// A listener.
    Listener = 3,
    /// Eventfd of the wakers.
    Doorbell = 4,
    /// A file operation.
    File = 5,
}

/// Kind, slot, and generation of the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub kind: Kind,
    pub generation: u32,
    pub index: u32,
}

impl Key {
    /// Largest generation; the next one is 0.
    pub const MAX_GENERATION: u32 = 0x00ff_ffff;

    pub fn new(kind: Kind, index: u32) -> Key {
        Key { kind, generation: 0, index }
    }

    pub fn to_bits(self) -> u64 {
        (self.kind as u64) << 56
            | u64::from(self.generation & Key::MAX_GENERATION) << 32
            | u64::from(self.index)
    }

    /// Encodes the key of the request that cancels this key's request.
    pub fn to_cancel_bits(self) -> u64 {
        self.to_bits() | CANCEL
    }

    /// Returns the key whose request was canceled; `None` for other bits.
    pub fn from_cancel_bits(bits: u64) -> Option<Key> {
        (bits & CANCEL != 0).then(|| Key::from_bits(bits & !CANCEL)).flatten()
    }

    /// Decodes a key; `None` if the bits are not a valid key.
    pub fn from_bits(bits: u64) -> Option<Key> {
        let kind = match bits >> 56 {
            1 => Kind::Read,
            2 => Kind::Write,
            3 => Kind::Listener,
            4 => Kind::Doorbell,
            5 => Kind::File,
            _ => return None,
        };
        Some(Key { kind, generation: (bits >> 32) as u32 & Key::MAX_GENERATION, index: bits as u32 })
    }
}

/// Marks a cancellation; no kind has this bit.
const CANCEL: u64 = 1 << 63;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_key() {
        for kind in [Kind::Read, Kind::Write, Kind::Listener, Kind::Doorbell, Kind::File] {
            let key = Key { kind, generation: 0x00ab_cdef, index: 0x1234_5678 };
            assert_eq!(
                (Key::from_bits(key.to_bits()), Key::from_cancel_bits(key.to_bits())),
                (Some(key), None)
            );
            let bits = key.to_cancel_bits();
            assert_eq!((Key::from_bits(bits), Key::from_cancel_bits(bits)), (None, Some(key)));
        }
        let read = Key { kind: Kind::Read, generation: 0x00ab_cdef, index: 0x1234_5678 };
        assert_eq!(read.to_bits(), 0x01ab_cdef_1234_5678);
        assert_eq!(Key::from_bits(0), None);
    }
}

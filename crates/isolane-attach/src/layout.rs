//! Where what is in the memory of a session.
//!
//! The application owns all of it and chooses the places; the engine checks them by making rings and flags of
//! them. Every flag, and every index of a ring, has two lines of the cache (128 bytes) of its own.

use isolane_ring::index::Words;
use isolane_ring::{Flag, PAGE_SIZE, entries};

/// A port: the doorbells that one session rings on one of the engine's cores. A flag, the indices of a ring,
/// and its entries. See [`doorbell`] for what an entry is.
///
/// The flag is the engine's: armed while its core sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortPlace {
    /// Bytes before it, a multiple of 128.
    pub offset: u64,
    /// Entries of its ring, a power of two up to [`ENTRIES_MAX`].
    pub entries: u32,
}

/// A notification queue: what one thread of the application is told. A flag, and for each of the engine's
/// cores a ring of entries. See [`notice`] for what an entry is.
///
/// The flag is the application's: armed while the thread sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePlace {
    /// Bytes before it, a multiple of 128.
    pub offset: u64,
    /// How many cores the engine has.
    pub cores: u32,
    /// Entries of each ring, a power of two up to [`ENTRIES_MAX`].
    pub entries: u32,
}

impl PortPlace {
    /// Bytes of a port.
    pub const fn bytes(entries: u32) -> usize {
        Flag::BYTES + entries::Place::bytes(entries)
    }

    /// Where its flag is.
    pub fn flag(self) -> u64 {
        self.offset
    }

    /// Where its ring is; `None` if it can be nowhere.
    pub fn ring(self) -> Option<entries::Place> {
        entries::Place::at(self.offset.checked_add(Flag::BYTES as u64)?, self.entries, ENTRIES_MAX)
    }
}

impl QueuePlace {
    /// Bytes of a queue.
    pub const fn bytes(cores: u32, entries: u32) -> usize {
        Flag::BYTES + cores as usize * entries::Place::bytes(entries)
    }

    /// Where its flag is.
    pub fn flag(self) -> u64 {
        self.offset
    }

    /// Where the ring of a core is; `None` if it can be nowhere.
    pub fn ring(self, core: u32) -> Option<entries::Place> {
        let before =
            u64::from(core).checked_mul(entries::Place::bytes(self.entries) as u64)? + Flag::BYTES as u64;
        entries::Place::at(self.offset.checked_add(before)?, self.entries, ENTRIES_MAX)
            .filter(|_| core < self.cores)
    }
}

/// The most entries of a ring of doorbells or notices.
pub const ENTRIES_MAX: u32 = 1 << 16;

/// An entry of a port: "look at this object". Its first word is the object's id, the others are 0.
///
/// An object that was told of is looked at until it has been idle for a while; only then its `told` flag is
/// armed. Who publishes something in an object's rings takes that flag, and rings only if it was armed.
pub mod doorbell {
    use isolane_ring::entries::Entry;

    /// The entry that tells of an object.
    pub fn entry(id: u32) -> Entry {
        [id.into(), 0, 0, 0, 0, 0, 0, 0]
    }

    /// Which object an entry tells of; `None` if it cannot be one.
    pub fn object(entry: &Entry) -> Option<u32> {
        entry[0].try_into().ok()
    }
}

/// An entry of a notification queue: "something has changed about this object". Its first word is the object's
/// id, the others are its kind's.
///
/// An object notifies only where its `notify` flag is armed, so once for each time that it was armed.
pub mod notice {
    use isolane_ring::entries::Entry;

    /// The entry that tells of an object.
    pub fn entry(id: u32) -> Entry {
        super::doorbell::entry(id)
    }

    /// Which object an entry tells of; `None` if it cannot be one.
    pub fn object(entry: &Entry) -> Option<u32> {
        super::doorbell::object(entry)
    }
}

/// The block of a stream: one page. Offsets of what is in it, each two lines of the cache.
pub mod stream {
    use super::{Flag, PAGE_SIZE, Words};

    /// Bytes of the block.
    pub const BYTES: usize = PAGE_SIZE;
    /// Bytes of the largest ring.
    pub const RING_BYTES_MAX: u64 = 64 << 20;
    /// Indices of the ring of what was received: the engine produces.
    pub const RX: u64 = 0;
    /// Indices of the ring of what is to be sent: the application produces.
    pub const TX: u64 = RX + Words::BYTES as u64;
    /// Flag: the engine asks for a doorbell.
    pub const TOLD: u64 = TX + Words::BYTES as u64;
    /// Flag: a thread of the application waits for bytes, or for room in what it reads.
    pub const RX_FLAG: u64 = TOLD + LINE;
    /// Flag: a thread of the application waits for room to write.
    pub const TX_FLAG: u64 = RX_FLAG + LINE;
    /// Flag: the application asks for an entry in its queue. One for both directions: who has it looks at both.
    pub const NOTIFY: u64 = TX_FLAG + LINE;
    /// Word, the engine's: 0 while bytes may come, 1 when no more come behind what is in the ring, else
    /// `1 << 32` and the error number.
    pub const RX_END: u64 = NOTIFY + LINE;
    /// Word, the engine's: the number of [`RX_PAST`] that it obeys. On one line with the one before.
    pub const RX_YIELDED: u64 = RX_END + size_of::<u64>() as u64;
    /// Word, the engine's: 0 while bytes can be sent, else `1 << 32` and the error number.
    pub const TX_END: u64 = RX_END + LINE;
    /// Word, the engine's: not 0 once it has the last close of the socket reset, because bytes are to be sent before. On
    /// one line with the one before.
    pub const TX_DRAINING: u64 = TX_END + size_of::<u64>() as u64;
    /// Word, the application's: 0, or 1 + the position at which nothing more is to be sent.
    pub const TX_SHUT: u64 = TX_END + LINE;
    /// Word, the application's: bytes that it has sent itself.
    pub const TX_NATIVE: u64 = TX_SHUT + LINE;
    /// Word, the engine's: whoever reads up to here or beyond takes `TOLD`.
    pub const RX_WANT: u64 = TX_NATIVE + LINE;
    /// Word, the engine's: bytes that are out of the kernel. On one line with the next.
    pub const RX_DISCARDED: u64 = RX_WANT + LINE;
    /// Word, the engine's: bytes that it is about to have out of the kernel.
    pub const RX_DISCARDING: u64 = RX_DISCARDED + size_of::<u64>() as u64;

    /// Word, the application's: odd while it wants to receive itself, past the ring. It only grows.
    pub const RX_PAST: u64 = RX_DISCARDED + LINE;
    /// Word, the application's: bytes that it has received itself. On one line with the one before.
    pub const RX_NATIVE: u64 = RX_PAST + size_of::<u64>() as u64;

    const LINE: u64 = Flag::BYTES as u64;
    const _: () = assert!(RX_PAST + LINE <= BYTES as u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_port_and_of_a_queue_do_not_touch() {
        let port = PortPlace { offset: 4096, entries: 64 };
        let ring = port.ring().unwrap();
        assert_eq!((port.flag(), ring.words, ring.entries), (4096, 4096 + 128, 4096 + 128 + 256));
        assert_eq!(ring.entries + 64 * 64, port.offset + PortPlace::bytes(64) as u64);

        let queue = QueuePlace { offset: 8192, cores: 2, entries: 4 };
        let (first, second) = (queue.ring(0).unwrap(), queue.ring(1).unwrap());
        assert_eq!(second.words, first.entries + 4 * 64);
        assert_eq!(second.entries + 4 * 64, queue.offset + QueuePlace::bytes(2, 4) as u64);
        assert_eq!(queue.ring(2), None);
    }

    #[test]
    fn a_place_that_can_be_nowhere_is_none() {
        assert_eq!(PortPlace { offset: u64::MAX - 100, entries: 1 }.ring(), None);
        assert_eq!(PortPlace { offset: 0, entries: 3 }.ring(), None);
        assert_eq!(PortPlace { offset: 0, entries: 2 * ENTRIES_MAX }.ring(), None);
        let queue = QueuePlace { offset: u64::MAX - 200, cores: u32::MAX, entries: u32::MAX };
        assert_eq!(queue.ring(u32::MAX - 1), None);
    }
}

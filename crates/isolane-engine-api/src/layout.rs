//! Layout of the objects in a session's memory.
//!
//! The application owns the memory and chooses the offsets; the engine validates them when it opens rings and flags. Each
//! flag and each ring index occupies its own 128 bytes, two cache lines.

use isolane_shm::index::RingIndices;
use isolane_shm::{PAGE_SIZE, WakeFlag, entries};
use serde::{Deserialize, Serialize};

/// Doorbells of one session on one core of the engine: a flag, ring indices, and entries ([`doorbell`]).
///
/// The flag belongs to the engine, which arms it while the core sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoorbellLayout {
    /// Offset in bytes, a multiple of 128.
    pub offset: u64,
    /// Number of entries, a power of two up to [`MAX_ENTRIES`].
    pub entries: u32,
}

/// Notification queue of one thread of the application: a flag, and for each core of the engine a ring of entries
/// ([`notification`]).
///
/// The flag belongs to the application, which arms it while the thread sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotificationLayout {
    /// Offset in bytes, a multiple of 128.
    pub offset: u64,
    /// Number of cores of the engine.
    pub cores: u32,
    /// Number of entries of each ring, a power of two up to [`MAX_ENTRIES`].
    pub entries: u32,
}

impl DoorbellLayout {
    /// Returns the size in bytes.
    pub const fn bytes(entries: u32) -> usize {
        WakeFlag::BYTES + entries::Layout::bytes(entries)
    }

    /// Returns the offset of the flag.
    pub fn flag(self) -> u64 {
        self.offset
    }

    /// Returns the layout of the ring, or `None` if it is invalid.
    pub fn ring(self) -> Option<entries::Layout> {
        entries::Layout::at(self.offset.checked_add(WakeFlag::BYTES as u64)?, self.entries, MAX_ENTRIES)
    }
}

impl NotificationLayout {
    /// Returns the size in bytes.
    pub const fn bytes(cores: u32, entries: u32) -> usize {
        WakeFlag::BYTES + cores as usize * entries::Layout::bytes(entries)
    }

    /// Returns the offset of the flag.
    pub fn flag(self) -> u64 {
        self.offset
    }

    /// Returns the layout of a core's ring, or `None` if it is invalid.
    pub fn ring(self, core: u32) -> Option<entries::Layout> {
        let before = u64::from(core).checked_mul(entries::Layout::bytes(self.entries) as u64)?
            + WakeFlag::BYTES as u64;
        entries::Layout::at(self.offset.checked_add(before)?, self.entries, MAX_ENTRIES)
            .filter(|_| core < self.cores)
    }
}

/// Maximum number of entries of a ring of doorbells or notifications.
pub const MAX_ENTRIES: u32 = 1 << 16;

/// Doorbell entry: requests a poll of an object. Its first word is the object ID, the others are 0.
///
/// The engine polls an object until it has been idle for a while, and arms its `need_wakeup` flag only then. After
/// publishing in the object's rings, the application takes that flag, and rings a doorbell only if it was armed.
pub mod doorbell {
    use isolane_shm::entries::Entry;

    /// Returns the entry for an object.
    pub fn entry(id: u32) -> Entry {
        [id.into(), 0, 0, 0, 0, 0, 0, 0]
    }

    /// Returns the entry for an object whose doorbell is rung at a time, in nanoseconds of CLOCK_MONOTONIC.
    pub fn entry_at(id: u32, at: u64) -> Entry {
        [id.into(), at, 0, 0, 0, 0, 0, 0]
    }

    /// Returns the time that the application has written, which can be any number; 0 if it has written none.
    pub fn rung_at(entry: &Entry) -> u64 {
        entry[1]
    }

    /// Returns the object ID of an entry, or `None` if it is invalid.
    pub fn object(entry: &Entry) -> Option<u32> {
        entry[0].try_into().ok()
    }
}

/// Notification entry: reports a change of an object. Its first word is the object ID, the meaning of the others depends
/// on the kind of object.
///
/// An object sends one notification each time its `notify` flag is armed.
pub mod notification {
    pub use super::doorbell::{entry, object};
}

/// Control block of a stream: one page. The constants are offsets in bytes; each item has its own two cache lines,
/// except as noted.
pub mod stream {
    use super::{PAGE_SIZE, RingIndices, WakeFlag};

    /// Size of the block in bytes.
    pub const BYTES: usize = PAGE_SIZE;
    /// Maximum capacity of a ring in bytes.
    pub const MAX_RING_BYTES: u64 = 64 << 20;
    /// Indices of the receive ring; the engine produces.
    pub const RX: u64 = 0;
    /// Indices of the transmit ring; the application produces.
    pub const TX: u64 = RX + RingIndices::BYTES as u64;
    /// Flag of the engine: it needs a doorbell.
    pub const NEED_WAKEUP: u64 = TX + RingIndices::BYTES as u64;
    /// Flag of the application: a thread waits for data, or for the acknowledgment of a bypass.
    pub const RX_FLAG: u64 = NEED_WAKEUP + LINE;
    /// Flag of the application: a thread waits for space to write.
    pub const TX_FLAG: u64 = RX_FLAG + LINE;
    /// Flag of the application: requests a notification in its queue. It covers both directions, so check both.
    pub const NOTIFY: u64 = TX_FLAG + LINE;
    /// Word of the engine: 0 while data may arrive, 1 if none follows the ring's contents, else `1 << 32` plus the error
    /// number.
    pub const RX_END: u64 = NOTIFY + LINE;
    /// Word of the engine: the value of [`RX_BYPASS`] that it has applied. Shares the cache lines of [`RX_END`].
    pub const RX_BYPASS_ACK: u64 = RX_END + size_of::<u64>() as u64;
    /// Word of the engine: 0 while data can be sent, else `1 << 32` plus the error number.
    pub const TX_END: u64 = RX_END + LINE;
    /// Word of both: nonzero once SO_LINGER makes the last close reset the connection, because data is still to be sent.
    /// Shares the cache lines of [`TX_END`].
    pub const TX_DRAINING: u64 = TX_END + size_of::<u64>() as u64;
    /// Word of the application: 0, or 1 + the position at which the stream ends.
    pub const TX_END_POS: u64 = TX_END + LINE;
    /// Word of the application: bytes that it sent directly on the socket.
    pub const TX_BYPASSED: u64 = TX_END_POS + LINE;
    /// Word of the engine: a reader at or beyond this position takes `NEED_WAKEUP`.
    pub const RX_WAKE_AT: u64 = TX_BYPASSED + LINE;
    /// Word of the engine: bytes that it has discarded from the kernel's buffer.
    pub const RX_DISCARDED: u64 = RX_WAKE_AT + LINE;
    /// Word of the engine: position up to which it is about to discard. Shares the cache lines of [`RX_DISCARDED`].
    pub const RX_DISCARDING: u64 = RX_DISCARDED + size_of::<u64>() as u64;

    /// Word of the application: odd while it receives directly from the socket, bypassing the ring. It only grows.
    pub const RX_BYPASS: u64 = RX_DISCARDED + LINE;
    /// Word of the application: bytes that it received directly. Shares the cache lines of [`RX_BYPASS`].
    pub const RX_BYPASSED: u64 = RX_BYPASS + size_of::<u64>() as u64;

    const LINE: u64 = WakeFlag::BYTES as u64;
    const _: () = assert!(RX_BYPASS + LINE <= BYTES as u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doorbells_and_queues_do_not_overlap() {
        let doorbells = DoorbellLayout { offset: 4096, entries: 64 };
        let ring = doorbells.ring().unwrap();
        assert_eq!((doorbells.flag(), ring.indices, ring.entries), (4096, 4096 + 128, 4096 + 128 + 256));
        assert_eq!(ring.entries + 64 * 64, doorbells.offset + DoorbellLayout::bytes(64) as u64);

        let queue = NotificationLayout { offset: 8192, cores: 2, entries: 4 };
        let (first, second) = (queue.ring(0).unwrap(), queue.ring(1).unwrap());
        assert_eq!(second.indices, first.entries + 4 * 64);
        assert_eq!(second.entries + 4 * 64, queue.offset + NotificationLayout::bytes(2, 4) as u64);
        assert_eq!(queue.ring(2), None);
    }

    #[test]
    fn rejects_invalid_layouts() {
        assert_eq!(DoorbellLayout { offset: u64::MAX - 100, entries: 1 }.ring(), None);
        assert_eq!(DoorbellLayout { offset: 0, entries: 3 }.ring(), None);
        assert_eq!(DoorbellLayout { offset: 0, entries: 2 * MAX_ENTRIES }.ring(), None);
        let queue = NotificationLayout { offset: u64::MAX - 200, cores: u32::MAX, entries: u32::MAX };
        assert_eq!(queue.ring(u32::MAX - 1), None);
    }
}

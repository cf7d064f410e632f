//! Layout of the rings and flags of a volume in the session's memory.

use isolane_shm::{WakeFlag, entries};
use serde::{Deserialize, Serialize};

/// The engine's flag followed by two rings of entries, and, elsewhere, the application's flag. The
/// application chooses the offsets. The memory of the first part must be zeroes when the volume is opened.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct VolumeLayout {
    /// Offset in bytes, a multiple of 128.
    pub offset: u64,
    /// Offset of the flag that the application sleeps on until an outcome arrives, in bytes, a multiple of
    /// 128. A reopened volume may use the same flag.
    pub flag: u64,
    /// Entries of the ring of submissions, a power of two up to [`MAX_ENTRIES`].
    pub submissions: u32,
    /// Entries of the ring of outcomes, likewise: the maximum number of commands whose outcome the
    /// application has not taken.
    pub outcomes: u32,
}

impl VolumeLayout {
    /// Total size in bytes.
    pub const fn bytes(submissions: u32, outcomes: u32) -> usize {
        (SUBMISSIONS as usize + entries::Layout::bytes(submissions)) + entries::Layout::bytes(outcomes)
    }

    /// Offset of the flag that the engine arms when it stops polling. An application that submits takes the
    /// flag and rings the doorbell.
    pub fn need_wakeup(self) -> Option<u64> {
        self.offset.checked_add(NEED_WAKEUP)
    }

    /// Layout of the ring from the application to the engine; `None` if it is out of bounds.
    pub fn submissions(self) -> Option<entries::Layout> {
        entries::Layout::at(self.offset.checked_add(SUBMISSIONS)?, self.submissions, MAX_ENTRIES)
    }

    /// Layout of the ring from the engine to the application; `None` if it is out of bounds.
    pub fn outcomes(self) -> Option<entries::Layout> {
        // The layout of the other ring shows that this does not overflow.
        let before =
            self.submissions()?.indices.checked_add(entries::Layout::bytes(self.submissions) as u64)?;
        entries::Layout::at(before, self.outcomes, MAX_ENTRIES)
    }
}

const NEED_WAKEUP: u64 = 0;
const SUBMISSIONS: u64 = NEED_WAKEUP + WakeFlag::BYTES as u64;

/// Maximum number of entries of a ring.
pub const MAX_ENTRIES: u32 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap() {
        let layout = VolumeLayout { offset: 4096, flag: 0, submissions: 64, outcomes: 128 };
        let (submissions, outcomes) = (layout.submissions().unwrap(), layout.outcomes().unwrap());
        assert_eq!(layout.need_wakeup(), Some(4096));
        assert_eq!((submissions.indices, submissions.entries), (4096 + 128, 4096 + 384));
        assert_eq!(outcomes.indices, submissions.entries + 64 * 64);
        assert_eq!(outcomes.entries + 128 * 64, layout.offset + VolumeLayout::bytes(64, 128) as u64);
    }

    #[test]
    fn holds_rings_of_any_length() {
        let memory = isolane_shm::SharedMemory::create("isolane-test", 1 << 20).unwrap();
        for (submissions, outcomes) in [(1, 1), (1, 64), (2, 1), (1024, 512)] {
            let layout = VolumeLayout { offset: 128, flag: 0, submissions, outcomes };
            assert!(entries::Sender::open(&memory, layout.submissions().unwrap()).is_ok());
            assert!(entries::Sender::open(&memory, layout.outcomes().unwrap()).is_ok());
        }
    }

    #[test]
    fn rejects_invalid_layout() {
        let layout = VolumeLayout { offset: u64::MAX - 300, flag: 0, submissions: 64, outcomes: 64 };
        assert!(layout.submissions().is_none() || layout.outcomes().is_none());
        for count in [0, 3, 2 * MAX_ENTRIES, u32::MAX] {
            assert_eq!(
                VolumeLayout { offset: 0, flag: 0, submissions: count, outcomes: 1 }.submissions(),
                None
            );
            assert_eq!(VolumeLayout { offset: 0, flag: 0, submissions: 1, outcomes: count }.outcomes(), None);
        }
    }
}

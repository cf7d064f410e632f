//! Where the rings and flags of a volume are in the session's memory.

use isolane_ring::{Flag, entries};

/// The engine's flag and two rings of entries, one behind the other, and elsewhere the application's flag. The
/// application chooses the places; all of the first is zeroes when the volume is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumePlace {
    /// Bytes before it, a multiple of 128.
    pub offset: u64,
    /// Bytes before the flag that the application sleeps on until there is an outcome, likewise. Where the volume
    /// is opened anew it may be the same one.
    pub flag: u64,
    /// Entries of the ring of submissions, a power of two up to [`ENTRIES_MAX`].
    pub submissions: u32,
    /// Entries of the ring of outcomes, likewise. So many commands can be without an outcome that the
    /// application has taken.
    pub outcomes: u32,
}

impl VolumePlace {
    /// Bytes of all of it.
    pub const fn bytes(submissions: u32, outcomes: u32) -> usize {
        (SUBMISSIONS as usize + entries::Place::bytes(submissions)) + entries::Place::bytes(outcomes)
    }

    /// The flag that the engine arms when it looks no more: whoever submits takes it, and rings the doorbell.
    pub fn told(self) -> Option<u64> {
        self.offset.checked_add(TOLD)
    }

    /// The ring from the application to the engine; `None` if it can be nowhere.
    pub fn submissions(self) -> Option<entries::Place> {
        entries::Place::at(self.offset.checked_add(SUBMISSIONS)?, self.submissions, ENTRIES_MAX)
    }

    /// The ring from the engine to the application; `None` if it can be nowhere.
    pub fn outcomes(self) -> Option<entries::Place> {
        // The places of the other ring say that this does not overflow.
        let before = self.submissions()?.words.checked_add(entries::Place::bytes(self.submissions) as u64)?;
        entries::Place::at(before, self.outcomes, ENTRIES_MAX)
    }
}

const TOLD: u64 = 0;
const SUBMISSIONS: u64 = TOLD + Flag::BYTES as u64;

/// The most entries of a ring of a volume.
pub const ENTRIES_MAX: u32 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_do_not_touch() {
        let place = VolumePlace { offset: 4096, flag: 0, submissions: 64, outcomes: 128 };
        let (submissions, outcomes) = (place.submissions().unwrap(), place.outcomes().unwrap());
        assert_eq!(place.told(), Some(4096));
        assert_eq!((submissions.words, submissions.entries), (4096 + 128, 4096 + 384));
        assert_eq!(outcomes.words, submissions.entries + 64 * 64);
        assert_eq!(outcomes.entries + 128 * 64, place.offset + VolumePlace::bytes(64, 128) as u64);
    }

    #[test]
    fn rings_of_any_length_can_be_made_in_them() {
        let memory = isolane_ring::Memory::create("isolane-test", 1 << 20).unwrap();
        for (submissions, outcomes) in [(1, 1), (1, 64), (2, 1), (1024, 512)] {
            let place = VolumePlace { offset: 128, flag: 0, submissions, outcomes };
            assert!(entries::Sender::new(&memory, place.submissions().unwrap()).is_ok());
            assert!(entries::Sender::new(&memory, place.outcomes().unwrap()).is_ok());
        }
    }

    #[test]
    fn a_place_that_can_be_nowhere_is_none() {
        let place = VolumePlace { offset: u64::MAX - 300, flag: 0, submissions: 64, outcomes: 64 };
        assert!(place.submissions().is_none() || place.outcomes().is_none());
        for count in [0, 3, 2 * ENTRIES_MAX, u32::MAX] {
            assert_eq!(
                VolumePlace { offset: 0, flag: 0, submissions: count, outcomes: 1 }.submissions(),
                None
            );
            assert_eq!(VolumePlace { offset: 0, flag: 0, submissions: 1, outcomes: count }.outcomes(), None);
        }
    }
}

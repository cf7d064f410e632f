//! Which parts of a file are being read or written, across cores: a file system may tear concurrent requests
//! for the same block, so they are not let at it at the same time.
//!
//! Not a queue: who does not get its claim tries again in a later turn. Each slot stands for every 4 KiB
//! piece whose number is the slot's modulo the number of slots; so distant pieces may exclude each other,
//! needlessly but harmlessly. Invariants: a slot is held by one writer, or by any number of readers; readers
//! that keep coming do not keep a writer out for ever.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// What is claimed of one file.
#[derive(Debug)]
pub(crate) struct Claims {
    /// How many readers, and perhaps [`WANTED`]; or [`WRITER`].
    slots: Box<[AtomicU32]>,
}

/// The right to read or write a range, until dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    claims: Arc<Claims>,
    first: u64,
    count: u64,
    access: Access,
}

/// What a claim is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

impl Claims {
    pub(crate) fn new() -> Arc<Claims> {
        Arc::new(Claims { slots: (0..SLOTS).map(|_| AtomicU32::new(0)).collect() })
    }

    /// Claims `len` bytes from `offset`; `None` while someone holds any of them in a way that excludes this
    /// one.
    pub(crate) fn claim(self: &Arc<Claims>, offset: u64, len: u64, access: Access) -> Option<Claim> {
        let first = offset / PIECE_BYTES;
        let count = (offset + len).div_ceil(PIECE_BYTES).saturating_sub(first).min(SLOTS);
        for taken in 0..count {
            if !self.take(first + taken, access) {
                self.release(first, taken, access);
                self.want(first + taken..first + count, access);
                return None;
            }
        }
        Some(Claim { claims: Arc::clone(self), first, count, access })
    }

    fn take(&self, piece: u64, access: Access) -> bool {
        let taken = |state: u32| match (access, state & !WANTED) {
            (Access::Write, 0) => Some(WRITER),
            (Access::Write, _) | (Access::Read, WRITER | READERS_MAX) => None,
            // The others leave, then it is the writer's turn. It may have gone away, so the first who comes
            // then may go in.
            (Access::Read, 1..) if state & WANTED != 0 => None,
            (Access::Read, readers) => Some(readers + 1),
        };
        self.slot(piece).fetch_update(Ordering::Acquire, Ordering::Relaxed, taken).is_ok()
    }

    /// A writer did not get these pieces: from now on their readers only get fewer.
    fn want(&self, pieces: Range<u64>, access: Access) {
        if access == Access::Read {
            return;
        }
        let wanted = |state: u32| (1..=READERS_MAX).contains(&state).then_some(state | WANTED);
        for piece in pieces {
            // A slot without readers needs no mark.
            let _ = self.slot(piece).fetch_update(Ordering::Relaxed, Ordering::Relaxed, wanted);
        }
    }

    fn release(&self, first: u64, count: u64, access: Access) {
        for piece in first..first + count {
            match access {
                Access::Write => self.slot(piece).store(0, Ordering::Release),
                Access::Read => drop(self.slot(piece).fetch_sub(1, Ordering::Release)),
            }
        }
    }

    fn slot(&self, piece: u64) -> &AtomicU32 {
        &self.slots[(piece % SLOTS) as usize]
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.claims.release(self.first, self.count, self.access);
    }
}

const SLOTS: u64 = 1 << 16;
const PIECE_BYTES: u64 = 4096;
const WRITER: u32 = 1 << 31;
/// A writer waits for the readers of the slot to leave.
const WANTED: u32 = 1 << 30;
const READERS_MAX: u32 = WANTED - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_share_and_writers_are_alone() {
        let claims = Claims::new();
        let reader = claims.claim(0, 8192, Access::Read).unwrap();
        let other = claims.claim(4096, 4096, Access::Read).unwrap();
        assert!(claims.claim(4096, 512, Access::Write).is_none());
        drop(reader);
        assert!(claims.claim(4608, 512, Access::Write).is_none());
        drop(other);
        let writer = claims.claim(4608, 512, Access::Write).unwrap();
        assert!(claims.claim(4096, 512, Access::Read).is_none());
        assert!(claims.claim(8192, 512, Access::Write).is_some());
        drop(writer);
        assert!(claims.claim(0, 1 << 40, Access::Write).is_some());
    }

    #[test]
    fn readers_that_keep_coming_do_not_keep_a_writer_out() {
        let claims = Claims::new();
        let [first, second] = [0, 1].map(|_| claims.claim(0, 4096, Access::Read).unwrap());
        assert!(claims.claim(0, 8192, Access::Write).is_none());
        assert!(claims.claim(0, 512, Access::Read).is_none(), "a writer waits");
        drop(first);
        assert!(claims.claim(0, 512, Access::Read).is_none(), "a writer still waits");
        drop(second);
        assert!(claims.claim(0, 8192, Access::Write).is_some());
    }

    #[test]
    fn a_writer_that_went_away_keeps_no_reader_out() {
        let claims = Claims::new();
        let reader = claims.claim(0, 4096, Access::Read).unwrap();
        assert!(claims.claim(0, 4096, Access::Write).is_none());
        drop(reader);
        let _readers = [0, 1].map(|_| claims.claim(0, 4096, Access::Read).unwrap());
    }

    #[test]
    fn a_refused_claim_leaves_nothing_behind() {
        let claims = Claims::new();
        let held = claims.claim(8192, 4096, Access::Write).unwrap();
        assert!(claims.claim(0, 16_384, Access::Write).is_none());
        assert!(claims.claim(0, 16_384, Access::Read).is_none());
        drop(held);
        assert!(claims.slots.iter().all(|slot| slot.load(Ordering::Relaxed) == 0));
    }
}

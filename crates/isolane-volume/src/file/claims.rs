//! Which parts of a file are being read or written, across cores: a file system may tear concurrent requests
//! for the same block, so they are not let at it at the same time.
//!
//! There are two kinds of claims:
//! * Of a few pieces, all or nothing ([`Claims::claim`]): not a queue; who does not get its claim tries again
//!   in a later turn. Each slot stands for every 4 KiB piece whose number is the slot's modulo the number of
//!   slots; so distant pieces may exclude each other, needlessly but harmlessly.
//! * Of a long range, in order ([`Claims::announce`]): from the announcement on, nobody else gets a claim in the
//!   range; it is granted once every earlier claim has ended. It takes no slots, so requests elsewhere in the
//!   file go on.
//!
//! Invariants: a slot is held by one writer, or by any number of readers; readers that keep coming do not keep
//! a writer out for ever; nobody keeps an announced range waiting for longer than the claims last that were
//! held when it was announced, and those of earlier announcements.
//!
//! Why no claim is missed: whoever claims pieces takes its slots and then looks for announcements, whoever
//! announces does so and then looks at the slots (all of it sequentially consistent); so one sees the other.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What is claimed of one file.
#[derive(Debug)]
pub(crate) struct Claims {
    /// How many readers, and perhaps [`WANTED`]; or [`WRITER`]. And how many [`HOLD`] it for long ranges.
    slots: Box<[AtomicU32]>,
    /// How many ranges are announced.
    announced: AtomicU32,
    places: [Place; PLACES],
    tickets: AtomicU64,
}

/// An announced range, in pieces.
#[derive(Debug, Default)]
struct Place {
    /// Its turn among the announced ranges, or [`FREE`], or [`PENDING`].
    ticket: AtomicU64,
    first: AtomicU64,
    end: AtomicU64,
}

/// The right to read or write a range, until dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    _held: Held,
}

#[derive(Debug)]
enum Held {
    Pieces { _pieces: Pieces },
    Range { _announcement: Announcement },
}

/// Slots that are held.
#[derive(Debug)]
struct Pieces {
    claims: Arc<Claims>,
    first: u64,
    count: u64,
    access: Access,
}

/// A long range that is to be written; withdrawn when dropped.
#[derive(Debug)]
pub(crate) struct Announcement {
    claims: Arc<Claims>,
    place: usize,
    ticket: u64,
    pieces: Range<u64>,
    /// Slots of the range that were in use when it was announced and are still, each with a [`HOLD`] of ours.
    /// None before its turn among the announced ranges.
    busy: Option<Vec<u64>>,
}

/// What a claim is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

impl Claims {
    pub(crate) fn new() -> Arc<Claims> {
        Arc::new(Claims {
            slots: (0..SLOTS).map(|_| AtomicU32::new(0)).collect(),
            announced: AtomicU32::new(0),
            places: Default::default(),
            tickets: AtomicU64::new(PENDING + 1),
        })
    }

    /// Claims `len` bytes from `offset`; `None` while someone holds any of them in a way that excludes this
    /// one.
    pub(crate) fn claim(self: &Arc<Claims>, offset: u64, len: u64, access: Access) -> Option<Claim> {
        let range = pieces(offset, len);
        let (first, count) = (range.start, (range.end - range.start).min(SLOTS));
        for taken in 0..count {
            if !self.take(first + taken, access) {
                self.release(first, taken, access);
                self.want(first + taken..first + count, access);
                return None;
            }
        }
        let pieces = Pieces { claims: Arc::clone(self), first, count, access };
        let is_free = self.announced.load(Ordering::SeqCst) == 0 || !self.is_announced(&range);
        is_free.then_some(Claim { _held: Held::Pieces { _pieces: pieces } })
    }

    /// Announces that `len` bytes from `offset` are to be written; `None` while too many ranges are announced.
    pub(crate) fn announce(self: &Arc<Claims>, offset: u64, len: u64) -> Option<Announcement> {
        let pieces = pieces(offset, len);
        let is_free = |place: &Place| {
            place.ticket.compare_exchange(FREE, PENDING, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        let index = self.places.iter().position(is_free)?;
        let place = &self.places[index];
        place.first.store(pieces.start, Ordering::SeqCst);
        place.end.store(pieces.end, Ordering::SeqCst);
        self.announced.fetch_add(1, Ordering::SeqCst);
        let ticket = self.tickets.fetch_add(1, Ordering::SeqCst);
        place.ticket.store(ticket, Ordering::SeqCst);
        Some(Announcement { claims: Arc::clone(self), place: index, ticket, pieces, busy: None })
    }

    #[cold]
    fn is_announced(&self, range: &Range<u64>) -> bool {
        self.places.iter().any(|place| place.is_used() && place.overlaps(range))
    }

    fn take(&self, piece: u64, access: Access) -> bool {
        let taken = |state: u32| match (access, state & !WANTED) {
            _ if state & HOLDS != 0 => None,
            (Access::Write, 0) => Some(WRITER),
            (Access::Write, _) | (Access::Read, WRITER | READERS_MAX) => None,
            // The others leave, then it is the writer's turn. It may have gone away, so the first who comes
            // then may go in.
            (Access::Read, 1..) if state & WANTED != 0 => None,
            (Access::Read, readers) => Some(readers + 1),
        };
        self.slot(piece).fetch_update(Ordering::SeqCst, Ordering::Relaxed, taken).is_ok()
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
                Access::Write => drop(self.slot(piece).fetch_and(!WRITER, Ordering::Release)),
                Access::Read => drop(self.slot(piece).fetch_sub(1, Ordering::Release)),
            }
        }
    }

    fn slot(&self, piece: u64) -> &AtomicU32 {
        &self.slots[(piece % SLOTS) as usize]
    }

    fn is_in_use(&self, piece: u64) -> bool {
        self.slot(piece).load(Ordering::SeqCst) & (WRITER | READERS_MAX) != 0
    }
}

impl Place {
    fn is_used(&self) -> bool {
        self.ticket.load(Ordering::SeqCst) != FREE
    }

    fn overlaps(&self, range: &Range<u64>) -> bool {
        let (first, end) = (self.first.load(Ordering::SeqCst), self.end.load(Ordering::SeqCst));
        range.start < end && first < range.end
    }
}

impl Announcement {
    /// Length of the range.
    pub(crate) fn bytes(&self) -> u64 {
        (self.pieces.end - self.pieces.start) * PIECE_BYTES
    }

    /// Turns into the claim once nobody else has any of the range; to be tried again in a later turn
    /// otherwise.
    pub(crate) fn into_claim(mut self) -> Result<Claim, Announcement> {
        if self.busy.is_none() {
            if self.is_behind_another() {
                return Err(self);
            }
            self.busy = Some(self.hold_busy());
        }
        let claims = &self.claims;
        if let Some(busy) = &mut self.busy {
            busy.retain(|piece| claims.is_in_use(*piece) || claims.end_hold(*piece));
            if !busy.is_empty() {
                return Err(self);
            }
        }
        Ok(Claim { _held: Held::Range { _announcement: self } })
    }

    /// Whether an overlapping range was announced before this one, or at the same time.
    fn is_behind_another(&self) -> bool {
        let mut others = self.claims.places.iter().enumerate().filter(|(index, _)| *index != self.place);
        others.any(|(_, other)| {
            let ticket = other.ticket.load(Ordering::SeqCst);
            ticket != FREE && ticket < self.ticket && other.overlaps(&self.pieces)
        })
    }

    /// The slots of the range that are in use: nobody gets a new claim of them until they are not.
    fn hold_busy(&self) -> Vec<u64> {
        let pieces = self.pieces.start..self.pieces.end.min(self.pieces.start + SLOTS);
        let busy: Vec<u64> = pieces.filter(|piece| self.claims.is_in_use(*piece)).collect();
        for piece in &busy {
            self.claims.slot(*piece).fetch_add(HOLD, Ordering::SeqCst);
        }
        busy
    }
}

impl Claims {
    /// Takes a hold back; false, for lists that keep what is held.
    fn end_hold(&self, piece: u64) -> bool {
        self.slot(piece).fetch_sub(HOLD, Ordering::SeqCst);
        false
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        self.claims.release(self.first, self.count, self.access);
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        for piece in self.busy.take().unwrap_or_default() {
            self.claims.end_hold(piece);
        }
        self.claims.announced.fetch_sub(1, Ordering::SeqCst);
        self.claims.places[self.place].ticket.store(FREE, Ordering::SeqCst);
    }
}

fn pieces(offset: u64, len: u64) -> Range<u64> {
    let first = offset / PIECE_BYTES;
    first..(offset + len).div_ceil(PIECE_BYTES).max(first)
}

/// A claim of so many bytes should be announced: it would hardly ever find all of its slots free.
pub(crate) const LONG_BYTES: u64 = 128 << 10;
const SLOTS: u64 = 1 << 16;
const PIECE_BYTES: u64 = 4096;
const WRITER: u32 = 1 << 31;
/// A writer waits for the readers of the slot to leave.
const WANTED: u32 = 1 << 30;
/// An announced range waits for the slot to be free. As many times as there are such ranges.
const HOLD: u32 = 1 << 24;
const HOLDS: u32 = WANTED - HOLD;
const READERS_MAX: u32 = HOLD - 1;
/// Ranges that can be announced at a time.
const PLACES: usize = 16;
/// Tickets that are none: of a place that nobody has, and of one that is being taken.
const FREE: u64 = 0;
const PENDING: u64 = 1;

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

    #[test]
    fn an_announced_range_waits_for_earlier_claims_and_refuses_later_ones() {
        let claims = Claims::new();
        let [reader, writer] = [(0, Access::Read), (1 << 20, Access::Write)]
            .map(|(offset, access)| claims.claim(offset, 4096, access).unwrap());
        let range = claims.announce(0, 4 << 20).unwrap();
        let range = range.into_claim().unwrap_err();
        for access in [Access::Read, Access::Write] {
            assert!(claims.claim(2 << 20, 512, access).is_none(), "inside of the announced range");
            assert!(claims.claim(4 << 20, 512, access).is_some(), "outside of it");
        }
        drop(reader);
        let range = range.into_claim().unwrap_err();
        drop(writer);
        let range = range.into_claim().unwrap();
        assert!(claims.claim(2 << 20, 512, Access::Read).is_none());
        drop(range);
        assert!(claims.claim(2 << 20, 512, Access::Read).is_some());
        assert!(claims.slots.iter().all(|slot| slot.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn announced_ranges_are_granted_in_order_and_only_if_they_overlap() {
        let claims = Claims::new();
        let [first, second, other] =
            [0, 1 << 20, 8 << 20].map(|offset| claims.announce(offset, 4 << 20).unwrap());
        let second = second.into_claim().unwrap_err();
        let _other = other.into_claim().unwrap();
        let first = first.into_claim().unwrap();
        let second = second.into_claim().unwrap_err();
        drop(first);
        second.into_claim().unwrap();
    }

    #[test]
    fn a_withdrawn_announcement_leaves_nothing_behind() {
        let claims = Claims::new();
        let reader = claims.claim(4096, 4096, Access::Read).unwrap();
        let range = claims.announce(0, 4 << 20).unwrap().into_claim().unwrap_err();
        assert!(claims.claim(4096, 4096, Access::Read).is_none());
        drop(range);
        assert!(claims.claim(4096, 4096, Access::Read).is_some());
        drop(reader);
        assert!(claims.slots.iter().all(|slot| slot.load(Ordering::Relaxed) == 0));
        let places: Vec<_> = (0..PLACES).map(|_| claims.announce(0, 4 << 20).unwrap()).collect();
        assert!(claims.announce(0, 4 << 20).is_none());
        drop(places);
        assert!(claims.announce(0, 4 << 20).is_some());
    }

    /// 512 claims of one piece, half of which end in every turn and are replaced by others, anywhere in the
    /// file.
    struct Load {
        claims: Arc<Claims>,
        held: std::collections::VecDeque<Claim>,
        rng: fastrand::Rng,
        granted: u32,
        refused: u32,
    }

    impl Load {
        const DEPTH: usize = 512;
        /// The longest step of a range at a time.
        const STEP: u64 = 64 << 20;
        const FILE: u64 = 4 << 30;

        fn new(claims: &Arc<Claims>) -> Load {
            let (claims, held, rng) = (Arc::clone(claims), Default::default(), fastrand::Rng::with_seed(7));
            let mut load = Load { claims, held, rng, granted: 0, refused: 0 };
            load.turn();
            (load.granted, load.refused) = (0, 0);
            load
        }

        fn turn(&mut self) {
            self.held.drain(..self.held.len().min(Load::DEPTH / 2));
            for _ in self.held.len()..Load::DEPTH {
                let access = if self.rng.bool() { Access::Read } else { Access::Write };
                let offset = self.rng.u64(..Load::FILE / 4096) * 4096;
                match self.claims.claim(offset, 4096, access) {
                    Some(claim) => (self.granted, _) = (self.granted + 1, self.held.push_back(claim)),
                    None => self.refused += 1,
                }
            }
        }
    }

    #[test]
    fn short_claims_without_end_do_not_keep_a_long_one_out() {
        let claims = Claims::new();
        let mut load = Load::new(&claims);
        for step in 0..16 {
            let mut range = claims.announce(step * Load::STEP, Load::STEP).unwrap();
            let mut turns = 0;
            let _claim = loop {
                match range.into_claim() {
                    Ok(claim) => break claim,
                    Err(waiting) => range = waiting,
                }
                load.turn();
                turns += 1;
                assert!(turns <= 4, "step {step} still waits after {turns} turns");
            };
            (0..4).for_each(|_| load.turn());
        }
        let all = load.granted + load.refused;
        assert!(load.refused * 10 < all, "{} of {all} short claims were refused", load.refused);
    }
}

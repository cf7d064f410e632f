//! One command in flight, and the R2Ts for its data.
//!
//! Invariant: the ranges of its grants are consecutive, and their tags differ.

use arrayvec::ArrayVec;
use isolane_memory::Buffer;
use isolane_wire::SubmissionEntry;

use super::cid_index::NONE;

/// One command.
pub(crate) struct Slot {
    pub(super) generation: u32,
    pub(super) cid: u16,
    pub(super) next: u16,
    pub(super) occupied: bool,
    pub entry: SubmissionEntry,
    /// Write data; present while it arrives.
    pub buffer: Option<Buffer>,
    /// The number of its transfer, counted from 1.
    pub(super) transfer: u64,
    /// Data digests so far were right.
    pub digest_ok: bool,
    /// Bytes that R2Ts asked for, and bytes that arrived.
    pub(super) granted: u32,
    pub received: u32,
    pub grants: ArrayVec<Grant, MAX_GRANTS>,
}

/// One outstanding R2T.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub ttag: u16,
    /// Its range, from the start of the command's data.
    pub start: u32,
    /// The next byte that must come.
    pub next: u32,
    /// The end of the range.
    pub end: u32,
    /// It was given without a turn.
    pub unscheduled: bool,
}

impl Slot {
    /// That of a command which is not in flight yet.
    pub(super) fn new() -> Slot {
        Slot {
            generation: 0,
            cid: 0,
            next: NONE,
            occupied: false,
            entry: SubmissionEntry::new(0, 0),
            buffer: None,
            transfer: 0,
            digest_ok: true,
            granted: 0,
            received: 0,
            grants: ArrayVec::new(),
        }
    }

    /// The CID of the command.
    pub fn cid(&self) -> u16 {
        self.cid
    }

    /// Whether all data arrived.
    pub fn is_complete(&self) -> bool {
        self.received == self.len()
    }

    fn len(&self) -> u32 {
        self.buffer.as_ref().map_or(0, |buffer| buffer.len() as u32)
    }

    /// Opens the next grant of at most `max_len` bytes, if there is anything left to ask for.
    pub fn next_grant(&mut self, at: u16, max_len: u32, unscheduled: bool) -> Option<Grant> {
        let len = self.len();
        if self.granted >= len || self.grants.is_full() {
            return None;
        }
        let in_use = |tag| self.grants.iter().any(|grant| grant.ttag == tag);
        let ttag = (0..MAX_GRANTS as u16).map(|n| at | n << TAG_SLOT_BITS).find(|tag| !in_use(*tag))?;
        let grant = Grant {
            ttag,
            start: self.granted,
            next: self.granted,
            end: len.min(self.granted.saturating_add(max_len)),
            unscheduled,
        };
        self.granted = grant.end;
        self.grants.push(grant);
        Some(grant)
    }
}

/// The most R2Ts outstanding for one command, whatever the host allows.
pub(crate) const MAX_GRANTS: usize = 4;
/// The most commands of one queue: what the tag leaves for the slot.
pub(crate) const MAX_SLOTS: usize = 1 << TAG_SLOT_BITS;
pub(super) const TAG_SLOT_BITS: u32 = 14;
pub(super) const TAG_SLOT_MASK: u16 = (1 << TAG_SLOT_BITS) - 1;
const _: () = assert!(MAX_GRANTS << TAG_SLOT_BITS == 1 << 16);

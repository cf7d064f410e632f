//! Places for payload in the session's memory, and what is under way in each.
//!
//! A slot holds the payload of one command. The one that was used last is used next, so that few are warm.
//! Invariant: a slot has at most one command, and an outcome that names another one than it has is no outcome.

use isolane_attach::{Room, Session};
use isolane_memory::Buffer;
use isolane_ring::Memory;
use isolane_ring::entries::Sender;

use super::opening;
use super::wire::{ENTRIES_MAX, Operation, RANGE_BYTES, Submission, encode_range};
use crate::error::ConnectError;
use crate::options::Options;
use crate::request::BlockRange;

/// All slots of a volume.
pub(super) struct Slots {
    memory: Memory,
    room: Room,
    /// Bytes of each.
    bytes: usize,
    slots: Vec<Slot>,
    free: Vec<u32>,
    submitted: u64,
    /// Of those, what the engine was shown.
    shown: u64,
}

struct Slot {
    generation: u32,
    out: Option<Out>,
}

/// A command without an outcome.
struct Out {
    /// Of all that were submitted, which one.
    number: u64,
    mark: u64,
    submission: Submission,
    buffer: Option<Buffer>,
}

impl Slots {
    /// How many, and how many bytes of payload each.
    pub fn shape(options: &Options) -> (usize, usize) {
        let bytes = options.transfer_bytes_max.clamp(BYTES_MIN, super::wire::TRANSFER_BYTES_MAX);
        let bytes = bytes.next_multiple_of(isolane_ring::PAGE_SIZE);
        let in_flight = options.classes().total().saturating_mul(options.depth.into()).max(1);
        let count = in_flight.min(COUNT_MAX).next_power_of_two();
        let count_max = (ALL_BYTES_MAX / bytes).max(1);
        (count.min(1 << count_max.ilog2()), bytes)
    }

    pub fn new(session: &Session, options: &Options) -> Result<Slots, ConnectError> {
        let (count, bytes) = Slots::shape(options);
        let room = session.take(count * bytes).map_err(opening::at_engine)?;
        let slots = (0..count).map(|_| Slot { generation: 0, out: None }).collect();
        let free = (0..count as u32).rev().collect();
        Ok(Slots { memory: session.memory().clone(), room, bytes, slots, free, submitted: 0, shown: 0 })
    }

    /// Bytes of payload that one takes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    #[inline]
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether something was submitted since the last time; it is to be shown now.
    #[inline]
    pub fn have_news(&mut self) -> bool {
        std::mem::replace(&mut self.shown, self.submitted) != self.submitted
    }

    pub fn are_free(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Submits a command with its payload. There is room, and the buffer fits a slot.
    #[inline]
    pub fn put(&mut self, ring: &mut Sender, asked: Submission, mark: u64, buffer: Option<Buffer>) {
        let Some(index) = self.free.pop() else { unreachable!("there is room") };
        let offset = self.offset(index);
        let len = buffer.as_ref().map_or(0, Buffer::len);
        if let (Operation::Write { .. }, Some(buffer)) = (asked.operation, &buffer) {
            let mut at = offset;
            buffer.visit(0, len, |piece| {
                let copied = self.memory.copy_in(at, piece);
                debug_assert!(copied.is_ok(), "a buffer fits its slot");
                at += piece.len() as u64;
            });
        }
        let submission = Submission { offset, len: len as u64, ..asked };
        self.submit(ring, index, submission, mark, buffer);
    }

    /// Submits a deallocation of at most 256 ranges.
    pub fn put_ranges(&mut self, ring: &mut Sender, asked: Submission, mark: u64, ranges: &[BlockRange]) {
        let Some(index) = self.free.pop() else { unreachable!("there is room") };
        let offset = self.offset(index);
        for (range, at) in ranges.iter().zip((offset..).step_by(RANGE_BYTES)) {
            let copied = self.memory.copy_in(at, &encode_range(range));
            debug_assert!(copied.is_ok(), "256 ranges fit a slot");
        }
        let range = BlockRange { lba: 0, blocks: ranges.len() as u64 };
        let len = (ranges.len() * RANGE_BYTES) as u64;
        self.submit(ring, index, Submission { offset, len, range, ..asked }, mark, None);
    }

    /// Submits everything without an outcome once more, in its order, to a fresh ring.
    pub fn repeat(&mut self, ring: &mut Sender) {
        let mut out: Vec<&Out> = self.slots.iter().filter_map(|slot| slot.out.as_ref()).collect();
        out.sort_by_key(|out| out.number);
        out.into_iter().for_each(|out| push(ring, &out.submission));
        // An empty ring needs no doorbell.
        self.shown = if self.are_free() { self.submitted } else { u64::MAX };
    }

    /// A command has ended: its mark, and its buffer with what a good read has brought. `None` if there was no
    /// such command.
    #[inline]
    pub fn take(&mut self, tag: u64, is_good: bool) -> Option<(u64, Option<Buffer>)> {
        let (index, generation) = (tag as u32, (tag >> 32) as u32);
        let slot = self.slots.get_mut(index as usize).filter(|slot| slot.generation == generation)?;
        let mut out = slot.out.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        if is_good
            && out.submission.operation == Operation::Read
            && let Some(buffer) = &mut out.buffer
        {
            fetch(&self.memory, out.submission.offset, buffer);
        }
        Some((out.mark, out.buffer))
    }

    /// Everything without an outcome is given up: marks and buffers.
    pub fn drain(&mut self) -> Vec<(u64, Option<Buffer>)> {
        // The engine may still use their places, so they are not used again.
        self.free.clear();
        self.room.keep();
        let out = self.slots.iter_mut().filter_map(|slot| slot.out.take());
        out.map(|out| (out.mark, out.buffer)).collect()
    }

    #[inline]
    fn submit(
        &mut self,
        ring: &mut Sender,
        index: u32,
        submission: Submission,
        mark: u64,
        buffer: Option<Buffer>,
    ) {
        let slot = &mut self.slots[index as usize];
        let tag = u64::from(slot.generation) << 32 | u64::from(index);
        let submission = Submission { tag, ..submission };
        push(ring, &submission);
        self.submitted += 1;
        slot.out = Some(Out { number: self.submitted, mark, submission, buffer });
    }

    #[inline]
    fn offset(&self, index: u32) -> u64 {
        self.room.offset() + u64::from(index) * self.bytes as u64
    }
}

/// The ring has as many entries as there are slots, so it is full only if the engine says what cannot be; then
/// its outcomes say so, too.
#[inline]
fn push(ring: &mut Sender, submission: &Submission) {
    let _ = ring.push(&submission.encode());
}

/// Copies what was read into the caller's buffer.
#[inline]
fn fetch(memory: &Memory, offset: u64, buffer: &mut Buffer) {
    let (mut at, len) = (offset, buffer.len());
    if buffer.is_foreign() {
        let mut bytes = vec![0; len];
        let copied = memory.copy_out(at, &mut bytes);
        debug_assert!(copied.is_ok(), "a buffer fits its slot");
        return buffer.place(0, &bytes);
    }
    for piece in buffer.slices_mut(0, len) {
        let copied = memory.copy_out(at, piece);
        debug_assert!(copied.is_ok(), "a buffer fits its slot");
        at += piece.len() as u64;
    }
}

/// 256 ranges of a deallocation fit.
const BYTES_MIN: usize = 4096;
/// More than that of one volume are seldom of use: what waits beyond waits here.
const COUNT_MAX: usize = 256;
const _: () = assert!(COUNT_MAX <= ENTRIES_MAX as usize);
/// Of all slots together. Pages are taken once touched.
const ALL_BYTES_MAX: usize = 512 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_as_can_be_in_flight_within_bounds() {
        let shape = |lanes, depth, transfer_bytes_max| {
            Slots::shape(&Options { lanes, depth, transfer_bytes_max, ..Options::default() })
        };
        assert_eq!(shape(1, 64, 1 << 20), (64, 1 << 20));
        assert_eq!(shape(1, 33, 65_536), (64, 65_536));
        assert_eq!(shape(8, 128, 4096), (256, 4096));
        assert_eq!(shape(8, 128, 4 << 20), (128, 4 << 20));
        assert_eq!(shape(1, 1, 0), (1, 4096));
    }
}

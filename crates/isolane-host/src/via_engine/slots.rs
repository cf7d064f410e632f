//! Payload slots in the session's memory, and the command in each.
//!
//! A slot holds the payload of one command. The slot used last is reused first, so that few of them are warm.
//!
//! Invariant: a slot has at most one command, and an outcome for another command is malformed.

use isolane_attach::{Allocation, Session};
use isolane_memory::Buffer;
use isolane_reactor::clock;
use isolane_shm::SharedMemory;
use isolane_shm::entries::Sender;

use super::wire::{MAX_ENTRIES, Operation, RANGE_BYTES, Submission, encode_range};
use crate::error::ConnectError;
use crate::options::Options;
use crate::request::BlockRange;

/// Slots of a volume.
pub(super) struct Slots {
    memory: SharedMemory,
    allocation: Allocation,
    /// Size of each slot in bytes.
    bytes: usize,
    slots: Vec<Slot>,
    free: Vec<u32>,
    submitted: u64,
    /// Whether commands were submitted that are not published to the engine.
    unpublished: bool,
    /// Time of the first of these commands; 0 if no time is taken.
    pushed: u64,
    observe: bool,
}

struct Slot {
    generation: u32,
    in_flight: Option<InFlight>,
}

/// A command without an outcome.
struct InFlight {
    /// Sequence sequence.
    sequence: u64,
    request_tag: u64,
    submission: Submission,
    buffer: Option<Buffer>,
}

impl Slots {
    /// Returns the sequence of slots and the size of each in bytes.
    pub fn dimensions(options: &Options) -> (usize, usize) {
        let bytes = options.max_transfer_bytes.clamp(MIN_BYTES, super::wire::MAX_TRANSFER_BYTES);
        let bytes = bytes.next_multiple_of(isolane_shm::PAGE_SIZE);
        let in_flight = options.classes().total().saturating_mul(options.depth.into()).max(1);
        let count = in_flight.min(MAX_COUNT).next_power_of_two();
        let count_max = (MAX_ALL_BYTES / bytes).max(1);
        (count.min(1 << count_max.ilog2()), bytes)
    }

    pub fn new(session: &Session, options: &Options) -> Result<Slots, ConnectError> {
        let (count, bytes) = Slots::dimensions(options);
        let allocation = session.alloc(count * bytes)?;
        let slots = (0..count).map(|_| Slot { generation: 0, in_flight: None }).collect();
        let free = (0..count as u32).rev().collect();
        Ok(Slots {
            memory: session.memory().clone(),
            allocation,
            bytes,
            slots,
            free,
            submitted: 0,
            unpublished: false,
            pushed: 0,
            observe: options.observe,
        })
    }

    /// Size of a slot in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    #[inline]
    pub fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Returns whether commands were submitted since the last call; they must be published now.
    #[inline]
    pub fn take_unpublished(&mut self) -> bool {
        std::mem::take(&mut self.unpublished)
    }

    /// Returns the time for the engine at which outcomes are taken; 0 if no time is taken.
    #[inline]
    pub fn time_of_take(&self) -> u64 {
        if self.observe { clock::monotonic() } else { 0 }
    }

    pub fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Submits a command with its payload. A slot must be free, and the buffer must fit it.
    #[inline]
    pub fn put(&mut self, ring: &mut Sender, command: Submission, request_tag: u64, buffer: Option<Buffer>) {
        let Some(index) = self.free.pop() else { unreachable!("a slot is free") };
        let offset = self.offset(index);
        let len = buffer.as_ref().map_or(0, Buffer::len);
        if let (Operation::Write { .. }, Some(buffer)) = (command.operation, &buffer) {
            let mut at = offset;
            buffer.for_each_slice(0, len, |piece| {
                let copied = self.memory.copy_in(at, piece);
                debug_assert!(copied.is_ok(), "a buffer fits its slot");
                at += piece.len() as u64;
            });
        }
        let submission = Submission { offset, len: len as u64, ..command };
        self.submit(ring, index, submission, request_tag, buffer);
    }

    /// Submits a deallocation of at most 256 ranges.
    pub fn put_ranges(
        &mut self,
        ring: &mut Sender,
        command: Submission,
        request_tag: u64,
        ranges: &[BlockRange],
    ) {
        let Some(index) = self.free.pop() else { unreachable!("a slot is free") };
        let offset = self.offset(index);
        for (range, at) in ranges.iter().zip((offset..).step_by(RANGE_BYTES)) {
            let copied = self.memory.copy_in(at, &encode_range(range));
            debug_assert!(copied.is_ok(), "256 ranges fit a slot");
        }
        let range = BlockRange { lba: 0, blocks: ranges.len() as u64 };
        let len = (ranges.len() * RANGE_BYTES) as u64;
        self.submit(ring, index, Submission { offset, len, range, ..command }, request_tag, None);
    }

    /// Submits every command without an outcome again, in order, to a new ring.
    pub fn resubmit_all(&mut self, ring: &mut Sender) {
        let mut in_flight: Vec<&InFlight> =
            self.slots.iter().filter_map(|slot| slot.in_flight.as_ref()).collect();
        in_flight.sort_by_key(|in_flight| in_flight.sequence);
        in_flight.into_iter().for_each(|in_flight| push(ring, &in_flight.submission));
        // An empty ring needs no doorbell.
        self.unpublished = !self.is_idle();
    }

    /// Completes a command: returns its tag, and its buffer with the data of a successful read. `None` if
    /// there is no such command.
    #[inline]
    pub fn take(&mut self, tag: u64, is_good: bool) -> Option<(u64, Option<Buffer>)> {
        let (index, generation) = (tag as u32, (tag >> 32) as u32);
        let slot = self.slots.get_mut(index as usize).filter(|slot| slot.generation == generation)?;
        let mut in_flight = slot.in_flight.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        if is_good
            && in_flight.submission.operation == Operation::Read
            && let Some(buffer) = &mut in_flight.buffer
        {
            fetch(&self.memory, in_flight.submission.offset, buffer);
        }
        Some((in_flight.request_tag, in_flight.buffer))
    }

    /// Abandons every command without an outcome and returns tags and buffers.
    pub fn drain(&mut self) -> Vec<(u64, Option<Buffer>)> {
        // The engine may still access the slots, so they are not reused.
        self.free.clear();
        self.allocation.leak();
        let in_flight = self.slots.iter_mut().filter_map(|slot| slot.in_flight.take());
        in_flight.map(|in_flight| (in_flight.request_tag, in_flight.buffer)).collect()
    }

    #[inline]
    fn submit(
        &mut self,
        ring: &mut Sender,
        index: u32,
        submission: Submission,
        request_tag: u64,
        buffer: Option<Buffer>,
    ) {
        let slot = &mut self.slots[index as usize];
        let tag = u64::from(slot.generation) << 32 | u64::from(index);
        if self.observe && !self.unpublished {
            self.pushed = clock::monotonic();
        }
        let submission = Submission { tag, pushed: self.pushed, ..submission };
        push(ring, &submission);
        self.submitted += 1;
        self.unpublished = true;
        slot.in_flight = Some(InFlight { sequence: self.submitted, request_tag, submission, buffer });
    }

    #[inline]
    fn offset(&self, index: u32) -> u64 {
        self.allocation.offset() + u64::from(index) * self.bytes as u64
    }
}

/// The ring has one entry per slot, so it is full only if the engine misbehaves, which its outcomes show as
/// well.
#[inline]
fn push(ring: &mut Sender, submission: &Submission) {
    let _ = ring.push(&submission.encode());
}

/// Copies data into the caller's buffer.
#[inline]
fn fetch(memory: &SharedMemory, offset: u64, buffer: &mut Buffer) {
    let (mut at, len) = (offset, buffer.len());
    if buffer.is_in_shared_memory() {
        let mut bytes = vec![0; len];
        let copied = memory.copy_out(at, &mut bytes);
        debug_assert!(copied.is_ok(), "a buffer fits its slot");
        return buffer.copy_in(0, &bytes);
    }
    for piece in buffer.slices_mut(0, len) {
        let copied = memory.copy_out(at, piece);
        debug_assert!(copied.is_ok(), "a buffer fits its slot");
        at += piece.len() as u64;
    }
}

/// 256 ranges of a deallocation fit.
const MIN_BYTES: usize = 4096;
/// Maximum sequence of slots. Further requests wait in the client.
const MAX_COUNT: usize = 256;
const _: () = assert!(MAX_COUNT <= MAX_ENTRIES as usize);
/// Maximum size of all slots in bytes. Pages are allocated on first use.
const MAX_ALL_BYTES: usize = 512 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_match_commands_in_flight() {
        let dimensions = |lanes, depth, max_transfer_bytes| {
            Slots::dimensions(&Options { lanes, depth, max_transfer_bytes, ..Options::default() })
        };
        assert_eq!(dimensions(1, 64, 1 << 20), (64, 1 << 20));
        assert_eq!(dimensions(1, 33, 65_536), (64, 65_536));
        assert_eq!(dimensions(8, 128, 4096), (256, 4096));
        assert_eq!(dimensions(8, 128, 4 << 20), (128, 4 << 20));
        assert_eq!(dimensions(1, 1, 0), (1, 4096));
    }
}

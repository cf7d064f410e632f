//! Requests in progress: one slot each, split into the commands ("parts") that carry it.
//!
//! A part has no record: the tag of its command holds the slot and the part's index, and its blocks follow from
//! the index. The buffer is split into one piece per part without a copy, and joined again at the end. Both
//! implementations of a client keep their requests here, and deliver every completion from here.
//!
//! Invariant: a request completes exactly once, when none of its parts is in flight and none remains to be sent,
//! and then the whole buffer is back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use isolane_memory::Buffer;
use smallvec::SmallVec;

use crate::caller_queue::CallerQueue;
use crate::error::RequestError;
use crate::io_limits::IoLimits;
use crate::observer::{Command, Key, NO_CALLER, Observer};
use crate::operation::Operation;
use crate::reply::Reply;
use crate::request::{BlockRange, Completion, Request};
use crate::unflushed::Change;

/// One part of one request; also the tag of its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub slot: u32,
    pub index: u32,
}

impl Part {
    pub(crate) fn tag(self) -> u64 {
        u64::from(self.slot) << 32 | u64::from(self.index)
    }

    pub(crate) fn from_tag(tag: u64) -> Part {
        Part { slot: (tag >> 32) as u32, index: tag as u32 }
    }
}

/// Consecutive parts of a request, from `next` up to but not including `end`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartRange {
    pub slot: u32,
    next: u32,
    end: u32,
}

impl PartRange {
    /// All parts of the request in `slot`.
    pub(crate) fn all(slot: u32, request: &RequestSlot) -> PartRange {
        PartRange { slot, next: 0, end: request.parts }
    }

    pub(crate) fn one(part: Part) -> PartRange {
        PartRange { slot: part.slot, next: part.index, end: part.index + 1 }
    }

    /// Takes the next part. The flag is `true` if it was the last one.
    pub(crate) fn take(&mut self) -> (Part, bool) {
        let part = Part { slot: self.slot, index: self.next };
        self.next += 1;
        (part, self.next == self.end)
    }
}

/// Failures of a request so far.
#[derive(Debug, Default)]
struct Trouble {
    /// The first failure.
    failure: Option<RequestError>,
    /// Retries of each part that the target refused for now.
    retries: BTreeMap<u32, u8>,
    /// First loss of a part with its connection since the target has answered one.
    lost_since: Option<Instant>,
}

/// One request in progress. Its fields drop in order: the buffer before the reply.
#[derive(Debug)]
pub(crate) struct RequestSlot {
    pub lane: usize,
    pub operation: Operation,
    pub range: BlockRange,
    pub parts: u32,
    /// Parts that have neither completed nor failed.
    pub remaining: u32,
    /// Parts whose command is at the target.
    pub in_flight: u32,
    /// Parts repeated because of damaged data.
    pub repeats: u8,
    /// When the client first saw it in flight since a part was last sent.
    pub seen_in_flight: Option<Instant>,
    pub key: Key,
    /// Boxed, because it is rare and large.
    trouble: Option<Box<Trouble>>,
    part_blocks: u32,
    buffer: BufferParts,
    reply: Reply,
}

impl RequestSlot {
    /// Splits a request for `range`, which [`IoLimits::check`] has returned.
    pub(crate) fn new(
        reply: Reply,
        lane: usize,
        request: Request,
        range: BlockRange,
        key: Key,
        limits: &IoLimits,
    ) -> RequestSlot {
        let (operation, buffer) = Operation::from_request(request);
        let (parts, part_blocks) = (limits.parts(&range), limits.part_blocks);
        let buffer = match parts {
            1 => BufferParts::One(buffer),
            _ => BufferParts::split(buffer, parts, limits.block_bytes as usize * part_blocks as usize),
        };
        let request = RequestSlot::in_flight(reply, lane, operation, range, key);
        RequestSlot { parts, remaining: parts, in_flight: 0, part_blocks, buffer, ..request }
    }

    /// A request whose only part is already in flight, with the buffer.
    #[inline(always)]
    fn in_flight(
        reply: Reply,
        lane: usize,
        operation: Operation,
        range: BlockRange,
        key: Key,
    ) -> RequestSlot {
        RequestSlot {
            reply,
            lane,
            operation,
            range,
            parts: 1,
            remaining: 1,
            in_flight: 1,
            repeats: 0,
            seen_in_flight: None,
            key,
            trouble: None,
            part_blocks: u32::MAX,
            buffer: BufferParts::One(None),
        }
    }

    /// Returns whether one command is the whole request and nothing has failed. Then the slot owns no memory,
    /// because the command has the buffer. A flush may fail although its command did not.
    #[inline(always)]
    fn is_single_command(&self) -> bool {
        let owns_nothing = matches!(self.buffer, BufferParts::One(None))
            && !matches!(self.operation, Operation::Deallocate(_) | Operation::Flush(_));
        self.parts == 1 && self.trouble.is_none() && owns_nothing
    }

    /// Returns the blocks of one part.
    #[inline]
    pub(crate) fn part_range(&self, index: u32) -> BlockRange {
        let offset = u64::from(index) * u64::from(self.part_blocks);
        let blocks = (self.range.blocks - offset).min(u64::from(self.part_blocks));
        BlockRange { lba: self.range.lba + offset, blocks }
    }

    /// Returns the blocks that a part may change.
    pub(crate) fn part_changes(&self, index: u32) -> SmallVec<[BlockRange; 1]> {
        match &self.operation {
            Operation::Read | Operation::Flush(_) => SmallVec::new(),
            Operation::Deallocate(ranges) => SmallVec::from_slice(ranges),
            Operation::Write { .. } | Operation::WriteZeroes { .. } => {
                SmallVec::from_buf([self.part_range(index)])
            }
        }
    }

    /// Takes the buffer of a part.
    #[inline]
    pub(crate) fn take_buffer(&mut self, index: u32) -> Option<Buffer> {
        self.buffer.part_mut(index)?.take()
    }

    /// Returns the buffer of a part.
    pub(crate) fn return_buffer(&mut self, index: u32, buffer: Option<Buffer>) {
        if let Some(part) = self.buffer.part_mut(index) {
            debug_assert!(part.is_none(), "the buffer of a part is returned once");
            *part = buffer;
        }
    }

    /// Records the first failure.
    pub(crate) fn fail(&mut self, error: RequestError) {
        self.trouble.get_or_insert_default().failure.get_or_insert(error);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.trouble.as_ref().is_some_and(|trouble| trouble.failure.is_some())
    }

    /// Records that a part was lost with its connection. Returns the first such loss since an answer.
    pub(crate) fn record_loss(&mut self, now: Instant) -> Instant {
        *self.trouble.get_or_insert_default().lost_since.get_or_insert(now)
    }

    /// Records that the target has answered a part.
    pub(crate) fn record_answer(&mut self) {
        self.trouble.iter_mut().for_each(|trouble| trouble.lost_since = None);
    }

    /// Returns how often a part was sent again after the target refused it for now.
    pub(crate) fn retries(&self, index: u32) -> u8 {
        let retries = self.trouble.as_ref().and_then(|trouble| trouble.retries.get(&index));
        retries.copied().unwrap_or_default()
    }

    /// Counts one more retry of a part.
    pub(crate) fn record_retry(&mut self, index: u32) {
        *self.trouble.get_or_insert_default().retries.entry(index).or_default() += 1;
    }
}

/// Returns whether two ranges have a block in common.
pub(crate) fn overlaps(one: &BlockRange, other: &BlockRange) -> bool {
    one.lba < other.lba + other.blocks && other.lba < one.lba + one.blocks
}

/// The buffer of a request, except where a command has it.
#[derive(Debug)]
enum BufferParts {
    One(Option<Buffer>),
    /// One per part.
    Many(Vec<Option<Buffer>>),
}

impl BufferParts {
    fn split(buffer: Option<Buffer>, parts: u32, part_bytes: usize) -> BufferParts {
        let Some(mut buffer) = buffer else { return BufferParts::One(None) };
        let mut split = Vec::with_capacity(parts as usize);
        for _ in 1..parts {
            let tail = buffer.split_off(part_bytes);
            split.push(Some(std::mem::replace(&mut buffer, tail)));
        }
        split.push(Some(buffer));
        BufferParts::Many(split)
    }

    #[inline]
    fn part_mut(&mut self, index: u32) -> Option<&mut Option<Buffer>> {
        match self {
            BufferParts::One(buffer) => (index == 0).then_some(buffer),
            BufferParts::Many(buffers) => buffers.get_mut(index as usize),
        }
    }

    /// Joins all parts, which must have been returned.
    fn join(self) -> Option<Buffer> {
        let mut buffers = match self {
            BufferParts::One(buffer) => return buffer,
            BufferParts::Many(buffers) => buffers.into_iter().flatten(),
        };
        let mut whole = buffers.next()?;
        for buffer in buffers {
            if whole.join(buffer).is_err() {
                debug_assert!(false, "parts of one buffer join");
            }
        }
        Some(whole)
    }
}

/// All requests of a client. Free slots are reused, so the table grows to the maximum ever outstanding.
#[derive(Debug, Default)]
pub(crate) struct RequestTable {
    slots: Vec<Option<RequestSlot>>,
    free: Vec<u32>,
    /// Completions of requests that have a tag.
    completions: Vec<Completion>,
    /// Callers with new completions, to be woken at the end of a turn.
    to_wake: Vec<Arc<CallerQueue>>,
    /// Requests finished since [`RequestTable::take_completions`].
    finished: usize,
    pub observer: Observer,
}

impl RequestTable {
    pub(crate) fn new(observer: Observer) -> RequestTable {
        RequestTable { observer, ..RequestTable::default() }
    }

    /// Requests in progress.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Requests whose completion the caller has not taken.
    pub(crate) fn outstanding(&self) -> usize {
        self.len() + self.completions.len()
    }

    /// Adds a request. It is built in its slot, so that the compiler need not move it.
    #[inline(always)]
    pub(crate) fn insert(&mut self, request: impl FnOnce() -> RequestSlot) -> (u32, &mut RequestSlot) {
        let index = self.free.pop().unwrap_or_else(|| self.grow());
        let slot = &mut self.slots[index as usize];
        debug_assert!(slot.is_none(), "a free slot is empty");
        (index, slot.insert(request()))
    }

    /// Adds a request whose only part is sent now, and returns the tag of its command.
    #[inline(always)]
    pub(crate) fn insert_in_flight(
        &mut self,
        reply: Reply,
        lane: usize,
        range: BlockRange,
        key: Key,
        operation: impl FnOnce() -> Operation,
    ) -> u64 {
        let (slot, _) = self.insert(|| RequestSlot::in_flight(reply, lane, operation(), range, key));
        Part { slot, index: 0 }.tag()
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        self.slots.push(None);
        (self.slots.len() - 1) as u32
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut RequestSlot> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<&RequestSlot> {
        self.slots.get(slot as usize)?.as_ref()
    }

    /// Records that the first command of a request is sent now, if it was not sent before.
    pub(crate) fn on_released(&mut self, slot: u32) {
        if let Some(Some(request)) = self.slots.get_mut(slot as usize) {
            self.observer.on_released(request.key);
        }
    }

    /// Records that a part of the data of a request was received.
    pub(crate) fn on_first_byte(&mut self, slot: u32, received: u64) {
        if let Some(Some(request)) = self.slots.get_mut(slot as usize) {
            self.observer.on_first_byte(&mut request.key, received);
        }
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut RequestSlot> {
        self.slots.iter_mut().flatten()
    }

    /// Returns whether the success of one command completes a request.
    #[inline(always)]
    pub(crate) fn is_single(&self, slot: u32) -> bool {
        self.get(slot).is_some_and(RequestSlot::is_single_command)
    }

    /// Completes a request with `buffer` after the success of its only command, and returns the change that it made.
    /// The connection is that of [`Command`].
    #[inline(always)]
    pub(crate) fn complete_single(
        &mut self,
        slot: u32,
        buffer: Option<Buffer>,
        (connection, cid): (u64, u16),
    ) -> Change {
        let place = &mut self.slots[slot as usize];
        let Some(request) = place else { unreachable!("the slot of a completed command is empty") };
        let reply = std::mem::replace(&mut request.reply, Reply::Tag(0));
        let change = request.operation.change();
        let (key, command) = (request.key, Command { lba: request.range.lba, connection, cid });
        // Nothing that needs a drop is left in the slot.
        std::mem::forget(place.take());
        self.free.push(slot);
        let caller = self.deliver(reply, Ok(()), buffer);
        self.observer.on_finished(key, caller, command);
        change
    }

    /// Completes a request if none of its parts is in flight and none remains.
    pub(crate) fn finish_if_done(&mut self, slot: u32) {
        let Some(place) = self.slots.get_mut(slot as usize) else { return };
        if let Some(request) = place.take_if(|request| request.remaining == 0 && request.in_flight == 0) {
            self.free.push(slot);
            self.finish(request);
        }
    }

    /// Fails every request, whatever its parts are.
    pub(crate) fn abort_all(&mut self, error: impl Fn(&RequestSlot) -> RequestError) {
        self.free.clear();
        for mut request in std::mem::take(&mut self.slots).into_iter().flatten() {
            request.fail(error(&request));
            self.finish(request);
        }
    }

    /// Completes a request that was not accepted.
    #[cold]
    pub(crate) fn reject(&mut self, error: RequestError, request: Request, reply: Reply) {
        let _ = self.deliver(reply, Err(error), request.into_buffer());
    }

    fn finish(&mut self, request: RequestSlot) {
        let RequestSlot { trouble, buffer, reply, key, range, .. } = request;
        let result = trouble.and_then(|trouble| trouble.failure).map_or(Ok(()), Err);
        let has_failed = result.is_err();
        let caller = self.deliver(reply, result, buffer.join());
        if has_failed {
            self.observer.on_failed(key);
        } else {
            self.observer.on_finished(key, caller, Command { lba: range.lba, ..Command::default() });
        }
    }

    /// Delivers a completion. Returns the index of its caller in `to_wake`.
    #[inline(always)]
    fn deliver(&mut self, reply: Reply, result: Result<(), RequestError>, buffer: Option<Buffer>) -> u32 {
        self.finished += 1;
        if let Reply::Tag(tag) = reply {
            // A tag needs no drop.
            std::mem::forget(reply);
            self.completions.push(Completion { tag, result, buffer });
            return NO_CALLER;
        }
        let completion = Completion { tag: 0, result, buffer };
        let caller = match reply {
            Reply::Caller(mut guard) => {
                let caller = guard.complete(completion);
                // A completed reply needs no drop.
                std::mem::forget(guard);
                caller
            }
            other => other.deliver(completion),
        };
        let Some(caller) = caller else { return NO_CALLER };
        if self.to_wake.last().is_none_or(|last| !Arc::ptr_eq(last, &caller)) {
            self.to_wake.push(caller);
        }
        (self.to_wake.len() - 1) as u32
    }

    /// Returns whether requests have finished since [`RequestTable::take_completions`].
    #[inline]
    pub(crate) fn has_finished(&self) -> bool {
        self.finished > 0
    }

    /// Appends the completions (to an empty list without a copy), wakes callers that have new ones, and returns
    /// the number of requests finished since the last call.
    #[inline]
    pub(crate) fn take_completions(&mut self, completions: &mut Vec<Completion>) -> usize {
        if completions.is_empty() {
            std::mem::swap(completions, &mut self.completions)
        } else {
            completions.append(&mut self.completions)
        }
        self.observer.on_turned(&mut self.to_wake);
        std::mem::take(&mut self.finished)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const LIMITS: IoLimits = IoLimits { block_bytes: 512, capacity_blocks: 1000, part_blocks: 8 };

    fn slot(request: Request) -> RequestSlot {
        let range = LIMITS.check(&request).unwrap();
        RequestSlot::new(Reply::Tag(7), 0, request, range, Key::default(), &LIMITS)
    }

    pub(crate) fn read(lba: u64, blocks: usize) -> RequestSlot {
        slot(Request::Read { lba, buffer: Buffer::contiguous(blocks * 512) })
    }

    #[test]
    fn small_request_is_one_part() {
        let mut request = read(3, 8);
        assert_eq!((request.parts, request.part_range(0)), (1, BlockRange { lba: 3, blocks: 8 }));
        assert_eq!(request.take_buffer(0).unwrap().len(), 4096);
        assert!(request.take_buffer(0).is_none());
    }

    #[test]
    fn splits_and_joins_large_request_without_copy() {
        let buffer = Buffer::contiguous(20 * 512);
        let start = buffer.as_slice().unwrap().as_ptr();
        let mut table = RequestTable::default();
        let (index, request) = table.insert(|| slot(Request::Read { lba: 100, buffer }));
        let ranges: Vec<_> = (0..request.parts).map(|part| request.part_range(part)).collect();
        let expected = [(100, 8), (108, 8), (116, 4)].map(|(lba, blocks)| BlockRange { lba, blocks });
        assert_eq!(ranges, expected);
        for part in [2, 0, 1] {
            let mut buffer = request.take_buffer(part).unwrap();
            buffer.as_mut_slice().unwrap().fill(part as u8 + 1);
            request.return_buffer(part, Some(buffer));
        }
        request.remaining = 0;
        table.finish_if_done(index);
        let mut completions = Vec::new();
        assert_eq!(table.take_completions(&mut completions), 1);
        let buffer = completions.remove(0).buffer.unwrap();
        assert_eq!(buffer.as_slice().unwrap().as_ptr(), start);
        let bytes = buffer.to_vec();
        assert_eq!((bytes[0], bytes[4096], bytes[8192], bytes.len()), (1, 2, 3, 20 * 512));
    }

    #[test]
    fn write_overlaps_exactly_its_blocks() {
        let write = slot(Request::Write { lba: 10, buffer: Buffer::contiguous(5 * 512), fua: false });
        let changes = write.part_changes(0);
        let overlaps = |lba, blocks| overlaps(&changes[0], &BlockRange { lba, blocks });
        assert!(overlaps(14, 1) && overlaps(0, 11) && overlaps(0, 100));
        assert!(!overlaps(15, 1) && !overlaps(0, 10));
        assert!(changes.len() == 1 && read(10, 5).part_changes(0).is_empty());
    }

    #[test]
    fn tags_round_trip_parts() {
        let part = Part { slot: 0xdead_beef, index: 0x1234_5678 };
        assert_eq!(Part::from_tag(part.tag()), part);
    }

    fn complete(table: &mut RequestTable, slot: u32) -> Option<Change> {
        table.is_single(slot).then(|| table.complete_single(slot, None, (0, 0)))
    }

    fn remove(table: &mut RequestTable, slot: u32) {
        table.get_mut(slot).unwrap().remaining = 0;
        table.finish_if_done(slot);
    }

    #[test]
    fn reuses_free_slots() {
        let mut table = RequestTable::default();
        let first = table.insert(|| read(0, 1)).0;
        let second = table.insert(|| read(1, 1)).0;
        assert_ne!(first, second);
        remove(&mut table, first);
        assert!(table.get(first).is_none());
        table.finish_if_done(first);
        assert_eq!(table.insert(|| read(2, 1)).0, first);
        assert_eq!((table.len(), table.iter_mut().count()), (2, 2));
        assert_eq!(complete(&mut table, second), None, "the slot still has its buffer");
        assert!(table.get_mut(second).unwrap().take_buffer(0).is_some());
        assert_eq!(complete(&mut table, second), Some(Change::Nothing));
        assert_eq!(complete(&mut table, second), None);
        assert_eq!((table.len(), table.insert(|| read(3, 1)).0), (1, second));
        let mut completions = Vec::new();
        assert_eq!(table.take_completions(&mut completions), 2);
        assert!(completions.iter().all(|completion| completion.tag == 7 && completion.result.is_ok()));
    }

    #[test]
    fn one_success_does_not_end_larger_request() {
        let mut table = RequestTable::default();
        let (large, _) = table.insert(|| read(0, 9));
        let (failed, request) = table.insert(|| read(1, 1));
        request.fail(RequestError::DataDigest);
        assert_eq!([large, failed, 7].map(|slot| complete(&mut table, slot)), [None; 3]);
        assert_eq!(table.len(), 2);
    }
}

//! A send request, and the segments of its messages.

use super::super::lane::Part;
use super::super::ranges::Ranges;
use super::super::receives::MAX_BOUND;
use super::super::{Extension, MESSAGE_BYTES, Place};
use crate::memory::Spans;
use crate::types::SendOperation;
use crate::wire::{AtomicOperands, Opcode, Operation, RemoteRange, Segment, SegmentFlags, Stage};

/// A send request without a completion.
pub(super) struct Entry {
    pub(super) id: u64,
    pub(super) operation: SendOperation,
    pub(super) signaled: bool,
    pub(super) solicited: bool,
    pub(super) fenced: bool,
    pub(super) data: Data,
    pub(super) length: u64,
    /// Number of its first message, once part of that is sent.
    pub(super) first_message: u32,
    /// Number after its last message, once that is sent.
    pub(super) end_message: Option<u32>,
    /// Messages whose response has not arrived completely.
    pub(super) responses_left: u64,
    /// Index of the receive of the peer that it consumes, modulo 2⁸.
    pub(super) receive: u8,
    /// The lane on which all of it was sent, if it was one lane.
    pub(super) lane: Option<u8>,
}

impl Entry {
    /// Returns a segment.
    #[inline]
    pub(super) fn segment(&self, next: &Next, rnr_count: u8) -> Segment {
        let Next { message, place, message_start, wants_acknowledgment, .. } = *next;
        let Place { size, offset, length } = place;
        let is_last = message_start + u64::from(size) == self.length;
        let end = if self.operation.has_response() { size } else { offset + length };
        let ends_request = is_last && end == size;
        let (operation, extension) = content(&self.operation, size, message_start, ends_request);
        let has_immediate = matches!(extension, Extension::Immediate(_) | Extension::Range(_, Some(_)));
        Segment {
            opcode: Opcode::of(operation, Stage::of(offset, end, size), has_immediate),
            flags: SegmentFlags(0)
                .with_solicited(ends_request && self.solicited)
                .with_ack_requested(wants_acknowledgment)
                .with_continued(!is_last),
            credits: 0,
            message,
            size,
            receive: self.receive,
            rnr_count,
            offset,
            length,
            acknowledged: 0,
            extension,
        }
    }

    pub(super) fn is_send(&self) -> bool {
        matches!(self.operation, SendOperation::Send { .. })
    }

    /// Whether a message is one of a request, part of which is sent.
    pub(super) fn has(&self, message: u32) -> bool {
        u64::from(message.wrapping_sub(self.first_message)) < messages(self.length)
    }

    /// Whether the index of the receive that it consumes is `receive`, or follows it.
    pub(super) fn is_from(&self, receive: u8) -> bool {
        usize::from(self.receive.wrapping_sub(receive)) < MAX_BOUND
    }

    /// Whether it is a WRITE to a part of a range of addresses.
    pub(super) fn writes_to(&self, (start, end): (u64, u64)) -> bool {
        let address = self.operation.written_address();
        address.is_some_and(|address| address < end && start < address.saturating_add(self.length))
    }

    /// Returns the first `sent` bytes as parts of its messages.
    pub(super) fn parts(&self, sent: u64) -> impl Iterator<Item = Part> {
        let (first, length) = (self.first_message, self.length);
        (0..messages(length)).filter_map(move |number| {
            let start = number * MESSAGE_BYTES;
            let size = (length - start).min(MESSAGE_BYTES);
            let length = sent.saturating_sub(start).min(size) as u32;
            let message = first.wrapping_add(number as u32);
            (length > 0 || size == 0).then_some(Part { message, offset: 0, length })
        })
    }

    /// Number of messages that have a response.
    pub(super) fn responses(operation: &SendOperation, length: u64) -> u64 {
        if operation.has_response() { messages(length) } else { 0 }
    }
}

/// Number of messages of a request of `length` bytes.
fn messages(length: u64) -> u64 {
    length.div_ceil(MESSAGE_BYTES).max(1)
}

/// Checked local data.
pub(super) enum Data {
    Memory(Spans),
    Inline(Vec<u8>),
    /// A key, bounds, or right is wrong.
    Invalid,
}

/// A message that waits for a response.
pub(super) struct Awaited {
    pub(super) message: u32,
    /// Offset of its data in the request, in bytes.
    pub(super) offset: u64,
    pub(super) size: u32,
    /// Ranges that have arrived, or are arriving, and the number of bytes in their place.
    pub(super) claimed: Ranges,
    pub(super) placed: u32,
    pub(super) is_complete: bool,
}

/// A segment to send.
pub(super) struct Next {
    /// Index of its request.
    pub(super) index: usize,
    pub(super) message: u32,
    pub(super) place: Place,
    /// Offset of the message in the request.
    pub(super) message_start: u64,
    /// The peer is to acknowledge it.
    pub(super) wants_acknowledgment: bool,
}

/// Returns the operation and the extension of a segment of a message of `size` bytes, which starts at an offset of its
/// request. Only the last segment carries the immediate data.
fn content(request: &SendOperation, size: u32, start: u64, is_last: bool) -> (Operation, Extension) {
    let range =
        |address: u64, rkey| RemoteRange { address: address.wrapping_add(start), key: rkey, length: size };
    match *request {
        SendOperation::Send { immediate: Some(immediate) } if is_last => {
            (Operation::Send, Extension::Immediate(immediate))
        }
        SendOperation::Send { .. } => (Operation::Send, Extension::None),
        SendOperation::Write { address, rkey, immediate } => {
            (Operation::Write, Extension::Range(range(address, rkey), immediate.filter(|_| is_last)))
        }
        SendOperation::Read { address, rkey } => {
            (Operation::ReadRequest, Extension::Range(range(address, rkey), None))
        }
        SendOperation::CompareSwap { address, rkey, compare, swap } => {
            let operands = AtomicOperands { address, key: rkey, swap_or_add: swap, compare };
            (Operation::CompareSwap, Extension::Atomic(operands))
        }
        SendOperation::FetchAdd { address, rkey, add } => {
            let operands = AtomicOperands { address, key: rkey, swap_or_add: add, compare: 0 };
            (Operation::FetchAdd, Extension::Atomic(operands))
        }
    }
}

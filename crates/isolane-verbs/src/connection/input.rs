//! Received bytes of a lane: splits them into segments and places payload.
//!
//! Invariant: payload goes to the spans of its segment, which were checked before; without spans it is discarded.

use std::ops::Range;

use isolane_connection::{InputBuffer, MAX_DESTINATION_BYTES, MAX_DESTINATION_SLICES, ReceivePlan};

use super::SEGMENT_BYTES;
use crate::memory::{Spans, part};
use crate::wire::{MAX_PREFIX_BYTES, Segment, SegmentError};

/// The receiving half of a lane.
#[derive(Default)]
pub(super) struct Input {
    buffer: InputBuffer<MAX_PREFIX_BYTES>,
    placing: Option<Placing>,
    /// Payload bytes at the start of the current plan.
    planned: usize,
}

/// The segment whose payload is arriving.
struct Placing {
    segment: Segment,
    spans: Spans,
    /// Payload bytes that have arrived.
    placed: usize,
}

impl Placing {
    fn left(&self) -> usize {
        self.segment.length as usize - self.placed
    }

    /// Copies payload to its place.
    fn copy_in(&mut self, bytes: &[u8]) {
        let mut from = 0;
        for span in part(&self.spans, self.placed, bytes.len()) {
            span.region.copy_in(span.offset, &bytes[from..from + span.len]);
            from += span.len;
        }
        self.placed += bytes.len();
    }
}

impl Input {
    /// See [`super::ReliableConnection::fill_receive_plan`].
    pub(super) fn fill_plan<'a>(&'a mut self, overflow: &'a mut [u8], plan: &mut ReceivePlan<'a>) {
        self.planned = 0;
        if let Some(placing) = &self.placing {
            let (mut skip, mut left) = (placing.placed, placing.left().min(MAX_DESTINATION_BYTES));
            for span in &placing.spans {
                if skip >= span.len {
                    skip -= span.len;
                    continue;
                }
                let len = left.min(span.len - skip);
                if len == 0 || plan.len() == MAX_DESTINATION_SLICES {
                    break;
                }
                plan.push(span.region.io_slice_mut(span.offset + skip, len).0);
                (skip, left) = (0, left - len);
                self.planned += len;
            }
            if self.planned > 0 && self.planned < placing.left() {
                return;
            }
        }
        plan.push(std::io::IoSliceMut::new(overflow));
    }

    /// Records received bytes.
    pub(super) fn received(&mut self, count: usize) {
        let placed = count.min(self.planned);
        if let Some(placing) = &mut self.placing {
            placing.placed += placed;
        }
        let unread: Range<usize> = 0..count - placed;
        self.buffer.received(count, placed, unread);
    }

    /// Places unread payload, and returns the segment if all of it is in its place.
    pub(super) fn next_placed(&mut self, overflow: &[u8]) -> Option<Segment> {
        let placing = self.placing.as_mut()?;
        let unread = self.buffer.unread(overflow);
        let count = placing.left().min(unread.len());
        placing.copy_in(&unread[..count]);
        self.buffer.consume(count);
        match placing.left() {
            0 => self.placing.take().map(|placing| placing.segment),
            _ => None,
        }
    }

    /// Returns whether payload is missing.
    pub(super) fn is_placing(&self) -> bool {
        self.placing.is_some()
    }

    /// Returns the next segment if its prefix has arrived.
    pub(super) fn next_segment(&mut self, overflow: &[u8]) -> Result<Option<Segment>, SegmentError> {
        if !self.buffer.is_mid_header() {
            let unread = self.buffer.unread(overflow);
            let Some(opcode) = unread.first() else { return Ok(None) };
            let len = Segment::prefix_len(*opcode)?;
            if let Some(prefix) = unread.get(..len) {
                let segment = Segment::decode(prefix, SEGMENT_BYTES)?;
                self.buffer.consume(len);
                return Ok(Some(segment));
            }
        }
        if !self.buffer.collect_header(overflow, 1) {
            return Ok(None);
        }
        let len = Segment::prefix_len(self.buffer.header()[0])?;
        if !self.buffer.collect_header(overflow, len) {
            return Ok(None);
        }
        let segment = Segment::decode(self.buffer.header(), SEGMENT_BYTES)?;
        self.buffer.take_header(len);
        Ok(Some(segment))
    }

    /// Expects the payload of a segment next.
    pub(super) fn place(&mut self, segment: Segment, spans: Spans) {
        self.placing = Some(Placing { segment, spans, placed: 0 });
    }

    /// Discards the rest of the current payload instead of placing it.
    pub(super) fn discard_payload(&mut self) {
        if let Some(placing) = &mut self.placing {
            placing.spans.clear();
        }
    }

    /// Discards all unread bytes.
    pub(super) fn discard(&mut self, overflow: &[u8]) {
        let unread = self.buffer.unread(overflow).len();
        self.buffer.consume(unread);
    }
}

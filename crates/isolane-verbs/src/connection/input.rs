//! Received bytes of a lane: splits them into segments and places payload.
//!
//! Invariant: payload goes to the spans of its segment, which were checked before; without spans it is discarded.
//! Payload for the memory of a device passes through a [`Stage`], which never holds bytes of two spans.

use std::ops::Range;
use std::sync::Arc;

use isolane_connection::{InputBuffer, MAX_DESTINATION_BYTES, MAX_DESTINATION_SLICES, ReceivePlan};
use isolane_memory::MemoryRegion;

use super::SEGMENT_BYTES;
use super::stage::{CopyFailed, Stage};
use crate::memory::{Span, Spans, is_among, parts};
use crate::wire::{MAX_PREFIX_BYTES, Segment, SegmentError, SegmentHeader};

/// The receiving half of a lane.
#[derive(Default)]
pub(super) struct Input {
    buffer: InputBuffer<MAX_PREFIX_BYTES>,
    placing: Option<Placing>,
    /// Payload bytes at the start of the current plan.
    planned: usize,
    /// Whether they are in the stage.
    plans_stage: bool,
    /// Number of short payloads since the last long one.
    short_run: u32,
}

/// The place of the current payload is not mapped, or its device has reported an error. The payload remains unread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unmapped;

/// The segment whose payload is arriving.
struct Placing {
    segment: Segment,
    spans: Spans,
    /// It is a duplicate, or its request is refused.
    is_discarded: bool,
    /// Payload bytes in their place.
    placed: usize,
    /// Payload bytes after them that have arrived for the memory of a device.
    stage: Option<Stage>,
}

impl Placing {
    /// Number of payload bytes that have arrived.
    fn arrived(&self) -> usize {
        self.placed + self.stage.as_ref().map_or(0, Stage::len)
    }

    fn left(&self) -> usize {
        self.segment.length as usize - self.arrived()
    }

    /// Copies unread payload to its place.
    fn place_unread(
        &mut self,
        buffer: &mut InputBuffer<MAX_PREFIX_BYTES>,
        overflow: &[u8],
    ) -> Result<(), Unmapped> {
        let unread = buffer.unread(overflow);
        if self.stage.is_some() {
            self.copy_staged(!unread.is_empty())?;
        }
        let (payload_left, mut staged) = (self.left(), 0);
        let count = payload_left.min(unread.len());
        let mut left = &unread[..count];
        for (region, offset, len) in parts(&self.spans, self.placed, count) {
            let (front, tail) = left.split_at(len);
            if region.is_on_device() && tail.is_empty() && count < payload_left {
                staged = stage(&mut self.stage, region, offset, front);
            }
            if staged == 0 && !region.try_copy_in(offset, front) {
                return Err(Unmapped);
            }
            left = tail;
        }
        self.placed += count - staged;
        buffer.consume(count);
        if staged > 0 { self.copy_staged(false) } else { Ok(()) }
    }

    /// Copies bytes of the stage to the device: a full buffer, or all if they end a span, or if other bytes follow that are
    /// copied otherwise.
    #[cold]
    fn copy_staged(&mut self, is_followed: bool) -> Result<(), Unmapped> {
        let Some(stage) = &mut self.stage else { return Ok(()) };
        let payload_left = self.segment.length as usize - self.placed;
        let span = parts(&self.spans, self.placed, payload_left).next();
        let is_last = is_followed || span.is_none_or(|(_, _, len)| len == stage.len());
        let arrived = self.placed + stage.len();
        match stage.copy(is_last) {
            Ok(placed) => self.placed += placed,
            Err(CopyFailed) => {
                // The rest of the payload is discarded.
                (self.placed, self.stage) = (arrived, None);
                return Err(Unmapped);
            }
        }
        if is_last {
            self.stage = None;
        }
        Ok(())
    }

    /// Waits for the copies to a device that are in progress. The bytes of other copies count as not arrived.
    fn finish_copies(&mut self) {
        if let Some(mut stage) = self.stage.take() {
            self.placed += stage.finish().unwrap_or(0);
        }
    }
}

/// Returns the place of the next bytes, which are for the memory of a device. `None` if all streams are in use: the bytes
/// are then received elsewhere, and copied.
#[cold]
fn staged_place<'a>(
    stage: &'a mut Option<Stage>,
    spans: &[Span],
    arrived: usize,
    left: usize,
) -> Option<&'a mut [u8]> {
    let (region, offset, len) = parts(spans, arrived, left).next()?;
    if stage.is_none() {
        *stage = Stage::new(region, offset);
    }
    let free = stage.as_mut()?.free();
    let len = len.min(free.len());
    Some(&mut free[..len])
}

/// Puts bytes for the memory of a device into a stage. Returns their number, or 0 if all streams are in use.
#[cold]
fn stage(stage: &mut Option<Stage>, region: &MemoryRegion, offset: usize, bytes: &[u8]) -> usize {
    let Some(mut new) = Stage::new(region, offset) else { return 0 };
    let Some(free) = new.free().get_mut(..bytes.len()) else { return 0 };
    free.copy_from_slice(bytes);
    new.add(bytes.len());
    *stage = Some(new);
    bytes.len()
}

impl Input {
    /// See [`super::ReliableConnection::fill_receive_plan`].
    pub(super) fn fill_plan<'a>(&'a mut self, overflow: &'a mut [u8], plan: &mut ReceivePlan<'a>) -> usize {
        (self.planned, self.plans_stage) = (0, false);
        if let Some(placing) = &mut self.placing {
            let (arrived, left) = (placing.arrived(), placing.left());
            let destinations = parts(&placing.spans, arrived, left.min(MAX_DESTINATION_BYTES));
            for (region, offset, len) in destinations.take(MAX_DESTINATION_SLICES) {
                if region.is_on_device() {
                    self.plans_stage = self.planned == 0;
                    break;
                }
                plan.push(region.io_slice_mut(offset, len).0);
                self.planned += len;
            }
            if self.plans_stage
                && let Some(place) = staged_place(&mut placing.stage, &placing.spans, arrived, left)
            {
                self.planned = place.len();
                plan.push(std::io::IoSliceMut::new(place));
            }
            if self.planned > 0 && self.planned < left {
                return self.planned;
            }
        }
        // Short segments are received together, because a call costs more than a copy.
        let is_short = self.short_run >= SHORT_RUN;
        let lacks_stage = self.plans_stage && self.planned == 0;
        let len = if is_short || lacks_stage { overflow.len() } else { overflow.len().min(OVERFLOW_BYTES) };
        plan.push(std::io::IoSliceMut::new(&mut overflow[..len]));
        self.planned + len
    }

    /// Records received bytes.
    pub(super) fn received(&mut self, count: usize) {
        let placed = count.min(self.planned);
        if let Some(placing) = &mut self.placing {
            match &mut placing.stage {
                Some(stage) if self.plans_stage => stage.add(placed),
                _ => placing.placed += placed,
            }
        }
        let unread: Range<usize> = 0..count - placed;
        self.buffer.received(count, placed, unread);
    }

    /// Places unread payload. Returns the segment once all of it has arrived, unless it was discarded.
    pub(super) fn next_placed(&mut self, overflow: &[u8]) -> Result<Option<Option<Segment>>, Unmapped> {
        let Some(placing) = &mut self.placing else { return Ok(None) };
        placing.place_unread(&mut self.buffer, overflow)?;
        let placed = self.placing.take_if(|placing| placing.left() == 0);
        Ok(placed.map(|placed| (!placed.is_discarded).then_some(placed.segment)))
    }

    /// Returns the segment whose payload is arriving, unless it is discarded.
    pub(super) fn placing(&self) -> Option<&Segment> {
        self.placing.as_ref().filter(|placing| !placing.is_discarded).map(|placing| &placing.segment)
    }

    /// Waits for the copies to a device that are in progress, before the lane ends.
    pub(super) fn finish_copies(&mut self) {
        if let Some(placing) = &mut self.placing {
            placing.finish_copies();
        }
    }

    /// Number of bytes of that payload that are in their place.
    pub(super) fn placed_bytes(&self) -> u32 {
        let placing = self.placing.as_ref().filter(|placing| !placing.is_discarded);
        placing.map_or(0, |placing| placing.placed as u32)
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

    /// Expects the payload of a segment next, which is discarded without `spans`. Returns the segment as
    /// [`Input::next_placed`].
    pub(super) fn place(
        &mut self,
        segment: Segment,
        spans: Option<Spans>,
        overflow: &[u8],
    ) -> Result<Option<Option<Segment>>, Unmapped> {
        self.short_run = match segment.length {
            0 => self.short_run,
            1..=SHORT_BYTES => self.short_run.saturating_add(1),
            _ => 0,
        };
        let is_discarded = spans.is_none();
        let spans = spans.unwrap_or_default();
        let mut placing = Placing { segment, spans, is_discarded, placed: 0, stage: None };
        let placed = placing.place_unread(&mut self.buffer, overflow);
        if placed.is_ok() && placing.left() == 0 {
            return Ok(Some((!is_discarded).then_some(placing.segment)));
        }
        self.placing = Some(placing);
        placed.map(|()| None)
    }

    /// Whether the current payload goes to a region.
    pub(super) fn uses(&self, region: &Arc<MemoryRegion>) -> bool {
        self.placing.as_ref().is_some_and(|placing| is_among(&placing.spans, region))
    }

    /// Discards the rest of the current payload instead of placing it.
    pub(super) fn discard_payload(&mut self) {
        if let Some(placing) = &mut self.placing {
            placing.spans.clear();
            placing.placed = placing.arrived();
            placing.stage = None;
        }
    }

    /// Discards all unread bytes.
    pub(super) fn discard(&mut self, overflow: &[u8]) {
        let unread = self.buffer.unread(overflow).len();
        self.buffer.consume(unread);
    }
}

/// Bytes received beyond the current payload after a long one: a header, and up to 4 KiB of payload that are copied.
const OVERFLOW_BYTES: usize = SegmentHeader::LEN + 4096;
/// Maximum length of a short payload in bytes.
const SHORT_BYTES: u32 = 16 * 1024;
/// Number of short payloads in a row after which the next segments are expected to be short.
const SHORT_RUN: u32 = 16;

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
use crate::memory::{Spans, copy_in, is_among, parts};
use crate::wire::{MAX_PREFIX_BYTES, Segment, SegmentError, SegmentHeader};

/// The receiving half of a lane.
#[derive(Default)]
pub(super) struct Input {
    buffer: InputBuffer<MAX_PREFIX_BYTES>,
    placing: Option<Placing>,
    /// The last payload bytes that have arrived, if they are for the memory of a device and not in their place.
    stage: Option<Box<Stage>>,
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
    /// Payload bytes that have arrived. The last ones of them can be in the stage.
    arrived: usize,
}

impl Placing {
    fn left(&self) -> usize {
        self.segment.length as usize - self.arrived
    }

    /// Whether any of the payload is for the memory of a device.
    fn is_for_device(&self) -> bool {
        self.spans.iter().any(|span| span.region.is_on_device())
    }

    /// Copies unread payload to its place.
    #[inline]
    fn place_unread(
        &mut self,
        buffer: &mut InputBuffer<MAX_PREFIX_BYTES>,
        stage: &mut Option<Box<Stage>>,
        overflow: &[u8],
    ) -> Result<(), Unmapped> {
        let unread = buffer.unread(overflow);
        let payload_left = self.left();
        let count = payload_left.min(unread.len());
        if 0 < count && count < payload_left && self.is_for_device() {
            self.place_front(&unread[..count], stage)?;
            self.arrived += count;
            buffer.consume(count);
            return self.copy_staged(stage, false);
        }
        if !copy_in(&self.spans, self.arrived, &unread[..count]) {
            return Err(Unmapped);
        }
        self.arrived += count;
        buffer.consume(count);
        Ok(())
    }

    /// Copies bytes of a longer payload to their place. The last ones wait in a stage for those that follow, if they are
    /// for the memory of a device.
    #[cold]
    fn place_front(&self, bytes: &[u8], stage: &mut Option<Box<Stage>>) -> Result<(), Unmapped> {
        let mut left = bytes;
        for (region, offset, len) in parts(&self.spans, self.arrived, bytes.len()) {
            let (front, tail) = left.split_at(len);
            // Regions of the host have no stage.
            let new = if tail.is_empty() { Stage::new(region, offset) } else { None };
            match new.and_then(|new| new.with(front)) {
                Some(new) => *stage = Some(Box::new(new)),
                None if !region.try_copy_in(offset, front) => return Err(Unmapped),
                None => {}
            }
            left = tail;
        }
        Ok(())
    }

    /// Copies bytes of a stage to the device: a full buffer, or all if they end a span, or if other bytes follow that are
    /// copied otherwise.
    #[cold]
    fn copy_staged(&mut self, stage: &mut Option<Box<Stage>>, is_followed: bool) -> Result<(), Unmapped> {
        let Some(staged) = stage else { return Ok(()) };
        let placed = self.arrived - staged.len();
        let span = parts(&self.spans, placed, self.segment.length as usize - placed).next();
        let is_last = is_followed || span.is_none_or(|(_, _, len)| len == staged.len());
        let copied = staged.copy(is_last);
        if is_last || copied.is_err() {
            // After an error, the rest of the payload is discarded.
            *stage = None;
        }
        copied.map_err(|CopyFailed| Unmapped)
    }

    /// Fills a plan with the place of the next bytes up to the next span of a device, or in a stage. Returns their number,
    /// and whether they are in the stage. Bytes for a device have no place if all streams are in use: they are then
    /// received elsewhere, and copied.
    #[cold]
    fn fill_device_plan<'a>(
        &'a self,
        stage: &'a mut Option<Box<Stage>>,
        plan: &mut ReceivePlan<'a>,
    ) -> (usize, bool) {
        let (left, mut planned) = (self.left().min(MAX_DESTINATION_BYTES), 0);
        for (region, offset, len) in parts(&self.spans, self.arrived, left).take(MAX_DESTINATION_SLICES) {
            if region.is_on_device() {
                if planned > 0 {
                    break;
                }
                if stage.is_none() {
                    *stage = Stage::new(region, offset).map(Box::new);
                }
                let Some(stage) = stage else { return (0, true) };
                let free = stage.free();
                let len = len.min(free.len());
                plan.push(std::io::IoSliceMut::new(&mut free[..len]));
                return (len, true);
            }
            plan.push(region.io_slice_mut(offset, len).0);
            planned += len;
        }
        (planned, false)
    }
}

impl Input {
    /// See [`super::ReliableConnection::fill_receive_plan`].
    pub(super) fn fill_plan<'a>(&'a mut self, overflow: &'a mut [u8], plan: &mut ReceivePlan<'a>) -> usize {
        (self.planned, self.plans_stage) = (0, false);
        if let Some(placing) = &self.placing {
            let left = placing.left();
            if placing.is_for_device() {
                (self.planned, self.plans_stage) = placing.fill_device_plan(&mut self.stage, plan);
            } else {
                let destinations = parts(&placing.spans, placing.arrived, left.min(MAX_DESTINATION_BYTES));
                for (region, offset, len) in destinations.take(MAX_DESTINATION_SLICES) {
                    plan.push(region.io_slice_mut(offset, len).0);
                    self.planned += len;
                }
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
            placing.arrived += placed;
        }
        if self.plans_stage
            && let Some(stage) = &mut self.stage
        {
            stage.add(placed);
        }
        let unread: Range<usize> = 0..count - placed;
        self.buffer.received(count, placed, unread);
    }

    /// Places unread payload. Returns the segment once all of it has arrived, unless it was discarded.
    pub(super) fn next_placed(&mut self, overflow: &[u8]) -> Result<Option<Option<Segment>>, Unmapped> {
        let Some(placing) = &mut self.placing else { return Ok(None) };
        if self.stage.is_some() {
            placing.copy_staged(&mut self.stage, !self.buffer.unread(overflow).is_empty())?;
        }
        placing.place_unread(&mut self.buffer, &mut self.stage, overflow)?;
        let placed = self.placing.take_if(|placing| placing.left() == 0);
        Ok(placed.map(|placed| (!placed.is_discarded).then_some(placed.segment)))
    }

    /// Returns the segment whose payload is arriving, unless it is discarded.
    pub(super) fn placing(&self) -> Option<&Segment> {
        self.placing.as_ref().filter(|placing| !placing.is_discarded).map(|placing| &placing.segment)
    }

    /// Waits for the copies to a device that are in progress, before the lane ends. The bytes of other copies count as not
    /// arrived.
    pub(super) fn finish_copies(&mut self) {
        if let (Some(placing), Some(mut stage)) = (&mut self.placing, self.stage.take()) {
            placing.arrived -= stage.len();
            placing.arrived += stage.finish().unwrap_or(0);
        }
    }

    /// Number of bytes of that payload that have arrived, and are in their place after [`Input::finish_copies`].
    pub(super) fn placed_bytes(&self) -> u32 {
        let placing = self.placing.as_ref().filter(|placing| !placing.is_discarded);
        placing.map_or(0, |placing| placing.arrived as u32)
    }

    /// Returns whether payload is missing.
    pub(super) fn is_placing(&self) -> bool {
        self.placing.is_some()
    }

    /// Decodes the next segment into `segment`. Returns `false` if its prefix has not arrived.
    #[inline]
    pub(super) fn next_segment(
        &mut self,
        overflow: &[u8],
        segment: &mut Segment,
    ) -> Result<bool, SegmentError> {
        if !self.buffer.is_mid_header() {
            let unread = self.buffer.unread(overflow);
            let Some(opcode) = unread.first() else { return Ok(false) };
            let len = Segment::prefix_len(*opcode)?;
            if let Some(prefix) = unread.get(..len) {
                segment.decode_from(prefix, SEGMENT_BYTES)?;
                self.buffer.consume(len);
                return Ok(true);
            }
        }
        if !self.buffer.collect_header(overflow, 1) {
            return Ok(false);
        }
        let len = Segment::prefix_len(self.buffer.header()[0])?;
        if !self.buffer.collect_header(overflow, len) {
            return Ok(false);
        }
        segment.decode_from(self.buffer.header(), SEGMENT_BYTES)?;
        self.buffer.take_header(len);
        Ok(true)
    }

    /// Expects the payload of a segment next, which is discarded unless it `is_wanted`, and takes `spans`. Returns whether
    /// all of it has arrived and is in its place; otherwise, [`Input::next_placed`] returns the segment once it has.
    #[inline]
    pub(super) fn place(
        &mut self,
        segment: &Segment,
        is_wanted: bool,
        spans: &mut Spans,
        overflow: &[u8],
    ) -> Result<bool, Unmapped> {
        self.short_run = match segment.length {
            0 => self.short_run,
            1..=SHORT_BYTES => self.short_run.saturating_add(1),
            _ => 0,
        };
        let length = segment.length as usize;
        if is_wanted
            && let Some(payload) = self.buffer.unread(overflow).get(..length)
            && copy_in(spans, 0, payload)
        {
            self.buffer.consume(length);
            spans.clear();
            return Ok(true);
        }
        let placing = Placing {
            segment: segment.clone(),
            spans: std::mem::take(spans),
            is_discarded: !is_wanted,
            arrived: 0,
        };
        let placing = self.placing.insert(placing);
        placing.place_unread(&mut self.buffer, &mut self.stage, overflow).map(|()| false)
    }

    /// Whether the current payload goes to a region.
    pub(super) fn uses(&self, region: &Arc<MemoryRegion>) -> bool {
        self.placing.as_ref().is_some_and(|placing| is_among(&placing.spans, region))
    }

    /// Discards the rest of the current payload instead of placing it.
    pub(super) fn discard_payload(&mut self) {
        self.stage = None;
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

/// Bytes received beyond the current payload after a long one: a header, and up to 4 KiB of payload that are copied.
const OVERFLOW_BYTES: usize = SegmentHeader::LEN + 4096;
/// Maximum length of a short payload in bytes.
const SHORT_BYTES: u32 = 16 * 1024;
/// Number of short payloads in a row after which the next segments are expected to be short.
const SHORT_RUN: u32 = 16;

//! Bytes of a lane to send: whole segments, of which the first can be partly sent.
//!
//! Invariant: after a failure, no byte is read from the memory of a request, and nothing is sent of a request that was
//! not begun.

use std::collections::VecDeque;
use std::sync::Arc;

use isolane_connection::{SendQueue, TransmitPlan};
use isolane_memory::Payload;

use crate::memory::{Span, copy_out, parts};
use crate::wire::{CHECKSUM_BYTES, MAX_PREFIX_BYTES, Segment, SegmentHeader, checksum};

/// The sending half of a lane.
#[derive(Default)]
pub(super) struct Output {
    bytes: SendQueue,
    /// Whether a CRC32C follows each header and each content.
    checksums: bool,
    /// Segments of which `bytes` has a part.
    segments: VecDeque<Queued>,
    /// Number of sent bytes of the first of them.
    sent: usize,
}

/// Where the payload of a segment is.
pub(super) enum Source<'a> {
    Bytes(&'a [u8]),
    /// From an offset of the spans on.
    Memory(&'a [Span], usize),
}

/// A segment in the queue.
struct Queued {
    /// Length with payload, in bytes.
    len: usize,
    is_request: bool,
}

impl Output {
    pub(super) fn new(checksums: bool) -> Output {
        Output { checksums, ..Output::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(super) fn pending_bytes(&self) -> usize {
        self.bytes.pending_bytes()
    }

    /// Appends a segment. A short payload is copied, so that one slice has many segments. A payload with a checksum is
    /// copied because its memory can change: a READ can name any. Payload in the memory of a device is always copied.
    /// Returns `false` if it is not mapped; the output is then of no use.
    #[must_use]
    pub(super) fn push(&mut self, segment: &Segment, source: Source<'_>) -> bool {
        let mut prefix = [0; MAX_PREFIX_BYTES];
        let (prefix_len, len) = (segment.encode_to(&mut prefix), segment.length as usize);
        let prefix = &prefix[..prefix_len];
        let is_request = segment.opcode.operation().is_request();
        if self.checksums {
            return self.push_checked(prefix, len, is_request, source);
        }
        self.segments.push_back(Queued { len: prefix_len + len, is_request });
        match source {
            Source::Memory(spans, offset) if !is_copied(spans, len) => {
                let mut payload = Payload::with_capacity(spans.len());
                for (region, offset, len) in parts(spans, offset, len) {
                    payload.push_region(Arc::clone(region), offset, len);
                }
                self.bytes.push::<24>(prefix, Some(payload));
                true
            }
            Source::Memory(spans, offset) => {
                self.bytes.push::<24>(prefix, None);
                let mut is_mapped = true;
                self.bytes.push_with(len, |copy| is_mapped = copy_out(spans, offset, copy));
                is_mapped
            }
            Source::Bytes(bytes) => {
                self.bytes.push::<24>(prefix, None);
                self.bytes.push_with(len, |copy| copy.copy_from_slice(bytes));
                true
            }
        }
    }

    /// Appends a segment with its checksums.
    fn push_checked(&mut self, prefix: &[u8], len: usize, is_request: bool, source: Source<'_>) -> bool {
        let (header, extension) = prefix.split_at(SegmentHeader::LEN);
        let content_len = extension.len() + len;
        let checksums = if content_len > 0 { 2 } else { 1 };
        let total = header.len() + content_len + checksums * CHECKSUM_BYTES;
        self.segments.push_back(Queued { len: total, is_request });
        let mut is_mapped = true;
        self.bytes.push_with(total, |bytes| {
            let (front, tail) = bytes.split_at_mut(header.len() + CHECKSUM_BYTES);
            front[..header.len()].copy_from_slice(header);
            front[header.len()..].copy_from_slice(&checksum(header));
            let Some((content, last)) = tail.split_last_chunk_mut::<CHECKSUM_BYTES>() else { return };
            let (front, payload) = content.split_at_mut(extension.len());
            front.copy_from_slice(extension);
            match source {
                Source::Bytes(bytes) => payload.copy_from_slice(bytes),
                Source::Memory(spans, offset) => is_mapped = copy_out(spans, offset, payload),
            }
            *last = checksum(content);
        });
        is_mapped
    }

    pub(super) fn fill_plan<'a>(&'a self, plan: &mut TransmitPlan<'a>) {
        self.bytes.fill_plan(plan);
    }

    /// Removes the first `count` bytes, which were sent.
    pub(super) fn advance(&mut self, count: usize) {
        self.bytes.advance(count, drop);
        if self.bytes.is_empty() {
            self.segments.clear();
            self.sent = 0;
            return;
        }
        self.sent += count;
        while let Some(first) = self.segments.front()
            && first.len <= self.sent
        {
            self.sent -= first.len;
            self.segments.pop_front();
        }
    }

    /// Copies all payload, because its memory is no longer registered. `None` if it is not mapped.
    pub(super) fn detach(&mut self) -> Option<()> {
        let bytes = self.bytes.try_to_vec()?;
        self.bytes.clear();
        self.bytes.push::<24>(&bytes, None);
        Some(())
    }

    /// Drops all segments that are not begun, except responses if `keeps_responses`. The remainder is copied, because
    /// the program can change or free its memory once its requests complete. `None` if it is not mapped.
    pub(super) fn drop_unbegun(&mut self, keeps_responses: bool) -> Option<()> {
        let bytes = self.bytes.try_to_vec()?;
        self.bytes.clear();
        let (mut at, mut sent) = (0, std::mem::take(&mut self.sent));
        for Queued { len, is_request } in self.segments.drain(..) {
            let end = at + len - sent;
            if sent > 0 || (keeps_responses && !is_request) {
                self.bytes.push::<24>(&bytes[at..end], None);
            }
            (at, sent) = (end, 0);
        }
        Some(())
    }
}

/// Whether payload is copied: if that costs less than a reference, and if the kernel cannot access its memory.
fn is_copied(spans: &[Span], len: usize) -> bool {
    spans.iter().any(|span| span.region.is_on_device())
        || (len <= COPIED_BYTES && spans.iter().all(|span| span.region.has_cheap_copies()))
}

/// Length in bytes up to which payload is copied. A reference to it costs more.
const COPIED_BYTES: usize = 1024;

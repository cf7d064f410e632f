//! Bytes of a lane to send: whole segments, of which the first can be partly sent.
//!
//! Invariant: after a failure, no byte is read from the memory of a request, and nothing is sent of a request that was
//! not begun.

use std::collections::VecDeque;

use isolane_connection::{SendQueue, TransmitPlan};
use isolane_memory::Payload;

use crate::wire::{MAX_PREFIX_BYTES, Segment};

/// The sending half of a lane.
#[derive(Default)]
pub(super) struct Output {
    bytes: SendQueue,
    /// Segments of which `bytes` has a part.
    segments: VecDeque<Queued>,
    /// Number of sent bytes of the first of them.
    sent: usize,
}

/// A segment in the queue.
struct Queued {
    /// Length with payload, in bytes.
    len: usize,
    is_request: bool,
}

impl Output {
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(super) fn pending_bytes(&self) -> usize {
        self.bytes.pending_bytes()
    }

    pub(super) fn push(&mut self, segment: &Segment, payload: Option<Payload>) {
        let mut prefix = [0; MAX_PREFIX_BYTES];
        let len = segment.encode_to(&mut prefix);
        let is_request = segment.opcode.operation().is_request();
        self.segments.push_back(Queued { len: len + segment.length as usize, is_request });
        self.bytes.push::<24>(&prefix[..len], payload);
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

    /// Drops all segments that are not begun, except responses if `keeps_responses`. The remainder is copied, because
    /// the program can change or free its memory once its requests complete.
    pub(super) fn drop_unbegun(&mut self, keeps_responses: bool) {
        let bytes = self.bytes.to_vec();
        self.bytes.clear();
        let (mut at, mut sent) = (0, std::mem::take(&mut self.sent));
        for Queued { len, is_request } in self.segments.drain(..) {
            let end = at + len - sent;
            if sent > 0 || (keeps_responses && !is_request) {
                self.bytes.push::<24>(&bytes[at..end], None);
            }
            (at, sent) = (end, 0);
        }
    }
}

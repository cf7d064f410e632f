//! Responses to READs and atomic operations of the peer.
//!
//! The last ones are kept, as many as can be outstanding, so that a lost one is sent again: a READ is executed again,
//! an atomic operation is not.

use std::collections::VecDeque;
use std::sync::Arc;

use isolane_memory::MemoryRegion;

use super::lane::Part;
use super::{Extension, Place, segment};
use crate::memory::{Spans, are_readable, is_among, part};
use crate::wire::{Operation, Segment};

/// Responses that are not sent, or can be lost.
#[derive(Default)]
pub(super) struct Responses {
    /// The last executed requests, oldest first.
    executed: VecDeque<Response>,
    /// Parts of their responses that are not sent.
    unsent: VecDeque<Part>,
    resources: usize,
}

/// The response to an executed request.
struct Response {
    message: u32,
    size: u32,
    content: Content,
}

pub(super) enum Content {
    /// Memory that a READ asks for.
    Memory(Spans),
    /// Value that an atomic operation found.
    Found(u64),
    /// Its memory is no longer registered.
    Gone,
}

impl Response {
    fn uses(&self, region: &Arc<MemoryRegion>) -> bool {
        matches!(&self.content, Content::Memory(spans) if is_among(spans, region))
    }
}

impl Responses {
    pub(super) fn configure(&mut self, resources: usize) {
        self.resources = resources;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unsent.is_empty()
    }

    /// Whether the peer has more requests outstanding than it may, so that the next one is refused.
    pub(super) fn is_full(&self) -> bool {
        let is_unsent = |oldest: &Response| self.unsent.iter().any(|unsent| unsent.message == oldest.message);
        self.executed.len() >= self.resources && self.executed.front().is_none_or(is_unsent)
    }

    /// Adds the response to a request of `size` bytes.
    pub(super) fn push(&mut self, message: u32, size: u32, content: Content) {
        if self.executed.len() >= self.resources {
            self.executed.pop_front();
        }
        self.executed.push_back(Response { message, size, content });
        self.unsent.push_back(Part { message, offset: 0, length: size });
    }

    /// Sends a part again.
    pub(super) fn lost(&mut self, part: Part) {
        if self.index_of(part.message).is_some() {
            self.unsent.push_back(part);
        }
    }

    /// Whether the response to a message can be sent again.
    pub(super) fn keeps(&self, message: u32) -> bool {
        let first = self.executed.front();
        first.is_some_and(|first| message.wrapping_sub(first.message) as i32 >= 0)
    }

    fn index_of(&self, message: u32) -> Option<usize> {
        self.executed.iter().position(|response| response.message == message)
    }

    /// Returns the next segment, of up to `max_bytes`, and its payload.
    ///
    /// # Errors
    /// The number of the message, if its memory is gone.
    pub(super) fn next(&mut self, max_bytes: u32) -> Result<Option<(Segment, Spans)>, u32> {
        let Some(unsent) = self.unsent.front().copied() else { return Ok(None) };
        let Some(index) = self.index_of(unsent.message) else { return Ok(None) };
        let response = &self.executed[index];
        let (message, size) = (response.message, response.size);
        match &response.content {
            Content::Memory(spans) => {
                let place = Place { size, offset: unsent.offset, length: segment_len(&unsent, max_bytes) };
                let payload = part(spans, place.offset as usize, place.length as usize);
                let data = segment(Operation::ReadResponse, message, place, Extension::None);
                self.advance(place.length);
                Ok(Some((data, payload)))
            }
            Content::Found(value) => {
                let place = Place { size, offset: 0, length: 0 };
                let found = segment(Operation::AtomicResponse, message, place, Extension::Found(*value));
                self.unsent.pop_front();
                Ok(Some((found, Spans::new())))
            }
            Content::Gone => {
                self.unsent.retain(|part| (part.message.wrapping_sub(message) as i32) < 0);
                Err(message)
            }
        }
    }

    /// Removes `length` bytes from the first unsent part.
    fn advance(&mut self, length: u32) {
        if let Some(unsent) = self.unsent.front_mut() {
            (unsent.offset, unsent.length) = (unsent.offset + length, unsent.length - length);
            if unsent.length == 0 {
                self.unsent.pop_front();
            }
        }
    }

    /// Whether an unsent response uses memory of a region.
    pub(super) fn uses(&self, region: &Arc<MemoryRegion>) -> bool {
        self.unsent.iter().any(|unsent| {
            self.index_of(unsent.message).is_some_and(|index| self.executed[index].uses(region))
        })
    }

    /// Drops the responses from memory of a region.
    pub(super) fn forget(&mut self, region: &Arc<MemoryRegion>) {
        for response in self.executed.iter_mut().filter(|response| response.uses(region)) {
            response.content = Content::Gone;
            self.unsent.retain(|unsent| unsent.message != response.message);
        }
    }

    /// Drops the responses from memory that is not mapped.
    pub(super) fn forget_unmapped(&mut self) {
        for response in &mut self.executed {
            if matches!(&response.content, Content::Memory(spans) if !are_readable(spans)) {
                response.content = Content::Gone;
            }
        }
    }

    /// Drops all responses.
    pub(super) fn clear(&mut self) {
        self.executed.clear();
        self.unsent.clear();
    }
}

/// Returns the length of the next segment of a part: up to a multiple of `max_bytes`.
pub(super) fn segment_len(part: &Part, max_bytes: u32) -> u32 {
    part.length.min(max_bytes - part.offset % max_bytes)
}

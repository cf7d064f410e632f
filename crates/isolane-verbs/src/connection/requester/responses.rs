//! Responses to READs and atomic operations of this end.

use super::super::{Extension, Fault, Finished};
use super::Requester;
use super::entry::{Awaited, Data, Entry};
use crate::memory::{Spans, copy_in, part};
use crate::types::{Answer, Status};
use crate::wire::Segment;

impl Requester {
    /// Checks a response, and adds the destination of its payload to the empty `place`.
    pub(in crate::connection) fn on_response(
        &mut self,
        segment: &Segment,
        place: &mut Spans,
    ) -> Result<(), Fault> {
        let unmapped = self.unmapped_response(segment.message);
        let (awaited, entry) = self.awaited(segment.message).ok_or(Fault::Broken)?;
        let range = segment.offset..segment.offset + segment.length;
        let is_expected = segment.size == awaited.size && awaited.claimed.is_free(range.clone());
        let answer = entry.operation.answer();
        let Data::Memory(spans) = &entry.data else { return Err(Fault::Broken) };
        match &segment.extension {
            Extension::None if is_expected && answer == Answer::Data => {
                awaited.claimed.insert(range);
                let offset = awaited.offset as usize + segment.offset as usize;
                *place = part(spans, offset, segment.length as usize);
                Ok(())
            }
            Extension::Found(value) if is_expected && answer == Answer::Value => {
                if copy_in(spans, 0, &value.to_le_bytes()) { Ok(()) } else { Err(unmapped) }
            }
            _ => Err(Fault::Broken),
        }
    }

    /// All payload of a response is in its place.
    pub(in crate::connection) fn on_response_placed(
        &mut self,
        segment: &Segment,
        finished: &mut Finished,
    ) -> Result<(), Fault> {
        let (awaited, entry) = self.awaited(segment.message).ok_or(Fault::Broken)?;
        let is_atomic = matches!(segment.extension, Extension::Found(_));
        awaited.placed += if is_atomic { awaited.size } else { segment.length };
        if awaited.placed == awaited.size {
            awaited.is_complete = true;
            entry.responses_left -= 1;
        }
        // The peer keeps as many of the last responses as can be outstanding, so they are removed in order.
        while self.awaited.front().is_some_and(|awaited| awaited.is_complete) {
            self.awaited.pop_front();
        }
        self.complete_finished(finished);
        Ok(())
    }

    /// The lane of a response has ended, when only the first `placed` bytes of the payload were in their place.
    pub(in crate::connection) fn on_response_cut(&mut self, segment: &Segment, placed: u32) {
        let Some((awaited, _)) = self.awaited(segment.message) else { return };
        awaited.placed += placed;
        awaited.claimed.remove(segment.offset + placed..segment.offset + segment.length);
    }

    /// Returns the fault of a request whose response has no place in memory.
    pub(in crate::connection) fn unmapped_response(&self, message: u32) -> Fault {
        let index = self.index_awaited(message);
        index.map_or(Fault::Broken, |index| Fault::Failed { index, status: Status::LocalProtection })
    }

    /// Returns the index of the request whose message is executed, and has no complete response.
    pub(super) fn index_awaited(&self, message: u32) -> Option<usize> {
        self.awaited.iter().find(|awaited| awaited.message == message && !awaited.is_complete)?;
        self.queue.iter().position(|entry| entry.responses_left > 0 && entry.has(message))
    }

    /// Returns a message whose response is not complete, and its request.
    fn awaited(&mut self, message: u32) -> Option<(&mut Awaited, &mut Entry)> {
        let awaited = self.awaited.iter_mut().find(|awaited| awaited.message == message)?;
        let entry = self.queue.iter_mut().find(|entry| entry.responses_left > 0 && entry.has(message))?;
        Some((awaited, entry)).filter(|(awaited, _)| !awaited.is_complete)
    }
}

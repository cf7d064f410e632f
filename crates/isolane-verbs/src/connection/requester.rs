//! The requesting half of a queue pair: send requests, their messages, and what the peer reports about them.
//!
//! Invariant: `queue[..unsent]` is sent and not complete; the requests from `unsent` on have no message number,
//! except the first, if part of it is sent.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isolane_memory::MemoryRegion;

use super::{
    Agreement, Extension, Fault, Finished, Limits, MESSAGE_BYTES, Place, PostError, Queue, SEGMENT_BYTES,
    SendAttributes, Source, request_segment,
};
use crate::memory::{ProtectionDomain, Right, Spans, is_among, part};
use crate::wire::{NakCode, Segment, Syndrome, rnr_delay};
use crate::work::{Completion, LocalData, SendOperation, SendRequest, Status};

/// The requesting half.
#[derive(Default)]
pub(super) struct Requester {
    queue: VecDeque<Entry>,
    unsent: usize,
    /// Number of bytes sent of the first unsent request, or requested by it if it is a READ.
    sent: u64,
    /// Number of the next message.
    next_message: u32,
    /// The peer has executed all messages before this one.
    acknowledged: u32,
    /// Number of requests sent that consume a receive of the peer.
    consumed: u16,
    /// Number of receives that the peer has posted, modulo 2¹⁶.
    credits: u16,
    /// Messages that wait for a response, oldest first.
    awaited: VecDeque<Awaited>,
    peer_segment_bytes: u32,
    /// Number of messages that can wait for a response: limits of the peer and of this end.
    peer_resources: usize,
    max_awaited: usize,
    /// The peer takes receives from a shared queue, and promises none.
    peer_shares_receives: bool,
    rnr_retries: u8,
    /// The message that lacked a receive of the peer.
    lacking: Option<Lacking>,
}

/// A message that was sent while the peer had no receive for it.
struct Lacking {
    message: u32,
    /// The peer has not reported a receive.
    is_blocked: bool,
    /// When the request fails, `None` for never.
    deadline: Option<Instant>,
}

/// A send request without a completion.
struct Entry {
    id: u64,
    operation: SendOperation,
    signaled: bool,
    solicited: bool,
    fenced: bool,
    data: Data,
    length: u64,
    /// Number of its first message, once part of that is sent.
    first_message: u32,
    /// Number after its last message, once that is sent.
    end_message: Option<u32>,
    /// Messages whose response has not arrived completely.
    responses_left: u64,
}

impl Entry {
    /// Number of messages that have a response.
    fn responses(operation: &SendOperation, length: u64) -> u64 {
        if operation.has_response() { length.div_ceil(MESSAGE_BYTES).max(1) } else { 0 }
    }
}

/// Checked local data.
enum Data {
    Memory(Spans),
    Inline(Vec<u8>),
    /// A key, bounds, or right is wrong.
    Invalid,
}

/// A message that waits for a response.
struct Awaited {
    message: u32,
    /// Offset of its data in the request, in bytes.
    offset: u64,
    size: u32,
    received: u32,
}

impl Requester {
    pub(super) fn configure(&mut self, attributes: &SendAttributes) {
        self.max_awaited = attributes.outstanding_reads;
        self.rnr_retries = attributes.rnr_retries;
    }

    pub(super) fn open(&mut self, agreement: &Agreement) {
        self.next_message = agreement.first_message;
        self.acknowledged = agreement.first_message;
        self.peer_segment_bytes = agreement.peer_segment_bytes.clamp(1, SEGMENT_BYTES);
        self.peer_resources = agreement.peer_responder_resources;
        self.peer_shares_receives = agreement.peer_shares_receives;
    }

    /// Number of requests without a completion.
    pub(super) fn outstanding(&self) -> usize {
        self.queue.len()
    }

    /// Whether a request uses memory of a region.
    pub(super) fn uses(&self, region: &Arc<MemoryRegion>) -> bool {
        self.queue.iter().any(|entry| matches!(&entry.data, Data::Memory(spans) if is_among(spans, region)))
    }

    /// Number of requests that are not sent completely.
    pub(super) fn unsent(&self) -> usize {
        self.queue.len() - self.unsent
    }

    /// Whether a request is not sent completely, and does not wait for a shared receive.
    pub(super) fn has_unsent(&self) -> bool {
        self.unsent < self.queue.len() && self.lacking.as_ref().is_none_or(|lacking| !lacking.is_blocked)
    }

    pub(super) fn peer_segment_bytes(&self) -> u32 {
        self.peer_segment_bytes
    }

    pub(super) fn post(
        &mut self,
        request: SendRequest,
        limits: &Limits,
        domain: &ProtectionDomain,
    ) -> Result<(), PostError> {
        if self.queue.len() >= limits.send_requests {
            return Err(PostError::Full(self.queue.len()));
        }
        let has_response = request.operation.has_response();
        let SendRequest { id, operation, data, signaled, solicited, fenced } = request;
        let (data, length) = match data {
            LocalData::Inline(bytes) if has_response || bytes.len() > limits.inline_bytes => {
                return Err(PostError::Inline { bytes: bytes.len(), limit: limits.inline_bytes });
            }
            LocalData::Inline(bytes) => {
                let length = bytes.len() as u64;
                (Data::Inline(bytes), length)
            }
            LocalData::Elements(elements) => {
                if elements.len() > limits.elements {
                    return Err(PostError::Elements { elements: elements.len(), limit: limits.elements });
                }
                let right = if has_response { Right::LocalWrite } else { Right::LocalRead };
                let data = domain.spans(&elements, right).map_or(Data::Invalid, Data::Memory);
                (data, elements.iter().map(|element| u64::from(element.length)).sum())
            }
        };
        let is_atomic = has_response && !matches!(operation, SendOperation::Read { .. });
        if length > MAX_REQUEST_BYTES || (is_atomic && length != 8) {
            return Err(PostError::Length(length));
        }
        let responses_left = Entry::responses(&operation, length);
        self.queue.push_back(Entry {
            id,
            operation,
            signaled,
            solicited,
            fenced,
            data,
            length,
            first_message: 0,
            end_message: None,
            responses_left,
        });
        Ok(())
    }

    /// Returns the next segment and its payload, or `None` if nothing can be sent now.
    pub(super) fn next_segment(
        &mut self,
        max_requests: usize,
    ) -> Result<Option<(Segment, Source<'_>)>, Fault> {
        if self.lacking.as_ref().is_some_and(|lacking| lacking.is_blocked) {
            return Ok(None);
        }
        let is_half_full = 2 * self.queue.len() >= max_requests;
        let lacks_credits = !self.peer_shares_receives && self.consumed == self.credits;
        let Some(entry) = self.queue.get_mut(self.unsent) else { return Ok(None) };
        let operation = entry.operation;
        if matches!(entry.data, Data::Invalid) {
            // It fails when all requests before it are complete.
            return match self.unsent {
                0 => Err(Fault::Failed { index: 0, status: Status::LocalProtection }),
                _ => Ok(None),
            };
        }
        if operation.has_response() && self.peer_resources.min(self.max_awaited) == 0 {
            let status = Status::RemoteInvalidRequest;
            return if self.unsent == 0 { Err(Fault::Failed { index: 0, status }) } else { Ok(None) };
        }
        let (index, offset) = (self.sent / MESSAGE_BYTES, (self.sent % MESSAGE_BYTES) as u32);
        let start = self.sent as usize;
        let starts_request = self.sent == 0;
        let must_wait = (starts_request && entry.fenced && !self.awaited.is_empty())
            || (operation.has_response() && self.awaited.len() >= self.peer_resources.min(self.max_awaited))
            || (starts_request && operation.consumes_receive() && lacks_credits);
        if must_wait {
            return Ok(None);
        }
        let message_start = index * MESSAGE_BYTES;
        let size = (entry.length - message_start).min(MESSAGE_BYTES) as u32;
        let message = self.next_message;
        let place = match operation.has_response() {
            true => Place { size, offset: 0, length: 0 },
            false => Place { size, offset, length: (size - offset).min(self.peer_segment_bytes) },
        };
        let ends_message = operation.has_response() || place.offset + place.length == size;
        let ends_request = ends_message && message_start + u64::from(size) == entry.length;
        let mut segment = request_segment(message, place, &operation, message_start, ends_request);
        segment.flags = segment
            .flags
            .with_solicited(ends_request && entry.solicited)
            .with_ack_requested(ends_request && (entry.signaled || is_half_full))
            .with_continued(!ends_request);
        if starts_request {
            entry.first_message = message;
        }
        if starts_request && operation.consumes_receive() && !self.peer_shares_receives {
            self.consumed = self.consumed.wrapping_add(1);
        }
        if operation.has_response() {
            self.awaited.push_back(Awaited { message, offset: message_start, size, received: 0 });
        }
        if ends_message {
            self.next_message = message.wrapping_add(1);
        }
        self.sent += u64::from(if operation.has_response() { size } else { place.length });
        if ends_request {
            entry.end_message = Some(self.next_message);
            (self.unsent, self.sent) = (self.unsent + 1, 0);
        }
        let source = match &entry.data {
            Data::Memory(spans) => Source::Memory(spans, start),
            Data::Inline(bytes) => Source::Bytes(&bytes[start..start + place.length as usize]),
            Data::Invalid => Source::Bytes(&[]),
        };
        Ok(Some((segment, source)))
    }

    /// Processes the acknowledgment and the credits of any segment.
    pub(super) fn on_acknowledged(
        &mut self,
        acknowledged: u32,
        credits: u16,
        finished: &mut Finished,
    ) -> Result<(), Fault> {
        let (executed, sent) = (self.distance(acknowledged), self.distance(self.next_message));
        if executed > sent || usize::from(credits.wrapping_sub(self.consumed)) > Limits::MAX_RECEIVES {
            return Err(Fault::Broken);
        }
        (self.acknowledged, self.credits) = (acknowledged, credits);
        if self.lacking.as_ref().is_some_and(|lacking| (self.distance(lacking.message) as i32) < 0) {
            self.lacking = None;
        }
        self.complete_finished(finished);
        Ok(())
    }

    /// Returns the number of messages from the last acknowledged one up to `message`.
    fn distance(&self, message: u32) -> u32 {
        message.wrapping_sub(self.acknowledged)
    }

    /// Processes a segment that is only an acknowledgment.
    pub(super) fn on_acknowledgment(&mut self, segment: &Segment, now: Instant) -> Result<(), Fault> {
        let Extension::Acknowledgment(syndrome, timer, accepted) = segment.extension else {
            return Err(Fault::Broken);
        };
        match syndrome {
            Syndrome::ReceiverNotReady => {
                return self.on_not_ready(segment.message, accepted, rnr_delay(timer), now);
            }
            Syndrome::ReceiverReady => {
                let lacking = self.lacking.as_mut().filter(|lacking| lacking.message == segment.message);
                lacking.ok_or(Fault::Broken)?.is_blocked = false;
                return Ok(());
            }
            _ => {}
        }
        let Some(code) = NakCode::from_syndrome(syndrome) else { return Ok(()) };
        let index = self.index_of(segment.message).ok_or(Fault::Broken)?;
        let status = match code {
            NakCode::Sequence | NakCode::InvalidRequest => Status::RemoteInvalidRequest,
            NakCode::RemoteAccess => Status::RemoteAccess,
            NakCode::RemoteOperation => Status::RemoteOperation,
        };
        Err(Fault::Failed { index, status })
    }

    /// The peer lacks a receive for a message, of which it has `accepted` bytes: the rest is sent again.
    fn on_not_ready(
        &mut self,
        message: u32,
        accepted: u32,
        delay: Duration,
        now: Instant,
    ) -> Result<(), Fault> {
        let index = self.index_of(message).filter(|_| self.peer_shares_receives).ok_or(Fault::Broken)?;
        let entry = &self.queue[index];
        let start = u64::from(message.wrapping_sub(entry.first_message)) * MESSAGE_BYTES;
        let size = entry.length.saturating_sub(start).min(MESSAGE_BYTES);
        let sent = if index == self.unsent { self.sent.saturating_sub(start) } else { size };
        let is_empty = index < self.unsent && entry.length == 0;
        let is_sent = u64::from(accepted) < sent || (is_empty && accepted == 0);
        if !entry.operation.consumes_receive() || !is_sent {
            return Err(Fault::Broken);
        }
        // The data of a READ before the message can still arrive.
        let is_later = |awaited: &Awaited| awaited.message.wrapping_sub(message) as i32 > 0;
        while self.awaited.back().is_some_and(is_later) {
            self.awaited.pop_back();
        }
        for entry in self.queue.range_mut(index..) {
            entry.end_message = None;
            entry.responses_left = Entry::responses(&entry.operation, entry.length);
        }
        (self.unsent, self.sent, self.next_message) = (index, start + u64::from(accepted), message);
        let deadline = match &self.lacking {
            Some(lacking) if lacking.message == message => lacking.deadline,
            _ if self.rnr_retries >= RNR_RETRY_FOREVER => None,
            _ => Some(now + delay * self.rnr_retries.into()),
        };
        self.lacking = Some(Lacking { message, is_blocked: true, deadline });
        self.check_deadline(now)
    }

    /// When the first unsent request fails, because the peer has no receive for it.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.lacking.as_ref().filter(|lacking| lacking.is_blocked)?.deadline
    }

    /// Fails the first unsent request if its deadline has passed.
    pub(super) fn check_deadline(&self, now: Instant) -> Result<(), Fault> {
        match self.deadline() {
            Some(deadline) if deadline <= now => {
                Err(Fault::Failed { index: self.unsent, status: Status::RnrRetryExceeded })
            }
            _ => Ok(()),
        }
    }

    /// Checks a response, and returns the destination of its payload.
    pub(super) fn on_response(&mut self, segment: &Segment) -> Result<Spans, Fault> {
        let (awaited, entry) = self.next_awaited().ok_or(Fault::Broken)?;
        let is_expected = segment.message == awaited.message
            && segment.size == awaited.size
            && segment.offset == awaited.received;
        let is_read = matches!(entry.operation, SendOperation::Read { .. });
        let Data::Memory(spans) = &entry.data else { return Err(Fault::Broken) };
        match &segment.extension {
            Extension::None if is_expected && is_read => {
                Ok(part(spans, awaited.offset as usize + segment.offset as usize, segment.length as usize))
            }
            Extension::Found(value) if is_expected && !is_read => {
                let mut bytes = &value.to_le_bytes()[..];
                for span in spans {
                    let (front, tail) = bytes.split_at(span.len.min(bytes.len()));
                    span.region.copy_in(span.offset, front);
                    bytes = tail;
                }
                Ok(Spans::new())
            }
            _ => Err(Fault::Broken),
        }
    }

    /// All payload of a response is in its place.
    pub(super) fn on_response_placed(
        &mut self,
        segment: &Segment,
        finished: &mut Finished,
    ) -> Result<(), Fault> {
        let (awaited, entry) = self.next_awaited().ok_or(Fault::Broken)?;
        let is_atomic = matches!(segment.extension, Extension::Found(_));
        awaited.received += if is_atomic { awaited.size } else { segment.length };
        if awaited.received == awaited.size {
            entry.responses_left -= 1;
            self.awaited.pop_front();
        }
        self.complete_finished(finished);
        Ok(())
    }

    /// Returns the message whose response is next, and its request.
    fn next_awaited(&mut self) -> Option<(&mut Awaited, &mut Entry)> {
        let entry = self.queue.iter_mut().find(|entry| entry.responses_left > 0)?;
        Some((self.awaited.front_mut()?, entry))
    }

    /// Completes the finished requests at the front.
    pub(super) fn complete_finished(&mut self, finished: &mut Finished) {
        while self.unsent > 0
            && let Some(entry) = self.queue.front()
            && let Some(end) = entry.end_message
            && self.distance(end) as i32 <= 0
            && entry.responses_left == 0
        {
            self.complete(Status::Success, finished);
        }
    }

    /// Completes the first request.
    fn complete(&mut self, status: Status, finished: &mut Finished) {
        let Some(entry) = self.queue.pop_front() else { return };
        match self.unsent {
            0 => self.sent = 0,
            _ => self.unsent -= 1,
        }
        if entry.signaled || status != Status::Success {
            let has_length = entry.operation.has_response() && status == Status::Success;
            let completion = Completion {
                id: entry.id,
                status,
                operation: (&entry.operation).into(),
                length: if has_length { entry.length } else { 0 },
                immediate: None,
                solicited: false,
                source: None,
            };
            finished.completions.push_back((Queue::Send, completion));
        }
    }

    /// Returns the index of the request that a message belongs to.
    fn index_of(&self, message: u32) -> Option<usize> {
        let distance = self.distance(message) as i32;
        let is_after =
            |entry: &Entry| entry.end_message.is_some_and(|end| self.distance(end) as i32 <= distance);
        let index = self.queue.iter().take_while(|entry| is_after(entry)).count();
        let is_sent = index < self.unsent || (index == self.unsent && self.sent > 0);
        (distance >= 0 && is_sent).then_some(index)
    }

    /// Fails the request at `index`. All before it are executed, and flushed if their response is missing.
    pub(super) fn fail_at(&mut self, index: usize, status: Status, finished: &mut Finished) {
        for _ in 0..index {
            let Some(front) = self.queue.front() else { return };
            let status = if front.responses_left == 0 { Status::Success } else { Status::Flushed };
            self.complete(status, finished);
        }
        self.complete(status, finished);
    }

    /// Fails the first request, if there is one.
    pub(super) fn fail_first(&mut self, status: Status, finished: &mut Finished) {
        self.fail_at(0, status, finished);
    }

    /// Completes all requests as flushed.
    pub(super) fn flush(&mut self, finished: &mut Finished) {
        self.awaited.clear();
        self.lacking = None;
        while !self.queue.is_empty() {
            self.complete(Status::Flushed, finished);
        }
    }
}

/// Value of `rnr_retry` that stands for no limit.
const RNR_RETRY_FOREVER: u8 = 7;
/// Maximum length of a request in bytes.
const MAX_REQUEST_BYTES: u64 = 1 << 31;

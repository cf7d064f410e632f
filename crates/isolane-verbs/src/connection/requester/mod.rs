//! The requesting half of a queue pair: send requests, their messages, and what the peer reports about them.
//!
//! Invariants:
//! * `queue[..unsent]` is sent and not complete; the requests from `unsent` on have no message number, except the
//!   first, if part of it is sent.
//! * Each byte that the peer has not acknowledged is unsent, on an open lane, in the log of a lane that has ended, or
//!   in `resend`.

mod entry;
mod responses;
mod retry;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use isolane_memory::MemoryRegion;

use self::entry::{Awaited, Data, Entry, Next};
use self::retry::{CreditWait, ReceiverNotReady};
use super::lane::Part;
use super::ranges::Ranges;
use super::receives::MAX_BOUND;
use super::{
    CHECKED_SEGMENT_BYTES, Extension, Fault, Finished, MESSAGE_BYTES, Place, SEGMENT_BYTES, STRIPE_BYTES,
    Source, WINDOW,
};
use crate::memory::{ProtectionDomain, Right, Spans, are_readable, is_among};
use crate::types::{
    Answer, Completion, ConnectionParameters, Limits, LocalData, PostError, Queue, SendAttributes,
    SendOperation, SendRequest, Status,
};
use crate::wire::{NakCode, Segment, Syndrome, rnr_delay};

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
    /// Parts of messages to send again, because a lane has ended or the peer had no receive.
    resend: VecDeque<Part>,
    /// Number of requests sent that consume a receive of the peer, and of the complete ones among them.
    consumed: u16,
    completed: u16,
    /// Number of receives that the peer has posted, modulo 2¹⁶.
    credits: u16,
    /// Messages that wait for a response, oldest first.
    awaited: VecDeque<Awaited>,
    /// Maximum payload of a segment in bytes; only the last segment of a message has less.
    segment_bytes: u32,
    /// Segments of a request can overtake each other on several lanes.
    is_striped: bool,
    /// Number of messages that can wait for a response: limits of the peer and of this end.
    peer_resources: usize,
    max_awaited: usize,
    /// The peer takes receives from a shared queue, and promises none.
    peer_shares_receives: bool,
    /// WRITEs with immediate data consume no receive.
    spares_receives: bool,
    rnr_retries: u8,
    /// The request that lacked a receive of the peer.
    receiver_not_ready: Option<ReceiverNotReady>,
    credit_wait: CreditWait,
    /// How often the peer was not ready, and then had a receive again, modulo 2⁸.
    rnr_count: u8,
}

impl Requester {
    pub(super) fn configure(&mut self, attributes: &SendAttributes) {
        self.max_awaited = attributes.outstanding_reads;
        self.rnr_retries = attributes.rnr_retries;
    }

    pub(super) fn open(&mut self, parameters: &ConnectionParameters) {
        self.next_message = parameters.first_message;
        self.acknowledged = parameters.first_message;
        self.is_striped = parameters.lanes > 1;
        let max_bytes = match (parameters.checksums, self.is_striped) {
            (true, _) => CHECKED_SEGMENT_BYTES,
            (false, true) => STRIPE_BYTES,
            (false, false) => SEGMENT_BYTES,
        };
        self.segment_bytes = parameters.peer_segment_bytes.clamp(1, max_bytes);
        self.peer_resources = parameters.peer_responder_resources;
        self.peer_shares_receives = parameters.peer_shares_receives;
    }

    /// WRITEs with immediate data consume no receive of the peer.
    pub(super) fn spare_receives(&mut self) {
        self.spares_receives = true;
    }

    /// Whether the peer needs a receive for an operation.
    fn consumes_receive(&self, operation: &SendOperation) -> bool {
        operation.consumes_receive()
            && !(self.spares_receives && matches!(operation, SendOperation::Write { .. }))
    }

    /// Number of requests without a completion.
    pub(super) fn outstanding(&self) -> usize {
        self.queue.len()
    }

    /// Whether a request uses memory of a region.
    pub(super) fn uses(&self, region: &Arc<MemoryRegion>) -> bool {
        self.queue.iter().any(|entry| matches!(&entry.data, Data::Memory(spans) if is_among(spans, region)))
    }

    /// Returns the index of the first request that sends from memory that is not mapped.
    pub(super) fn first_unmapped(&self) -> Option<usize> {
        self.queue.iter().position(|entry| match &entry.data {
            Data::Memory(spans) => !entry.operation.has_response() && !are_readable(spans),
            _ => false,
        })
    }

    /// Number of requests that are not sent completely.
    pub(super) fn unsent(&self) -> usize {
        self.queue.len() - self.unsent
    }

    /// Whether a request is sent in part.
    pub(super) fn is_sending(&self) -> bool {
        self.sent > 0
    }

    /// Whether a request is not sent completely, and does not wait for a shared receive.
    pub(super) fn has_unsent(&self) -> bool {
        !self.resend.is_empty() || (self.unsent < self.queue.len() && !self.is_blocked())
    }

    /// Whether requests that consume a receive must wait.
    fn is_blocked(&self) -> bool {
        self.receiver_not_ready.as_ref().is_some_and(|not_ready| not_ready.is_blocked)
    }

    /// Whether the peer takes receives from a shared queue.
    pub(super) fn peer_shares_receives(&self) -> bool {
        self.peer_shares_receives
    }

    pub(super) fn segment_bytes(&self) -> u32 {
        self.segment_bytes
    }

    /// Whether the peer has executed a message.
    pub(super) fn is_acknowledged(&self, message: u32) -> bool {
        (self.distance(message) as i32) < 0
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
        let (data, sges, length) = match data {
            LocalData::Inline(bytes) if has_response || bytes.len() > limits.inline_bytes => {
                return Err(PostError::Inline { bytes: bytes.len(), limit: limits.inline_bytes });
            }
            LocalData::Inline(bytes) => {
                let length = bytes.len() as u64;
                (Data::Inline(bytes), None, length)
            }
            LocalData::Sges(sges) => {
                if sges.len() > limits.sges {
                    return Err(PostError::Sges { sges: sges.len(), limit: limits.sges });
                }
                let length = sges.iter().map(|sge| u64::from(sge.length)).sum();
                (Data::Memory(Spans::new()), Some(sges), length)
            }
        };
        if length > MAX_REQUEST_BYTES || (operation.answer() == Answer::Value && length != 8) {
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
            receive: 0,
            lane: None,
        });
        if let (Some(sges), Some(Entry { data, .. })) = (sges, self.queue.back_mut()) {
            let right = if has_response { Right::LocalWrite } else { Right::LocalRead };
            if let Data::Memory(spans) = data
                && !domain.fill_spans(&sges, right, spans)
            {
                *data = Data::Invalid;
            }
        }
        Ok(())
    }

    /// Makes the next segment, and returns its payload, or `None` if nothing can be sent now.
    pub(super) fn next_segment(
        &mut self,
        lane: usize,
        max_requests: usize,
        may_consume: bool,
        segment: &mut Segment,
    ) -> Result<Option<Source<'_>>, Fault> {
        let again = if self.resend.is_empty() { None } else { self.next_again(may_consume) };
        let next = match again {
            None => self.next_new(lane, max_requests, may_consume)?,
            again => again,
        };
        let Some(next) = next else { return Ok(None) };
        let entry = &self.queue[next.index];
        let (start, length) = (next.message_start + u64::from(next.place.offset), next.place.length as usize);
        let source = match &entry.data {
            Data::Memory(spans) => Source::Memory(spans, start as usize),
            Data::Inline(bytes) => Source::Bytes(&bytes[start as usize..start as usize + length]),
            Data::Invalid => Source::Bytes(&[]),
        };
        *segment = entry.segment(&next, self.rnr_count);
        Ok(Some(source))
    }

    /// Returns the next segment that was not sent before.
    fn next_new(
        &mut self,
        lane: usize,
        max_requests: usize,
        may_consume: bool,
    ) -> Result<Option<Next>, Fault> {
        let index = self.unsent;
        let Some(entry) = self.queue.get(index) else { return Ok(None) };
        let operation = entry.operation;
        let consumes_receive = self.consumes_receive(&operation);
        let fault = match &entry.data {
            Data::Invalid => Some(Status::LocalProtection),
            _ if operation.has_response() && self.peer_resources.min(self.max_awaited) == 0 => {
                Some(Status::RemoteInvalidRequest)
            }
            _ => None,
        };
        if let Some(status) = fault {
            // It fails when all requests before it are complete.
            return if index == 0 { Err(Fault::Failed { index, status }) } else { Ok(None) };
        }
        let (number, offset) = (self.sent / MESSAGE_BYTES, (self.sent % MESSAGE_BYTES) as u32);
        let starts_request = self.sent == 0;
        if (offset == 0 && self.must_wait(lane, index, starts_request))
            || (consumes_receive && (self.is_blocked() || !may_consume))
        {
            return Ok(None);
        }
        let message_start = number * MESSAGE_BYTES;
        let size = (entry.length - message_start).min(MESSAGE_BYTES) as u32;
        let message = self.next_message;
        let place = if operation.has_response() {
            Place { size, offset: 0, length: 0 }
        } else {
            Place { size, offset, length: (size - offset).min(self.segment_bytes) }
        };
        let ends_message = operation.has_response() || place.offset + place.length == size;
        let ends_request = ends_message && message_start + u64::from(size) == entry.length;
        let consumed = self.consumed as u8;
        if starts_request && consumes_receive {
            self.consumed = self.consumed.wrapping_add(1);
        }
        let is_half_full = 2 * self.queue.len() >= max_requests
            || 2 * self.distance(message) >= WINDOW
            || 2 * usize::from(self.consumed.wrapping_sub(self.completed)) >= MAX_BOUND;
        let entry = &mut self.queue[index];
        if starts_request {
            (entry.first_message, entry.receive) = (message, consumed);
        }
        let lane = Some(lane as u8);
        entry.lane = if starts_request || entry.lane == lane { lane } else { None };
        let wants_acknowledgment =
            if self.is_striped { ends_message } else { ends_request && (entry.signaled || is_half_full) };
        if operation.has_response() {
            let (claimed, placed, is_complete) = (Ranges::default(), 0, false);
            let awaited = Awaited { message, offset: message_start, size, claimed, placed, is_complete };
            self.awaited.push_back(awaited);
        }
        if ends_message {
            self.next_message = message.wrapping_add(1);
        }
        self.sent += u64::from(if operation.has_response() { size } else { place.length });
        if ends_request {
            entry.end_message = Some(self.next_message);
            (self.unsent, self.sent) = (index + 1, 0);
        }
        Ok(Some(Next { index, message, place, message_start, wants_acknowledgment }))
    }

    /// Whether the next message of a request must not be sent yet, or not on this lane.
    fn must_wait(&self, lane: usize, index: usize, starts_request: bool) -> bool {
        let entry = &self.queue[index];
        let operation = &entry.operation;
        if self.distance(self.next_message) >= WINDOW
            || (starts_request && entry.fenced && !self.awaited.is_empty())
            || (operation.has_response() && self.awaited.len() >= self.peer_resources.min(self.max_awaited))
        {
            return true;
        }
        if starts_request && self.consumes_receive(operation) {
            let in_flight = usize::from(self.consumed.wrapping_sub(self.completed));
            let lacks_credits = !self.peer_shares_receives && self.consumed == self.credits;
            let exceeds_indices = self.peer_shares_receives || self.is_striped;
            if lacks_credits || (exceeds_indices && in_flight >= MAX_BOUND) {
                return true;
            }
        }
        if !self.is_striped {
            false
        } else if starts_request {
            self.could_overtake(index, Some(lane as u8))
        } else {
            // A further message of a SEND follows the one before it.
            entry.is_send() && self.distance(self.next_message) > 0
        }
    }

    /// Whether a WRITE could overtake one before it that writes to the same memory, because that was not sent completely
    /// on `lane`.
    fn could_overtake(&self, index: usize, lane: Option<u8>) -> bool {
        let entry = &self.queue[index];
        let Some(address) = entry.operation.written_address() else { return false };
        let range = (address, address.saturating_add(entry.length));
        let mut before = self.queue.iter().take(index);
        before.any(|other| {
            (lane.is_none() || other.lane != lane) && !self.is_executed(other) && other.writes_to(range)
        })
    }

    /// Whether all messages of a request are sent and acknowledged.
    fn is_executed(&self, entry: &Entry) -> bool {
        entry.end_message.is_some_and(|end| self.distance(end) as i32 <= 0)
    }

    /// Processes the acknowledgment and the credits of any segment.
    pub(super) fn on_acknowledged(
        &mut self,
        acknowledged: u32,
        credits: u16,
        finished: &mut Finished,
    ) -> Result<(), Fault> {
        let (executed, sent) = (self.distance(acknowledged), self.distance(self.next_message));
        // A segment can be older than one that has arrived on another lane.
        let (is_newer, has_more) = (executed as i32 > 0, credits.wrapping_sub(self.credits) as i16 > 0);
        let exceeds_credits = usize::from(credits.wrapping_sub(self.consumed)) > Limits::MAX_RECEIVES;
        if (is_newer && executed > sent) || (has_more && exceeds_credits && !self.peer_shares_receives) {
            return Err(Fault::Broken);
        }
        if has_more {
            self.credits = credits;
            self.credit_wait = CreditWait::default();
        }
        if is_newer {
            self.acknowledged = acknowledged;
            let is_over = |not_ready: &ReceiverNotReady| {
                !not_ready.is_blocked && self.is_acknowledged(not_ready.message)
            };
            if self.receiver_not_ready.as_ref().is_some_and(is_over) {
                self.receiver_not_ready = None;
            }
            self.complete_finished(finished);
        }
        Ok(())
    }

    /// Returns the number of messages from the last acknowledged one up to `message`.
    fn distance(&self, message: u32) -> u32 {
        message.wrapping_sub(self.acknowledged)
    }

    /// Processes a segment that is only an acknowledgment. Returns whether the peer is ready again, so that the
    /// requests that it has discarded are sent again.
    pub(super) fn on_acknowledgment(&mut self, segment: &Segment, now: Instant) -> Result<bool, Fault> {
        let Extension::Acknowledgment(syndrome, timer, receive) = segment.extension else {
            return Err(Fault::Broken);
        };
        match syndrome {
            Syndrome::ReceiverNotReady if !self.peer_shares_receives => {
                return self.on_no_receive(segment.message, rnr_delay(timer), now).map(|()| false);
            }
            Syndrome::ReceiverNotReady if segment.rnr_count == self.rnr_count => {
                return self.on_not_ready(segment.message, receive, rnr_delay(timer), now).map(|()| false);
            }
            Syndrome::ReceiverReady => return self.on_ready(segment, receive, now),
            _ => {}
        }
        let Some(code) = NakCode::from_syndrome(syndrome) else { return Ok(false) };
        // The response to a READ that was executed can be refused later.
        let index = self.index_of(segment.message).or_else(|| self.index_awaited(segment.message));
        let index = index.ok_or(Fault::Broken)?;
        let status = match code {
            NakCode::Sequence | NakCode::InvalidRequest => Status::RemoteInvalidRequest,
            NakCode::RemoteAccess => Status::RemoteAccess,
            NakCode::RemoteOperation => Status::RemoteOperation,
        };
        Err(Fault::Failed { index, status })
    }

    /// Completes the finished requests at the front.
    pub(super) fn complete_finished(&mut self, finished: &mut Finished) {
        while self.unsent > 0
            && let Some(entry) = self.queue.front()
            && self.is_executed(entry)
            && entry.responses_left == 0
        {
            self.complete(Status::Success, finished);
        }
    }

    /// Completes the first request.
    fn complete(&mut self, status: Status, finished: &mut Finished) {
        let Some(entry) = self.queue.front() else { return };
        let consumes_receive = self.consumes_receive(&entry.operation);
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
        self.queue.pop_front();
        match self.unsent {
            0 => self.sent = 0,
            _ => self.unsent -= 1,
        }
        if consumes_receive {
            self.completed = self.completed.wrapping_add(1);
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

    /// Fails the request at `index`. The ones before it that are not executed, or lack their response, are flushed.
    pub(super) fn fail_at(&mut self, index: usize, status: Status, finished: &mut Finished) {
        for _ in 0..index {
            let Some(front) = self.queue.front() else { return };
            let is_executed = front.responses_left == 0 && self.is_executed(front);
            let status = if is_executed { Status::Success } else { Status::Flushed };
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
        self.resend.clear();
        self.receiver_not_ready = None;
        self.credit_wait = CreditWait::default();
        while !self.queue.is_empty() {
            self.complete(Status::Flushed, finished);
        }
    }
}

/// Maximum length of a request in bytes.
const MAX_REQUEST_BYTES: u64 = 1 << 31;

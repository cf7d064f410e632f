//! Repetition of requests: parts that a lane has lost, and SENDs that the peer has discarded for lack of a receive.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::super::lane::Part;
use super::super::responses::segment_len;
use super::super::{Fault, MESSAGE_BYTES, Place};
use super::Requester;
use super::entry::{Entry, Next};
use crate::types::Status;
use crate::wire::Segment;

/// A request that was sent while the peer had no receive for it.
pub(super) struct ReceiverNotReady {
    pub(super) message: u32,
    /// Index of the first receive that was missing.
    pub(super) receive: u8,
    /// The peer has not reported a receive.
    pub(super) is_blocked: bool,
    /// When the request fails, `None` for never.
    pub(super) deadline: Option<Instant>,
}

/// Wait of the first request for a receive, while the peer has promised no further one.
#[derive(Default)]
pub(super) struct CreditWait {
    /// How often the peer had no receive when it was asked.
    not_ready_count: u8,
    /// The peer has not answered.
    awaits_answer: bool,
    /// When to ask again.
    ask_at: Option<Instant>,
}

impl Requester {
    /// Returns the next segment that is sent again.
    pub(super) fn next_again(&mut self, may_consume: bool) -> Option<Next> {
        loop {
            let is_sendable = |part: &Part| {
                // The peer can have executed it in the meantime.
                let Some(index) = self.index_of(part.message) else { return true };
                let is_discarded = self.is_blocked() && self.is_discarded(part);
                let lacks_receive =
                    (is_discarded || !may_consume) && self.consumes_receive(&self.queue[index].operation);
                !(lacks_receive || (self.is_striped && self.could_overtake(index, None)))
            };
            let at = self.resend.iter().position(is_sendable)?;
            let part = &mut self.resend[at];
            let Part { message, offset, .. } = *part;
            let length = segment_len(part, self.segment_bytes);
            (part.offset, part.length) = (part.offset + length, part.length - length);
            if part.length == 0 {
                self.resend.remove(at);
            }
            let Some(index) = self.index_of(message) else { continue };
            let entry = &self.queue[index];
            let message_start = u64::from(message.wrapping_sub(entry.first_message)) * MESSAGE_BYTES;
            let size = entry.length.saturating_sub(message_start).min(MESSAGE_BYTES) as u32;
            let place = Place { size, offset, length };
            let wants_acknowledgment = entry.operation.has_response() || offset + length == size;
            return Some(Next { index, message, place, message_start, wants_acknowledgment });
        }
    }

    /// The peer has discarded a message and others because it had no receive with index `receive`. They are sent again
    /// when it has.
    pub(super) fn on_not_ready(
        &mut self,
        message: u32,
        receive: u8,
        delay: Duration,
        now: Instant,
    ) -> Result<(), Fault> {
        let named = self.index_of(message).map(|index| &self.queue[index]);
        let is_consuming = named.is_some_and(|entry| self.consumes_receive(&entry.operation));
        // The report is repeated, and can be late.
        if !self.peer_shares_receives || !(is_consuming || self.is_acknowledged(message)) {
            return Err(Fault::Broken);
        }
        let first = self.requests_without_receive(receive).next().map(|(_, entry)| entry.first_message);
        let Some(first) = first else {
            return if is_consuming { Err(Fault::Broken) } else { Ok(()) };
        };
        let deadline = match &self.receiver_not_ready {
            Some(not_ready) if not_ready.message == first => not_ready.deadline,
            _ if self.rnr_retries >= RNR_RETRY_FOREVER => None,
            _ => Some(now + delay * self.rnr_retries.into()),
        };
        self.receiver_not_ready =
            Some(ReceiverNotReady { message: first, receive, is_blocked: true, deadline });
        self.check_deadline(now)
    }

    /// The peer has receives again. Returns `false` if that is known already.
    pub(super) fn on_ready(&mut self, segment: &Segment, receive: u8, now: Instant) -> Result<bool, Fault> {
        if segment.rnr_count.wrapping_sub(self.rnr_count) as i8 <= 0 {
            // Reports are repeated, and can overtake each other on several lanes.
            return Ok(false);
        }
        // The report about the missing receive can be lost, or late.
        if !self.is_blocked() {
            self.on_not_ready(segment.message, receive, Duration::ZERO, now)?;
        }
        if let Some(not_ready) = self.receiver_not_ready.as_mut() {
            not_ready.is_blocked = false;
        }
        self.rnr_count = segment.rnr_count;
        Ok(true)
    }

    /// Returns the requests that wait for the receive with this index, or a later one, and their indices.
    fn requests_without_receive(&self, receive: u8) -> impl Iterator<Item = (usize, &Entry)> + Clone {
        // The current request is sent in part.
        let sent_count = self.unsent + usize::from(self.sent > 0);
        self.queue.iter().enumerate().take(sent_count).filter(move |(_, entry)| {
            self.consumes_receive(&entry.operation) && entry.is_from(receive) && !self.is_executed(entry)
        })
    }

    /// Whether a part is of a SEND that the peer has discarded, or will.
    pub(in crate::connection) fn is_discarded(&self, part: &Part) -> bool {
        let is_part = |entry: &Entry| entry.is_send() && entry.has(part.message);
        let receive = self.receiver_not_ready.as_ref().map(|not_ready| not_ready.receive);
        receive.is_some_and(|receive| self.requests_without_receive(receive).any(|(_, entry)| is_part(entry)))
    }

    /// Sends again what the peer has discarded.
    pub(in crate::connection) fn send_discarded(&mut self) {
        let Some(receive) = self.receiver_not_ready.as_ref().map(|not_ready| not_ready.receive) else {
            return;
        };
        let mut resend: VecDeque<Part> =
            self.resend.iter().copied().filter(|part| !self.is_discarded(part)).collect();
        for (index, entry) in self.requests_without_receive(receive).filter(|(_, entry)| entry.is_send()) {
            resend.extend(entry.parts(if index == self.unsent { self.sent } else { entry.length }));
        }
        self.resend = resend;
    }

    /// A part of a request was lost.
    pub(in crate::connection) fn on_lost(&mut self, part: Part) {
        if let Some(index) = self.index_of(part.message) {
            self.queue[index].lane = None;
            self.resend.push_back(part);
        }
    }

    /// Whether the next request waits for a receive of the peer.
    pub(in crate::connection) fn awaits_receive(&self) -> bool {
        let next = self.queue.get(self.unsent).filter(|_| self.sent == 0);
        let lacks_credits = !self.peer_shares_receives && self.consumed == self.credits;
        self.is_blocked()
            || (lacks_credits && next.is_some_and(|entry| self.consumes_receive(&entry.operation)))
    }

    /// Whether the first request waits for a credit of the peer, and not forever.
    fn lacks_credit(&self) -> bool {
        let is_first = self.unsent == 0 && self.sent == 0;
        is_first
            && self.rnr_retries < RNR_RETRY_FOREVER
            && !self.peer_shares_receives
            && self.consumed == self.credits
            && self.queue.front().is_some_and(|entry| self.consumes_receive(&entry.operation))
    }

    /// Returns the number of the message for which to ask the peer now whether it has a receive.
    pub(in crate::connection) fn next_question(&mut self) -> Option<u32> {
        let wait = &self.credit_wait;
        let is_due = !wait.awaits_answer && wait.ask_at.is_none() && self.lacks_credit();
        self.credit_wait.awaits_answer |= is_due;
        is_due.then_some(self.next_message)
    }

    /// The last question can be lost.
    pub(in crate::connection) fn ask_again(&mut self) {
        self.credit_wait.awaits_answer = false;
    }

    /// The peer has no receive for a message, as it was asked.
    pub(super) fn on_no_receive(&mut self, message: u32, delay: Duration, now: Instant) -> Result<(), Fault> {
        let CreditWait { not_ready_count, awaits_answer, .. } = self.credit_wait;
        let is_next = message == self.next_message;
        // A question is repeated if a lane ends, and credits can overtake the answer on another lane.
        if !self.is_striped && !(is_next && (awaits_answer || not_ready_count > 0)) {
            return Err(Fault::Broken);
        }
        if !is_next || !awaits_answer || !self.lacks_credit() {
            return Ok(());
        }
        if not_ready_count >= self.rnr_retries {
            return Err(Fault::Failed { index: 0, status: Status::RnrRetryExceeded });
        }
        let not_ready_count = not_ready_count + 1;
        self.credit_wait = CreditWait { not_ready_count, awaits_answer: false, ask_at: Some(now + delay) };
        Ok(())
    }

    /// When to call [`Requester::check_deadline`].
    pub(in crate::connection) fn deadline(&self) -> Option<Instant> {
        let ask_at = self.credit_wait.ask_at.filter(|_| self.lacks_credit());
        self.failure_deadline().into_iter().chain(ask_at).min()
    }

    /// When the first request fails, because the shared queue of the peer has no receive for it.
    fn failure_deadline(&self) -> Option<Instant> {
        let is_first = |not_ready: &&ReceiverNotReady| {
            not_ready.is_blocked && self.queue.front().is_some_and(|entry| entry.has(not_ready.message))
        };
        self.receiver_not_ready.as_ref().filter(is_first)?.deadline
    }

    /// Fails the first request if its deadline has passed, or asks for a receive again.
    pub(in crate::connection) fn check_deadline(&mut self, now: Instant) -> Result<(), Fault> {
        self.credit_wait.ask_at = self.credit_wait.ask_at.filter(|ask_at| *ask_at > now);
        match self.failure_deadline() {
            Some(deadline) if deadline <= now => {
                Err(Fault::Failed { index: 0, status: Status::RnrRetryExceeded })
            }
            _ => Ok(()),
        }
    }
}

/// Value of `rnr_retry` that stands for no limit.
const RNR_RETRY_FOREVER: u8 = 7;

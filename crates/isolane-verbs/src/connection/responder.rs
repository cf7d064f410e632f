//! The responding half of a queue pair: places the bytes of the peer's requests as they arrive, and executes the
//! requests in order.
//!
//! Invariants:
//! * A request is executed once, after all requests before it.
//! * No byte of a message is placed twice: what arrives again is discarded.

use std::collections::VecDeque;
use std::sync::Arc;

use isolane_memory::MemoryRegion;

use super::lane::Control;
use super::ranges::Ranges;
use super::receive_queue::ReceiveQueue;
use super::receives::{Receives, Report, complete};
use super::responses::{Content, Responses};
use super::{Extension, Fault, Finished, Nak, Place, WINDOW, segment};
use crate::memory::{Access, AccessError, ProtectionDomain, Right, Span, Spans};
use crate::types::{
    CompletedOperation, Completion, ConnectionParameters, Limits, PostError, Queue, ReceiveAttributes,
    ReceiveRequest, Status,
};
use crate::wire::{AtomicOperands, NakCode, Operation, RemoteRange, Segment, SegmentFlags, Syndrome};

/// The responding half.
#[derive(Default)]
pub(super) struct Responder {
    pub(super) receives: Receives,
    /// Identifier of the completions of WRITEs with immediate data, if these consume no receive.
    write_id: Option<u64>,
    /// Number of the next message to execute.
    message: u32,
    /// That message and the ones after it, as far as part of them has arrived.
    window: VecDeque<Option<Arriving>>,
    /// Number of ranges in the window.
    ranges: usize,
    /// Operation of the request that the next message continues, and its number of bytes before that.
    continued: Option<(Operation, u64)>,
    /// Rights of the peer's requests.
    access: Access,
    /// Code of the delay in a NAK for lack of a receive.
    rnr_timer: u8,
    pub(super) responses: Responses,
    /// Whether the peer waits for an acknowledgment.
    owes_acknowledgment: bool,
    /// Message for which the peer has asked whether there is a receive.
    awaited_message: Option<u32>,
    /// A NAK to send, after which nothing is executed.
    nak: Option<(u32, NakCode)>,
}

/// A message of which a part has arrived.
struct Arriving {
    operation: Operation,
    size: u32,
    /// Ranges that have arrived, or are arriving.
    claimed: Ranges,
    /// Number of bytes in their place.
    placed: u32,
    /// Number of segments whose payload is arriving.
    arriving: u32,
    /// A segment has arrived completely.
    has_arrived: bool,
    receive: u8,
    flags: SegmentFlags,
    /// Extension of the last segment.
    extension: Extension,
    nak: Option<Nak>,
}

impl Responder {
    pub(super) fn new(shared: Option<Arc<ReceiveQueue>>) -> Responder {
        Responder { receives: Receives::new(shared), ..Responder::default() }
    }

    pub(super) fn set_access(&mut self, access: Access) {
        self.access = access;
    }

    /// WRITEs with immediate data consume no receive, and complete with the identifier `id`.
    pub(super) fn spare_receives(&mut self, id: u64) {
        self.write_id = Some(id);
    }

    pub(super) fn configure(&mut self, attributes: &ReceiveAttributes) {
        self.responses.configure(attributes.responder_resources);
        self.rnr_timer = attributes.rnr_timer;
    }

    pub(super) fn open(&mut self, parameters: &ConnectionParameters) {
        self.message = parameters.peer_first_message;
    }

    pub(super) fn post(&mut self, request: ReceiveRequest, limits: &Limits) -> Result<(), PostError> {
        self.receives.post(request, limits)
    }

    /// Removes a receive. Returns `false` if the peer can use it.
    pub(super) fn cancel(&mut self, id: u64) -> bool {
        self.receives.cancel(id)
    }

    /// Returns the number of the next message to execute.
    pub(super) fn message(&self) -> u32 {
        self.message
    }

    /// Whether a request of the peer uses memory of a region.
    pub(super) fn uses(&self, region: &Arc<MemoryRegion>) -> bool {
        self.receives.uses(region) || self.responses.uses(region)
    }

    /// Checks a segment of a request, and adds the destination of its payload to the empty `spans`. `false` if it is
    /// discarded.
    pub(super) fn on_request(
        &mut self,
        segment: &Segment,
        domain: &ProtectionDomain,
        spans: &mut Spans,
        finished: &mut Finished,
    ) -> Result<bool, Fault> {
        let ahead = segment.message.wrapping_sub(self.message);
        if (ahead as i32) < 0 {
            // It was executed. The acknowledgment can be lost.
            self.owes_acknowledgment = true;
            return Ok(false);
        }
        if ahead >= WINDOW || self.ranges >= MAX_RANGES {
            return Err(Fault::Nak { message: self.message, code: NakCode::Sequence });
        }
        let at = ahead as usize;
        while self.window.len() <= at {
            self.window.push_back(None);
        }
        let slot = &mut self.window[at];
        let message = slot.get_or_insert_with(|| Arriving::new(segment));
        let before = message.claimed.count();
        let continued = self.continued.filter(|_| at == 0);
        let checked = message.check(segment).and_then(|is_new| {
            if is_new {
                check(segment, continued, self.access, &mut self.receives, domain, spans, finished)
            } else {
                Ok(false)
            }
        });
        let is_wanted = checked.unwrap_or_else(|nak| {
            message.nak.get_or_insert(nak);
            false
        });
        if is_wanted {
            message.claim(segment);
            self.ranges = self.ranges + message.claimed.count() - before;
        } else if !message.is_started() {
            *slot = None;
        }
        if at == 0 && !is_wanted {
            self.execute(domain, finished)?;
        }
        Ok(is_wanted)
    }

    /// All payload of a segment is in its place.
    pub(super) fn on_request_placed(
        &mut self,
        segment: &Segment,
        domain: &ProtectionDomain,
        finished: &mut Finished,
    ) -> Result<(), Fault> {
        let Some((ahead, message)) = self.message_of(segment) else { return Ok(()) };
        message.arriving -= 1;
        message.placed += segment.length;
        message.has_arrived = true;
        if ahead > 0 { Ok(()) } else { self.execute(domain, finished) }
    }

    /// The place of a segment's payload is not mapped. Its message is refused.
    pub(super) fn on_request_unmapped(
        &mut self,
        segment: &Segment,
        domain: &ProtectionDomain,
        finished: &mut Finished,
    ) -> Result<(), Fault> {
        let Some((ahead, message)) = self.message_of(segment) else { return Ok(()) };
        let receive = (message.operation == Operation::Send).then_some(Status::LocalProtection);
        message.nak.get_or_insert(Nak { code: NakCode::RemoteOperation, receive });
        if ahead > 0 { Ok(()) } else { self.execute(domain, finished) }
    }

    /// The lane of a segment has ended, when only the first `placed` bytes of the payload were in their place.
    pub(super) fn on_request_cut(&mut self, segment: &Segment, placed: u32) {
        let Some((_, message)) = self.message_of(segment) else { return };
        let before = message.claimed.count();
        message.arriving -= 1;
        message.placed += placed;
        message.claimed.remove(segment.offset + placed..segment.offset + segment.length);
        let after = message.claimed.count();
        self.ranges = self.ranges + after - before;
    }

    /// Returns the message of a segment in the window, with its distance from the front.
    #[inline]
    fn message_of(&mut self, segment: &Segment) -> Option<(usize, &mut Arriving)> {
        let ahead = segment.message.wrapping_sub(self.message) as usize;
        Some((ahead, self.window.get_mut(ahead)?.as_mut()?))
    }

    /// Executes the messages at the front of the window that have arrived completely.
    #[inline]
    fn execute(&mut self, domain: &ProtectionDomain, finished: &mut Finished) -> Result<(), Fault> {
        while let Some(Some(message)) = self.window.front_mut() {
            let number = self.message;
            let refused = |code| Fault::Nak { message: number, code };
            if let Some(nak) = message.nak.take() {
                if let Some(status) = nak.receive
                    && let Some(id) = self.receives.consume(message.receive)
                {
                    complete(id, status, finished);
                }
                return Err(refused(nak.code));
            }
            if !message.is_complete() {
                return Ok(());
            }
            if matches!(message.extension, Extension::Range(_, Some(_)))
                && self.write_id.is_none()
                && !self.receives.bind_complete(number, message.receive, domain, finished).map_err(refused)?
            {
                return Ok(());
            }
            let Some(Some(message)) = self.window.pop_front() else { return Ok(()) };
            self.ranges -= message.claimed.count();
            self.owes_acknowledgment |= message.flags.ack_requested();
            self.execute_one(&message, domain, finished).map_err(refused)?;
            self.message = self.message.wrapping_add(1);
        }
        Ok(())
    }

    fn execute_one(
        &mut self,
        message: &Arriving,
        domain: &ProtectionDomain,
        finished: &mut Finished,
    ) -> Result<(), NakCode> {
        let continued = self.continued.take();
        if continued.is_some_and(|(operation, _)| operation != message.operation) {
            return Err(NakCode::Sequence);
        }
        let length = continued.map_or(0, |(_, before)| before) + u64::from(message.size);
        let is_continued = message.flags.continued();
        let (number, size, access) = (self.message, message.size, self.access);
        match message.operation {
            operation @ (Operation::Send | Operation::Write) if is_continued => {
                self.continued = Some((operation, length));
            }
            Operation::Send => {
                let immediate = match message.extension {
                    Extension::Immediate(immediate) => Some(immediate),
                    _ => None,
                };
                self.fill(message, CompletedOperation::Receive, length, immediate, finished)?;
            }
            Operation::Write => {
                if let Extension::Range(_, immediate @ Some(_)) = message.extension {
                    self.fill(message, CompletedOperation::ReceiveWrite, length, immediate, finished)?;
                }
            }
            Operation::ReadRequest => {
                let Extension::Range(range, _) = &message.extension else {
                    return Err(NakCode::InvalidRequest);
                };
                self.check_resources()?;
                let span = remote(range, 0, size.into(), Right::RemoteRead, domain, access)?;
                let spans = span.into_iter().collect();
                self.responses.push(number, size, Content::Memory(spans));
            }
            Operation::CompareSwap => self.execute_atomic(message, domain, |memory, at, operands| {
                memory.compare_swap(at, operands.compare, operands.swap_or_add)
            })?,
            Operation::FetchAdd => self.execute_atomic(message, domain, |memory, at, operands| {
                memory.fetch_add(at, operands.swap_or_add)
            })?,
            Operation::ReadResponse
            | Operation::AtomicResponse
            | Operation::Acknowledge
            | Operation::Datagram
            | Operation::LaneReport => return Err(NakCode::InvalidRequest),
        }
        Ok(())
    }

    /// Refuses a request with a response if the peer has more of them outstanding than it may.
    fn check_resources(&self) -> Result<(), NakCode> {
        if self.responses.is_full() { Err(NakCode::InvalidRequest) } else { Ok(()) }
    }

    /// Executes an atomic operation on 8 bytes; `change` returns the value before.
    fn execute_atomic(
        &mut self,
        message: &Arriving,
        domain: &ProtectionDomain,
        change: impl FnOnce(&MemoryRegion, usize, &AtomicOperands) -> Option<u64>,
    ) -> Result<(), NakCode> {
        let Extension::Atomic(operands) = &message.extension else { return Err(NakCode::InvalidRequest) };
        self.check_resources()?;
        if message.size != 8 {
            return Err(NakCode::InvalidRequest);
        }
        if !Right::RemoteAtomic.is_in(self.access) {
            return Err(NakCode::RemoteAccess);
        }
        let span = domain.span(operands.key, operands.address, 8, Right::RemoteAtomic);
        let span = span.map_err(|_| NakCode::RemoteAccess)?;
        let memory_address = span.region.address() + span.offset as u64;
        if !operands.address.is_multiple_of(8) || !memory_address.is_multiple_of(8) {
            return Err(NakCode::InvalidRequest);
        }
        let found = change(&span.region, span.offset, operands).ok_or(NakCode::RemoteOperation)?;
        self.responses.push(self.message, message.size, Content::Found(found));
        Ok(())
    }

    /// Completes the receive that a request has filled with `length` bytes, if it has consumed one.
    fn fill(
        &mut self,
        message: &Arriving,
        operation: CompletedOperation,
        length: u64,
        immediate: Option<u32>,
        finished: &mut Finished,
    ) -> Result<(), NakCode> {
        let id = match self.write_id {
            Some(id) if operation == CompletedOperation::ReceiveWrite => id,
            _ => self.receives.consume(message.receive).ok_or(NakCode::Sequence)?,
        };
        let (status, solicited, source) = (Status::Success, message.flags.solicited(), None);
        let completion = Completion { id, status, operation, length, immediate, solicited, source };
        finished.completions.push_back((Queue::Receive, completion));
        Ok(())
    }

    /// Refuses a request of the peer. The NAK follows the responses to all requests before it.
    pub(super) fn nak(&mut self, message: u32, code: NakCode) {
        self.nak.get_or_insert((message, code));
    }

    /// Whether a NAK waits to be sent.
    pub(super) fn has_nak(&self) -> bool {
        self.nak.is_some()
    }

    /// Returns a NAK, and its entry in the log.
    pub(super) fn next_nak(&mut self) -> Option<(Segment, Control)> {
        let (message, code) = self.nak.take_if(|_| self.responses.is_empty())?;
        Some((acknowledgment(message, code.syndrome(), 0, 0), Control::Nak(message, code)))
    }

    /// Returns a report about receives, if there is one to send. A complete message can have waited for a receive.
    pub(super) fn next_report(
        &mut self,
        domain: &ProtectionDomain,
        finished: &mut Finished,
    ) -> Result<Option<Segment>, Fault> {
        if let Some(message) = self.awaited_message.take() {
            let is_not_ready = message == self.message && self.receives.are_used_up();
            return Ok(Some(if is_not_ready {
                acknowledgment(message, Syndrome::ReceiverNotReady, self.rnr_timer, 0)
            } else {
                acknowledgment(self.message, Syndrome::Acknowledged, 0, 0)
            }));
        }
        let Some(report) = self.receives.next_report() else { return Ok(None) };
        let Report { message, syndrome, receive, rnr_count } = report;
        if syndrome == Syndrome::ReceiverReady {
            self.execute(domain, finished)?;
        }
        let mut segment = acknowledgment(message, syndrome, self.rnr_timer, receive);
        segment.rnr_count = rnr_count;
        Ok(Some(segment))
    }

    /// The peer asks whether there is a receive for a message.
    pub(super) fn on_receive_awaited(&mut self, message: u32) {
        self.awaited_message = Some(message).filter(|_| !self.receives.are_shared());
    }

    /// Returns an acknowledgment if the peer waits for one that no other segment has carried.
    pub(super) fn next_acknowledgment(&self) -> Option<Segment> {
        self.has_acknowledgment().then(|| acknowledgment(self.message, Syndrome::Acknowledged, 0, 0))
    }

    /// A segment was lost that could carry an acknowledgment.
    pub(super) fn acknowledge_again(&mut self) {
        self.owes_acknowledgment = true;
    }

    /// Whether there is a response, a NAK, or a report about receives to send.
    pub(super) fn has_responses(&self) -> bool {
        !self.responses.is_empty()
            || self.nak.is_some()
            || self.awaited_message.is_some()
            || self.receives.has_report()
    }

    /// Whether the peer waits for an acknowledgment that no other segment has carried.
    pub(super) fn has_acknowledgment(&self) -> bool {
        self.owes_acknowledgment || self.receives.lacks_credits()
    }

    /// Returns the acknowledged message and the posted receives, for a segment that is sent now.
    pub(super) fn advertise(&mut self) -> (u32, u16) {
        self.owes_acknowledgment = false;
        (self.message, self.receives.advertise())
    }

    /// Completes all receives as flushed.
    pub(super) fn flush(&mut self, finished: &mut Finished) {
        if self.nak.is_none() {
            self.responses.clear();
        }
        self.window.clear();
        self.awaited_message = None;
        self.receives.flush(finished);
    }
}

impl Arriving {
    fn new(segment: &Segment) -> Arriving {
        Arriving {
            operation: segment.opcode.operation(),
            size: segment.size,
            claimed: Ranges::default(),
            placed: 0,
            arriving: 0,
            has_arrived: false,
            receive: segment.receive,
            flags: segment.flags,
            extension: Extension::None,
            nak: None,
        }
    }

    /// Checks a segment against the ones before it. Returns whether it is new.
    fn check(&mut self, segment: &Segment) -> Result<bool, Nak> {
        let is_same = self.operation == segment.opcode.operation()
            && (self.size, self.receive) == (segment.size, segment.receive)
            && self.flags.continued() == segment.flags.continued();
        if !is_same {
            return Err(NakCode::Sequence.into());
        }
        let has_wrong_size =
            matches!(&segment.extension, Extension::Range(range, _) if range.length != segment.size);
        if has_wrong_size || (segment.flags.continued() && segment.opcode.has_immediate()) {
            return Err(NakCode::InvalidRequest.into());
        }
        if self.nak.is_some() {
            return Ok(false);
        }
        let range = segment.offset..segment.offset + segment.length;
        if range.is_empty() {
            Ok(!self.has_arrived && self.arriving == 0)
        } else {
            Ok(self.claimed.is_free(range))
        }
    }

    /// The payload of a new segment is arriving.
    fn claim(&mut self, segment: &Segment) {
        self.claimed.insert(segment.offset..segment.offset + segment.length);
        self.arriving += 1;
        if !segment.opcode.operation().has_stages() || segment.offset + segment.length == segment.size {
            self.extension = segment.extension.clone();
            self.flags = segment.flags;
        }
    }

    fn is_started(&self) -> bool {
        self.has_arrived || self.arriving > 0 || self.claimed.count() > 0 || self.nak.is_some()
    }

    fn is_complete(&self) -> bool {
        self.has_arrived && (!self.operation.has_stages() || self.placed == self.size)
    }
}

/// Checks a segment that has not arrived before, and adds the destination of its payload to `spans`. `false` if a receive
/// is missing. It can continue a request, of which some bytes were in earlier messages.
fn check(
    segment: &Segment,
    continued: Option<(Operation, u64)>,
    access: Access,
    receives: &mut Receives,
    domain: &ProtectionDomain,
    spans: &mut Spans,
    finished: &mut Finished,
) -> Result<bool, Nak> {
    let operation = segment.opcode.operation();
    if continued.is_some_and(|(continued, _)| continued != operation) {
        return Err(NakCode::Sequence.into());
    }
    match operation {
        Operation::Send => {
            let start = continued.map_or(0, |(_, before)| before) + u64::from(segment.offset);
            receives.place(segment, continued.is_some(), start, domain, spans, finished)
        }
        Operation::Write => {
            let Extension::Range(range, _) = &segment.extension else {
                return Err(NakCode::InvalidRequest.into());
            };
            let (offset, length) = (u64::from(segment.offset), u64::from(segment.length));
            spans.extend(remote(range, offset, length, Right::RemoteWrite, domain, access)?);
            Ok(true)
        }
        Operation::ReadRequest
        | Operation::CompareSwap
        | Operation::FetchAdd
        | Operation::ReadResponse
        | Operation::AtomicResponse
        | Operation::Acknowledge
        | Operation::Datagram
        | Operation::LaneReport => Ok(true),
    }
}

fn acknowledgment(message: u32, syndrome: Syndrome, timer: u8, receive: u8) -> Segment {
    let extension = Extension::Acknowledgment(syndrome, timer, receive);
    segment(Operation::Acknowledge, message, Place::default(), extension)
}

/// Returns the part of a range of this end, for an access of the peer. An empty one needs no key.
fn remote(
    range: &RemoteRange,
    offset: u64,
    length: u64,
    right: Right,
    domain: &ProtectionDomain,
    access: Access,
) -> Result<Option<Span>, NakCode> {
    if !right.is_in(access) {
        return Err(NakCode::RemoteAccess);
    }
    if length == 0 {
        return Ok(None);
    }
    let address = range.address.checked_add(offset).ok_or(NakCode::RemoteAccess)?;
    domain.span(range.key, address, length, right).map(Some).map_err(|_: AccessError| NakCode::RemoteAccess)
}

/// Maximum number of ranges in the window: what a peer that sends single bytes can make this end store.
const MAX_RANGES: usize = 4096;

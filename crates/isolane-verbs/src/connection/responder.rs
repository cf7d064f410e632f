//! The responding half of a queue pair: executes the requests of the peer in order.
//!
//! Invariant: a message is executed once, after all messages before it.

use std::collections::VecDeque;
use std::sync::Arc;

use isolane_memory::MemoryRegion;

use super::shared_receives::SharedReceiveQueue;
use super::{
    Agreement, AsyncEvent, Extension, Fault, Finished, Limits, Place, PostError, Queue, ReceiveAttributes,
    segment,
};
use crate::memory::{Access, AccessError, ProtectionDomain, Right, Spans, front, is_among, part};
use crate::wire::{AtomicOperands, NakCode, Operation, RemoteRange, Segment, Syndrome};
use crate::work::{CompletedOperation, Completion, ReceiveRequest, Status};

/// The responding half.
#[derive(Default)]
pub(super) struct Responder {
    receives: VecDeque<ReceiveRequest>,
    /// Where receives come from instead of `receives`.
    shared: Option<Arc<SharedReceiveQueue>>,
    /// Number of receives posted, modulo 2¹⁶.
    posted: u16,
    /// Value of `posted` that the peer knows.
    advertised: u16,
    /// Number of requests of the peer that consumed a receive.
    consumed: u16,
    /// Number of the message that arrives.
    message: u32,
    /// Number of its bytes that have arrived.
    arrived: u32,
    /// Its operation and size, once part of it has arrived.
    current: Option<(Operation, u32)>,
    /// Number of bytes of the current request in the messages before that one.
    before: u64,
    /// The SEND that arrives, over all of its messages.
    receiving: Option<Receiving>,
    /// The receive of the immediate data that arrives.
    receiving_immediate: Option<ReceiveRequest>,
    readiness: Readiness,
    /// Rights of the peer's requests.
    access: Access,
    /// Code of the delay in a refusal for lack of a receive.
    rnr_timer: u8,
    /// Responses that are not sent completely, oldest first.
    responses: VecDeque<Response>,
    resources: usize,
    /// Whether the peer waits for an acknowledgment.
    owes_acknowledgment: bool,
    /// A refusal to send, after which nothing is executed.
    refusal: Option<(u32, NakCode)>,
}

/// Whether the segment at `message` and `arrived` has the receive that it needs. Until then, it and all later
/// requests are discarded; the peer sends them again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Readiness {
    #[default]
    Ready,
    /// The peer does not know that a receive is missing.
    Lacking,
    /// The peer waits.
    Waiting,
    /// The peer knows that there is a receive.
    Announced,
}

/// A receive that is being filled.
struct Receiving {
    request: ReceiveRequest,
    spans: Spans,
    capacity: u64,
}

/// A response to send.
struct Response {
    message: u32,
    size: u32,
    content: Content,
}

impl Response {
    fn uses(&self, region: &Arc<MemoryRegion>) -> bool {
        match &self.content {
            Content::Memory(spans, _) => is_among(spans, region),
            Content::Found(_) => false,
        }
    }
}

enum Content {
    /// Memory that a READ asks for, and the number of bytes sent.
    Memory(Spans, u32),
    /// Value that an atomic operation found.
    Found(u64),
}

impl Responder {
    pub(super) fn new(shared: Option<Arc<SharedReceiveQueue>>) -> Responder {
        Responder { shared, ..Responder::default() }
    }

    pub(super) fn set_access(&mut self, access: Access) {
        self.access = access;
    }

    pub(super) fn configure(&mut self, attributes: &ReceiveAttributes) {
        self.resources = attributes.responder_resources;
        self.rnr_timer = attributes.rnr_timer;
    }

    pub(super) fn open(&mut self, agreement: &Agreement) {
        self.message = agreement.peer_first_message;
    }

    pub(super) fn post(&mut self, request: ReceiveRequest, limits: &Limits) -> Result<(), PostError> {
        if self.shared.is_some() {
            return Err(PostError::SharedReceives);
        }
        if self.receives.len() >= limits.receives {
            return Err(PostError::Full(self.receives.len()));
        }
        let elements = request.data.len();
        if elements > limits.elements {
            return Err(PostError::Elements { elements, limit: limits.elements });
        }
        self.posted = self.posted.wrapping_add(1);
        self.receives.push_back(request);
        Ok(())
    }

    /// Returns the number of the message that arrives.
    pub(super) fn message(&self) -> u32 {
        self.message
    }

    /// Whether a request of the peer uses memory of a region.
    pub(super) fn uses(&self, region: &Arc<MemoryRegion>) -> bool {
        let receives = self.receiving.as_ref().is_some_and(|receiving| is_among(&receiving.spans, region));
        receives || self.responses.iter().any(|response| response.uses(region))
    }

    /// Drops the responses that a refusal would follow, if they are in a region.
    pub(super) fn forget(&mut self, region: &Arc<MemoryRegion>) {
        self.responses.retain(|response| !response.uses(region));
    }

    /// Checks a segment of a request, and returns the destination of its payload.
    pub(super) fn on_request(
        &mut self,
        segment: &Segment,
        domain: &ProtectionDomain,
        finished: &mut Finished,
    ) -> Result<Spans, Fault> {
        let refused = |code| Fault::Refused { message: segment.message, code };
        let identity = (segment.opcode.operation(), segment.size);
        let is_next = segment.message == self.message && segment.offset == self.arrived;
        if self.readiness != Readiness::Ready && !is_next {
            return Ok(Spans::new());
        }
        self.readiness = Readiness::Ready;
        let is_same = self.current.is_none_or(|current| current == identity);
        let continues = match (&self.receiving, self.before) {
            (Some(_), _) => identity.0 == Operation::Send,
            (None, 0) => true,
            (None, _) => identity.0 == Operation::Write,
        };
        if !is_next || !is_same || !continues {
            return Err(refused(NakCode::Sequence));
        }
        if segment.flags.continued() && segment.opcode.has_immediate() {
            return Err(refused(NakCode::InvalidRequest));
        }
        self.current = Some(identity);
        let resources_left = self.responses.len() < self.resources;
        let checked = match (segment.opcode.operation(), &segment.extension) {
            (Operation::Send, _) => self.check_send(segment, domain, finished),
            (_, Extension::Range(range, _)) if segment.size != range.length => Err(NakCode::InvalidRequest),
            (Operation::Write, Extension::Range(range, immediate)) => {
                if immediate.is_some() {
                    self.receiving_immediate = self.take_receive(finished).map_err(refused)?;
                    if self.receiving_immediate.is_none() {
                        return Ok(Spans::new());
                    }
                }
                let (at, length) = (u64::from(segment.offset), u64::from(segment.length));
                remote(range, at, length, Right::RemoteWrite, domain, self.access)
            }
            (Operation::ReadRequest, Extension::Range(range, _)) if resources_left => {
                remote(range, 0, segment.size.into(), Right::RemoteRead, domain, self.access).map(|spans| {
                    let content = Content::Memory(spans, 0);
                    self.responses.push_back(Response {
                        message: segment.message,
                        size: segment.size,
                        content,
                    });
                    Spans::new()
                })
            }
            (operation, Extension::Atomic(operands)) if resources_left && segment.size == 8 => {
                atomic(operation, operands, domain, self.access).map(|found| {
                    let content = Content::Found(found);
                    self.responses.push_back(Response { message: segment.message, size: 8, content });
                    Spans::new()
                })
            }
            _ => Err(NakCode::InvalidRequest),
        };
        checked.map_err(refused)
    }

    /// Checks a segment of a SEND. The first one takes a receive.
    fn check_send(
        &mut self,
        segment: &Segment,
        domain: &ProtectionDomain,
        finished: &mut Finished,
    ) -> Result<Spans, NakCode> {
        if self.receiving.is_none() {
            let Some(request) = self.take_receive(finished)? else { return Ok(Spans::new()) };
            let capacity = request.data.iter().map(|element| u64::from(element.length)).sum();
            let spans = match &self.shared {
                Some(shared) => shared.spans(&request),
                None => domain.spans(&request.data, Right::LocalWrite),
            };
            let Ok(spans) = spans else {
                complete(&request, Status::LocalProtection, finished);
                return Err(NakCode::RemoteOperation);
            };
            self.receiving = Some(Receiving { request, spans, capacity });
        }
        let Some(receiving) = &mut self.receiving else { return Err(NakCode::InvalidRequest) };
        let start = self.before + u64::from(segment.offset);
        if start + u64::from(segment.length) > receiving.capacity {
            complete(&receiving.request, Status::LocalLength, finished);
            self.receiving = None;
            return Err(NakCode::InvalidRequest);
        }
        let is_all = segment.length == segment.size && !segment.flags.continued() && start == 0;
        Ok(match is_all {
            true => front(std::mem::take(&mut receiving.spans), segment.length as usize),
            false => part(&receiving.spans, start as usize, segment.length as usize),
        })
    }

    /// Takes the next receive. Without one, a shared queue makes the peer wait; a peer that respects the credits
    /// never finds the receive queue empty.
    fn take_receive(&mut self, finished: &mut Finished) -> Result<Option<ReceiveRequest>, NakCode> {
        let Some(shared) = &self.shared else {
            let request = self.receives.pop_front().ok_or(NakCode::InvalidRequest)?;
            self.consumed = self.consumed.wrapping_add(1);
            return Ok(Some(request));
        };
        let Some(taken) = shared.take() else {
            self.readiness = Readiness::Lacking;
            return Ok(None);
        };
        if taken.limit_reached {
            finished.events.push_back(AsyncEvent::LimitReached);
        }
        Ok(Some(taken.request))
    }

    /// All payload of a segment is in its place.
    pub(super) fn on_request_placed(&mut self, segment: &Segment, finished: &mut Finished) {
        if self.readiness != Readiness::Ready {
            return;
        }
        self.owes_acknowledgment |= segment.flags.ack_requested();
        self.arrived += segment.length;
        if segment.opcode.operation().has_stages() && self.arrived < segment.size {
            return;
        }
        (self.message, self.arrived, self.current) = (self.message.wrapping_add(1), 0, None);
        let length = self.before + u64::from(segment.size);
        let is_continued = segment.flags.continued() && segment.opcode.operation().has_stages();
        self.before = if is_continued { length } else { 0 };
        if is_continued {
            return;
        }
        let solicited = segment.flags.solicited();
        let completion = |id, operation, length, immediate| Completion {
            id,
            status: Status::Success,
            operation,
            length,
            immediate,
            solicited,
            source: None,
        };
        match (segment.opcode.operation(), &segment.extension) {
            (Operation::Send, extension) => {
                let Some(Receiving { request, .. }) = self.receiving.take() else { return };
                let immediate = match extension {
                    Extension::Immediate(immediate) => Some(*immediate),
                    _ => None,
                };
                let completed = completion(request.id, CompletedOperation::Receive, length, immediate);
                finished.completions.push_back((Queue::Receive, completed));
            }
            (Operation::Write, Extension::Range(_, Some(immediate))) => {
                let Some(request) = self.receiving_immediate.take() else { return };
                let completed =
                    completion(request.id, CompletedOperation::ReceiveWrite, length, Some(*immediate));
                finished.completions.push_back((Queue::Receive, completed));
            }
            _ => {}
        }
    }

    /// Refuses a request of the peer. The refusal follows the responses to all requests before it.
    pub(super) fn refuse(&mut self, message: u32, code: NakCode) {
        self.refusal.get_or_insert((message, code));
    }

    /// Whether a refusal waits to be sent.
    pub(super) fn is_refusing(&self) -> bool {
        self.refusal.is_some()
    }

    /// Returns the next segment of a response, and its payload.
    pub(super) fn next_response(&mut self, max_bytes: u32) -> Option<(Segment, Spans)> {
        let response = self.responses.front_mut()?;
        let (message, size) = (response.message, response.size);
        let next = match &mut response.content {
            Content::Found(value) => {
                let place = Place { size, offset: 0, length: 0 };
                let found = segment(Operation::AtomicResponse, message, place, Extension::Found(*value));
                (found, Spans::new(), true)
            }
            Content::Memory(spans, sent) => {
                let place = Place { size, offset: *sent, length: (size - *sent).min(max_bytes) };
                let payload = part(spans, place.offset as usize, place.length as usize);
                *sent += place.length;
                let data = segment(Operation::ReadResponse, message, place, Extension::None);
                (data, payload, *sent == size)
            }
        };
        if next.2 {
            self.responses.pop_front();
        }
        Some((next.0, next.1))
    }

    /// Returns an acknowledgment if the peer waits for one that no other segment has carried, or a refusal.
    pub(super) fn next_acknowledgment(&mut self) -> Option<Segment> {
        let (timer, arrived) = (self.rnr_timer, self.arrived);
        let acknowledgment = |message, syndrome| {
            let extension = match syndrome {
                Syndrome::ReceiverNotReady => Extension::Acknowledgment(syndrome, timer, arrived),
                _ => Extension::Acknowledgment(syndrome, 0, 0),
            };
            segment(Operation::Acknowledge, message, Place::default(), extension)
        };
        if self.responses.is_empty()
            && let Some((message, code)) = self.refusal.take()
        {
            return Some(acknowledgment(message, code.syndrome()));
        }
        if self.readiness == Readiness::Lacking {
            self.readiness = Readiness::Waiting;
            return Some(acknowledgment(self.message, Syndrome::ReceiverNotReady));
        }
        if self.has_awaited_receive() {
            self.readiness = Readiness::Announced;
            return Some(acknowledgment(self.message, Syndrome::ReceiverReady));
        }
        (self.owes_acknowledgment || self.lacks_credits())
            .then(|| acknowledgment(self.message, Syndrome::Acknowledged))
    }

    /// Whether there is a response or a refusal to send.
    pub(super) fn has_responses(&self) -> bool {
        let has_report = self.readiness == Readiness::Lacking || self.has_awaited_receive();
        !self.responses.is_empty() || self.refusal.is_some() || has_report
    }

    /// Whether the peer waits for an acknowledgment that no other segment has carried.
    pub(super) fn has_acknowledgment(&self) -> bool {
        self.owes_acknowledgment || self.lacks_credits()
    }

    /// Whether the peer waits for a receive.
    pub(super) fn awaits_receive(&self) -> bool {
        self.readiness == Readiness::Waiting
    }

    /// Whether the shared queue has a receive for which the peer waits.
    fn has_awaited_receive(&self) -> bool {
        self.awaits_receive() && self.shared.as_ref().is_some_and(|shared| !shared.is_empty())
    }

    /// Whether the peer has used every receive that it knows, and there are others.
    fn lacks_credits(&self) -> bool {
        self.advertised == self.consumed && self.posted != self.advertised
    }

    /// Returns the acknowledged message and the posted receives, for a segment that is sent now.
    pub(super) fn advertise(&mut self) -> (u32, u16) {
        self.owes_acknowledgment = false;
        self.advertised = self.posted;
        (self.message, self.posted)
    }

    /// Completes all receives as flushed.
    pub(super) fn flush(&mut self, finished: &mut Finished) {
        if self.refusal.is_none() {
            self.responses.clear();
        }
        self.readiness = Readiness::Ready;
        let current = self.receiving.take().map(|receiving| receiving.request);
        let current = current.into_iter().chain(self.receiving_immediate.take());
        for request in current.chain(self.receives.drain(..)) {
            complete(&request, Status::Flushed, finished);
        }
        if self.shared.is_some() {
            finished.events.push_back(AsyncEvent::LastReceive);
        }
    }
}

fn complete(request: &ReceiveRequest, status: Status, finished: &mut Finished) {
    let completion = Completion {
        id: request.id,
        status,
        operation: CompletedOperation::Receive,
        length: 0,
        immediate: None,
        solicited: false,
        source: None,
    };
    finished.completions.push_back((Queue::Receive, completion));
}

/// Returns the part of a range of this end, for an access of the peer. An empty one needs no key.
fn remote(
    range: &RemoteRange,
    offset: u64,
    length: u64,
    right: Right,
    domain: &ProtectionDomain,
    access: Access,
) -> Result<Spans, NakCode> {
    if !right.is_in(access) {
        return Err(NakCode::RemoteAccess);
    }
    if length == 0 {
        return Ok(Spans::new());
    }
    let address = range.address.checked_add(offset).ok_or(NakCode::RemoteAccess)?;
    let span = domain.span(range.key, address, length, right);
    span.map(|span| Spans::from_iter([span])).map_err(|_: AccessError| NakCode::RemoteAccess)
}

/// Executes an atomic operation, and returns the value before.
fn atomic(
    operation: Operation,
    operands: &AtomicOperands,
    domain: &ProtectionDomain,
    access: Access,
) -> Result<u64, NakCode> {
    if !Right::RemoteAtomic.is_in(access) {
        return Err(NakCode::RemoteAccess);
    }
    let AtomicOperands { address, key, swap_or_add, compare } = *operands;
    let span = domain.span(key, address, 8, Right::RemoteAtomic).map_err(|_| NakCode::RemoteAccess)?;
    let memory_address = span.region.address() + span.offset as u64;
    if !address.is_multiple_of(8) || !memory_address.is_multiple_of(8) {
        return Err(NakCode::InvalidRequest);
    }
    Ok(match operation {
        Operation::CompareSwap => span.region.compare_swap(span.offset, compare, swap_or_add),
        _ => span.region.fetch_add(span.offset, swap_or_add),
    })
}

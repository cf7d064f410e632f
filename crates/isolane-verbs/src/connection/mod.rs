//! Reliable queue pair: both ends of its protocol over its lanes, without a socket, a clock, or a thread.
//!
//! ```text
//! post_send ─ Requester ─ fill_transmit_plan ─ lanes ─ handle_received ─ Responder ─ memory, receives
//! ```
//!
//! Invariants:
//! * A request completes once, in order; after the first error all others complete as flushed.
//! * Each lane is always read: what cannot be placed is refused or discarded, never left unread.
//! * Key, bounds, rights, and place of a segment are checked before any byte of it is placed.

mod checked_input;
mod input;
mod lane;
mod lanes;
mod output;
mod ranges;
mod receive_queue;
mod receives;
mod requester;
mod responder;
mod responses;
mod stage;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use isolane_memory::MemoryRegion;

pub use self::lane::Received;
use self::lane::{LaneState, Sent};
use self::output::{Output, Source};
pub use self::receive_queue::ReceiveQueue;
use self::requester::Requester;
use self::responder::Responder;
use crate::memory::{Access, ProtectionDomain, Spans};
use crate::types::{
    AsyncEvent, Completion, Limits, PostError, Queue, QueuePairState, ReceiveAttributes, ReceiveRequest,
    SendAttributes, SendRequest, Status,
};
use crate::wire::{
    Extension, NakCode, Opcode, Operation, OperationRole, Segment, SegmentError, Stage, Syndrome,
};

/// Kind of data that waits to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pending {
    /// Nothing.
    Nothing,
    /// An acknowledgment, which the next request can carry.
    Acknowledgment,
    /// Requests or responses.
    Data,
}

/// One end of a reliable connection.
pub struct ReliableConnection {
    state: QueuePairState,
    domain: Arc<ProtectionDomain>,
    limits: Limits,
    requester: Requester,
    responder: Responder,
    /// One until the ends have agreed on their number.
    lanes: Vec<LaneState>,
    /// Whether lanes have checksums.
    checksums: bool,
    /// Index of the lane for segments that change the state of the peer, so that they keep their order.
    control: usize,
    /// Whether the last segment was a response, so that requests and responses take turns.
    was_response: bool,
    /// The peer has announced that it is destroyed.
    peer_has_ended: bool,
    /// This end is destroyed, and has not announced it.
    is_ending: bool,
    /// This end has failed, and has not announced it.
    is_failing: bool,
    finished: Finished,
}

/// Completions and events that the driver has not taken.
#[derive(Default)]
struct Finished {
    completions: VecDeque<(Queue, Completion)>,
    events: VecDeque<AsyncEvent>,
}

/// Why a queue pair fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A request of the peer is refused.
    Nak { message: u32, code: NakCode },
    /// A request of this end has failed.
    Failed { index: usize, status: Status },
    /// The peer broke the protocol.
    Broken,
}

/// Why a message of the peer is refused, once all before it are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Nak {
    code: NakCode,
    /// Status of its receive, which completes.
    receive: Option<Status>,
}

impl From<NakCode> for Nak {
    fn from(code: NakCode) -> Nak {
        Nak { code, receive: None }
    }
}

impl From<SegmentError> for Fault {
    fn from(_: SegmentError) -> Fault {
        Fault::Broken
    }
}

impl ReliableConnection {
    /// Creates a queue pair in the state [`QueuePairState::Reset`]. It takes receives from `shared`, if given, otherwise from
    /// its receive queue.
    pub fn new(
        domain: Arc<ProtectionDomain>,
        limits: Limits,
        shared: Option<Arc<ReceiveQueue>>,
    ) -> ReliableConnection {
        let limits = Limits { receives: limits.receives.min(Limits::MAX_RECEIVES), ..limits };
        ReliableConnection {
            state: QueuePairState::Reset,
            domain,
            limits,
            requester: Requester::default(),
            responder: Responder::new(shared),
            lanes: vec![LaneState::default()],
            checksums: false,
            control: 0,
            was_response: false,
            peer_has_ended: false,
            is_ending: false,
            is_failing: false,
            finished: Finished::default(),
        }
    }

    /// Makes WRITEs with immediate data consume no receive, in both directions. Those of the peer complete with the
    /// identifier `id`. Both ends must do so, before the first request.
    pub fn spare_receives(&mut self, id: u64) {
        self.requester.spare_receives();
        self.responder.spare_receives(id);
    }

    /// Returns the state.
    pub fn state(&self) -> QueuePairState {
        self.state
    }

    /// Moves from [`QueuePairState::Reset`] to [`QueuePairState::Init`]. The peer's requests have the rights `access`.
    pub fn initialize(&mut self, access: Access) -> bool {
        self.responder.set_access(access);
        self.advance(QueuePairState::Reset, QueuePairState::Init)
    }

    /// Changes the rights of the peer's requests.
    pub fn set_access(&mut self, access: Access) {
        self.responder.set_access(access);
    }

    /// Moves from [`QueuePairState::Init`] to [`QueuePairState::ReadyToReceive`].
    pub fn start_receiving(&mut self, attributes: &ReceiveAttributes) -> bool {
        self.responder.configure(attributes);
        self.advance(QueuePairState::Init, QueuePairState::ReadyToReceive)
    }

    /// Moves from [`QueuePairState::ReadyToReceive`] to [`QueuePairState::ReadyToSend`].
    pub fn start_sending(&mut self, attributes: &SendAttributes) -> bool {
        self.requester.configure(attributes);
        self.advance(QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend)
    }

    fn advance(&mut self, from: QueuePairState, to: QueuePairState) -> bool {
        let is_allowed = self.state == from;
        self.state = if is_allowed { to } else { self.state };
        is_allowed
    }

    /// Moves to [`QueuePairState::Error`]: every request completes as flushed, and the peer's queue pair fails.
    pub fn fail(&mut self) {
        if self.state != QueuePairState::Error && self.state != QueuePairState::Reset {
            self.state = QueuePairState::Error;
            self.is_failing = !self.responder.has_nak();
            self.lanes.iter_mut().for_each(|lane| lane.input.discard_payload());
            let keeps_responses = self.responder.has_nak();
            self.detach_output(|output| output.drop_unbegun(keeps_responses));
            self.requester.flush(&mut self.finished);
            self.responder.flush(&mut self.finished);
        }
    }

    /// Stops using memory that is no longer registered. The queue pair fails if a request needs it.
    pub fn revoke(&mut self, region: &Arc<MemoryRegion>) {
        if self.requester.uses(region) {
            self.requester.fail_first(Status::LocalProtection, &mut self.finished);
            self.fail();
        } else if self.responder.uses(region) || self.lanes.iter().any(|lane| lane.input.uses(region)) {
            let message = self.responder.message();
            self.handle_fault(Fault::Nak { message, code: NakCode::RemoteAccess });
        }
        self.responder.responses.forget(region);
        self.detach_output(Output::detach);
    }

    /// Ends the queue pair because its lanes are lost for good.
    pub fn handle_lanes_lost(&mut self) {
        if self.state.is_connected() {
            self.requester.fail_first(Status::RetryExceeded, &mut self.finished);
        }
        self.fail();
    }

    /// Announces that this end is destroyed, after everything that waits to be sent.
    pub fn announce_end(&mut self) {
        self.is_ending = self.state != QueuePairState::Error;
    }

    /// Posts a send request.
    pub fn post_send(&mut self, request: SendRequest) -> Result<(), PostError> {
        if !matches!(self.state, QueuePairState::ReadyToSend | QueuePairState::Error) {
            return Err(PostError::State(self.state));
        }
        self.requester.post(request, &self.limits, &self.domain)?;
        if self.state == QueuePairState::Error {
            self.requester.flush(&mut self.finished);
        }
        Ok(())
    }

    /// Posts a receive.
    pub fn post_receive(&mut self, request: ReceiveRequest) -> Result<(), PostError> {
        if self.state == QueuePairState::Reset {
            return Err(PostError::State(self.state));
        }
        self.responder.post(request, &self.limits)?;
        if self.state == QueuePairState::Error {
            self.responder.flush(&mut self.finished);
        }
        Ok(())
    }

    /// Removes a receive without a completion. Returns `false` if the peer can use it, or there is none.
    pub fn cancel_receive(&mut self, id: u64) -> bool {
        self.responder.cancel(id)
    }

    /// Returns the next completion and its queue.
    pub fn poll_completion(&mut self) -> Option<(Queue, Completion)> {
        self.finished.completions.pop_front()
    }

    /// Returns the queue of the next completion.
    pub(crate) fn next_completion(&self) -> Option<Queue> {
        self.finished.completions.front().map(|(queue, _)| *queue)
    }

    /// Returns the next completion if it belongs to `queue`.
    pub(crate) fn poll_completion_of(&mut self, queue: Queue) -> Option<Completion> {
        let completions = &mut self.finished.completions;
        let is_next = completions.front().is_some_and(|(next, _)| *next == queue);
        if is_next { completions.pop_front().map(|(_, completion)| completion) } else { None }
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<AsyncEvent> {
        self.finished.events.pop_front()
    }

    /// Returns when [`ReliableConnection::handle_timeout`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.requester.deadline()
    }

    /// Fails the queue pair if its deadline has passed, or sends again.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let Err(fault) = self.requester.check_deadline(now) {
            self.handle_fault(fault);
        }
    }

    /// Whether a request of the peer was refused because the shared queue had no receive.
    pub fn awaits_shared_receive(&self) -> bool {
        self.responder.receives.awaits_receive()
    }

    /// Number of send requests that are not queued completely.
    pub(crate) fn unsent_sends(&self) -> usize {
        self.requester.unsent()
    }

    /// Number of send requests without a completion of which a segment is queued.
    pub(crate) fn begun_sends(&self) -> usize {
        self.outstanding_sends() - self.unsent_sends() + usize::from(self.is_sending())
    }

    /// Whether a send request is queued in part.
    pub(crate) fn is_sending(&self) -> bool {
        self.requester.is_sending()
    }

    /// Whether the next send request waits for a receive of the peer.
    pub(crate) fn awaits_receive(&self) -> bool {
        self.state == QueuePairState::ReadyToSend && self.has_open_lane() && self.requester.awaits_receive()
    }

    /// Whether the peer takes receives from a shared queue.
    pub(crate) fn peer_shares_receives(&self) -> bool {
        self.requester.peer_shares_receives()
    }

    /// Number of send requests without a completion.
    pub fn outstanding_sends(&self) -> usize {
        self.requester.outstanding()
    }

    /// Returns what there is to send. Requests can turn out to wait for the peer.
    pub fn pending(&self) -> Pending {
        if !self.has_open_lane() {
            return Pending::Nothing;
        }
        let has_requests = self.state == QueuePairState::ReadyToSend && self.requester.has_unsent();
        let has_output = self.is_failing || self.lanes.iter().any(LaneState::has_output);
        if has_output || has_requests || self.responder.has_responses() {
            return Pending::Data;
        }
        if self.responder.has_acknowledgment() { Pending::Acknowledgment } else { Pending::Nothing }
    }

    /// Processes a segment whose header has arrived. Adds the destination of its payload to the empty `spans`, or returns
    /// `false` to discard it.
    fn on_segment(
        &mut self,
        lane: usize,
        segment: &Segment,
        spans: &mut Spans,
        now: Instant,
    ) -> Result<bool, Fault> {
        self.requester.on_acknowledged(segment.acknowledged, segment.credits, &mut self.finished)?;
        self.trim_logs();
        match segment.opcode.operation().role() {
            OperationRole::Request => {
                self.responder.on_request(segment, &self.domain, spans, &mut self.finished)
            }
            OperationRole::Response => self.requester.on_response(segment, spans).map(|()| true),
            OperationRole::Acknowledgment => {
                match &segment.extension {
                    Extension::Acknowledgment(Syndrome::Ended, ..) => self.peer_has_ended = true,
                    Extension::Acknowledgment(Syndrome::Failed, ..) => self.handle_lanes_lost(),
                    Extension::Acknowledgment(Syndrome::Probe, ..) => {
                        self.lanes[lane].is_answer_pending = true
                    }
                    Extension::Acknowledgment(Syndrome::Alive, ..) => self.lanes[lane].is_answered = true,
                    Extension::Acknowledgment(Syndrome::ReceiveAwaited, ..) => {
                        self.responder.on_receive_awaited(segment.message)
                    }
                    _ => {}
                }
                if self.requester.on_acknowledgment(segment, now)? {
                    self.send_discarded();
                }
                Ok(true)
            }
            OperationRole::LaneReport => {
                let Extension::LaneReport(report) = &segment.extension else { return Err(Fault::Broken) };
                self.handle_report(report).map(|()| true)
            }
            OperationRole::Datagram => Err(Fault::Broken),
        }
    }

    /// Sends again what the peer has discarded for lack of a receive.
    fn send_discarded(&mut self) {
        // Lanes need not keep it.
        let requester = &self.requester;
        let is_discarded = |sent: &Sent| match sent {
            Sent::Request(part) => requester.is_discarded(part),
            Sent::Response(_) => false,
        };
        self.lanes.iter_mut().for_each(|lane| lane.forget(is_discarded));
        self.requester.send_discarded();
    }

    /// All payload of a segment is in its place.
    fn on_placed(&mut self, segment: &Segment) -> Result<(), Fault> {
        use OperationRole::{Acknowledgment, Datagram, LaneReport, Request, Response};
        match segment.opcode.operation().role() {
            Request => self.responder.on_request_placed(segment, &self.domain, &mut self.finished),
            Response => self.requester.on_response_placed(segment, &mut self.finished),
            Acknowledgment | LaneReport | Datagram => Ok(()),
        }
    }

    /// A lane has ended, and with it a segment of whose payload only the first `placed` bytes have arrived.
    fn on_cut(&mut self, segment: &Segment, placed: u32) {
        use OperationRole::{Acknowledgment, Datagram, LaneReport, Request, Response};
        match segment.opcode.operation().role() {
            Request => self.responder.on_request_cut(segment, placed),
            Response => self.requester.on_response_cut(segment, placed),
            Acknowledgment | LaneReport | Datagram => {}
        }
    }

    fn handle_fault(&mut self, fault: Fault) {
        match fault {
            Fault::Nak { message, code } => {
                self.responder.nak(message, code);
                self.finished.events.push_back(match code {
                    NakCode::RemoteAccess => AsyncEvent::AccessViolation,
                    _ => AsyncEvent::InvalidRequest,
                });
            }
            Fault::Failed { index, status } => self.requester.fail_at(index, status, &mut self.finished),
            Fault::Broken => {
                self.requester.fail_first(Status::BadResponse, &mut self.finished);
                self.finished.events.push_back(AsyncEvent::Fatal);
            }
        }
        self.fail();
    }
}

/// Returns a segment. What it acknowledges follows when it is queued.
fn segment(operation: Operation, message: u32, place: Place, extension: Extension) -> Segment {
    let Place { size, offset, length } = place;
    let has_immediate = matches!(extension, Extension::Immediate(_) | Extension::Range(_, Some(_)));
    let opcode = Opcode::of(operation, Stage::of(offset, offset + length, size), has_immediate);
    Segment { opcode, message, size, offset, length, extension, ..Segment::default() }
}

/// Place of a segment in its message, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    size: u32,
    offset: u32,
    length: u32,
}

/// Maximum number of messages in flight in one direction.
const WINDOW: u32 = 1024;
/// Number of queued bytes of a lane above which no further segment is queued, so that responses and urgent segments do
/// not wait long.
const OUTPUT_BYTES: usize = 256 * 1024;
/// Maximum payload of a segment of a queue pair with several lanes, in bytes.
const STRIPE_BYTES: u32 = 128 * 1024;
/// Maximum payload of a segment in bytes.
pub(crate) const SEGMENT_BYTES: u32 = 1 << 20;
/// Maximum payload of a segment with a checksum, in bytes: it is collected before it is checked.
const CHECKED_SEGMENT_BYTES: u32 = 64 * 1024;
/// Size of the messages of a long request in bytes.
const MESSAGE_BYTES: u64 = 8 << 20;

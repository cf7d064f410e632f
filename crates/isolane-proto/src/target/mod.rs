//! One connection of a target: PDUs in, commands and data out; completions in, PDUs out.
//!
//! ```text
//! receive_plan ─ readv ─ handle_received ─ poll_event …
//!              ─ complete… ─ transmit_plan ─ sendmsg ─ handle_transmitted
//! ```
//!
//! [`Connection`] implements the transport only, without a controller or a volume. After
//! [`Event::Fatal`] or [`Event::Terminated`], the driver sends while
//! [`Connection::wants_transmit`], shuts down writing, continues to read (the bytes are discarded),
//! and closes when [`Connection::is_closed`] or at the end of the stream. Closing with unread data in
//! the socket would destroy the TermReq.
//!
//! Invariant: a command is completed once; every received byte is placed into the memory and at the
//! offset of its transfer; queued bytes are sent completely and in order.

pub(crate) mod capsule;
mod config;
mod event;
mod freeze;
#[cfg(test)]
mod freeze_tests;
mod permit;
#[cfg(test)]
mod predict_tests;
mod receive;
mod slots;
mod staging;
#[cfg(test)]
mod tests;
mod transfer;
mod transfer_scheduler;
mod transmit;

use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use isolane_memory::Buffer;
use isolane_wire::pdu::TermReq;
use isolane_wire::{Direction, Framing, SubmissionEntry};

pub use config::{ConnectionConfig, Scheduling};
pub use event::{DataLocation, Event, Transfer};
pub use freeze::{CommandState, ConnectionState, GrantState, QueueState, ResumedData, StateError, Unstarted};
pub use permit::Permit;

use self::receive::Receiving;
use self::slots::Slots;
use self::staging::StagingPages;
use self::transfer::Grants;
use self::transmit::LongResponses;
use crate::Completion;
use crate::connection::{FatalError, Phase, Receiver, Violation};
use isolane_connection::{Outstanding, SendQueue, StallDetector};

/// The target's end of one connection.
pub struct Connection {
    limits: ConnectionConfig,
    phase: Phase,
    handshake_deadline: Instant,
    is_connected: bool,
    receiver: Receiver,
    receiving: Receiving,
    staging: StagingPages,
    output: SendQueue,
    slots: Slots,
    /// CIDs of held Async Event Requests. A host can reuse such a CID at any time (SPDK's host
    /// abandons its requests before it shuts down), so a held request has neither a permit nor a
    /// slot.
    held: ArrayVec<u16, MAX_ASYNC_EVENTS>,
    submission_queue: SubmissionQueue,
    long_responses: LongResponses,
    grants: Grants,
    outbound: Framing,
    /// Whether `outbound` adds nothing, so that headers have a constant length.
    outbound_plain: bool,
    event: Option<Event>,
    progress: StallDetector,
}

/// Queue parameters from Connect.
#[derive(Default)]
struct SubmissionQueue {
    id: u16,
    /// Number of entries; 0 before Connect.
    entries: u32,
    /// Head pointer in completions; it passes an entry when its command completes.
    head: u16,
    flow_control_disabled: bool,
    /// Whether the next completion belongs to Connect.
    is_connecting: bool,
}

impl SubmissionQueue {
    /// Counts a completion, and returns its SQHD. Without flow control, the field is reserved,
    /// except in the response to Connect, where FFFFh confirms it (Fabrics 1.1 §3.3).
    fn advance(&mut self) -> u16 {
        let is_connecting = std::mem::take(&mut self.is_connecting);
        if self.flow_control_disabled {
            return if is_connecting { u16::MAX } else { 0 };
        }
        self.head = (u32::from(self.head) + 1).checked_rem(self.entries).unwrap_or(0) as u16;
        self.head
    }
}

impl Connection {
    /// A newly accepted connection.
    pub fn new(limits: ConnectionConfig, now: Instant) -> Connection {
        let limits = limits.clamped();
        Connection {
            phase: Phase::Handshake,
            handshake_deadline: now + limits.handshake,
            is_connected: false,
            receiver: Receiver::new(Direction::HostToController),
            receiving: Receiving::Header,
            staging: StagingPages::default(),
            output: SendQueue::default(),
            slots: Slots::new(limits.max_commands_before_connect),
            held: ArrayVec::new(),
            submission_queue: SubmissionQueue::default(),
            long_responses: LongResponses::new(limits.scheduling),
            grants: Grants::new(limits.scheduling),
            outbound: Framing::PLAIN,
            outbound_plain: true,
            event: None,
            progress: StallDetector::new(now, limits.stall),
            limits,
        }
    }

    /// Handles a successful Connect; call it before its completion. `sqsize` is 0's based, as in
    /// the command.
    pub fn set_connected(&mut self, qid: u16, sqsize: u16, flow_control_disabled: bool) {
        let entries = u32::from(sqsize) + 1;
        self.is_connected = true;
        self.slots.set_limit(entries as usize);
        self.submission_queue =
            SubmissionQueue { id: qid, entries, head: 0, flow_control_disabled, is_connecting: true };
    }

    /// Number of entries of its queue.
    pub fn queue_entries(&self) -> usize {
        self.submission_queue.entries as usize
    }

    /// The command of a permit.
    #[inline]
    pub fn entry(&self, permit: &Permit) -> &SubmissionEntry {
        self.slots.entry(permit)
    }

    /// Number of commands accepted and not completed, except held Async Event Requests.
    pub fn in_flight(&self) -> usize {
        self.slots.occupied()
    }

    /// Length of the buffers of incomplete write data, in bytes.
    pub fn receiving_bytes(&self) -> usize {
        self.slots.receiving_bytes()
    }

    /// Total bytes received.
    pub fn received_bytes(&self) -> u64 {
        self.receiver.received_bytes()
    }

    /// Total bytes received and sent.
    pub fn moved_bytes(&self) -> u64 {
        self.receiver.received_bytes() + self.output.sent_bytes()
    }

    /// Deadline for [`Connection::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.phase {
            Phase::Draining(until) => Some(until),
            Phase::Closed => None,
            _ if !self.is_connected => Some(self.handshake_deadline),
            _ => (!self.outstanding().is_idle()).then(|| self.progress.deadline()),
        }
    }

    /// Handles an expired deadline. Poll events afterwards.
    pub fn handle_timeout(&mut self, now: Instant) {
        match self.phase {
            Phase::Draining(until) if now >= until => self.phase = Phase::Closed,
            Phase::Draining(_) | Phase::Closed => {}
            _ if !self.is_connected => {
                if now >= self.handshake_deadline {
                    self.fail(FatalError::without_term_req(Violation::HandshakeTimeout), now);
                }
            }
            _ => {
                let outstanding = self.outstanding();
                if self.progress.is_stalled(now, &outstanding) {
                    self.fail(FatalError::without_term_req(Violation::Stalled), now);
                }
            }
        }
    }

    /// Extends the deadlines by `wait`, during which the host was blocked because no memory was
    /// free for its data.
    pub fn extend_deadline(&mut self, wait: Duration) {
        self.progress.extend_deadline(wait);
    }

    /// Handles the end of the stream. Close afterwards.
    pub fn handle_eof(&mut self) {
        self.phase = Phase::Closed;
        self.receiver.discard();
    }

    /// Whether the driver must close the connection now.
    pub fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// Takes the buffers of incomplete write data, when the connection has ended.
    pub fn take_buffers(&mut self) -> impl Iterator<Item = Buffer> + '_ {
        debug_assert!(!self.phase.is_alive(), "buffers taken before the connection ended");
        self.slots.take_buffers()
    }

    /// Obligations of the host.
    fn outstanding(&self) -> Outstanding {
        Outstanding {
            moved_bytes: self.receiver.received_bytes()
                + self.output.queued_bytes()
                + self.output.sent_bytes(),
            pdus: self.receiver.pdus(),
            output: self.output.bytes(),
            transfers: self.slots.transfers(),
        }
    }

    /// Ends the connection because of `error`, with a TermReq if the specification requires one.
    fn fail(&mut self, error: FatalError, now: Instant) {
        self.phase = match error.status {
            Some(status) => {
                let request = TermReq::new(Direction::ControllerToHost, status, self.receiver.saved_header());
                self.output.push::<24>(&request.encode(), None);
                Phase::Draining(now + self.limits.drain)
            }
            None => Phase::Closed,
        };
        self.receiver.discard();
        self.receiving = Receiving::Header;
        self.long_responses.clear();
        self.event = Some(Event::Fatal(error));
    }

    /// Holds an Async Event Request until [`Connection::complete_held`] or
    /// [`Connection::replace_held`].
    ///
    /// # Panics
    /// If more than [`MAX_ASYNC_EVENTS`] requests are held.
    pub fn hold(&mut self, permit: Permit) {
        self.held.push(permit.cid());
        self.slots.close(permit);
    }

    /// Whether an Async Event Request with this CID is held.
    #[inline]
    pub fn is_held(&self, cid: u16) -> bool {
        !self.held.is_empty() && self.held.contains(&cid)
    }

    /// Completes a held request. Does nothing if no held request has this CID.
    pub fn complete_held(&mut self, cid: u16, completion: Completion) {
        if self.release(cid) && self.phase.is_alive() {
            self.queue_response(cid, completion);
        }
    }

    /// Drops a held request, because its host uses the CID for another command.
    pub fn replace_held(&mut self, cid: u16) {
        if self.release(cid) {
            self.submission_queue.advance();
        }
    }

    fn release(&mut self, cid: u16) -> bool {
        let at = self.held.iter().position(|&held| held == cid);
        at.map(|at| self.held.remove(at)).is_some()
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("qid", &self.submission_queue.id)
            .field("phase", &self.phase)
            .field("in_flight", &self.in_flight())
            .field("pending_bytes", &self.transmit_pending_bytes())
            .finish_non_exhaustive()
    }
}

/// Maximum number of held Async Event Requests: AERL + 1.
pub const MAX_ASYNC_EVENTS: usize = 4;

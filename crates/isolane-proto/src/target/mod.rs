//! One connection of a target: PDUs in, commands and data out; answers in, PDUs out.
//!
//! ```text
//! receive_plan ─ readv ─ handle_received ─ poll_event …
//!              ─ complete… ─ transmit_plan ─ sendmsg ─ handle_transmitted
//! ```
//!
//! [`Connection`] knows no controller and no volume: it keeps the rules of the transport and nothing else. It
//! never sees a socket or a clock. After [`Event::Fatal`] or [`Event::Terminated`] it goes on like this: send
//! what [`Connection::wants_transmit`], then, when [`Connection::is_finished_sending`], shut down writing, go on
//! reading (the bytes are thrown away), and close when [`Connection::is_closed`] or at the end of the stream.
//! Closing with unread data in the socket would destroy the TermReq on its way.
//!
//! Invariants: a command is answered once; no byte is placed into memory that was not given for it, at the
//! offset it belongs to; what is queued is sent whole, and in order.

mod capsule;
mod config;
mod event;
mod handshake;
mod held;
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
use isolane_wire::{Direction, Framing, SubmissionEntry};

pub use config::{ConnectionConfig, Scheduling};
pub use event::{DataLocation, Event, Transfer};
pub use held::MAX_ASYNC_EVENTS;
pub use permit::Permit;

use self::receive::Receiving;
use self::slots::Slots;
use self::staging::StagingPages;
use self::transfer::Grants;
use self::transmit::LongResponses;
use crate::connection::{FatalError, Outstanding, Phase, Receiver, SendQueue, StallDetector, Violation};

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
    /// CIDs of held Async Event Requests.
    held: ArrayVec<u16, MAX_ASYNC_EVENTS>,
    submission_queue: SubmissionQueue,
    long_responses: LongResponses,
    grants: Grants,
    outbound: Framing,
    /// It adds nothing, so that headers are of constant shape.
    outbound_plain: bool,
    event: Option<Event>,
    progress: StallDetector,
}

/// Queue parameters from Connect.
#[derive(Default)]
struct SubmissionQueue {
    id: u16,
    /// Entries; 0 before Connect.
    entries: u32,
    /// The head pointer that completions report: it passes an entry when its command is answered.
    head: u16,
    flow_control_disabled: bool,
    /// The next completion is that of Connect.
    is_connecting: bool,
}

impl SubmissionQueue {
    /// One more command is answered: the head pointer to report (SQHD). Without flow control the field is
    /// reserved, but for the response to Connect, where FFFFh confirms it (Fabrics 1.1 §3.3).
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
    /// A connection that was just accepted.
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

    /// Connect succeeded: call it before its completion. `sqsize` is 0's based, as in the command.
    pub fn set_connected(&mut self, qid: u16, sqsize: u16, flow_control_disabled: bool) {
        let entries = u32::from(sqsize) + 1;
        self.is_connected = true;
        self.slots.set_limit(entries as usize);
        self.submission_queue =
            SubmissionQueue { id: qid, entries, head: 0, flow_control_disabled, is_connecting: true };
    }

    /// The command of a permit.
    #[inline]
    pub fn entry(&self, permit: &Permit) -> &SubmissionEntry {
        self.slots.entry(permit)
    }

    /// Commands accepted and not answered, except held Async Event Requests.
    pub fn in_flight(&self) -> usize {
        self.slots.occupied()
    }

    /// Memory given for write data that has not arrived whole, in bytes.
    pub fn receiving_bytes(&self) -> usize {
        self.slots.receiving_bytes()
    }

    /// Bytes ever received.
    pub fn received_bytes(&self) -> u64 {
        self.receiver.received_bytes()
    }

    /// Bytes ever sent.
    pub fn sent_bytes(&self) -> u64 {
        self.output.sent_bytes()
    }

    /// Bytes ever received and sent: while the number stands still, the host does nothing.
    pub fn moved_bytes(&self) -> u64 {
        self.receiver.received_bytes() + self.output.sent_bytes()
    }

    /// The deadline to call [`Connection::handle_timeout`] at, if there is one.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.phase {
            Phase::Draining(until) => Some(until),
            Phase::Closed => None,
            _ if !self.is_connected => Some(self.handshake_deadline),
            _ => (!self.outstanding().is_idle()).then(|| self.progress.deadline()),
        }
    }

    /// Time has passed. Poll events afterwards.
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

    /// The host could not go on for so long, because there was no memory for its data: that time does not
    /// count against it.
    pub fn extend_deadline(&mut self, wait: Duration) {
        self.progress.extend_deadline(wait);
    }

    /// The host closed its side. Nothing more can be received; close.
    pub fn handle_eof(&mut self) {
        self.phase = Phase::Closed;
        self.receiver.discard();
    }

    /// Whether the connection should be closed now.
    pub fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// Whether the TermReq was sent, so that writing should be shut down.
    pub fn is_finished_sending(&self) -> bool {
        !self.phase.is_alive() && self.output.is_empty()
    }

    /// Takes the memory that waited for data which will not come, when the connection has ended.
    pub fn take_buffers(&mut self) -> impl Iterator<Item = Buffer> + '_ {
        debug_assert!(!self.phase.is_alive(), "buffers were taken from a living connection");
        self.slots.take_buffers()
    }

    /// What the host owes us, or must take.
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

    /// The connection ends because of `error`: tell it if the specification wants that.
    fn fail(&mut self, error: FatalError, now: Instant) {
        self.phase = match error.status {
            Some(status) => {
                self.queue_term_req(status);
                Phase::Draining(now + self.limits.drain)
            }
            None => Phase::Closed,
        };
        self.receiver.discard();
        self.receiving = Receiving::Header;
        self.long_responses.clear();
        self.event = Some(Event::Fatal(error));
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

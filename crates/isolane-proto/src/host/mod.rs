//! One connection of a host: commands in, PDUs out; PDUs in, completions out.
//!
//! ```text
//! submit … ─ transmit_plan ─ sendmsg ─ handle_transmitted
//!          ─ receive_plan ─ readv ─ handle_received ─ poll_event …
//! ```
//!
//! [`Connection`] is the counterpart of [`target::Connection`](crate::target::Connection). It keeps
//! no state of a controller: Connect and Identify are commands like any other.
//!
//! Invariant: a command is completed or abandoned exactly once; its buffer is returned only when
//! neither the network nor the send queue can access it; every byte from the target is placed
//! inside the requested range.

mod commands;
mod config;
mod event;
#[cfg(test)]
mod predict_tests;
mod receive;
#[cfg(test)]
mod segmentation_tests;
mod submit;
#[cfg(test)]
mod tests;
mod transfer;

use std::time::Instant;

use isolane_wire::pdu::{Digests, HeaderFault, IcReq, IcResp, TermReq};
use isolane_wire::{Direction, Framing};

pub use config::ConnectionConfig;
pub use event::{Abandoned, Completed, Data, Event, SubmitError, SubmitErrorKind};
pub use submit::SubmitSlot;

use self::commands::Commands;
use self::receive::Receiving;
use crate::connection::{FatalError, Header, Phase, Receiver, Violation};
use isolane_connection::{Outstanding, SendQueue, StallDetector, TransmitPlan};

/// The host's end of one connection.
pub struct Connection {
    options: ConnectionConfig,
    phase: Phase,
    handshake_deadline: Instant,
    receiver: Receiver,
    receiving: Receiving,
    output: SendQueue,
    outbound: Framing,
    commands: Commands,
    /// Number of completed commands whose data is still in the output.
    deferred: usize,
    depth: usize,
    max_in_capsule_bytes: usize,
    max_h2c_data_bytes: usize,
    flow_control_disabled: bool,
    event: Option<Event>,
    progress: StallDetector,
}

impl Connection {
    /// Maximum number of commands in flight, for any queue size of the target.
    pub const MAX_DEPTH: usize = commands::MAX_COMMANDS;

    /// A new connection, with ICReq queued.
    pub fn new(options: ConnectionConfig, now: Instant) -> Connection {
        let options = options.clamped();
        let mut output = SendQueue::default();
        let digests = Digests::default().with_header(options.header_digest).with_data(options.data_digest);
        output.push::<24>(&IcReq { hpda: options.hpda, digests, maxr2t: options.maxr2t }.encode(), None);
        Connection {
            phase: Phase::Handshake,
            handshake_deadline: now + options.handshake,
            receiver: Receiver::new(Direction::ControllerToHost),
            receiving: Receiving::Header,
            output,
            outbound: Framing::default(),
            commands: Commands::default(),
            deferred: 0,
            depth: DEPTH_BEFORE_CONNECT,
            max_in_capsule_bytes: IN_CAPSULE_BYTES_ALWAYS,
            max_h2c_data_bytes: 0,
            flow_control_disabled: false,
            event: None,
            progress: StallDetector::new(now, options.stall),
            options,
        }
    }

    /// Handles a successful Connect: the queue has `entries` entries, one of which stays free. Flow
    /// control is disabled if the host requested it and the response confirmed it with SQHD FFFFh
    /// (Fabrics 1.1 §3.3).
    pub fn set_connected(&mut self, entries: u32, flow_control_disabled: bool) {
        self.depth = (entries as usize).saturating_sub(1).clamp(1, commands::MAX_COMMANDS);
        self.flow_control_disabled = flow_control_disabled;
    }

    /// Sets the maximum length of write data in a capsule, from IOCCSZ for I/O queues. The default
    /// is 8,192, which is always valid for admin and fabrics commands (TCP 1.0 §3.3.1).
    pub fn set_max_in_capsule(&mut self, bytes: usize) {
        self.max_in_capsule_bytes = bytes;
    }

    /// Number of commands submitted and not completed.
    pub fn in_flight(&self) -> usize {
        self.commands.in_flight()
    }

    /// Number of commands that can be submitted now.
    pub fn capacity(&self) -> usize {
        if matches!(self.phase, Phase::Open) {
            self.depth.saturating_sub(self.commands.in_flight())
        } else {
            0
        }
    }

    /// Returns a plan with the next bytes to send.
    pub fn transmit_plan(&self) -> TransmitPlan<'_> {
        let mut plan = TransmitPlan::new();
        self.fill_transmit_plan(&mut plan);
        plan
    }

    /// Fills an empty plan with the next bytes to send.
    pub fn fill_transmit_plan<'a>(&'a self, plan: &mut TransmitPlan<'a>) {
        self.output.fill_plan(plan);
    }

    /// Records that the first `n` bytes of the plan were sent. Poll events afterwards if
    /// completions are [deferred](Connection::has_deferred_completions).
    pub fn handle_transmitted(&mut self, n: usize) {
        self.output.advance(n, drop);
    }

    /// Whether there is anything to send.
    pub fn wants_transmit(&self) -> bool {
        !self.output.is_empty()
    }

    /// Whether a completion is deferred until the data of its command has been sent.
    pub fn has_deferred_completions(&self) -> bool {
        self.deferred > 0
    }

    /// Deadline for [`Connection::handle_timeout`]. The transport does not limit the duration of a
    /// command.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.phase {
            Phase::Handshake => Some(self.handshake_deadline),
            Phase::Open => (!self.outstanding().is_idle()).then(|| self.progress.deadline()),
            Phase::Draining(until) => Some(until),
            Phase::Closed => None,
        }
    }

    /// Handles an expired deadline. Poll events afterwards.
    pub fn handle_timeout(&mut self, now: Instant) {
        match self.phase {
            Phase::Handshake if now >= self.handshake_deadline => {
                self.fail(FatalError::without_term_req(Violation::HandshakeTimeout), now);
            }
            Phase::Open => {
                let outstanding = self.outstanding();
                if self.progress.is_stalled(now, &outstanding) {
                    self.fail(FatalError::without_term_req(Violation::Stalled), now);
                }
            }
            Phase::Draining(until) if now >= until => self.phase = Phase::Closed,
            Phase::Handshake | Phase::Draining(_) | Phase::Closed => {}
        }
    }

    /// Whether the driver must close the connection now.
    pub fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// Whether the TermReq was sent, so that the driver must shut down writing.
    pub fn is_finished_sending(&self) -> bool {
        !self.phase.is_alive() && self.output.is_empty()
    }

    /// Ends the connection without sending further bytes, and returns every command that was not
    /// completed.
    pub fn abandon_all(&mut self) -> Vec<Abandoned> {
        self.phase = Phase::Closed;
        self.receiver.discard();
        self.deferred = 0;
        self.output.clear();
        self.commands.abandon(self.output.sent_bytes())
    }

    /// Obligations of the target; completing a command is not one of the transport.
    fn outstanding(&self) -> Outstanding {
        let moved_bytes =
            self.receiver.received_bytes() + self.output.queued_bytes() + self.output.sent_bytes();
        Outstanding {
            moved_bytes,
            pdus: self.receiver.pdus(),
            output: self.output.bytes(),
            ..Outstanding::default()
        }
    }

    /// Applies the parameters of ICResp.
    fn handle_ic_resp(&mut self, header: &Header, overflow: &[u8]) -> Result<Event, FatalError> {
        let response = self.receiver.decode(overflow, IcResp::decode)?;
        let digests = response.digests;
        if (digests.header() && !self.options.header_digest) || (digests.data() && !self.options.data_digest)
        {
            return Err(FatalError::new(Violation::Digests, HeaderFault::invalid(IcResp::DGST)));
        }
        self.receiver.consume_header(header);
        let framing = |pda| Framing { header_digest: digests.header(), data_digest: digests.data(), pda };
        self.receiver.set_framing(framing(self.options.hpda));
        self.outbound = framing(response.cpda);
        self.max_h2c_data_bytes = response.maxh2cdata as usize;
        self.phase = Phase::Open;
        Ok(Event::Connected(response))
    }

    /// Ends the connection because of `error`, with a TermReq if the specification requires one.
    fn fail(&mut self, error: FatalError, now: Instant) {
        self.phase = match error.status {
            Some(status) => {
                let request = TermReq::new(Direction::HostToController, status, self.receiver.saved_header());
                self.output.push::<24>(&request.encode(), None);
                Phase::Draining(now + self.options.drain)
            }
            None => Phase::Closed,
        };
        self.receiver.discard();
        self.receiving = Receiving::Header;
        self.event = Some(Event::Fatal(error));
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("phase", &self.phase)
            .field("in_flight", &self.in_flight())
            .field("pending_bytes", &self.output.pending_bytes())
            .finish_non_exhaustive()
    }
}

/// Before Connect, only Connect is valid.
const DEPTH_BEFORE_CONNECT: usize = 1;
const IN_CAPSULE_BYTES_ALWAYS: usize = 8192;

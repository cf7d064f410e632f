//! One connection of a host: commands in, PDUs out; PDUs in, completions out.
//!
//! ```text
//! submit … ─ transmit_plan ─ sendmsg ─ handle_transmitted
//!          ─ receive_plan ─ readv ─ handle_received ─ poll_event …
//! ```
//!
//! [`Queue`] is the mirror image of [`target::Queue`](crate::target::Queue). It knows no controller: Connect
//! and Identify are commands like any other. It never sees a socket or a clock.
//!
//! Invariants: a command is completed once, or abandoned once; its buffer comes back only when neither the
//! network nor our output can touch it any more; no byte the target sends lands outside of what was asked
//! for.

mod commands;
mod completion;
mod event;
#[cfg(test)]
mod guess_tests;
mod options;
mod receive;
mod submit;
#[cfg(test)]
mod tests;
mod transfer;
mod usual;
#[cfg(test)]
mod usual_tests;

use std::time::Instant;

use isolane_wire::pdu::{Digests, HeaderFault, IcReq, IcResp, TermReq};
use isolane_wire::{Direction, Framing};

pub use event::{Abandoned, Completed, Data, Event, Refusal, Rejected};
pub use options::Options;
pub use submit::Vacancy;

use self::commands::Commands;
use self::receive::Receiving;
use crate::queue::{Debts, FatalError, Fault, Output, Phase, Progress, Receiver, TransmitPlan};

/// The host's end of one connection.
pub struct Queue {
    options: Options,
    phase: Phase,
    handshake_deadline: Instant,
    receiver: Receiver,
    receiving: Receiving,
    output: Output,
    outbound: Framing,
    commands: Commands,
    /// Completed commands whose data is still in the output.
    lingering: usize,
    depth: usize,
    in_capsule_bytes_max: usize,
    h2c_data_bytes_max: usize,
    is_flow_control_disabled: bool,
    event: Option<Event>,
    progress: Progress,
}

impl Queue {
    /// The most commands in flight that a queue here keeps track of, however large the target's is.
    pub const DEPTH_MAX: usize = commands::COMMANDS_MAX;

    /// A connection that was just made: ICReq is queued.
    pub fn new(options: Options, now: Instant) -> Queue {
        let options = options.legal();
        let mut output = Output::default();
        let digests = Digests::default().with_header(options.header_digest).with_data(options.data_digest);
        output.push(&IcReq { hpda: options.hpda, digests, maxr2t: options.maxr2t }.encode());
        Queue {
            phase: Phase::Handshake,
            handshake_deadline: now + options.handshake,
            receiver: Receiver::new(Direction::ControllerToHost),
            receiving: Receiving::Header,
            output,
            outbound: Framing::default(),
            commands: Commands::new(),
            lingering: 0,
            depth: DEPTH_BEFORE_CONNECT,
            in_capsule_bytes_max: IN_CAPSULE_BYTES_ALWAYS,
            h2c_data_bytes_max: 0,
            is_flow_control_disabled: false,
            event: None,
            progress: Progress::new(now, options.stall),
            options,
        }
    }

    /// Connect succeeded: the queue has `entries` entries, of which one stays free. Flow control is disabled
    /// if that was asked for and the response confirmed it with SQHD FFFFh (Fabrics 1.1 §3.3).
    pub fn set_connected(&mut self, entries: u32, is_flow_control_disabled: bool) {
        self.depth = (entries as usize).saturating_sub(1).clamp(1, commands::COMMANDS_MAX);
        self.is_flow_control_disabled = is_flow_control_disabled;
    }

    /// Write data up to this length travels in the capsule: from IOCCSZ for I/O queues. 8,192 is always legal
    /// for admin and fabrics commands (TCP 1.0 §3.3.1), and the default.
    pub fn set_in_capsule_max(&mut self, bytes: usize) {
        self.in_capsule_bytes_max = bytes;
    }

    /// Commands submitted and not completed.
    pub fn in_flight(&self) -> usize {
        self.commands.in_flight()
    }

    /// Commands that may be submitted now.
    pub fn room(&self) -> usize {
        if matches!(self.phase, Phase::Open) {
            self.depth.saturating_sub(self.commands.in_flight())
        } else {
            0
        }
    }

    /// What to send next, as much as fits one call.
    pub fn transmit_plan(&self) -> TransmitPlan<'_> {
        let mut plan = TransmitPlan::new();
        self.fill_transmit_plan(&mut plan);
        plan
    }

    /// Puts [`Queue::transmit_plan`] into an empty plan.
    pub fn fill_transmit_plan<'a>(&'a self, plan: &mut TransmitPlan<'a>) {
        self.output.fill_plan(plan);
    }

    /// The kernel has taken the first `n` bytes of the plan. Poll events afterwards if any command
    /// [lingers](Queue::has_lingering).
    pub fn handle_transmitted(&mut self, n: usize) {
        self.output.advance(n, drop);
    }

    /// Whether there is anything to send.
    pub fn wants_transmit(&self) -> bool {
        !self.output.is_empty()
    }

    /// Bytes that wait to be sent.
    pub fn transmit_pending_bytes(&self) -> usize {
        self.output.pending_bytes()
    }

    /// Whether a command has failed whose data is still on its way out: its event comes when that has been
    /// sent.
    pub fn has_lingering(&self) -> bool {
        self.lingering > 0
    }

    /// The deadline to call [`Queue::handle_timeout`] at, if there is one. How long a command may take is not
    /// the transport's business.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.phase {
            Phase::Handshake => Some(self.handshake_deadline),
            Phase::Open => (!self.debts().are_settled()).then(|| self.progress.deadline()),
            Phase::Draining(until) => Some(until),
            Phase::Closed => None,
        }
    }

    /// Time has passed. Poll events afterwards.
    pub fn handle_timeout(&mut self, now: Instant) {
        match self.phase {
            Phase::Handshake if now >= self.handshake_deadline => {
                self.fail(FatalError::silent(Fault::HandshakeTimeout), now);
            }
            Phase::Open => {
                let debts = self.debts();
                if self.progress.is_stalled(now, &debts) {
                    self.fail(FatalError::silent(Fault::Stalled), now);
                }
            }
            Phase::Draining(until) if now >= until => self.phase = Phase::Closed,
            Phase::Handshake | Phase::Draining(_) | Phase::Closed => {}
        }
    }

    /// The target closed its side, or the connection broke. Abandon what is left and close.
    pub fn handle_eof(&mut self) {
        self.phase = Phase::Closed;
        self.receiver.discard();
    }

    /// Whether the connection should be closed now.
    pub fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// Whether a fatal error was told completely, so that writing should be shut down.
    pub fn is_finished_sending(&self) -> bool {
        !self.phase.is_alive() && self.output.is_empty()
    }

    /// Ends the connection without another byte, and hands back every command that was not completed.
    pub fn abandon_all(&mut self) -> Vec<Abandoned> {
        self.phase = Phase::Closed;
        self.receiver.discard();
        self.lingering = 0;
        self.output.clear();
        self.commands.abandon(self.output.sent_bytes())
    }

    /// What the target owes us; that a command is answered at all is not the transport's business.
    fn debts(&self) -> Debts {
        let moved_bytes =
            self.receiver.received_bytes() + self.output.queued_bytes() + self.output.sent_bytes();
        Debts { moved_bytes, pdus: self.receiver.pdus(), output: self.output.bytes(), ..Debts::default() }
    }

    /// Keeps to what ICResp agreed to.
    fn handle_ic_resp(&mut self) -> Result<Event, FatalError> {
        let response = self.receiver.decode(|bytes, _| IcResp::decode(bytes))?;
        let digests = response.digests;
        if (digests.header() && !self.options.header_digest) || (digests.data() && !self.options.data_digest)
        {
            return Err(FatalError::new(Fault::Digests, HeaderFault::invalid(IcResp::DGST)));
        }
        let framing = |pda| Framing { header_digest: digests.header(), data_digest: digests.data(), pda };
        self.receiver.set_framing(framing(self.options.hpda));
        self.outbound = framing(response.cpda);
        self.h2c_data_bytes_max = response.maxh2cdata as usize;
        self.phase = Phase::Open;
        Ok(Event::Connected(response))
    }

    /// The connection ends because of `error`: tell it if the specification wants that.
    fn fail(&mut self, error: FatalError, now: Instant) {
        self.phase = match error.status {
            Some(status) => {
                let request = TermReq::new(Direction::HostToController, status, self.receiver.header());
                self.output.push(&request.encode());
                Phase::Draining(now + self.options.drain)
            }
            None => Phase::Closed,
        };
        self.receiver.discard();
        self.receiving = Receiving::Header;
        self.event = Some(Event::Fatal(error));
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue")
            .field("phase", &self.phase)
            .field("in_flight", &self.in_flight())
            .field("pending_bytes", &self.output.pending_bytes())
            .finish_non_exhaustive()
    }
}

/// Before Connect nothing but Connect makes sense.
const DEPTH_BEFORE_CONNECT: usize = 1;
const IN_CAPSULE_BYTES_ALWAYS: usize = 8192;

//! Receiving half of a host's connection: from bytes to events.
//!
//! Invariant: [`Receiving`] names the owner of the body that arrives, and was set from a header that was
//! checked completely.

use std::time::Instant;

use isolane_memory::Buffer;
use isolane_wire::pdu::PduType;

use super::Connection;
use super::commands::Commands;
use super::event::Event;
use crate::connection::{self, FatalError, Header, Phase, Prediction, ReceivePlan};

/// Owner of the next bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receiving {
    /// A header.
    Header,
    /// Data of a command.
    C2hData {
        cid: u16,
        /// The data ends the command as well.
        success: bool,
    },
}

/// Result of one receive step.
pub(super) type Step = connection::Step<Event>;

impl Connection {
    /// Where the next bytes of the connection go: the buffer of the read that is arriving, then `overflow`.
    ///
    /// Pass the same overflow to the [`Connection::poll_event`]s that follow. It may be shared with other
    /// connections: when `poll_event` has returned `None`, nothing of it is needed any more.
    ///
    /// On the guess that data comes in the order of the commands, the plan goes on with the buffers of other
    /// reads in flight; until such a read is completed, its buffer may hold bytes of anything that was
    /// received.
    pub fn receive_plan<'a>(&'a mut self, overflow: &'a mut [u8]) -> ReceivePlan<'a> {
        let mut plan = ReceivePlan::new();
        self.fill_receive_plan(overflow, &mut plan);
        plan
    }

    /// Puts [`Connection::receive_plan`] into an empty plan.
    pub fn fill_receive_plan<'a>(&'a mut self, overflow: &'a mut [u8], plan: &mut ReceivePlan<'a>) {
        if !self.receiver.should_predict() {
            let destination = destination(&mut self.commands, self.receiving);
            return self.receiver.plan(plan, destination, overflow);
        }
        let arriving = match self.receiving {
            Receiving::C2hData { cid, .. } => Some(cid),
            Receiving::Header => None,
        };
        let (destination, reads) = self.commands.reads(arriving);
        let guessed = reads.map_while(|(cid, buffer)| {
            let len = buffer.len();
            buffer.as_mut_slice().map(|data| (Prediction { cid, len }, std::iter::once(data)))
        });
        self.receiver.plan_ahead(plan, destination, guessed, overflow);
    }

    /// The first `n` bytes of the last plan have been filled.
    pub fn handle_received(&mut self, n: usize) {
        let destination = destination(&mut self.commands, self.receiving);
        self.receiver.handle_received(n, destination.as_deref());
        if !self.phase.is_alive() {
            self.receiver.discard();
        }
    }

    /// The next event. `None`: everything received was understood, read on.
    #[inline(always)]
    pub fn poll_event(&mut self, overflow: &[u8], now: Instant) -> Option<Event> {
        loop {
            if (self.event.is_some() || self.deferred > 0)
                && let Some(event) = self.event.take().or_else(|| self.finish_deferred())
            {
                return Some(event);
            }
            if !self.phase.is_alive() || self.has_understood_all() {
                return None;
            }
            match self.receive(overflow) {
                Ok(Step::Event(event)) => return Some(event),
                Ok(Step::Continue) => {}
                Ok(Step::NeedMoreData) => return None,
                Err(error) => {
                    self.receiver.keep_header(overflow);
                    self.fail(error, now);
                }
            }
        }
    }

    /// Keeps what is unread in `overflow`, because others shall have their turn. Until [`Connection::poll_event`]
    /// has used it up (pass any overflow), the receive plan is empty.
    pub fn defer_input(&mut self, overflow: &[u8]) {
        self.receiver.defer(overflow);
    }

    /// Whether input was deferred and not used up: do not read from the connection, poll events instead.
    pub fn has_deferred_input(&self) -> bool {
        self.receiver.is_deferred()
    }

    /// Whether no byte is left to look at, and no PDU is under way.
    fn has_understood_all(&self) -> bool {
        self.receiving == Receiving::Header && !self.receiver.has_unread()
    }

    #[inline(always)]
    fn receive(&mut self, overflow: &[u8]) -> Result<Step, FatalError> {
        if let Receiving::C2hData { cid, success } = self.receiving {
            return Ok(self.receive_data(overflow, cid, success));
        }
        let Some(header) = self.receiver.receive_header(overflow)? else {
            return Ok(self.on_input_exhausted(overflow));
        };
        header.check_sequence(self.phase, PduType::IcResp, PduType::C2hTermReq)?;
        match header.pdu_type {
            PduType::C2hData => self.handle_c2h_data(&header, overflow),
            PduType::CapsuleResp => self.handle_response(&header, overflow),
            _ => self.handle_other(&header, overflow),
        }
    }

    /// Waits for more bytes, unless predicted bytes remain, which are then read again.
    #[inline]
    fn on_input_exhausted(&mut self, overflow: &[u8]) -> Step {
        if !self.receiver.has_unverified() {
            return Step::NeedMoreData;
        }
        self.rollback_predictions(overflow);
        Step::Continue
    }

    /// Rolls back wrong predictions: the bytes that landed are read again.
    #[cold]
    pub(super) fn rollback_predictions(&mut self, overflow: &[u8]) {
        let commands = &mut self.commands;
        self.receiver.rollback_predictions(overflow, |cid, len, bytes| {
            let start = bytes.len();
            bytes.resize(start + len, 0);
            if let Some(buffer) = commands.destination(cid) {
                buffer.copy_to(0, &mut bytes[start..]);
            }
        });
    }

    #[cold]
    fn handle_other(&mut self, header: &Header, overflow: &[u8]) -> Result<Step, FatalError> {
        if self.receiver.has_unverified() {
            self.rollback_predictions(overflow);
        }
        match header.pdu_type {
            PduType::IcResp => self.handle_ic_resp(header, overflow).map(Step::Event),
            PduType::R2t => self.handle_r2t(header, overflow),
            _ => {
                let request = self.receiver.take_term_req(overflow, header)?;
                self.phase = Phase::Closed;
                Ok(Step::Event(Event::Terminated(Box::new(request))))
            }
        }
    }

    #[inline(never)]
    pub(super) fn receive_data(&mut self, overflow: &[u8], cid: u16, success: bool) -> Step {
        let destination = destination(&mut self.commands, self.receiving);
        if !self.receiver.receive_body(overflow, destination) {
            return self.on_input_exhausted(overflow);
        }
        self.receiving = Receiving::Header;
        let digest_ok = self.receiver.is_digest_ok();
        if let Some(command) = self.commands.find(cid) {
            command.digest_ok &= digest_ok;
        }
        self.finish_c2h_data(cid, success)
    }
}

/// The memory that the running data goes to.
fn destination(commands: &mut Commands, receiving: Receiving) -> Option<&mut Buffer> {
    match receiving {
        Receiving::C2hData { cid, .. } => commands.destination(cid),
        Receiving::Header => None,
    }
}

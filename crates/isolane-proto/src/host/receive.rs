//! The receiving half: from bytes to events.
//!
//! Invariant: the body that arrives belongs to what [`Receiving`] says, and that was decided from a header
//! that was checked whole.

use std::time::Instant;

use isolane_memory::Buffer;
use isolane_wire::pdu::{CapsuleResp, PduType};

use super::Queue;
use super::commands::Commands;
use super::event::Event;
use crate::queue::{self, FatalError, Guess, Header, Phase, ReceivePlan};

/// Whose bytes come next.
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

/// What came of one step.
pub(super) type Step = queue::Step<Event>;

impl Queue {
    /// Where the next bytes of the connection go: the buffer of the read that is arriving, then `overflow`.
    ///
    /// Pass the same overflow to the [`Queue::poll_event`]s that follow. It may be shared with other
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

    /// Puts [`Queue::receive_plan`] into an empty plan.
    pub fn fill_receive_plan<'a>(&'a mut self, overflow: &'a mut [u8], plan: &mut ReceivePlan<'a>) {
        if !self.receiver.shall_guess() {
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
            buffer.as_mut_slice().map(|data| (Guess { cid, len }, std::iter::once(data)))
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
    pub fn poll_event(&mut self, overflow: &[u8], now: Instant) -> Option<Event> {
        loop {
            if let Some(completed) = self.poll_completed(overflow) {
                return Some(Event::Completed(completed));
            }
            if (self.event.is_some() || self.lingering > 0)
                && let Some(event) = self.event.take().or_else(|| self.finish_lingering())
            {
                return Some(event);
            }
            if !self.phase.is_alive() || self.has_understood_all() {
                return None;
            }
            match self.receive(overflow) {
                Ok(Step::Event(event)) => return Some(event),
                Ok(Step::Again) => {}
                Ok(Step::Starved) => return None,
                Err(error) => self.fail(error, now),
            }
        }
    }

    /// Keeps what is unread in `overflow`, because others shall have their turn. Until [`Queue::poll_event`]
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

    fn receive(&mut self, overflow: &[u8]) -> Result<Step, FatalError> {
        match self.receiving {
            Receiving::Header => self.receive_header(overflow),
            Receiving::C2hData { cid, success } => Ok(self.receive_data(overflow, cid, success)),
        }
    }

    fn receive_header(&mut self, overflow: &[u8]) -> Result<Step, FatalError> {
        let Some(header) = self.receiver.receive_header(overflow)? else { return Ok(self.starved(overflow)) };
        if self.receiver.is_guessing() && !self.is_as_guessed(&header)? {
            self.give_up_guesses(overflow);
        }
        header.check_sequence(self.phase, PduType::IcResp, PduType::C2hTermReq)?;
        let step = self.handle_pdu(&header)?;
        self.receiver.clear_header();
        Ok(step)
    }

    /// Whether this PDU is the one that was guessed, or the response to a command whose memory is its own.
    #[inline]
    fn is_as_guessed(&self, header: &Header) -> Result<bool, FatalError> {
        match header.pdu_type {
            PduType::C2hData => {
                let data = self.c2h_data(header)?;
                Ok(data.datao == 0 && self.receiver.is_as_guessed(header, data.cccid, data.datal as usize))
            }
            PduType::CapsuleResp => {
                let entry = CapsuleResp::decode_checked(self.receiver.checked()?).entry;
                Ok(!self.receiver.is_guessed(entry.cid))
            }
            _ => Ok(false),
        }
    }

    /// Nothing is left to read, unless something lies where it does not belong.
    fn starved(&mut self, overflow: &[u8]) -> Step {
        if !self.receiver.is_guessing() {
            return Step::Starved;
        }
        self.give_up_guesses(overflow);
        Step::Again
    }

    /// What was read into guessed places is read again in the usual way.
    fn give_up_guesses(&mut self, overflow: &[u8]) {
        let commands = &mut self.commands;
        self.receiver.give_up_guesses(overflow, |cid, len, bytes| {
            let start = bytes.len();
            bytes.resize(start + len, 0);
            if let Some(buffer) = commands.destination(cid) {
                buffer.copy_to(0, &mut bytes[start..]);
            }
        });
    }

    fn handle_pdu(&mut self, header: &Header) -> Result<Step, FatalError> {
        match header.pdu_type {
            PduType::IcResp => self.handle_ic_resp().map(Step::Event),
            PduType::CapsuleResp => self.handle_response(),
            PduType::C2hData => self.handle_c2h_data(header),
            PduType::R2t => self.handle_r2t(),
            _ => self.handle_term_req(),
        }
    }

    fn handle_term_req(&mut self) -> Result<Step, FatalError> {
        let request = self.receiver.take_term_req()?;
        self.phase = Phase::Closed;
        Ok(Step::Event(Event::Terminated(Box::new(request))))
    }

    fn receive_data(&mut self, overflow: &[u8], cid: u16, success: bool) -> Step {
        let destination = destination(&mut self.commands, self.receiving);
        if !self.receiver.receive_body(overflow, destination) {
            return self.starved(overflow);
        }
        self.receiving = Receiving::Header;
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

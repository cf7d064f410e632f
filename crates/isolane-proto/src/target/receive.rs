//! The receiving half: from bytes to events.
//!
//! Invariant: the body that arrives belongs to what [`Receiving`] says, and that was decided from a header
//! that was checked whole.

use std::time::Instant;

use isolane_memory::{Buffer, Page};
use isolane_wire::Status;
use isolane_wire::pdu::{CapsuleCmd, CommonHeader, HeaderFault, PduType};

use super::Queue;
use super::capsule::transfer;
use super::event::Event;
use super::slots::{Refused, Slots};
use crate::queue::{self, FatalError, Fault, Header, Phase, ReceivePlan};

/// Whose bytes come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receiving {
    /// A header.
    Header,
    /// In-capsule data for which the driver has not given memory yet.
    Undecided { slot: u16 },
    /// In-capsule data of a command.
    InCapsule { slot: u16 },
    /// Data that was asked for.
    H2cData { slot: u16, ttag: u16, len: u32 },
    /// Data that nobody wants.
    Discard,
}

impl Queue {
    /// Where the next bytes of the connection go: the destinations of the running payload, then `overflow`.
    ///
    /// Pass the same overflow to the [`Queue::poll_event`]s that follow. It may be shared with other
    /// connections: when `poll_event` has returned `None`, nothing of it is needed any more.
    pub fn receive_plan<'a>(&'a mut self, overflow: &'a mut [u8]) -> ReceivePlan<'a> {
        let mut plan = ReceivePlan::new();
        self.fill_receive_plan(overflow, &mut plan);
        plan
    }

    /// Puts [`Queue::receive_plan`] into an empty plan.
    pub fn fill_receive_plan<'a>(&'a mut self, overflow: &'a mut [u8], plan: &mut ReceivePlan<'a>) {
        let shall_guess = self.receiver.shall_guess() && self.spares.are_usable();
        let destination = destination(&mut self.slots, self.receiving);
        match self.receiving {
            Receiving::Header | Receiving::InCapsule { .. } if shall_guess => {
                self.receiver.plan_ahead(plan, destination, self.spares.places(), overflow);
            }
            _ => self.receiver.plan(plan, destination, overflow),
        }
    }

    /// Lends pages for the next receive, which nobody else holds. The plan goes on with them, on the guess
    /// that the next capsules are as long as the last; data that was guessed right is not copied. Without
    /// them nothing is guessed.
    pub fn lend_spares(&mut self, spares: Vec<Page>) {
        self.spares.lend(spares);
    }

    /// As many pages as were lent: those, or the pages of buffers that have changed places with them. To be
    /// called when [`Queue::poll_event`] has returned `None`, or input was deferred, or the connection ends:
    /// what is unread in them is lost.
    pub fn take_spares(&mut self) -> Vec<Page> {
        if self.receiver.is_guessing() {
            self.receiver.discard();
        }
        self.spares.take()
    }

    /// The first `n` bytes of the last plan have been filled.
    pub fn handle_received(&mut self, n: usize) {
        let destination = destination(&mut self.slots, self.receiving);
        self.receiver.handle_received(n, destination.as_deref());
        if !self.phase.is_alive() {
            self.receiver.discard();
        }
    }

    /// The next event. `None`: everything received was understood, read on.
    pub fn poll_event(&mut self, overflow: &[u8], now: Instant) -> Option<Event> {
        loop {
            if self.event.is_some() {
                return self.event.take();
            }
            if !self.phase.is_alive() {
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

    /// Keeps what is unread in `overflow`, because no memory is free for the command that was just yielded,
    /// or because others shall have their turn. Until [`Queue::poll_event`] has used it up (pass any
    /// overflow), the receive plan is empty.
    pub fn defer_input(&mut self, overflow: &[u8]) {
        if self.receiver.is_guessing() {
            return self.give_up_guesses(overflow);
        }
        self.receiver.defer(overflow);
    }

    /// Bytes that were received and not looked at yet, beyond those in a place of their own.
    pub fn unread_bytes(&self) -> usize {
        self.receiver.unread_bytes()
    }

    /// Whether input was deferred and not used up: do not read from the connection, poll events instead.
    pub fn has_deferred_input(&self) -> bool {
        self.receiver.is_deferred()
    }

    #[inline]
    fn receive(&mut self, overflow: &[u8]) -> Result<Step, FatalError> {
        if self.receiving == Receiving::Header {
            self.receive_header(overflow)
        } else {
            Ok(self.receive_body(overflow))
        }
    }

    #[inline]
    fn receive_header(&mut self, overflow: &[u8]) -> Result<Step, FatalError> {
        let Some(header) = self.receiver.receive_header(overflow)? else { return Ok(self.starved(overflow)) };
        if self.receiver.is_guessing() && !self.is_as_guessed(&header) {
            self.give_up_guesses(overflow);
        }
        header.check_sequence(self.phase, PduType::IcReq, PduType::H2cTermReq)?;
        let step = self.handle_pdu(&header)?;
        self.receiver.clear_header();
        Ok(step)
    }

    /// Whether this PDU is the capsule that was guessed, or one without data, which may stand before it.
    fn is_as_guessed(&self, header: &Header) -> bool {
        let may_have_data = header.pdu_type == PduType::CapsuleCmd || header.shape.data_len == 0;
        may_have_data && self.receiver.is_shaped_as_guessed(header, 0)
    }

    /// Nothing is left to read, unless something lies where it does not belong.
    #[inline]
    fn starved(&mut self, overflow: &[u8]) -> Step {
        if !self.receiver.is_guessing() {
            return Step::Starved;
        }
        self.give_up_guesses(overflow);
        Step::Again
    }

    /// What was read into spare pages is read again in the usual way.
    #[cold]
    fn give_up_guesses(&mut self, overflow: &[u8]) {
        let spares = &self.spares;
        self.receiver.give_up_guesses(overflow, |at, len, bytes| spares.copy(at, len, bytes));
    }

    #[inline]
    fn handle_pdu(&mut self, header: &Header) -> Result<Step, FatalError> {
        match header.pdu_type {
            PduType::IcReq => self.handle_ic_req(),
            PduType::CapsuleCmd => self.handle_capsule(header),
            PduType::H2cData => self.handle_h2c_data(header),
            _ => self.handle_term_req(),
        }
    }

    /// A new command. What is wrong with it is its own affair, unless the capsule or the queue is wrong.
    #[inline]
    fn handle_capsule(&mut self, header: &Header) -> Result<Step, FatalError> {
        let data_len = header.shape.data_len;
        if data_len > self.limits.in_capsule_bytes_max as usize {
            return Err(FatalError::header(header.pdu_type.code(), HeaderFault::invalid(CommonHeader::PLEN)));
        }
        let entry = CapsuleCmd::decode_checked(self.receiver.checked()?, data_len as u32).entry;
        self.start_capsule_body(header);
        let permit = match self.slots.open(&entry) {
            Ok(permit) => permit,
            Err(Refused::CidConflict) => {
                self.refuse(&entry, Status::COMMAND_ID_CONFLICT);
                return Ok(Step::Again);
            }
            Err(Refused::Full) => return Err(FatalError::sequence(Fault::QueueOverrun(self.slots.limit()))),
        };
        let transfer = transfer(&entry, data_len as u32);
        self.expect_data(transfer, &permit);
        Ok(Step::Event(Event::Command { permit, entry, transfer }))
    }

    fn handle_term_req(&mut self) -> Result<Step, FatalError> {
        let request = self.receiver.take_term_req()?;
        self.phase = Phase::Closed;
        Ok(Step::Event(Event::Terminated(Box::new(request))))
    }

    /// Nobody wants the data of a capsule until its command is accepted.
    #[inline]
    pub(super) fn start_capsule_body(&mut self, header: &Header) {
        self.start_body(header, Receiving::Discard, 0);
        if header.shape.data_len > 0 {
            self.spares.learn(header.shape.data_len);
        }
    }

    /// What follows this header goes to `receiving`.
    pub(super) fn start_body(&mut self, header: &Header, receiving: Receiving, offset: usize) {
        if header.shape.data_len > 0 {
            self.receiver.start_body(header, offset);
            self.receiving = receiving;
        }
    }

    fn receive_body(&mut self, overflow: &[u8]) -> Step {
        if let Receiving::Undecided { .. } = self.receiving {
            self.receiving = Receiving::Discard;
        }
        let mut destination = destination(&mut self.slots, self.receiving);
        if let (Some((guess, placed)), Some(buffer)) = (self.receiver.landed(), &mut destination) {
            self.spares.settle(guess.cid, placed, buffer);
        }
        if !self.receiver.receive_body(overflow, destination) {
            self.grant_in_turns();
            return self.starved(overflow);
        }
        match std::mem::replace(&mut self.receiving, Receiving::Header) {
            Receiving::InCapsule { slot } => self.finish_transfer(slot, self.receiver.is_intact()),
            Receiving::H2cData { slot, ttag, len } => self.finish_h2c_data(slot, ttag, len),
            _ => Step::Again,
        }
    }
}

/// The memory that the running data goes to.
fn destination(slots: &mut Slots, receiving: Receiving) -> Option<&mut Buffer> {
    match receiving {
        Receiving::InCapsule { slot } | Receiving::H2cData { slot, .. } => {
            slots.receiving(slot)?.buffer.as_mut()
        }
        _ => None,
    }
}

/// What came of one step.
pub(super) type Step = queue::Step<Event>;

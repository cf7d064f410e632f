//! Receiving half of a target's connection: from bytes to events.
//!
//! Invariant: [`Receiving`] names the owner of the body that arrives, and was set from a header that was
//! checked completely.

use std::time::Instant;

use isolane_memory::{Buffer, Page};
use isolane_wire::Status;
use isolane_wire::pdu::{CapsuleCmd, CommonHeader, HeaderFault, PduType};

use super::Connection;
use super::capsule::transfer;
use super::event::{DataLocation, Event, Transfer};
use super::slots::{RejectReason, Slots};
use crate::connection::{self, FatalError, Header, Phase, ReceivePlan, Violation};

/// Owner of the next bytes.
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
    /// Data to discard.
    Discard,
}

impl Connection {
    /// Where the next bytes of the connection go: the destinations of the running payload, then `overflow`.
    ///
    /// Pass the same overflow to the [`Connection::poll_event`]s that follow. It may be shared with other
    /// connections: when `poll_event` has returned `None`, nothing of it is needed any more.
    pub fn receive_plan<'a>(&'a mut self, overflow: &'a mut [u8]) -> ReceivePlan<'a> {
        let mut plan = ReceivePlan::new();
        self.fill_receive_plan(overflow, &mut plan);
        plan
    }

    /// Puts [`Connection::receive_plan`] into an empty plan.
    pub fn fill_receive_plan<'a>(&'a mut self, overflow: &'a mut [u8], plan: &mut ReceivePlan<'a>) {
        let should_predict = self.receiver.should_predict() && self.staging.is_usable();
        let destination = destination(&mut self.slots, self.receiving);
        match self.receiving {
            Receiving::Header | Receiving::InCapsule { .. } if should_predict => {
                self.receiver.plan_ahead(plan, destination, self.staging.places(), overflow);
            }
            _ => self.receiver.plan(plan, destination, overflow),
        }
    }

    /// Lends pages for the next receive, which nobody else holds. The plan goes on with them, on the guess
    /// that the next capsules are as long as the last; data that was guessed right is not copied. Without
    /// them nothing is guessed.
    pub fn stage_pages(&mut self, staging: Vec<Page>) {
        self.staging.stage(staging);
    }

    /// As many pages as were lent: those, or the pages of buffers that have changed places with them. To be
    /// called when [`Connection::poll_event`] has returned `None`, or input was deferred, or the connection ends:
    /// what is unread in them is lost.
    pub fn take_staged(&mut self) -> Vec<Page> {
        if self.receiver.has_unverified() {
            self.receiver.discard();
        }
        self.staging.take()
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
                Ok(Step::Continue) => {}
                Ok(Step::NeedMoreData) => return None,
                Err(error) => {
                    self.receiver.keep_header(overflow);
                    self.fail(error, now);
                }
            }
        }
    }

    /// Keeps what is unread in `overflow`, because no memory is free for the command that was just yielded,
    /// or because others shall have their turn. Until [`Connection::poll_event`] has used it up (pass any
    /// overflow), the receive plan is empty.
    pub fn defer_input(&mut self, overflow: &[u8]) {
        if self.receiver.has_unverified() {
            return self.rollback_predictions(overflow);
        }
        self.receiver.defer(overflow);
    }

    /// Whether input was deferred and not used up: do not read from the connection, poll events instead.
    pub fn has_deferred_input(&self) -> bool {
        self.receiver.is_deferred()
    }

    /// The namespace and block that a command further ahead in the overflow begins at, if it is one of I/O; 0
    /// is the next command. A guess about bytes that nobody has checked yet, good for a hint only.
    #[inline]
    pub fn peek_block(&self, overflow: &[u8], ahead: usize) -> Option<(u32, u64)> {
        let unread = self.receiver.unread(overflow).get(ahead * self.receiver.capsule_len()..)?;
        let capsule: &[u8; CapsuleCmd::LEN] = unread.first_chunk()?;
        let entry = CapsuleCmd::decode_checked(capsule, 0).entry;
        Some((entry.nsid, entry.cdw10_11()))
    }

    #[inline(always)]
    fn receive(&mut self, overflow: &[u8]) -> Result<Step, FatalError> {
        if self.receiving != Receiving::Header {
            return Ok(self.receive_body(overflow));
        }
        let Some(header) = self.receiver.receive_header(overflow)? else {
            return Ok(self.on_input_exhausted(overflow));
        };
        if self.receiver.has_unverified() && !self.matches_prediction(&header) {
            self.rollback_predictions(overflow);
        }
        header.check_sequence(self.phase, PduType::IcReq, PduType::H2cTermReq)?;
        match header.pdu_type {
            PduType::CapsuleCmd => self.handle_capsule(&header, overflow),
            PduType::H2cData => self.handle_h2c_data(&header, overflow).map(|()| Step::Continue),
            PduType::IcReq => self.handle_ic_req(&header, overflow).map(|()| Step::Continue),
            _ => self.handle_term_req(&header, overflow).map(|()| Step::Continue),
        }
    }

    /// Whether this PDU is the predicted capsule, or one without data, which may precede it.
    fn matches_prediction(&self, header: &Header) -> bool {
        let may_have_data = header.pdu_type == PduType::CapsuleCmd || header.layout.data_len == 0;
        may_have_data && self.receiver.matches_predicted_layout(header)
    }

    /// Nothing is left to read, unless something lies where it does not belong.
    #[inline]
    fn on_input_exhausted(&mut self, overflow: &[u8]) -> Step {
        if !self.receiver.has_unverified() {
            return Step::NeedMoreData;
        }
        self.rollback_predictions(overflow);
        Step::Continue
    }

    /// What was read into spare pages is read again in the usual way.
    #[cold]
    fn rollback_predictions(&mut self, overflow: &[u8]) {
        let staging = &self.staging;
        self.receiver.rollback_predictions(overflow, |at, len, bytes| staging.copy(at, len, bytes));
    }

    /// A new command. Errors in it fail the command only, unless the capsule or the queue is at fault.
    #[inline(always)]
    fn handle_capsule(&mut self, header: &Header, overflow: &[u8]) -> Result<Step, FatalError> {
        let data_len = header.layout.data_len;
        if data_len > self.limits.max_in_capsule_bytes as usize {
            return Err(FatalError::header(header.pdu_type.code(), HeaderFault::invalid(CommonHeader::PLEN)));
        }
        let capsule = self.receiver.checked(overflow)?;
        let cid = CapsuleCmd::cid(capsule);
        let opened = self.slots.open(cid, || CapsuleCmd::decode_checked(capsule, data_len as u32).entry);
        let opened = opened.map(|(permit, entry)| (permit, transfer(entry, data_len as u32)));
        if let Err(RejectReason::Full) = opened {
            return Err(FatalError::sequence(Violation::QueueOverrun(self.slots.limit())));
        }
        self.receiver.consume_header(header);
        self.start_capsule_body(header);
        let Ok((permit, transfer)) = opened else {
            self.refuse(cid, Status::COMMAND_ID_CONFLICT);
            return Ok(Step::Continue);
        };
        if matches!(transfer, Transfer::FromHost { place: DataLocation::InCapsule, .. }) {
            self.receiving = Receiving::Undecided { slot: permit.slot() };
        }
        Ok(Step::Event(Event::Command { permit, transfer }))
    }

    #[cold]
    fn handle_term_req(&mut self, header: &Header, overflow: &[u8]) -> Result<(), FatalError> {
        let request = self.receiver.take_term_req(overflow, header)?;
        self.phase = Phase::Closed;
        self.event = Some(Event::Terminated(Box::new(request)));
        Ok(())
    }

    /// Nobody wants the data of a capsule until its command is accepted.
    #[inline]
    pub(super) fn start_capsule_body(&mut self, header: &Header) {
        self.start_body(header, Receiving::Discard, 0);
        if header.layout.data_len > 0 {
            self.staging.observe(header.layout.data_len);
        }
    }

    /// What follows this header goes to `receiving`.
    pub(super) fn start_body(&mut self, header: &Header, receiving: Receiving, offset: usize) {
        if header.layout.data_len > 0 {
            self.receiver.start_body(header, offset);
            self.receiving = receiving;
        }
    }

    fn receive_body(&mut self, overflow: &[u8]) -> Step {
        if let Receiving::Undecided { .. } = self.receiving {
            self.receiving = Receiving::Discard;
        }
        let mut destination = destination(&mut self.slots, self.receiving);
        if let (Some((guess, placed)), Some(buffer)) = (self.receiver.predicted_data(), &mut destination) {
            self.staging.settle(guess.cid, placed, buffer);
        }
        if !self.receiver.receive_body(overflow, destination) {
            self.issue_grants();
            return self.on_input_exhausted(overflow);
        }
        match std::mem::replace(&mut self.receiving, Receiving::Header) {
            Receiving::InCapsule { slot } => self.finish_transfer(slot, self.receiver.is_digest_ok()),
            Receiving::H2cData { slot, ttag, len } => self.finish_h2c_data(slot, ttag, len),
            _ => Step::Continue,
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

/// Result of one receive step.
pub(super) type Step = connection::Step<Event>;

//! Receiving half of a target's connection: from bytes to events.
//!
//! Invariant: [`Receiving`] names the owner of the current body, and was set from a completely
//! checked header.

use std::time::Instant;

use isolane_memory::{Buffer, Page};
use isolane_wire::pdu::{CapsuleCmd, CommonHeader, Digests, HeaderFault, IcReq, IcResp, PduType};
use isolane_wire::{Framing, SubmissionEntry};

use super::Connection;
use super::capsule::transfer;
use super::event::{DataLocation, Event, Transfer};
use super::permit::Permit;
use super::slots::{MAX_GRANTS, Slots};
use crate::connection::{self, FatalError, Header, Phase, Violation};
use crate::failure::Failure;
use isolane_connection::ReceivePlan;

/// Owner of the next bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receiving {
    /// A header.
    Header,
    /// In-capsule data for which the driver has not provided memory yet.
    Undecided { slot: u16 },
    /// In-capsule data of a command.
    InCapsule { slot: u16 },
    /// Requested data.
    H2cData { slot: u16, ttag: u16, len: u32 },
    /// Data to discard.
    Discard,
}

impl Connection {
    /// Returns the destinations of the next bytes: the current payload, then `overflow`.
    ///
    /// Pass the same overflow to the following calls of [`Connection::poll_event`]. Connections can
    /// share it: its content is unused after `poll_event` has returned `None`.
    pub fn receive_plan<'a>(&'a mut self, overflow: &'a mut [u8]) -> ReceivePlan<'a> {
        let mut plan = ReceivePlan::new();
        self.fill_receive_plan(overflow, &mut plan);
        plan
    }

    /// Fills an empty plan, as [`Connection::receive_plan`] does.
    pub fn fill_receive_plan<'a>(&'a mut self, overflow: &'a mut [u8], plan: &mut ReceivePlan<'a>) {
        let should_predict = self.receiver.should_predict() && self.staging.is_usable();
        let destination = destination(&mut self.slots, self.receiving);
        match self.receiving {
            Receiving::Header | Receiving::InCapsule { .. } if should_predict => {
                self.receiver.plan_ahead(plan, destination, self.staging.destinations(), overflow);
            }
            _ => self.receiver.plan(plan, destination, overflow),
        }
    }

    /// Provides unshared pages for the next receive. The plan continues with them, because the next
    /// capsules probably have the length of the last one; correctly predicted data is not copied.
    /// Without pages, nothing is predicted.
    pub fn stage_pages(&mut self, staging: Vec<Page>) {
        self.staging.stage(staging);
    }

    /// Returns the same number of pages: those provided, or pages of buffers that were swapped with
    /// them. Call this after [`Connection::poll_event`] has returned `None`, input was deferred, or
    /// the connection has ended: unread bytes in the pages are lost.
    pub fn take_staged(&mut self) -> Vec<Page> {
        if self.receiver.has_unverified() {
            self.receiver.discard();
        }
        self.staging.take()
    }

    /// Records that the first `n` bytes of the last plan have been filled.
    pub fn handle_received(&mut self, n: usize) {
        let destination = destination(&mut self.slots, self.receiving);
        self.receiver.handle_received(n, destination.as_deref());
        if !self.phase.is_alive() {
            self.receiver.discard();
        }
    }

    /// Returns the next event; `None` if more bytes must be received.
    pub fn poll_event(&mut self, overflow: &[u8], now: Instant) -> Option<Event> {
        loop {
            if let Some((permit, transfer)) = self.poll_command(overflow) {
                return Some(Event::Command { permit, transfer });
            }
            match self.poll_other(overflow, now) {
                Step::Event(event) => return Some(event),
                Step::Continue => {}
                Step::NeedMoreData => return None,
            }
        }
    }

    /// Copies the unread bytes out of `overflow`, because no memory is free for the last command,
    /// or because other connections can have their turn. Until [`Connection::poll_event`] has
    /// consumed them (pass any overflow), the receive plan is empty.
    pub fn defer_input(&mut self, overflow: &[u8]) {
        if self.receiver.has_unverified() {
            return self.rollback_predictions(overflow);
        }
        self.receiver.defer(overflow);
    }

    /// Returns a later command in the overflow; `ahead` is 0 for the next one. The bytes are unchecked, and can
    /// be old, so the result is only a hint.
    #[inline]
    pub fn peek_command(&self, overflow: &[u8], ahead: usize) -> Option<SubmissionEntry> {
        let headers = self.receiver.upcoming(overflow).get(ahead * self.receiver.capsule_len()..)?;
        Some(CapsuleCmd::decode(headers.first_chunk()?, 0).entry)
    }

    /// Accepts the command of the next capsule. `None`: call [`Connection::poll_other`]. Together, the two are
    /// [`Connection::poll_event`] without its loop and its large result.
    #[inline(always)]
    pub fn poll_command(&mut self, overflow: &[u8]) -> Option<(Permit, Transfer)> {
        if self.phase != Phase::Open || self.receiving != Receiving::Header {
            return None;
        }
        let (header, bytes) = self.receiver.header(overflow)?;
        let data_len = header.layout.data_len;
        let is_valid = header.pdu_type == PduType::CapsuleCmd
            && data_len <= self.limits.max_in_capsule_bytes
            && header.verify(bytes).is_ok()
            && !self.is_mispredicted(header);
        let capsule = bytes.first_chunk().filter(|_| is_valid)?;
        let decode = || CapsuleCmd::decode(capsule, data_len).entry;
        let (permit, entry) = self.slots.open(CapsuleCmd::cid(capsule), decode)?;
        let transfer = transfer(entry, data_len);
        let receiving = match transfer {
            Transfer::FromHost { place: DataLocation::InCapsule, .. } => {
                Receiving::Undecided { slot: permit.slot() }
            }
            _ => Receiving::Discard,
        };
        let header = *header;
        self.consume_capsule(&header, receiving);
        Some((permit, transfer))
    }

    /// Handles input that [`Connection::poll_command`] has not accepted.
    #[inline(never)]
    pub fn poll_other(&mut self, overflow: &[u8], now: Instant) -> Step {
        if let Some(event) = self.event.take() {
            return Step::Event(event);
        }
        if !self.phase.is_alive() {
            return Step::NeedMoreData;
        }
        if self.receiving != Receiving::Header {
            return self.receive_body(overflow);
        }
        self.receive_header(overflow).unwrap_or_else(|error| {
            self.receiver.save_header(overflow);
            self.fail(error, now);
            self.event.take().map_or(Step::Continue, Step::Event)
        })
    }

    fn receive_header(&mut self, overflow: &[u8]) -> Result<Step, FatalError> {
        let Some((header, bytes)) = self.receiver.header(overflow) else {
            return if self.receiver.parse_header(overflow)? {
                Ok(Step::Continue)
            } else {
                Ok(self.on_input_exhausted(overflow))
            };
        };
        let header = *header;
        header.verify(bytes)?;
        header.check_sequence(self.phase, PduType::IcReq, PduType::H2cTermReq)?;
        if self.is_mispredicted(&header) {
            self.rollback_predictions(overflow);
            return Ok(Step::Continue);
        }
        match header.pdu_type {
            PduType::CapsuleCmd => self.refuse_capsule(&header, overflow).map(|()| Step::Continue),
            PduType::H2cData => self.handle_h2c_data(&header, overflow).map(|()| Step::Continue),
            PduType::IcReq => self.handle_ic_req(&header, overflow),
            _ => self.handle_term_req(&header, overflow),
        }
    }

    /// Whether data was predicted, but this PDU is neither the predicted capsule nor a PDU without data, which
    /// can precede it.
    #[inline]
    fn is_mispredicted(&self, header: &Header) -> bool {
        let is_candidate = header.pdu_type == PduType::CapsuleCmd || header.data_len() == 0;
        self.receiver.has_unverified() && !(is_candidate && self.receiver.matches_predicted_layout(header))
    }

    /// Waits for more bytes, unless predicted bytes remain, which are read again.
    #[inline]
    fn on_input_exhausted(&mut self, overflow: &[u8]) -> Step {
        if !self.receiver.has_unverified() {
            return Step::NeedMoreData;
        }
        self.rollback_predictions(overflow);
        Step::Continue
    }

    /// Rolls back wrong predictions: the bytes in staged pages are read again.
    #[cold]
    fn rollback_predictions(&mut self, overflow: &[u8]) {
        let staging = &self.staging;
        self.receiver.rollback_predictions(overflow, |at, len, bytes| staging.copy(at, len, bytes));
    }

    /// Refuses a command that [`Connection::poll_command`] has not accepted. An error in the capsule or the
    /// queue fails the connection; a CID in use fails the command.
    fn refuse_capsule(&mut self, header: &Header, overflow: &[u8]) -> Result<(), FatalError> {
        if header.layout.data_len > self.limits.max_in_capsule_bytes {
            return Err(FatalError::header(header.pdu_type.code(), HeaderFault::invalid(CommonHeader::PLEN)));
        }
        let cid = self.receiver.decode(overflow, |capsule| Ok(CapsuleCmd::cid(capsule)))?;
        if !self.slots.is_open(cid) {
            return Err(FatalError::sequence(Violation::QueueOverrun(self.slots.limit())));
        }
        self.consume_capsule(header, Receiving::Discard);
        self.queue_response(cid, Failure::CidInUse.into());
        Ok(())
    }

    /// ICReq: queues ICResp and applies the negotiated parameters (TCP 1.0 §3.1).
    fn handle_ic_req(&mut self, header: &Header, overflow: &[u8]) -> Result<Step, FatalError> {
        let request = self.receiver.decode(overflow, IcReq::decode)?;
        self.receiver.consume_header(header);
        let digests = Digests::default()
            .with_header(request.digests.header() && self.limits.header_digest)
            .with_data(request.digests.data() && self.limits.data_digest);
        let framing = |pda| Framing { header_digest: digests.header(), data_digest: digests.data(), pda };
        self.receiver.set_framing(framing(self.limits.cpda));
        self.outbound = framing(request.hpda);
        self.outbound_plain = self.outbound == Framing::PLAIN;
        self.grants.max_per_command = MAX_GRANTS.min(request.maxr2t.saturating_add(1) as usize);
        let response = IcResp { cpda: self.limits.cpda, digests, maxh2cdata: self.limits.max_h2c_data_bytes };
        self.output.push::<24>(&response.encode(), None);
        self.phase = Phase::Open;
        Ok(Step::Event(Event::Connected(request)))
    }

    #[cold]
    fn handle_term_req(&mut self, header: &Header, overflow: &[u8]) -> Result<Step, FatalError> {
        let request = self.receiver.take_term_req(overflow, header)?;
        self.phase = Phase::Closed;
        Ok(Step::Event(Event::Terminated(Box::new(request))))
    }

    /// Consumes a capsule's header, and starts its data for `receiving`.
    #[inline]
    fn consume_capsule(&mut self, header: &Header, receiving: Receiving) {
        self.receiver.consume_header(header);
        if header.data_len() > 0 {
            self.start_body(header, receiving, 0);
            self.staging.observe(header.data_len());
        }
    }

    /// Starts the data after this header, if any, for `receiving`.
    pub(super) fn start_body(&mut self, header: &Header, receiving: Receiving, offset: usize) {
        if header.data_len() > 0 {
            self.receiver.start_body(header, offset);
            self.receiving = receiving;
        }
    }

    fn receive_body(&mut self, overflow: &[u8]) -> Step {
        if let Receiving::Undecided { .. } = self.receiving {
            self.receiving = Receiving::Discard;
        }
        let mut destination = destination(&mut self.slots, self.receiving);
        if let (Some((prediction, placed)), Some(buffer)) = (self.receiver.predicted_data(), &mut destination)
        {
            self.staging.settle(prediction.cid, placed, buffer);
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

/// The destination of the current data.
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

//! Receiving half of a target's connection: from bytes to events.
//!
//! Invariant: [`Receiving`] names the owner of the current body, and was set from a completely
//! checked header.

use std::time::Instant;

use isolane_memory::{Buffer, Page};
use isolane_wire::pdu::{CapsuleCmd, CommonHeader, Digests, HeaderFault, IcReq, IcResp, PduType};
use isolane_wire::{Framing, Status, SubmissionEntry};

use super::Connection;
use super::capsule::transfer;
use super::event::{DataLocation, Event, Transfer};
use super::permit::Permit;
use super::slots::{MAX_GRANTS, RejectReason, Slots};
use crate::Completion;
use crate::connection::{self, FatalError, Header, Phase, ReceivePlan, Violation, exact};

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
                    self.receiver.save_header(overflow);
                    self.fail(error, now);
                }
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

    #[inline(always)]
    fn receive(&mut self, overflow: &[u8]) -> Result<Step, FatalError> {
        if self.receiving != Receiving::Header {
            return Ok(self.receive_body(overflow));
        }
        let Some((header, bytes)) = self.receiver.header(overflow) else {
            return match self.receiver.parse_header(overflow)? {
                true => Ok(Step::Continue),
                false => Ok(self.on_input_exhausted(overflow)),
            };
        };
        header.verify(bytes)?;
        header.check_sequence(self.phase, PduType::IcReq, PduType::H2cTermReq)?;
        if self.receiver.has_unverified() && !self.matches_prediction(&header) {
            self.rollback_predictions(overflow);
            return Ok(Step::Continue);
        }
        match header.pdu_type {
            PduType::CapsuleCmd => {
                let max_data_bytes = self.limits.max_in_capsule_bytes;
                let opened = open_command(&mut self.slots, &header, bytes, max_data_bytes)?;
                Ok(self.handle_capsule(&header, opened))
            }
            PduType::H2cData => self.handle_h2c_data(&header, overflow).map(|()| Step::Continue),
            PduType::IcReq => self.handle_ic_req(&header, overflow).map(|()| Step::Continue),
            _ => self.handle_term_req(&header, overflow).map(|()| Step::Continue),
        }
    }

    /// Whether this PDU is the predicted capsule, or a PDU without data, which can precede it.
    fn matches_prediction(&self, header: &Header) -> bool {
        let is_candidate = header.pdu_type == PduType::CapsuleCmd || header.data_len() == 0;
        is_candidate && self.receiver.matches_predicted_layout(header)
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

    /// CapsuleCmd: accepts the opened command, or rejects the CID of a second one.
    #[inline(always)]
    fn handle_capsule(&mut self, header: &Header, opened: Result<(Permit, Transfer), u16>) -> Step {
        self.receiver.consume_header(header);
        self.start_capsule_body(header);
        match opened {
            Ok((permit, transfer)) => {
                if matches!(transfer, Transfer::FromHost { place: DataLocation::InCapsule, .. }) {
                    self.receiving = Receiving::Undecided { slot: permit.slot() };
                }
                Step::Event(Event::Command { permit, transfer })
            }
            Err(cid) => {
                self.queue_response(cid, Completion::failed(Status::COMMAND_ID_CONFLICT));
                Step::Continue
            }
        }
    }

    /// ICReq: queues ICResp and applies the negotiated parameters (TCP 1.0 §3.1).
    fn handle_ic_req(&mut self, header: &Header, overflow: &[u8]) -> Result<(), FatalError> {
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
        self.output.push(&response.encode());
        self.phase = Phase::Open;
        self.event = Some(Event::Connected(request));
        Ok(())
    }

    #[cold]
    fn handle_term_req(&mut self, header: &Header, overflow: &[u8]) -> Result<(), FatalError> {
        let request = self.receiver.take_term_req(overflow, header)?;
        self.phase = Phase::Closed;
        self.event = Some(Event::Terminated(Box::new(request)));
        Ok(())
    }

    /// Starts the data of a capsule, which is discarded unless the command is accepted.
    #[inline]
    fn start_capsule_body(&mut self, header: &Header) {
        self.start_body(header, Receiving::Discard, 0);
        if header.data_len() > 0 {
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

/// Opens the command of a capsule, or returns its CID if that is in use. An error in the command does not
/// fail the connection, unlike an error in the capsule or the queue.
#[inline(always)]
fn open_command(
    slots: &mut Slots,
    header: &Header,
    bytes: &[u8],
    max_data_bytes: u32,
) -> Result<Result<(Permit, Transfer), u16>, FatalError> {
    let data_len = header.layout.data_len;
    if data_len > max_data_bytes {
        return Err(FatalError::header(header.pdu_type.code(), HeaderFault::invalid(CommonHeader::PLEN)));
    }
    let capsule = exact(bytes)?;
    let cid = CapsuleCmd::cid(capsule);
    match slots.open(cid, || CapsuleCmd::decode(capsule, data_len).entry) {
        Ok((permit, entry)) => Ok(Ok((permit, transfer(entry, data_len)))),
        Err(RejectReason::CidConflict) => Ok(Err(cid)),
        Err(RejectReason::Full) => Err(FatalError::sequence(Violation::QueueOverrun(slots.limit()))),
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

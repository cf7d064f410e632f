//! Write data: in the capsule, or requested with R2T and sent in H2CData PDUs (TCP 1.0 §3.3.2).
//!
//! A host sends data in the order of the R2Ts, and its next command after the data. So a bounded
//! amount is requested at a time, scheduled by [`transfer_scheduler`](super::transfer_scheduler);
//! short data is requested immediately.
//!
//! Invariant: a grant is inside the command's data, and each of its bytes is accepted once. While
//! transfers wait, a grant is outstanding or no space is left.

use isolane_memory::Buffer;
use isolane_wire::pdu::{H2cData, HeaderFault, R2t};

use super::Connection;
use super::config::Scheduling;
use super::event::Event;
use super::permit::Permit;
use super::receive::{Receiving, Step};
use super::transfer_scheduler::TransferScheduler;
use crate::connection::{FatalError, Header, Violation};

/// Outstanding grants, and the transfers that wait for grants.
pub(super) struct Grants {
    scheduling: Scheduling,
    /// Maximum number of outstanding R2Ts of one command.
    pub(super) max_per_command: usize,
    /// Outstanding scheduled R2Ts in bytes, without completely received H2CData PDUs.
    outstanding_bytes: usize,
    /// Outstanding unscheduled R2Ts, in bytes.
    unscheduled_bytes: usize,
    /// Slots with data that was not requested yet.
    turns: TransferScheduler<u16>,
}

impl Grants {
    pub(super) fn new(scheduling: Scheduling) -> Grants {
        Grants {
            scheduling,
            max_per_command: 1,
            outstanding_bytes: 0,
            unscheduled_bytes: 0,
            turns: TransferScheduler::new(),
        }
    }

    /// Whether a transfer is granted without scheduling: it is short, and few such transfers are
    /// outstanding.
    fn is_unscheduled(&self, len: usize) -> bool {
        let share = self.scheduling.grant_bytes();
        len <= share / 4 && self.unscheduled_bytes + len <= share
    }

    /// Adds a slot with `left` bytes that were not requested yet.
    pub(super) fn wait(&mut self, slot: u16, left: usize) {
        self.turns.push(slot, left);
    }

    pub(super) fn outstanding(&mut self, unscheduled: bool) -> &mut usize {
        if unscheduled { &mut self.unscheduled_bytes } else { &mut self.outstanding_bytes }
    }
}

impl Connection {
    /// Receives the in-capsule data of the last command into `buffer`, which has exactly its
    /// length. Call this before the next [`Connection::poll_event`], which skips the data
    /// otherwise.
    ///
    /// # Panics
    /// If the permit does not belong to the last command, or the data has another length.
    pub fn receive_into(&mut self, permit: Permit, buffer: Buffer) {
        if !self.phase.is_alive() {
            return self.abandon(permit);
        }
        let slot = permit.slot();
        assert_eq!(
            self.receiving,
            Receiving::Undecided { slot },
            "in-capsule data must be received before the next event"
        );
        assert_eq!(buffer.len(), self.receiver.data_left(), "the buffer must have the length of the data");
        self.slots.park(permit, buffer);
        self.receiving = Receiving::InCapsule { slot };
    }

    /// Moves the in-capsule data of the last command into `buffer`, which has exactly its length, if all of it
    /// has arrived in staged pages. Then [`Event::Data`] does not follow. If this returns `false`, call
    /// [`Connection::receive_into`].
    #[inline]
    pub fn take_landed(&mut self, permit: &Permit, buffer: &mut Buffer) -> bool {
        if self.receiving != (Receiving::Undecided { slot: permit.slot() }) {
            return false;
        }
        debug_assert_eq!(buffer.len(), self.receiver.data_left());
        let Some(at) = self.receiver.take_landed_data() else { return false };
        self.staging.settle(at, buffer.len(), buffer);
        self.receiving = Receiving::Header;
        true
    }

    /// Requests the command's data, of the length of `buffer`, in R2Ts of bounded size and number:
    /// now, or when data of other commands arrives.
    ///
    /// # Panics
    /// If the buffer is empty: an R2T of zero length is invalid.
    pub fn request_data(&mut self, permit: Permit, buffer: Buffer) {
        if !self.phase.is_alive() {
            return self.abandon(permit);
        }
        assert!(!buffer.is_empty(), "an empty transfer was requested");
        let (at, len) = (permit.slot(), buffer.len());
        self.slots.park(permit, buffer);
        if len <= self.limits.max_r2t_bytes as usize && self.grants.is_unscheduled(len) {
            return self.send_r2t(at, len, true);
        }
        self.grants.turns.push(at, len);
        self.issue_grants();
    }

    /// Sends scheduled R2Ts while the limits allow.
    #[inline]
    pub(super) fn issue_grants(&mut self) {
        if !self.grants.turns.is_empty() {
            self.issue_grants_that_fit();
        }
    }

    #[inline(never)]
    fn issue_grants_that_fit(&mut self) {
        while let Some((at, len)) = self.next_grant() {
            self.send_r2t(at, len, false);
        }
    }

    /// The next slot to grant, and the length of the grant: all of the remaining space if no other
    /// transfer waits.
    fn next_grant(&mut self) -> Option<(u16, usize)> {
        let arrived = arrived_bytes(self.receiving, self.receiver.data_left());
        let Grants { scheduling, max_per_command, outstanding_bytes, turns, .. } = &mut self.grants;
        let outstanding = outstanding_bytes.saturating_sub(arrived);
        let space = scheduling.max_granted_bytes.saturating_sub(outstanding) & !4095;
        let is_alone = turns.len() == 1;
        let mut turn = turns.next(|at| self.slots.has_fewer_grants(*at, *max_per_command))?;
        let (at, left, share) = (*turn.what(), turn.left(), scheduling.grant_bytes());
        if space < left.min(share) {
            return None;
        }
        let len = left.min(if is_alone { space } else { share }).min(self.limits.max_r2t_bytes as usize);
        turn.take(len);
        Some((at, len))
    }

    fn send_r2t(&mut self, at: u16, len: usize, unscheduled: bool) {
        let Some(slot) = self.slots.receiving(at) else { return };
        let Some(grant) = slot.next_grant(at, len as u32, unscheduled) else { return };
        let (r2to, r2tl) = (grant.start, grant.end - grant.start);
        let r2t = R2t { cccid: slot.cid, ttag: grant.ttag, r2to, r2tl };
        *self.grants.outstanding(unscheduled) += r2tl as usize;
        self.output.push::<24>(&r2t.encode(&self.outbound), None);
    }

    /// H2CData: checks that it matches an R2T, and starts its data.
    pub(super) fn handle_h2c_data(&mut self, header: &Header, overflow: &[u8]) -> Result<(), FatalError> {
        let data = self.receiver.decode(overflow, |bytes| H2cData::decode(bytes, header.layout.data_len))?;
        let cid = data.cccid;
        let unknown = |at| Err(FatalError::new(Violation::UnknownTransfer(cid), HeaderFault::invalid(at)));
        let Some((at, slot, grant)) = self.slots.grant(data.ttag) else { return unknown(H2cData::TTAG) };
        if slot.cid != cid {
            return unknown(H2cData::CCCID);
        }
        if data.datal > self.limits.max_h2c_data_bytes {
            return Err(FatalError::new(Violation::DataLimit(data.datal), HeaderFault::limit_exceeded()));
        }
        let grant = slot.grants[grant];
        let (start, end) = (u64::from(data.datao), u64::from(data.datao) + u64::from(data.datal));
        if start < u64::from(grant.start) || end > u64::from(grant.end) {
            return Err(FatalError::new(Violation::DataRange(cid), HeaderFault::out_of_range()));
        }
        if data.datao != grant.next || data.last != (end == u64::from(grant.end)) {
            return Err(FatalError::sequence(Violation::DataOrder(cid)));
        }
        self.receiver.consume_header(header);
        let receiving = Receiving::H2cData { slot: at, ttag: data.ttag, len: data.datal };
        self.start_body(header, receiving, data.datao as usize);
        self.staging.observe(0);
        Ok(())
    }

    /// Handles the end of an H2CData PDU.
    pub(super) fn finish_h2c_data(&mut self, at: u16, ttag: u16, len: u32) -> Step {
        let digest_ok = self.receiver.is_digest_ok();
        let Some((_, slot, grant)) = self.slots.grant(ttag) else { return Step::Continue };
        *self.grants.outstanding(slot.grants[grant].unscheduled) -= len as usize;
        slot.digest_ok &= digest_ok;
        slot.received += len;
        slot.grants[grant].next += len;
        if slot.grants[grant].next == slot.grants[grant].end {
            slot.grants.remove(grant);
        }
        let is_complete = slot.is_complete();
        self.issue_grants();
        if is_complete { self.finish_transfer(at, true) } else { Step::Continue }
    }

    /// Handles the end of the data of a command: returns the permit to the driver.
    pub(super) fn finish_transfer(&mut self, at: u16, in_capsule_ok: bool) -> Step {
        match self.slots.unpark(at) {
            Some((permit, buffer, digest_ok)) => {
                Step::Event(Event::Data { permit, buffer, digest_ok: digest_ok && in_capsule_ok })
            }
            None => Step::Continue,
        }
    }
}

/// Number of received bytes of the current H2CData PDU. For an unscheduled transfer, they free
/// space a little early.
fn arrived_bytes(receiving: Receiving, data_left: usize) -> usize {
    match receiving {
        Receiving::H2cData { len, .. } => len as usize - data_left,
        _ => 0,
    }
}

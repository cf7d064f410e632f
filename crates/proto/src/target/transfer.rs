//! Write data: in the capsule, or asked for with R2T and brought by H2CData (TCP 1.0 §3.3.2).
//!
//! Invariant: what is granted lies inside the command's data, and every byte of it is accepted once.

use isolane_memory::Buffer;
use isolane_wire::pdu::{H2cData, HeaderFault, R2t};

use super::Queue;
use super::event::Event;
use super::permit::Permit;
use super::receive::{Receiving, Step};
use crate::queue::{FatalError, Fault, Header};

impl Queue {
    /// The in-capsule data of the command that was just yielded goes to `buffer`, which has exactly its
    /// length. Must come before the next [`Queue::poll_event`], which skips the data otherwise.
    ///
    /// # Panics
    /// If the command is not the one just yielded, or its data has another length.
    pub fn receive_into(&mut self, permit: Permit, buffer: Buffer) {
        if !self.phase.is_alive() {
            return self.abandon(permit);
        }
        let slot = permit.slot();
        assert_eq!(
            self.receiving,
            Receiving::Undecided { slot },
            "in-capsule data can be received only at once"
        );
        assert_eq!(buffer.len(), self.receiver.data_left(), "the buffer must have the length of the data");
        self.slots.deposit(permit, buffer);
        self.receiving = Receiving::InCapsule { slot };
    }

    /// Skips the in-capsule data of the command that was just yielded. The permit is still to be answered.
    pub fn discard_data(&mut self, permit: &Permit) {
        if self.receiving == (Receiving::Undecided { slot: permit.slot() }) {
            self.receiving = Receiving::Discard;
        }
    }

    /// Asks the host for the command's data, as many bytes as `buffer` has, in R2Ts of bounded size and number.
    ///
    /// # Panics
    /// If the buffer is empty: there is no R2T of zero length.
    pub fn request_data(&mut self, permit: Permit, buffer: Buffer) {
        if !self.phase.is_alive() {
            return self.abandon(permit);
        }
        assert!(!buffer.is_empty(), "a transfer of zero length was requested");
        let at = permit.slot();
        self.slots.deposit(permit, buffer);
        self.grant(at);
    }

    /// Sends as many R2Ts for a command as may be outstanding.
    fn grant(&mut self, at: u16) {
        let Some(slot) = self.slots.receiving(at) else { return };
        while slot.grants.len() < self.grants_max
            && let Some(grant) = slot.next_grant(at, self.limits.r2t_bytes_max)
        {
            let (r2to, r2tl) = (grant.start, grant.end - grant.start);
            let r2t = R2t { cccid: slot.cid(), ttag: grant.ttag, r2to, r2tl };
            self.output.push(&r2t.encode(&self.outbound));
        }
    }

    /// H2CData: everything about it must be what an R2T asked for.
    pub(super) fn handle_h2c_data(&mut self, header: &Header) -> Result<Step, FatalError> {
        let data = self.receiver.decode(H2cData::decode)?;
        let cid = data.cccid;
        let unknown = |at| Err(FatalError::new(Fault::UnknownTransfer { cid }, HeaderFault::invalid(at)));
        let Some((at, slot, grant)) = self.slots.grant(data.ttag) else { return unknown(H2cData::TTAG) };
        if slot.cid() != cid {
            return unknown(H2cData::CCCID);
        }
        if data.datal > self.limits.h2c_data_bytes_max {
            return Err(FatalError::new(Fault::DataLimit(data.datal), HeaderFault::limit_exceeded()));
        }
        let grant = slot.grants[grant];
        let (start, end) = (u64::from(data.datao), u64::from(data.datao) + u64::from(data.datal));
        if start < u64::from(grant.start) || end > u64::from(grant.end) {
            return Err(FatalError::new(Fault::DataRange { cid }, HeaderFault::out_of_range()));
        }
        if data.datao != grant.next || data.last != (end == u64::from(grant.end)) {
            return Err(FatalError::sequence(Fault::DataOrder { cid }));
        }
        let receiving = Receiving::H2cData { slot: at, ttag: data.ttag, len: data.datal };
        self.start_body(header, receiving, data.datao as usize);
        Ok(Step::Again)
    }

    /// The data of an H2CData PDU is in its place.
    pub(super) fn finish_h2c_data(&mut self, at: u16, ttag: u16, len: u32) -> Step {
        let is_intact = self.receiver.is_intact();
        let Some((_, slot, grant)) = self.slots.grant(ttag) else { return Step::Again };
        slot.is_intact &= is_intact;
        slot.received += len;
        slot.grants[grant].next += len;
        if slot.grants[grant].next == slot.grants[grant].end {
            slot.grants.remove(grant);
        }
        if slot.is_complete() {
            return self.finish_transfer(at, true);
        }
        self.grant(at);
        Step::Again
    }

    /// All data of a command is there: the permit goes back to the driver.
    pub(super) fn finish_transfer(&mut self, at: u16, is_intact: bool) -> Step {
        match self.slots.withdraw(at) {
            Some((permit, entry, buffer, intact)) => {
                Step::Event(Event::Data { permit, entry, buffer, intact: intact && is_intact })
            }
            None => Step::Again,
        }
    }
}

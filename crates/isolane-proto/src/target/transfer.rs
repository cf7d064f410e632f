//! Write data: in the capsule, or asked for with R2T and brought by H2CData (TCP 1.0 §3.3.2).
//!
//! A host sends what it was asked for in order, and its next command behind it. So a bounded amount is asked
//! for at a time, in turns ([`turns`](super::turns)), and what is short is asked for at once.
//!
//! Invariants: what is granted lies inside the command's data, and every byte of it is accepted once; as long
//! as anything waits to be granted, something is granted or there is no room.

use isolane_memory::Buffer;
use isolane_wire::pdu::{H2cData, HeaderFault, R2t};

use super::Queue;
use super::event::Event;
use super::limits::Scheduling;
use super::permit::Permit;
use super::receive::{Receiving, Step};
use super::turns::Turns;
use crate::queue::{FatalError, Fault, Header};

/// What is asked for, and what waits to be.
pub(super) struct Grants {
    scheduling: Scheduling,
    /// Most R2Ts outstanding for one command: what the host allows and we keep track of.
    per_command_max: usize,
    /// Bytes of outstanding R2Ts, but for H2CData PDUs that have arrived whole: those given in turns.
    outstanding_bytes: usize,
    /// Those given without a turn.
    extra_bytes: usize,
    /// Slots whose data was not asked for to its end.
    turns: Turns<u16>,
}

impl Grants {
    pub(super) fn new(scheduling: Scheduling) -> Grants {
        Grants { scheduling, per_command_max: 1, outstanding_bytes: 0, extra_bytes: 0, turns: Turns::new() }
    }

    pub(super) fn set_per_command_max(&mut self, max: usize) {
        self.per_command_max = max;
    }

    /// Whether a transfer is so short that it need not wait for its turn, as long as there are few of its
    /// kind.
    fn needs_no_turn(&self, len: usize) -> bool {
        let share = self.scheduling.grant_bytes();
        len <= share / 4 && self.extra_bytes + len <= share
    }

    fn outstanding(&mut self, is_extra: bool) -> &mut usize {
        if is_extra { &mut self.extra_bytes } else { &mut self.outstanding_bytes }
    }
}

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

    /// Asks the host for the command's data, as many bytes as `buffer` has, in R2Ts of bounded size and
    /// number: now or as data of other commands arrives.
    ///
    /// # Panics
    /// If the buffer is empty: there is no R2T of zero length.
    pub fn request_data(&mut self, permit: Permit, buffer: Buffer) {
        if !self.phase.is_alive() {
            return self.abandon(permit);
        }
        assert!(!buffer.is_empty(), "a transfer of zero length was requested");
        let (at, len) = (permit.slot(), buffer.len());
        self.slots.deposit(permit, buffer);
        if len <= self.limits.r2t_bytes_max as usize && self.grants.needs_no_turn(len) {
            return self.send_r2t(at, len, true);
        }
        self.grants.turns.enter(at, len);
        self.grant_in_turns();
    }

    /// Sends R2Ts in turns, as long as there is room for them.
    #[inline]
    pub(super) fn grant_in_turns(&mut self) {
        if !self.grants.turns.is_empty() {
            self.grant_what_fits();
        }
    }

    #[inline(never)]
    fn grant_what_fits(&mut self) {
        while let Some((at, len)) = self.next_grant() {
            self.send_r2t(at, len, false);
        }
    }

    /// Whose data to ask for, and how much of it: all there is room for if nothing else waits.
    fn next_grant(&mut self) -> Option<(u16, usize)> {
        let arrived = arrived_bytes(self.receiving, self.receiver.data_left());
        let Grants { scheduling, per_command_max, outstanding_bytes, turns, .. } = &mut self.grants;
        let outstanding = outstanding_bytes.saturating_sub(arrived);
        let room = scheduling.granted_bytes_max.saturating_sub(outstanding) & !4095;
        let is_alone = turns.len() == 1;
        let mut turn = turns.next(|at| self.slots.has_fewer_grants(*at, *per_command_max))?;
        let (at, left, share) = (*turn.what(), turn.left(), scheduling.grant_bytes());
        if room < left.min(share) {
            return None;
        }
        let len = left.min(if is_alone { room } else { share }).min(self.limits.r2t_bytes_max as usize);
        turn.take(len);
        Some((at, len))
    }

    fn send_r2t(&mut self, at: u16, len: usize, is_extra: bool) {
        let Some(slot) = self.slots.receiving(at) else { return };
        let Some(grant) = slot.next_grant(at, len as u32, is_extra) else { return };
        let (r2to, r2tl) = (grant.start, grant.end - grant.start);
        let r2t = R2t { cccid: slot.cid(), ttag: grant.ttag, r2to, r2tl };
        *self.grants.outstanding(is_extra) += r2tl as usize;
        self.output.push(&r2t.encode(&self.outbound));
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
        self.spares.learn(0);
        Ok(Step::Again)
    }

    /// The data of an H2CData PDU is in its place.
    pub(super) fn finish_h2c_data(&mut self, at: u16, ttag: u16, len: u32) -> Step {
        let is_intact = self.receiver.is_intact();
        let Some((_, slot, grant)) = self.slots.grant(ttag) else { return Step::Again };
        *self.grants.outstanding(slot.grants[grant].is_extra) -= len as usize;
        slot.is_intact &= is_intact;
        slot.received += len;
        slot.grants[grant].next += len;
        if slot.grants[grant].next == slot.grants[grant].end {
            slot.grants.remove(grant);
        }
        let is_complete = slot.is_complete();
        self.grant_in_turns();
        if is_complete { self.finish_transfer(at, true) } else { Step::Again }
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

/// What has come of an H2CData PDU that is under way; that of a short transfer makes room a little early.
fn arrived_bytes(receiving: Receiving, data_left: usize) -> usize {
    match receiving {
        Receiving::H2cData { len, .. } => len as usize - data_left,
        _ => 0,
    }
}

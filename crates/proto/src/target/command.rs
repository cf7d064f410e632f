//! The usual case of receiving, with less ado: a whole capsule whose header is like the last, and data that has landed in
//! its place.
//!
//! Invariant: it does what [`Queue::poll_event`] would do, or nothing at all.

use isolane_memory::Buffer;
use isolane_wire::SubmissionEntry;
use isolane_wire::pdu::CapsuleCmd;

use super::Queue;
use super::capsule::transfer;
use super::event::{Place, Transfer};
use super::permit::Permit;
use super::receive::Receiving;
use crate::queue::{Header, Phase};

impl Queue {
    /// The next command, read into `entry`, if nothing is out of the ordinary: an
    /// [`Event::Command`](super::Event::Command) in parts. `None`: ask [`Queue::poll_event`], which misses nothing.
    #[inline]
    pub fn poll_command(
        &mut self,
        overflow: &[u8],
        entry: &mut SubmissionEntry,
    ) -> Option<(Permit, Transfer)> {
        if self.receiving != Receiving::Header || self.event.is_some() || self.phase != Phase::Open {
            return None;
        }
        let header = self.receiver.peek_capsule(overflow, entry)?;
        let is_long = header.shape.data_len > self.limits.in_capsule_bytes_max as usize;
        if is_long || self.receiver.is_guessing() && !self.receiver.is_shaped_as_guessed(&header, header.len)
        {
            return None;
        }
        let permit = self.slots.open(entry).ok()?;
        self.receiver.take_header(&header);
        self.start_capsule_body(&header);
        let transfer = self.accept_capsule(&header, entry, &permit);
        self.receiver.clear_header();
        Some((permit, transfer))
    }

    /// The namespace and block that a command further ahead in the overflow begins at, if it is one of I/O; 0 is the next command.
    /// A guess about bytes that nobody has checked yet, good for a hint only.
    #[inline]
    pub fn upcoming_block(&self, overflow: &[u8], ahead: usize) -> Option<(u32, u64)> {
        let unread = self.receiver.unread(overflow).get(ahead * CapsuleCmd::LEN..)?;
        let capsule: &[u8; CapsuleCmd::LEN] = unread.first_chunk()?;
        let entry = CapsuleCmd::decode_checked(capsule, 0).entry;
        Some((entry.nsid, entry.cdw10_11()))
    }

    /// The command of this capsule is accepted: what follows belongs to it.
    #[inline]
    pub(super) fn accept_capsule(
        &mut self,
        header: &Header,
        entry: &SubmissionEntry,
        permit: &Permit,
    ) -> Transfer {
        let transfer = transfer(entry, header.shape.data_len as u32);
        if matches!(transfer, Transfer::FromHost { place: Place::InCapsule, .. }) {
            self.receiving = Receiving::Undecided { slot: permit.slot() };
        }
        transfer
    }

    /// Like [`Queue::receive_into`], if all of the data has landed where it was guessed to and needs no other look: then it is
    /// in the buffer now, and there will be no [`Event::Data`](super::Event::Data). Otherwise nothing has happened.
    #[inline]
    pub fn receive_landed(
        &mut self,
        permit: Permit,
        mut buffer: Buffer,
    ) -> Result<(Permit, Buffer), (Permit, Buffer)> {
        let is_next = self.receiving == Receiving::Undecided { slot: permit.slot() };
        match self.receiver.landed() {
            Some((guess, placed)) if is_next && placed == buffer.len() && !self.receiver.is_digested() => {
                self.spares.settle(guess.cid, placed, &mut buffer);
                self.receiver.receive_landed();
                self.receiving = Receiving::Header;
                Ok((permit, buffer))
            }
            _ => Err((permit, buffer)),
        }
    }
}

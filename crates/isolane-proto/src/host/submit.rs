//! Submission: a command becomes a capsule, which includes short write data (TCP 1.0 §3.3.1).

use isolane_wire::pdu::{CapsuleCmd, HeaderBytes};
use isolane_wire::{Framing, Sgl, SubmissionEntry};

use super::Connection;
use super::event::{Data, SubmitError, SubmitErrorKind};
use crate::connection::{Phase, push_data};

/// Reserved capacity for one command, whose submission cannot fail.
pub struct SubmitSlot<'a>(&'a mut Connection);

impl Connection {
    /// Queues a command. Fills in its CID, which is returned, and its data pointer.
    #[inline]
    pub fn submit(&mut self, entry: SubmissionEntry, data: Data, tag: u64) -> Result<u16, SubmitError> {
        match self.reserve() {
            Ok(slot) => Ok(slot.submit(entry, data, tag)),
            Err(kind) => Err(SubmitError { kind, data }),
        }
    }

    /// Reserves capacity for one command, so that a caller can create the command afterwards.
    #[inline]
    pub fn reserve(&mut self) -> Result<SubmitSlot<'_>, SubmitErrorKind> {
        match self.phase {
            Phase::Open if self.commands.in_flight() < self.depth => Ok(SubmitSlot(self)),
            Phase::Open => Err(SubmitErrorKind::Full),
            Phase::Handshake => Err(SubmitErrorKind::NotConnected),
            Phase::Draining(_) | Phase::Closed => Err(SubmitErrorKind::Ended),
        }
    }

    /// Lets a submitted read succeed with less data than its buffer holds, as for commands that give an allocation
    /// length. The remainder of the buffer then holds any bytes.
    pub fn accept_less(&mut self, cid: u16) {
        if let Some(command) = self.commands.find(cid) {
            command.accepts_less = true;
        }
    }
}

impl SubmitSlot<'_> {
    /// As [`Connection::submit`].
    #[inline(always)]
    pub fn submit(self, mut entry: SubmissionEntry, data: Data, tag: u64) -> u16 {
        let SubmitSlot(conn) = self;
        let len = data.len();
        let is_write = matches!(data, Data::Write(_));
        let is_in_capsule = is_write && 0 < len && len <= conn.max_in_capsule_bytes;
        let command = conn.commands.open(tag, data, conn.output.queued_bytes());
        command.by_r2t = is_write && !is_in_capsule;
        let cid = command.cid;
        entry.cid = cid;
        entry.flags = entry.flags.with_psdt(PSDT_SGL);
        entry.sgl = if is_in_capsule {
            Sgl::InCapsule { offset: 0, len: len as u32 }
        } else {
            Sgl::Transport { len: len as u32 }
        };
        let capsule = CapsuleCmd { entry, data_len: if is_in_capsule { len as u32 } else { 0 } };
        let payload = match &command.data {
            Data::Write(buffer) if is_in_capsule => Some(buffer.share(0, len)),
            _ => None,
        };
        // A header of constant length is built without checks of the framing.
        if conn.outbound == Framing::PLAIN {
            let mut bytes = HeaderBytes::<{ CapsuleCmd::LEN }>::empty();
            capsule.encode_to(&Framing::PLAIN, &mut bytes);
            conn.output.push::<{ CapsuleCmd::LEN }>(&bytes, payload);
        } else {
            let (header, digested) = (capsule.encode(&conn.outbound), conn.outbound.data_digest);
            push_data::<{ CapsuleCmd::LEN }>(
                &mut conn.output,
                &header,
                payload.unwrap_or_default(),
                digested,
            );
        }
        command.output_end = conn.output.queued_bytes();
        cid
    }
}

/// An SGL describes the data, and the metadata pointer a buffer: the only valid kind over fabrics.
const PSDT_SGL: u8 = 0b01;

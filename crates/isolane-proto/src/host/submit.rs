//! Commands become capsules, with their data where it is short enough (TCP 1.0 §3.3.1).

use isolane_wire::pdu::{CapsuleCmd, HeaderBytes};
use isolane_wire::{Sgl, SubmissionEntry};

use super::Connection;
use super::event::{Data, SubmitError, SubmitErrorKind};
use crate::connection::Phase;

/// Room for one command in a queue: what is put into it is not refused.
pub struct SubmitSlot<'a>(&'a mut Connection);

impl Connection {
    /// Queues a command. The queue fills in the CID (and returns it), the data pointer and its kind.
    #[inline]
    pub fn submit(&mut self, entry: SubmissionEntry, data: Data, tag: u64) -> Result<u16, SubmitError> {
        match self.reserve() {
            Ok(slot) => Ok(slot.submit(entry, data, tag)),
            Err(kind) => Err(SubmitError { kind, data }),
        }
    }

    /// Room for one command, for who makes the command only if there is some.
    #[inline]
    pub fn reserve(&mut self) -> Result<SubmitSlot<'_>, SubmitErrorKind> {
        match self.phase {
            Phase::Open if self.commands.in_flight() < self.depth => Ok(SubmitSlot(self)),
            Phase::Open => Err(SubmitErrorKind::Full),
            Phase::Handshake => Err(SubmitErrorKind::NotConnected),
            Phase::Draining(_) | Phase::Closed => Err(SubmitErrorKind::Ended),
        }
    }
}

impl SubmitSlot<'_> {
    /// As [`Connection::submit`].
    #[inline(always)]
    pub fn submit(self, mut entry: SubmissionEntry, data: Data, tag: u64) -> u16 {
        let SubmitSlot(queue) = self;
        let len = data.len();
        let is_write = matches!(data, Data::Write(_));
        let is_in_capsule = is_write && 0 < len && len <= queue.max_in_capsule_bytes;
        let command = queue.commands.open(tag, data, queue.output.queued_bytes());
        command.by_r2t = is_write && !is_in_capsule;
        let cid = command.cid();
        entry.cid = cid;
        entry.flags = entry.flags.with_psdt(PSDT_SGL);
        entry.sgl = match is_in_capsule {
            true => Sgl::InCapsule { offset: 0, len: len as u32 },
            false => Sgl::Transport { len: len as u32 },
        };
        let capsule = CapsuleCmd { entry, data_len: if is_in_capsule { len as u32 } else { 0 } };
        let mut bytes = HeaderBytes::empty();
        capsule.encode_to(&queue.outbound, &mut bytes);
        match &command.data {
            Data::Write(buffer) if is_in_capsule => {
                let payload = buffer.share(0, len);
                queue.output.push_command_with_data(&bytes, payload, queue.outbound.data_digest);
            }
            _ => queue.output.push_command(&bytes),
        }
        command.output_end = queue.output.queued_bytes();
        cid
    }
}

/// An SGL describes the data, and the metadata pointer a buffer: the only legal kind over fabrics.
const PSDT_SGL: u8 = 0b01;

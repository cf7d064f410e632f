//! Commands become capsules, with their data where it is short enough (TCP 1.0 §3.3.1).

use isolane_wire::pdu::{CapsuleCmd, HeaderBytes};
use isolane_wire::{Sgl, SubmissionEntry};

use super::Queue;
use super::event::{Data, Refusal, Rejected};
use crate::queue::Phase;

impl Queue {
    /// Queues a command. The queue fills in the CID (and returns it), the data pointer and its kind.
    #[inline(always)]
    pub fn submit(&mut self, mut entry: SubmissionEntry, data: Data, tag: u64) -> Result<u16, Rejected> {
        if let Some(refusal) = self.refusal() {
            return Err(Rejected { refusal, data });
        }
        let len = data.len();
        let is_write = matches!(data, Data::Write(_));
        let is_in_capsule = is_write && 0 < len && len <= self.in_capsule_bytes_max;
        let command = self.commands.open(tag, data, self.output.queued_bytes());
        command.is_by_r2t = is_write && !is_in_capsule;
        entry.cid = command.cid();
        entry.flags = entry.flags.with_psdt(PSDT_SGL);
        entry.sgl = match is_in_capsule {
            true => Sgl::InCapsule { offset: 0, len: len as u32 },
            false => Sgl::Transport { len: len as u32 },
        };
        let cid = entry.cid;
        let capsule = CapsuleCmd { entry, data_len: if is_in_capsule { len as u32 } else { 0 } };
        let mut bytes = HeaderBytes::blank();
        capsule.encode_to(&self.outbound, &mut bytes);
        match &command.data {
            Data::Write(buffer) if is_in_capsule => {
                self.output.push_with_data(&bytes, buffer.share(0, len), self.outbound.data_digest);
            }
            _ => self.output.push(&bytes),
        }
        command.output_end = self.output.queued_bytes();
        Ok(cid)
    }

    #[inline]
    fn refusal(&self) -> Option<Refusal> {
        match self.phase {
            Phase::Handshake => Some(Refusal::NotConnected),
            Phase::Open if self.room() == 0 => Some(Refusal::Full),
            Phase::Open => None,
            Phase::Draining(_) | Phase::Closed => Some(Refusal::Ended),
        }
    }
}

/// An SGL describes the data, and the metadata pointer a buffer: the only legal kind over fabrics.
const PSDT_SGL: u8 = 0b01;

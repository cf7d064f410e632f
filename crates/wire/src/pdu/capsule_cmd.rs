//! CapsuleCmd: a command, perhaps with its data (TCP 1.0 §3.6.2.6).

use super::{CommonHeader, HeaderBytes, HeaderFault, PduFlags, PduType, field, whole};
use crate::{Direction, Framing, SubmissionEntry};

/// Command capsule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapsuleCmd {
    /// The command.
    pub entry: SubmissionEntry,
    /// Bytes of in-capsule data; they follow at PDO.
    pub data_len: u32,
}

impl CapsuleCmd {
    /// Length of the header in bytes.
    pub const LEN: usize = 72;
    /// Offset of the submission queue entry.
    pub const ENTRY: usize = 8;

    /// Header, header digest and pad.
    #[inline]
    pub fn encode(&self, framing: &Framing) -> HeaderBytes {
        let mut bytes = HeaderBytes::new(PduType::CapsuleCmd, PduFlags(0), self.data_len, framing);
        bytes.put(Self::ENTRY, self.entry);
        bytes.finish(self.data_len != 0, framing)
    }

    /// Reads and checks the header.
    #[inline]
    pub fn decode(bytes: &[u8; Self::LEN], framing: &Framing) -> Result<Self, HeaderFault> {
        let header = CommonHeader::decode(whole(bytes)?)?;
        header.check(Direction::HostToController, framing)?;
        Ok(Self { entry: field(bytes, Self::ENTRY), data_len: header.data_len(framing) })
    }
}

//! CapsuleCmd: a command, perhaps with its data (TCP 1.0 §3.6.2.6).

use super::{CommonHeader, HeaderBytes, HeaderFault, PREFIX_LEN_MAX, PduFlags, PduType, field, whole};
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
    pub fn encode(&self, framing: &Framing) -> HeaderBytes<PREFIX_LEN_MAX> {
        let mut bytes = HeaderBytes::blank();
        self.encode_to(framing, &mut bytes);
        bytes
    }

    /// [`Self::encode`] into blank bytes.
    #[inline(always)]
    pub fn encode_to(&self, framing: &Framing, bytes: &mut HeaderBytes<PREFIX_LEN_MAX>) {
        bytes.start(PduType::CapsuleCmd, PduFlags(0), self.data_len, framing);
        bytes.put(Self::ENTRY, self.entry);
        bytes.finish(self.data_len != 0, framing);
    }

    /// Reads and checks the header.
    #[inline]
    pub fn decode(bytes: &[u8; Self::LEN], framing: &Framing) -> Result<Self, HeaderFault> {
        let header = CommonHeader::decode(whole(bytes)?)?;
        header.check(Direction::HostToController, framing)?;
        Ok(Self::decode_checked(bytes, header.data_len(framing)))
    }

    /// Reads what stands behind a common header that was checked and tells of `data_len` bytes of data.
    #[inline]
    pub fn decode_checked(bytes: &[u8; Self::LEN], data_len: u32) -> Self {
        Self { entry: field(bytes, Self::ENTRY), data_len }
    }
}

//! CapsuleCmd: a command, optionally with data (TCP 1.0 §3.6.2.6).

use super::{HeaderBytes, MAX_PREFIX_LEN, PduFlags, PduType, field};
use crate::{Framing, SubmissionEntry};

/// Command capsule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapsuleCmd {
    /// The command.
    pub entry: SubmissionEntry,
    /// Length of the in-capsule data at PDO, in bytes.
    pub data_len: u32,
}

impl CapsuleCmd {
    /// Length of the header in bytes.
    pub const LEN: usize = 72;
    /// Offset of the submission queue entry.
    pub const ENTRY: usize = 8;

    /// Header, header digest and pad.
    #[inline]
    pub fn encode(&self, framing: &Framing) -> HeaderBytes<MAX_PREFIX_LEN> {
        let mut bytes = HeaderBytes::empty();
        self.encode_to(framing, &mut bytes);
        bytes
    }

    /// Encodes into new bytes, as [`Self::encode`].
    ///
    /// # Panics
    /// If `N` is too small for the framing; [`Self::LEN`] suffices for [`Framing::PLAIN`].
    #[inline(always)]
    pub fn encode_to<const N: usize>(&self, framing: &Framing, bytes: &mut HeaderBytes<N>) {
        bytes.start(PduType::CapsuleCmd, PduFlags(0), self.data_len, framing);
        bytes.write(Self::ENTRY, self.entry);
        bytes.finish(self.data_len != 0, framing);
    }

    /// Decodes the fields after a checked common header with `data_len` bytes of data.
    #[inline]
    pub fn decode(bytes: &[u8; Self::LEN], data_len: u32) -> Self {
        Self { entry: field(bytes, Self::ENTRY), data_len }
    }

    /// Returns the command identifier, from a header whose entry is not decoded yet.
    #[inline]
    pub fn cid(bytes: &[u8; Self::LEN]) -> u16 {
        field(bytes, Self::ENTRY + 2)
    }
}

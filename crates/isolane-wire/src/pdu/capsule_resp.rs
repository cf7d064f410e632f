//! CapsuleResp: the result of a command (TCP 1.0 §3.6.2.7).

use super::{HeaderBytes, PduFlags, PduType, field};
use crate::{CompletionEntry, Framing};

/// Response capsule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CapsuleResp {
    /// Completion of the command.
    pub entry: CompletionEntry,
}

impl CapsuleResp {
    /// Length of the header in bytes.
    pub const LEN: usize = 24;
    /// Offset of the completion queue entry.
    pub const ENTRY: usize = 8;

    /// Header and header digest: the whole PDU.
    #[inline]
    pub fn encode(&self, framing: &Framing) -> HeaderBytes<{ Self::LEN + Framing::DIGEST_LEN }> {
        let mut bytes = HeaderBytes::new(PduType::CapsuleResp, PduFlags(0), 0, framing);
        bytes.write(Self::ENTRY, self.entry);
        bytes.finish(false, framing);
        bytes
    }

    /// Decodes the fields after a checked common header.
    #[inline]
    pub fn decode(bytes: &[u8; Self::LEN]) -> Self {
        Self { entry: field(bytes, Self::ENTRY) }
    }
}

//! R2T: the controller is ready for a part of a command's data (TCP 1.0 §3.6.2.10).

use super::{HeaderBytes, HeaderFault, PduFlags, PduType, TransferFields};
use crate::Framing;

/// Ready to transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct R2t {
    /// CCCID: command identifier.
    pub cccid: u16,
    /// TTAG: tag that the H2CData PDUs must carry.
    pub ttag: u16,
    /// R2TO: offset of the requested range in the command's data, in bytes.
    pub r2to: u32,
    /// R2TL: length of the requested range in bytes; never 0.
    pub r2tl: u32,
}

impl R2t {
    /// Length of the header in bytes.
    pub const LEN: usize = 24;
    /// Offset of CCCID.
    pub const CCCID: usize = 8;
    /// Offset of TTAG.
    pub const TTAG: usize = 10;
    /// Offset of R2TL.
    pub const R2TL: usize = 16;

    /// Header and header digest: the whole PDU.
    #[inline]
    pub fn encode(&self, framing: &Framing) -> HeaderBytes<{ Self::LEN + Framing::DIGEST_LEN }> {
        let mut bytes = HeaderBytes::new(PduType::R2t, PduFlags(0), 0, framing);
        let R2t { cccid, ttag, r2to: offset, r2tl: len } = *self;
        bytes.write(0, TransferFields { cccid, ttag, offset, len });
        bytes.finish(false, framing);
        bytes
    }

    /// Decodes and checks the fields after a checked common header.
    #[inline]
    pub fn decode(bytes: &[u8; Self::LEN]) -> Result<Self, HeaderFault> {
        let TransferFields { cccid, ttag, offset: r2to, len: r2tl } = TransferFields::decode(bytes);
        if r2tl == 0 {
            return Err(HeaderFault::invalid(Self::R2TL));
        }
        Ok(Self { cccid, ttag, r2to, r2tl })
    }
}

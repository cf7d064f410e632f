//! H2CData: data of a command from the host, as requested by an R2T (TCP 1.0 §3.6.2.8).

use super::{
    CommonHeader, HeaderBytes, HeaderFault, MAX_PREFIX_LEN, PduFlags, PduType, TransferFields, field,
};
use crate::Framing;

/// Host to controller data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct H2cData {
    /// CCCID: command identifier.
    pub cccid: u16,
    /// TTAG: transfer tag of the R2T.
    pub ttag: u16,
    /// DATAO: offset in the command's data, in bytes.
    pub datao: u32,
    /// DATAL: data length of this PDU, in bytes; never 0.
    pub datal: u32,
    /// LAST_PDU: this is the last data for its R2T.
    pub last: bool,
}

impl H2cData {
    /// Length of the header in bytes.
    pub const LEN: usize = 24;
    /// Offset of CCCID.
    pub const CCCID: usize = 8;
    /// Offset of TTAG.
    pub const TTAG: usize = 10;
    /// Offset of DATAL.
    pub const DATAL: usize = 16;

    /// Header, header digest and pad.
    #[inline]
    pub fn encode(&self, framing: &Framing) -> HeaderBytes<MAX_PREFIX_LEN> {
        let flags = PduFlags(0).with_last(self.last);
        let mut bytes = HeaderBytes::new(PduType::H2cData, flags, self.datal, framing);
        let H2cData { cccid, ttag, datao: offset, datal: len, .. } = *self;
        bytes.write(0, TransferFields { cccid, ttag, offset, len });
        bytes.finish(self.datal != 0, framing);
        bytes
    }

    /// Decodes and checks the fields after a checked common header with `data_len` bytes of
    /// data.
    #[inline]
    pub fn decode(bytes: &[u8; Self::LEN], data_len: u32) -> Result<Self, HeaderFault> {
        let flags: PduFlags = field(bytes, CommonHeader::FLAGS);
        let TransferFields { cccid, ttag, offset: datao, len: datal } = TransferFields::decode(bytes);
        check_datal(datal, data_len)?;
        Ok(Self { cccid, ttag, datao, datal, last: flags.last() })
    }
}

/// Checks that PLEN and DATAL agree and are not 0. PLEN is reported, because it is the first of the
/// two fields.
#[inline]
pub(super) fn check_datal(datal: u32, data_len: u32) -> Result<(), HeaderFault> {
    if datal == 0 {
        return Err(HeaderFault::invalid(H2cData::DATAL));
    }
    if datal != data_len {
        return Err(HeaderFault::invalid(CommonHeader::PLEN));
    }
    Ok(())
}

//! C2HData: data of a command from the controller (TCP 1.0 §3.6.2.9).

use super::{
    CommonHeader, HeaderBytes, HeaderFault, MAX_PREFIX_LEN, PduFlags, PduType, TransferFields, field,
    h2c_data::check_datal,
};
use crate::Framing;

/// Controller to host data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct C2hData {
    /// CCCID: command identifier.
    pub cccid: u16,
    /// DATAO: offset in the command's data, in bytes.
    pub datao: u32,
    /// DATAL: data length of this PDU, in bytes; never 0.
    pub datal: u32,
    /// LAST_PDU: this is the last data of its command.
    pub last: bool,
    /// SUCCESS: the command succeeded and no response capsule follows. Only together with `last`.
    pub success: bool,
}

impl C2hData {
    /// Length of the header in bytes.
    pub const LEN: usize = 24;
    /// Offset of CCCID.
    pub const CCCID: usize = 8;

    /// Header, header digest and pad.
    #[inline(always)]
    pub fn encode(&self, framing: &Framing) -> HeaderBytes<MAX_PREFIX_LEN> {
        let flags = PduFlags(0).with_last(self.last).with_success(self.success);
        let mut bytes = HeaderBytes::new(PduType::C2hData, flags, self.datal, framing);
        let C2hData { cccid, datao: offset, datal: len, .. } = *self;
        bytes.write(0, TransferFields { cccid, ttag: 0, offset, len });
        bytes.finish(self.datal != 0, framing);
        bytes
    }

    /// Decodes and checks the fields after a checked common header with `data_len` bytes of
    /// data.
    #[inline]
    pub fn decode(bytes: &[u8; Self::LEN], data_len: u32) -> Result<Self, HeaderFault> {
        let flags: PduFlags = field(bytes, CommonHeader::FLAGS);
        let TransferFields { cccid, offset: datao, len: datal, .. } = TransferFields::decode(bytes);
        check_datal(datal, data_len)?;
        Ok(Self { cccid, datao, datal, last: flags.last(), success: flags.success() })
    }
}

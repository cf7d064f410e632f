//! C2HData: data of a command from the controller (TCP 1.0 §3.6.2.9).

use super::{
    CommonHeader, HeaderBytes, HeaderFault, PREFIX_LEN_MAX, PduFlags, PduType, field, h2c_data::check_datal,
    whole,
};
use crate::{Direction, Framing};

/// Controller to host data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct C2hData {
    /// CCCID: the command this data belongs to.
    pub cccid: u16,
    /// DATAO: where it belongs, from the start of the command's data in bytes.
    pub datao: u32,
    /// DATAL: bytes of data in this PDU; never 0.
    pub datal: u32,
    /// LAST_PDU: this is the last data of its command.
    pub last: bool,
    /// SUCCESS: the command ended well, no response capsule follows. Only together with `last`.
    pub success: bool,
}

impl C2hData {
    /// Length of the header in bytes.
    pub const LEN: usize = 24;
    /// Offset of CCCID.
    pub const CCCID: usize = 8;
    /// Offset of DATAO.
    pub const DATAO: usize = 12;
    /// Offset of DATAL.
    pub const DATAL: usize = 16;

    /// Header, header digest and pad.
    #[inline(always)]
    pub fn encode(&self, framing: &Framing) -> HeaderBytes<PREFIX_LEN_MAX> {
        let flags = PduFlags(0).with_last(self.last).with_success(self.success);
        let mut bytes = HeaderBytes::new(PduType::C2hData, flags, self.datal, framing);
        bytes.put(Self::CCCID, self.cccid);
        bytes.put(Self::DATAO, self.datao);
        bytes.put(Self::DATAL, self.datal);
        bytes.finish(self.datal != 0, framing);
        bytes
    }

    /// Reads and checks the header; PLEN has to be what PDO and DATAL demand.
    #[inline]
    pub fn decode(bytes: &[u8; Self::LEN], framing: &Framing) -> Result<Self, HeaderFault> {
        let header = CommonHeader::decode(whole(bytes)?)?;
        header.check(Direction::ControllerToHost, framing)?;
        Self::decode_checked(bytes, header.data_len(framing))
    }

    /// Reads and checks what stands behind a common header that was checked and tells of `data_len` bytes of
    /// data.
    #[inline]
    pub fn decode_checked(bytes: &[u8; Self::LEN], data_len: u32) -> Result<Self, HeaderFault> {
        let flags: PduFlags = field(bytes, CommonHeader::FLAGS);
        let this = Self {
            cccid: field(bytes, Self::CCCID),
            datao: field(bytes, Self::DATAO),
            datal: field(bytes, Self::DATAL),
            last: flags.last(),
            success: flags.success(),
        };
        check_datal(this.datal, data_len)?;
        Ok(this)
    }
}

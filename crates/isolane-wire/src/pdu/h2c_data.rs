//! H2CData: data of a command from the host, as an R2T asked for it (TCP 1.0 §3.6.2.8).

use super::{CommonHeader, HeaderBytes, HeaderFault, PREFIX_LEN_MAX, PduFlags, PduType, field, whole};
use crate::{Direction, Framing};

/// Host to controller data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct H2cData {
    /// CCCID: the command this data belongs to.
    pub cccid: u16,
    /// TTAG: the tag of the R2T it answers.
    pub ttag: u16,
    /// DATAO: where it belongs, from the start of the command's data in bytes.
    pub datao: u32,
    /// DATAL: bytes of data in this PDU; never 0.
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
    /// Offset of DATAO.
    pub const DATAO: usize = 12;
    /// Offset of DATAL.
    pub const DATAL: usize = 16;

    /// Header, header digest and pad.
    #[inline]
    pub fn encode(&self, framing: &Framing) -> HeaderBytes<PREFIX_LEN_MAX> {
        let flags = PduFlags(0).with_last(self.last);
        let mut bytes = HeaderBytes::new(PduType::H2cData, flags, self.datal, framing);
        bytes.put(Self::CCCID, self.cccid);
        bytes.put(Self::TTAG, self.ttag);
        bytes.put(Self::DATAO, self.datao);
        bytes.put(Self::DATAL, self.datal);
        bytes.finish(self.datal != 0, framing);
        bytes
    }

    /// Reads and checks the header; PLEN has to be what PDO and DATAL demand.
    #[inline]
    pub fn decode(bytes: &[u8; Self::LEN], framing: &Framing) -> Result<Self, HeaderFault> {
        let header = CommonHeader::decode(whole(bytes)?)?;
        header.check(Direction::HostToController, framing)?;
        Self::decode_checked(bytes, header.data_len(framing))
    }

    /// Reads and checks what stands behind a common header that was checked and tells of `data_len` bytes of
    /// data.
    #[inline]
    pub fn decode_checked(bytes: &[u8; Self::LEN], data_len: u32) -> Result<Self, HeaderFault> {
        let flags: PduFlags = field(bytes, CommonHeader::FLAGS);
        let this = Self {
            cccid: field(bytes, Self::CCCID),
            ttag: field(bytes, Self::TTAG),
            datao: field(bytes, Self::DATAO),
            datal: field(bytes, Self::DATAL),
            last: flags.last(),
        };
        check_datal(this.datal, data_len)?;
        Ok(this)
    }
}

/// PLEN and DATAL have to agree (PLEN is the lower field, so it is the one to blame), and there has to be
/// data.
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

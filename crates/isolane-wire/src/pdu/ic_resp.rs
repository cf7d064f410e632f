//! ICResp: the controller's response to ICReq (TCP 1.0 §3.6.2.3).

use super::{Digests, HeaderBytes, HeaderFault, IcReq, PduFlags, PduType, field, ic_req::check_format};
use crate::Framing;

/// Initialize connection response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IcResp {
    /// CPDA: alignment of the data that the host sends, in dwords, 0's based, 0 to 31.
    pub cpda: u8,
    /// Digests in use from now on; a subset of the requested ones.
    pub digests: Digests,
    /// MAXH2CDATA: maximum data of one H2CData PDU in bytes; at least 4,096 and a multiple of 4.
    pub maxh2cdata: u32,
}

impl IcResp {
    /// Length of the header and of the PDU in bytes.
    pub const LEN: usize = 128;
    /// Offset of CPDA.
    pub const CPDA: usize = IcReq::HPDA;
    /// Offset of DGST.
    pub const DGST: usize = IcReq::DGST;
    /// Offset of MAXH2CDATA.
    pub const MAXH2CDATA: usize = 12;
    /// Minimum of MAXH2CDATA in bytes.
    pub const MIN_MAXH2CDATA: u32 = 4096;

    /// Encodes the PDU.
    pub fn encode(&self) -> HeaderBytes<{ Self::LEN }> {
        let mut bytes = HeaderBytes::new(PduType::IcResp, PduFlags(0), 0, &Framing::default());
        bytes.write(Self::CPDA, self.cpda);
        bytes.write(Self::DGST, self.digests);
        bytes.write(Self::MAXH2CDATA, self.maxh2cdata);
        bytes
    }

    /// Decodes the fields after a checked common header.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Result<Self, HeaderFault> {
        let this = Self {
            cpda: bytes[Self::CPDA],
            digests: field::<Digests>(bytes, Self::DGST).known(),
            maxh2cdata: field(bytes, Self::MAXH2CDATA),
        };
        check_format(bytes, this.cpda)?;
        if this.maxh2cdata < Self::MIN_MAXH2CDATA || !this.maxh2cdata.is_multiple_of(4) {
            return Err(HeaderFault::invalid(Self::MAXH2CDATA));
        }
        Ok(this)
    }
}

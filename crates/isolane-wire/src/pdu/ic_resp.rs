//! ICResp: the controller's response to ICReq (TCP 1.0 §3.6.2.3).

use super::{Digests, HeaderBytes, HeaderFault, IcReq, PduType, ic_req};

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
    /// Offset of DGST.
    pub const DGST: usize = IcReq::DGST;
    /// Offset of MAXH2CDATA.
    pub const MAXH2CDATA: usize = IcReq::MAXR2T;
    /// Minimum of MAXH2CDATA in bytes.
    pub const MIN_MAXH2CDATA: u32 = 4096;

    /// Encodes the PDU.
    pub fn encode(&self) -> HeaderBytes<{ Self::LEN }> {
        ic_req::encode(PduType::IcResp, self.cpda, self.digests, self.maxh2cdata)
    }

    /// Decodes the fields after a checked common header.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Result<Self, HeaderFault> {
        let (cpda, digests, maxh2cdata) = ic_req::decode(bytes)?;
        if maxh2cdata < Self::MIN_MAXH2CDATA || !maxh2cdata.is_multiple_of(4) {
            return Err(HeaderFault::invalid(Self::MAXH2CDATA));
        }
        Ok(Self { cpda, digests, maxh2cdata })
    }
}

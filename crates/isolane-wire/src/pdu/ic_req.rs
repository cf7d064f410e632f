//! ICReq: the first PDU of a connection, from the host (TCP 1.0 §3.6.2.2).

use super::{HeaderBytes, HeaderFault, PduFlags, PduType, field};
use crate::Framing;

bits! {
    /// DGST: digests requested (ICReq) or chosen (ICResp).
    pub struct Digests(u8) {
        /// HDGST_ENABLE.
        header / with_header: bool = [0:0],
        /// DDGST_ENABLE.
        data / with_data: bool = [1:1],
    }
}

/// Initialize connection request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct IcReq {
    /// HPDA: alignment of the data that the controller sends, in dwords, 0's based, 0 to 31.
    pub hpda: u8,
    /// Requested digests.
    pub digests: Digests,
    /// MAXR2T: maximum outstanding R2Ts per command, 0's based.
    pub maxr2t: u32,
}

impl IcReq {
    /// Length of the header and of the PDU in bytes.
    pub const LEN: usize = 128;
    /// Offset of the PDU format version; 0 is the only one.
    pub const PFV: usize = 8;
    /// Offset of HPDA.
    pub const HPDA: usize = 10;
    /// Offset of DGST.
    pub const DGST: usize = 11;
    /// Offset of MAXR2T.
    pub const MAXR2T: usize = 12;

    /// Encodes the PDU.
    pub fn encode(&self) -> HeaderBytes<{ Self::LEN }> {
        encode(PduType::IcReq, self.hpda, self.digests, self.maxr2t)
    }

    /// Decodes the fields after a checked common header. TCP 1.0 §3.1: an unknown format is an
    /// unsupported parameter, an alignment above 31 an invalid field.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Result<Self, HeaderFault> {
        let (hpda, digests, maxr2t) = decode(bytes)?;
        Ok(Self { hpda, digests, maxr2t })
    }
}

/// Encodes ICReq or ICResp, which have the same fields; the last one is MAXR2T or MAXH2CDATA.
pub(super) fn encode(pdu_type: PduType, pda: u8, digests: Digests, max: u32) -> HeaderBytes<{ IcReq::LEN }> {
    let mut bytes = HeaderBytes::new(pdu_type, PduFlags(0), 0, &Framing::default());
    bytes.write(IcReq::HPDA, pda);
    bytes.write(IcReq::DGST, digests);
    bytes.write(IcReq::MAXR2T, max);
    bytes
}

/// Decodes the fields of ICReq or ICResp; clears reserved bits of the digests.
pub(super) fn decode(bytes: &[u8; IcReq::LEN]) -> Result<(u8, Digests, u32), HeaderFault> {
    let (pda, digests): (u8, Digests) = (bytes[IcReq::HPDA], field(bytes, IcReq::DGST));
    if field::<u16>(bytes, IcReq::PFV) != 0 {
        return Err(HeaderFault::unsupported(IcReq::PFV));
    }
    if pda > Framing::MAX_PDA {
        return Err(HeaderFault::invalid(IcReq::HPDA));
    }
    let known = Digests(0).with_header(digests.header()).with_data(digests.data());
    Ok((pda, known, field(bytes, IcReq::MAXR2T)))
}

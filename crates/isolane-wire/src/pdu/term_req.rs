//! H2CTermReq and C2HTermReq: one side ends the connection and says why (TCP 1.0 §3.6.2.4, §3.6.2.5).

use core::fmt;

use super::{CommonHeader, FatalErrorStatus, HeaderBytes, HeaderFault, PduFlags, PduType, field, whole};
use crate::{Direction, Framing};

/// Terminate connection request, in either direction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TermReq {
    /// Who sends it.
    pub from: Direction,
    /// FES as it came, see [`Self::status`].
    pub fes: u16,
    /// FEI: more about the error, its meaning depends on FES.
    pub fei: u32,
    header: [u8; Self::HEADER_LEN_MAX],
    header_len: u8,
}

impl TermReq {
    /// Length of the header in bytes; the offending PDU's header follows.
    pub const LEN: usize = 24;
    /// The longest PDU in bytes.
    pub const PLEN_MAX: usize = Self::LEN + Self::HEADER_LEN_MAX;
    /// Offset of FES.
    pub const FES: usize = 8;
    /// Offset of FEI; not aligned to its size.
    pub const FEI: usize = 10;

    const HEADER_LEN_MAX: usize = 128;

    /// The request that answers this fault of a PDU whose header (or what arrived of it) is `offender`.
    pub fn new(from: Direction, fault: HeaderFault, offender: &[u8]) -> Self {
        Self::with(from, fault.fes.code(), fault.fei, offender)
    }

    /// The error in words; `None` for a code that the specification does not define.
    pub fn status(&self) -> Option<FatalErrorStatus> {
        FatalErrorStatus::decode(self.fes)
    }

    /// The header that the peer complains about, up to 128 bytes.
    pub fn offender(&self) -> &[u8] {
        &self.header[..usize::from(self.header_len)]
    }

    /// The whole PDU; digests never apply.
    pub fn encode(&self) -> HeaderBytes<{ Self::PLEN_MAX }> {
        let pdu_type = match self.from {
            Direction::HostToController => PduType::H2cTermReq,
            Direction::ControllerToHost => PduType::C2hTermReq,
        };
        let mut bytes = HeaderBytes::new(pdu_type, PduFlags(0), 0, &Framing::default());
        bytes.put(Self::FES, self.fes);
        bytes.put(Self::FEI, self.fei);
        bytes.append(self.offender());
        bytes
    }

    /// Reads the whole PDU, or its header alone if the offending header has not been kept. Never longer than
    /// PLEN says.
    pub fn decode(bytes: &[u8]) -> Result<Self, HeaderFault> {
        let header = CommonHeader::decode(whole(bytes)?)?;
        header.check(header.pdu_type.direction(), &Framing::default())?;
        if !matches!(header.pdu_type, PduType::H2cTermReq | PduType::C2hTermReq) {
            return Err(HeaderFault::invalid(CommonHeader::TYPE));
        }
        let fixed: &[u8; Self::LEN] = whole(bytes)?;
        let end = bytes.len().min(header.plen as usize);
        let (fes, fei) = (field(fixed, Self::FES), field(fixed, Self::FEI));
        Ok(Self::with(header.pdu_type.direction(), fes, fei, &bytes[Self::LEN..end]))
    }

    fn with(from: Direction, fes: u16, fei: u32, offender: &[u8]) -> Self {
        let header_len = offender.len().min(Self::HEADER_LEN_MAX);
        let mut header = [0; Self::HEADER_LEN_MAX];
        header[..header_len].copy_from_slice(&offender[..header_len]);
        Self { from, fes, fei, header, header_len: header_len as u8 }
    }
}

impl fmt::Display for TermReq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status() {
            Some(fes) => write!(f, "{}", HeaderFault { fes, fei: self.fei }),
            None => write!(f, "unknown fatal error {:#x} (information {:#x})", self.fes, self.fei),
        }
    }
}

impl fmt::Debug for TermReq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TermReq({:?}: {self}; {:02x?})", self.from, self.offender())
    }
}

//! H2CTermReq and C2HTermReq: terminate the connection with an error (TCP 1.0 §3.6.2.4, §3.6.2.5).

use core::fmt;

use super::{CommonHeader, FatalErrorStatus, HeaderBytes, HeaderFault, PduFlags, PduType, field, whole};
use crate::{Direction, Framing};

/// Terminate connection request, in either direction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TermReq {
    /// Sender.
    pub from: Direction,
    /// FES as received, see [`Self::status`].
    pub fes: u16,
    /// FEI: details of the error, depending on FES.
    pub fei: u32,
    header: [u8; Self::MAX_HEADER_LEN],
    header_len: u8,
}

impl TermReq {
    /// Length of the header in bytes; the offending PDU's header follows.
    pub const LEN: usize = 24;
    /// Maximum length of the PDU in bytes.
    pub const MAX_PLEN: usize = CommonHeader::MAX_TERM_REQ_PLEN as usize;
    /// Offset of FES.
    pub const FES: usize = 8;
    /// Offset of FEI; not aligned to its size.
    pub const FEI: usize = 10;

    const MAX_HEADER_LEN: usize = Self::MAX_PLEN - Self::LEN;

    /// Creates the request for this fault of a PDU with the given header, possibly truncated.
    pub fn new(from: Direction, fault: HeaderFault, offending_header: &[u8]) -> Self {
        Self::with(from, fault.fes.code(), fault.fei, offending_header)
    }

    /// Returns the error; `None` for an undefined code.
    pub fn status(&self) -> Option<FatalErrorStatus> {
        FatalErrorStatus::decode(self.fes)
    }

    /// Returns the offending header, up to 128 bytes.
    pub fn offending_header(&self) -> &[u8] {
        &self.header[..usize::from(self.header_len)]
    }

    /// Encodes the PDU; digests never apply.
    pub fn encode(&self) -> HeaderBytes<{ Self::MAX_PLEN }> {
        let pdu_type = match self.from {
            Direction::HostToController => PduType::H2cTermReq,
            Direction::ControllerToHost => PduType::C2hTermReq,
        };
        let mut bytes = HeaderBytes::new(pdu_type, PduFlags(0), 0, &Framing::default());
        bytes.write(Self::FES, self.fes);
        bytes.write(Self::FEI, self.fei);
        bytes.append(self.offending_header());
        bytes
    }

    /// Decodes the PDU, or its header alone if the offending header was not received. Uses at most
    /// PLEN bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, HeaderFault> {
        let header = CommonHeader::decode(whole(bytes)?)?;
        header.check(header.pdu_type.direction(), &Framing::default())?;
        if !header.pdu_type.is_term_req() {
            return Err(HeaderFault::invalid(CommonHeader::TYPE));
        }
        let fixed: &[u8; Self::LEN] = whole(bytes)?;
        let end = bytes.len().min(header.plen as usize);
        let (fes, fei) = (field(fixed, Self::FES), field(fixed, Self::FEI));
        Ok(Self::with(header.pdu_type.direction(), fes, fei, &bytes[Self::LEN..end]))
    }

    fn with(from: Direction, fes: u16, fei: u32, offending_header: &[u8]) -> Self {
        let header_len = offending_header.len().min(Self::MAX_HEADER_LEN);
        let mut header = [0; Self::MAX_HEADER_LEN];
        header[..header_len].copy_from_slice(&offending_header[..header_len]);
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
        write!(f, "TermReq({:?}: {self}; {:02x?})", self.from, self.offending_header())
    }
}

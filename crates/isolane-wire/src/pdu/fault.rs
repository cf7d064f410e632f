//! Errors that are fatal to a connection (TCP 1.0 §3.5, §3.6.2.4, §3.6.2.5).

use core::fmt;

codes! {
    /// FES of a TermReq.
    pub enum FatalErrorStatus: u16 {
        InvalidHeaderField = 0x01, "invalid PDU header field";
        PduSequenceError = 0x02, "PDU sequence error";
        HeaderDigestError = 0x03, "header digest error";
        DataTransferOutOfRange = 0x04, "data transfer out of range";
        LimitExceeded = 0x05, "data transfer limit (from a host: R2T limit) exceeded";
        UnsupportedParameter = 0x06, "unsupported parameter";
    }
}

/// First invalid field of a header, as reported in the receiver's TermReq.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeaderFault {
    /// Fatal error status.
    pub fes: FatalErrorStatus,
    /// Fatal error information: offset of the field in the header in bytes, or the received digest.
    pub fei: u32,
}

impl HeaderFault {
    /// Returns Invalid PDU Header Field at this offset.
    pub const fn invalid(offset: usize) -> Self {
        Self { fes: FatalErrorStatus::InvalidHeaderField, fei: offset as u32 }
    }

    /// Returns Unsupported Parameter at this offset.
    pub const fn unsupported(offset: usize) -> Self {
        Self { fes: FatalErrorStatus::UnsupportedParameter, fei: offset as u32 }
    }

    /// Returns Header Digest Error with the received digest.
    pub const fn header_digest(received: u32) -> Self {
        Self { fes: FatalErrorStatus::HeaderDigestError, fei: received }
    }

    /// Returns PDU Sequence Error, without further information.
    pub const fn sequence() -> Self {
        Self { fes: FatalErrorStatus::PduSequenceError, fei: 0 }
    }

    /// Returns Data Transfer Out of Range, without further information.
    pub const fn out_of_range() -> Self {
        Self { fes: FatalErrorStatus::DataTransferOutOfRange, fei: 0 }
    }

    /// Returns Data Transfer (or R2T) Limit Exceeded, without further information.
    pub const fn limit_exceeded() -> Self {
        Self { fes: FatalErrorStatus::LimitExceeded, fei: 0 }
    }
}

impl fmt::Display for HeaderFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use FatalErrorStatus as Fes;
        match self.fes {
            Fes::InvalidHeaderField | Fes::UnsupportedParameter => {
                write!(f, "{} at byte {}", self.fes, self.fei)
            }
            Fes::HeaderDigestError => write!(f, "{} (received {:#010x})", self.fes, self.fei),
            _ => write!(f, "{}", self.fes),
        }
    }
}

impl core::error::Error for HeaderFault {}

//! Protocol violations of a peer, and the TermReq that reports them (TCP 1.0 §3.5).

use isolane_wire::pdu::{CommonHeader, HeaderFault};

/// A fatal error of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{violation}")]
pub struct FatalError {
    /// Cause.
    pub violation: Violation,
    /// FES and FEI of the queued TermReq; `None` if the connection closes without one.
    pub status: Option<HeaderFault>,
}

/// A protocol violation by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A PDU type that does not exist or belongs to the other direction.
    #[error("invalid PDU type {0:#04x} for this direction")]
    PduType(u8),
    /// The first bytes of another protocol.
    #[error("the peer speaks {0}, not NVMe/TCP; check address and port")]
    ForeignProtocol(&'static str),
    /// A PDU that is invalid at this time.
    #[error("PDU of type {0:#04x} out of sequence")]
    Sequence(u8),
    /// A header field with an invalid value, or an unsupported parameter.
    #[error("PDU of type {pdu_type:#04x} has an {fault}")]
    Header {
        /// The PDU's type.
        pdu_type: u8,
        /// The lowest wrong field.
        fault: HeaderFault,
    },
    /// The header digest does not match.
    #[error("wrong header digest: data was corrupted in the network or in memory")]
    HeaderDigest,
    /// Data for a tag or command without a pending transfer.
    #[error("unexpected data for command {0:#06x}")]
    UnknownTransfer(u16),
    /// Data that does not continue at the end of the last PDU, or a wrong LAST flag.
    #[error("data of command {0:#06x} out of order")]
    DataOrder(u16),
    /// Data outside of the requested range.
    #[error("data outside the range of command {0:#06x}")]
    DataRange(u16),
    /// More data in one PDU than MAXH2CDATA.
    #[error("H2CData PDU of {0} bytes exceeds MAXH2CDATA")]
    DataLimit(u32),
    /// An R2T outside of the command's data, or an overlapping one.
    #[error("R2T outside the range of command {0:#06x}")]
    R2tRange(u16),
    /// More R2Ts for one command than MAXR2T.
    #[error("R2Ts for command {0:#06x} exceed MAXR2T")]
    R2tLimit(u16),
    /// More commands than the queue has entries.
    #[error("more commands than the {0} entries of the queue")]
    QueueOverrun(usize),
    /// A response to a command that is not in flight.
    #[error("response to command {0:#06x}, which is not in flight")]
    UnknownCommand(u16),
    /// A command completed successfully although not all of its data was transferred.
    #[error("command {0:#06x} succeeded before all of its data was transferred")]
    ShortTransfer(u16),
    /// A SUCCESS flag that was not negotiated.
    #[error("SUCCESS flag for command {0:#06x} although flow control is in use")]
    SuccessFlag(u16),
    /// A digest that was not requested.
    #[error("digests enabled that were not requested")]
    Digests,
    /// A TermReq of invalid length.
    #[error("TermReq of invalid length")]
    TermReq,
    /// No successful handshake in time.
    #[error("handshake timed out")]
    HandshakeTimeout,
    /// A stalled transfer.
    #[error("transfer stalled")]
    Stalled,
}

impl FatalError {
    /// An error that is reported in a TermReq.
    pub(crate) fn new(violation: Violation, status: HeaderFault) -> FatalError {
        FatalError { violation, status: Some(status) }
    }

    /// An error that closes the connection without a TermReq.
    pub(crate) fn without_term_req(violation: Violation) -> FatalError {
        FatalError { violation, status: None }
    }

    /// An invalid header of a PDU of this type.
    pub(crate) fn header(pdu_type: u8, fault: HeaderFault) -> FatalError {
        let is_type = fault == HeaderFault::invalid(CommonHeader::TYPE);
        let violation =
            if is_type { Violation::PduType(pdu_type) } else { Violation::Header { pdu_type, fault } };
        Self::new(violation, fault)
    }

    /// A PDU that is out of sequence.
    pub(crate) fn sequence(violation: Violation) -> FatalError {
        Self::new(violation, HeaderFault::sequence())
    }
}

//! What a peer did wrong, and how the specification wants it told (TCP 1.0 §3.5).

use isolane_wire::pdu::{CommonHeader, HeaderFault};

/// The connection cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{fault}")]
pub struct FatalError {
    /// What happened.
    pub fault: Fault,
    /// FES and FEI of the TermReq that was queued; none if the connection is closed without one.
    pub status: Option<HeaderFault>,
}

/// What the peer ("it") did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A PDU type that does not exist or belongs to the other direction.
    #[error("it sent a PDU of type {0:#04x}, which nobody may send in this direction")]
    PduType(u8),
    /// A PDU that may not come now.
    #[error("it sent a PDU of type {0:#04x} out of sequence")]
    Sequence(u8),
    /// A header field with an impossible value, or an unsupported parameter.
    #[error("it sent a PDU of type {pdu_type:#04x} with an {fault}")]
    Header {
        /// The PDU's type.
        pdu_type: u8,
        /// The lowest wrong field.
        fault: HeaderFault,
    },
    /// The header digest does not match.
    #[error("it sent a header with a wrong digest: the network or a memory on the way corrupts data")]
    HeaderDigest,
    /// Data for a tag or command that does not await any.
    #[error("it sent data for command {cid:#06x}, which awaits none")]
    UnknownTransfer {
        /// The CID it named.
        cid: u16,
    },
    /// Data does not continue where the last PDU ended, or LAST is misused.
    #[error("it sent data of command {cid:#06x} out of order")]
    DataOrder {
        /// The command.
        cid: u16,
    },
    /// Data outside of the range that was agreed.
    #[error("it sent data outside of the range of command {cid:#06x}")]
    DataRange {
        /// The command.
        cid: u16,
    },
    /// More data in one PDU than announced with MAXH2CDATA.
    #[error("it sent {0} bytes in one H2CData PDU, which is more than MAXH2CDATA")]
    DataLimit(u32),
    /// An R2T outside of the command's data, or one that overlaps another.
    #[error("it asks for data outside of the range of command {cid:#06x}")]
    R2tRange {
        /// The command.
        cid: u16,
    },
    /// More R2Ts for one command than MAXR2T.
    #[error("it sent more R2Ts for command {cid:#06x} than MAXR2T allows")]
    R2tLimit {
        /// The command.
        cid: u16,
    },
    /// More commands than the queue has entries.
    #[error("it sent more commands than the queue of {0} entries holds")]
    QueueOverrun(usize),
    /// An answer for a command that is not in flight.
    #[error("it answered command {cid:#06x}, which is not in flight")]
    UnknownCommand {
        /// The CID.
        cid: u16,
    },
    /// A command completed successfully although not all of its data was transferred.
    #[error("it completed command {cid:#06x} successfully before all of its data had been transferred")]
    ShortTransfer {
        /// The command.
        cid: u16,
    },
    /// A success that was told in a way that was not agreed.
    #[error("it left out the response of command {cid:#06x} although flow control is in use")]
    SuccessFlag {
        /// The command.
        cid: u16,
    },
    /// A digest that was not asked for.
    #[error("it turned on digests that were not asked for")]
    Digests,
    /// A TermReq that cannot be one.
    #[error("it sent a termination request of impossible length")]
    TermReq,
    /// No successful handshake in time.
    #[error("it did not finish the handshake in time")]
    HandshakeTimeout,
    /// A transfer stood still.
    #[error("it let a transfer stand still for too long")]
    Stalled,
}

impl FatalError {
    /// An error that is told in a TermReq.
    pub(crate) fn new(fault: Fault, status: HeaderFault) -> FatalError {
        FatalError { fault, status: Some(status) }
    }

    /// An error after which the connection is closed at once.
    pub(crate) fn silent(fault: Fault) -> FatalError {
        FatalError { fault, status: None }
    }

    /// A wrong header of a PDU of this type.
    pub(crate) fn header(pdu_type: u8, fault: HeaderFault) -> FatalError {
        let is_type = fault == HeaderFault::invalid(CommonHeader::TYPE);
        let what = if is_type { Fault::PduType(pdu_type) } else { Fault::Header { pdu_type, fault } };
        Self::new(what, fault)
    }

    /// A PDU that may not come now.
    pub(crate) fn sequence(fault: Fault) -> FatalError {
        Self::new(fault, HeaderFault::sequence())
    }
}

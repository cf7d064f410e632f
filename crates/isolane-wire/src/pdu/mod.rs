//! The PDUs of NVMe/TCP (TCP 1.0 §3.6), one file each.
//!
//! A receiver reads 8 bytes, decodes them with [`CommonHeader::decode`], checks them with
//! [`CommonHeader::check`], reads the remaining header (HLEN) and the header digest, compares the
//! digest, and then decodes the header as a [`HostPdu`] or [`ControllerPdu`]. A sender encodes a
//! PDU to [`HeaderBytes`]: header, header digest, and pad, to be followed by its data and
//! [`crate::digest`].
//!
//! Order, tags, ranges, and limits depend on connection state and are checked by `isolane-proto`.

mod c2h_data;
mod capsule_cmd;
mod capsule_resp;
mod common;
mod fault;
mod h2c_data;
mod header_bytes;
mod ic_req;
mod ic_resp;
mod r2t;
mod term_req;
#[cfg(test)]
mod tests;
mod transfer;

pub use c2h_data::C2hData;
pub use capsule_cmd::CapsuleCmd;
pub use capsule_resp::CapsuleResp;
pub use common::{CommonHeader, PduFlags, PduType};
pub use fault::{FatalErrorStatus, HeaderFault};
pub use h2c_data::H2cData;
pub use header_bytes::HeaderBytes;
pub use ic_req::{Digests, IcReq};
pub use ic_resp::IcResp;
pub use r2t::R2t;
pub use term_req::TermReq;
pub use transfer::TransferFields;

use crate::{Direction, Framing};

/// Maximum bytes before the data of a PDU: a CapsuleCmd with header digest (76 bytes) whose data is
/// aligned to 72 bytes. (Alignments need not be powers of two; 128 bytes is not the worst.)
pub const MAX_PREFIX_LEN: usize = 144;

/// A PDU that a host sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostPdu {
    /// Initialize connection request.
    IcReq(IcReq),
    /// The host terminates the connection.
    TermReq(TermReq),
    /// A command, optionally with data.
    CapsuleCmd(CapsuleCmd),
    /// Data of a command.
    H2cData(H2cData),
}

impl HostPdu {
    /// Decodes the HLEN bytes of a header (more may follow) that a host sent.
    pub fn decode(bytes: &[u8], framing: &Framing) -> Result<Self, HeaderFault> {
        let header = checked(bytes, Direction::HostToController, framing)?;
        match header.pdu_type {
            PduType::IcReq => IcReq::decode(whole(bytes)?).map(Self::IcReq),
            PduType::H2cTermReq => TermReq::decode(bytes).map(Self::TermReq),
            PduType::CapsuleCmd => {
                Ok(Self::CapsuleCmd(CapsuleCmd::decode(whole(bytes)?, header.data_len(framing))))
            }
            PduType::H2cData => H2cData::decode(whole(bytes)?, header.data_len(framing)).map(Self::H2cData),
            _ => Err(HeaderFault::invalid(CommonHeader::TYPE)),
        }
    }
}

/// A PDU that a controller sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerPdu {
    /// Initialize connection response.
    IcResp(IcResp),
    /// The controller terminates the connection.
    TermReq(TermReq),
    /// Completion of a command.
    CapsuleResp(CapsuleResp),
    /// Data of a command.
    C2hData(C2hData),
    /// The controller is ready for data of a command.
    R2t(R2t),
}

impl ControllerPdu {
    /// Decodes the HLEN bytes of a header (more may follow) that a controller sent.
    pub fn decode(bytes: &[u8], framing: &Framing) -> Result<Self, HeaderFault> {
        let header = checked(bytes, Direction::ControllerToHost, framing)?;
        match header.pdu_type {
            PduType::IcResp => IcResp::decode(whole(bytes)?).map(Self::IcResp),
            PduType::C2hTermReq => TermReq::decode(bytes).map(Self::TermReq),
            PduType::CapsuleResp => Ok(Self::CapsuleResp(CapsuleResp::decode(whole(bytes)?))),
            PduType::C2hData => C2hData::decode(whole(bytes)?, header.data_len(framing)).map(Self::C2hData),
            PduType::R2t => R2t::decode(whole(bytes)?).map(Self::R2t),
            _ => Err(HeaderFault::invalid(CommonHeader::TYPE)),
        }
    }
}

fn checked(bytes: &[u8], from: Direction, framing: &Framing) -> Result<CommonHeader, HeaderFault> {
    let header = CommonHeader::decode(whole(bytes)?)?;
    header.check(from, framing)?;
    Ok(header)
}

/// Returns the first `LEN` bytes; a shorter header is a fault of HLEN.
fn whole<const LEN: usize>(bytes: &[u8]) -> Result<&[u8; LEN], HeaderFault> {
    bytes.first_chunk().ok_or(HeaderFault::invalid(CommonHeader::HLEN))
}

/// Decodes the field at `at` of a header.
#[inline]
fn field<T: crate::Field>(bytes: &[u8], at: usize) -> T {
    T::read(&bytes[at..at + T::LEN])
}

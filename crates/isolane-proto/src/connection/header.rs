//! The common header of every PDU, and the layout of the data after it.
//!
//! Invariant: lengths are checked before a digest is computed over them, and no other field is used
//! before the digest has been verified.

use isolane_wire::digest::crc32c;
use isolane_wire::pdu::{CommonHeader, HeaderFault, PduType};
use isolane_wire::{Direction, Framing};

use super::Phase;
use super::violation::{FatalError, Violation};

/// A valid common header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) pdu_type: PduType,
    pub(crate) hlen: usize,
    /// Length of header and header digest, or of a whole TermReq.
    pub(crate) len: usize,
    /// Layout of the body.
    pub(crate) layout: PduLayout,
}

/// Layout after a header: padding and data, without the data digest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PduLayout {
    pub(crate) padding: usize,
    pub(crate) data_len: usize,
}

impl Header {
    /// Checks the common header of a PDU from `from`.
    pub(crate) fn parse(bytes: &[u8], from: Direction, framing: &Framing) -> Result<Header, FatalError> {
        let code = bytes.first().copied().unwrap_or_default();
        let error = |fault: HeaderFault| FatalError::header(code, fault);
        let common = bytes.first_chunk().ok_or(HeaderFault::invalid(CommonHeader::HLEN)).map_err(error)?;
        let common = CommonHeader::decode(common).map_err(error)?;
        let checked = common.check(from, framing);
        let (pdu_type, hlen) = (common.pdu_type, common.pdu_type.hlen());
        if pdu_type.is_term_req() {
            // A TermReq of invalid length ends the connection without a reply (TCP 1.0 §3.5).
            checked.map_err(|_| FatalError::without_term_req(Violation::TermReq))?;
            return Ok(Header { pdu_type, hlen, len: common.plen as usize, layout: PduLayout::default() });
        }
        checked.map_err(error)?;
        let digest_len = if common.has_header_digest(framing) { Framing::DIGEST_LEN } else { 0 };
        let len = hlen + digest_len;
        let padding = common.prefix_len(framing) - len;
        Ok(Header {
            pdu_type,
            hlen,
            len,
            layout: PduLayout { padding, data_len: common.data_len(framing) as usize },
        })
    }

    /// Checks the order: initialization is the first PDU and occurs once (TCP 1.0 §3.1); a TermReq
    /// is always valid.
    #[inline]
    pub(crate) fn check_sequence(
        &self,
        phase: Phase,
        initialization: PduType,
        term_req: PduType,
    ) -> Result<(), FatalError> {
        let is_first = phase == Phase::Handshake;
        let is_initialization = self.pdu_type == initialization;
        if is_first == is_initialization || self.pdu_type == term_req {
            return Ok(());
        }
        Err(FatalError::sequence(Violation::Sequence(self.pdu_type.code())))
    }

    /// Checks the digest of the collected header, if it has one (TCP 1.0 §3.3.1.1).
    #[inline]
    pub(crate) fn verify(&self, bytes: &[u8]) -> Result<(), FatalError> {
        if self.len == self.hlen || self.pdu_type.is_term_req() {
            return Ok(());
        }
        self.verify_digest(bytes)
    }

    fn verify_digest(&self, bytes: &[u8]) -> Result<(), FatalError> {
        let (header, digest) = bytes.split_at(self.hlen);
        let received = digest.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        if crc32c(header) == received {
            return Ok(());
        }
        Err(FatalError::new(Violation::HeaderDigest, HeaderFault::header_digest(received)))
    }
}

//! The common header of every PDU, and the layout of the data after it.
//!
//! Invariant: lengths are checked before a digest is computed over them, and no other field is used
//! before the digest has been verified.

use isolane_wire::digest::crc32c;
use isolane_wire::pdu::{CommonHeader, HeaderFault, PduType};
use isolane_wire::{Direction, Framing};

use super::Phase;
use super::violation::{FatalError, Violation};

/// A valid common header. Small, so that it stays in registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) pdu_type: PduType,
    has_digest: bool,
    len: u16,
    /// Layout of the body.
    pub(crate) layout: PduLayout,
}

/// Layout after a header: padding and data, without the data digest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PduLayout {
    pub(crate) padding: u16,
    pub(crate) data_len: u32,
}

impl Header {
    /// Checks the common header of a PDU from `from`.
    pub(crate) fn parse(bytes: &[u8], from: Direction, framing: &Framing) -> Result<Header, FatalError> {
        let code = bytes.first().copied().unwrap_or_default();
        let error = |fault: HeaderFault| match foreign_protocol(bytes) {
            Some(name) => FatalError::new(Violation::ForeignProtocol(name), fault),
            None => FatalError::header(code, fault),
        };
        let common = bytes.first_chunk().ok_or(HeaderFault::invalid(CommonHeader::HLEN)).map_err(error)?;
        let common = CommonHeader::decode(common).map_err(error)?;
        let checked = common.check(from, framing);
        let pdu_type = common.pdu_type;
        if pdu_type.is_term_req() {
            // A TermReq of invalid length ends the connection without a reply (TCP 1.0 §3.5).
            checked.map_err(|_| FatalError::without_term_req(Violation::TermReq))?;
            let (len, layout) = (common.plen as u16, PduLayout::default());
            return Ok(Header { pdu_type, has_digest: false, len, layout });
        }
        checked.map_err(error)?;
        let has_digest = common.has_header_digest(framing);
        let len = pdu_type.hlen() + if has_digest { Framing::DIGEST_LEN } else { 0 };
        let padding = (common.prefix_len(framing) - len) as u16;
        let layout = PduLayout { padding, data_len: common.data_len(framing) };
        Ok(Header { pdu_type, has_digest, len: len as u16, layout })
    }

    /// Length of header and header digest, or of a whole TermReq, in bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Length of header, header digest, and padding, in bytes.
    #[inline]
    pub(crate) fn prefix_len(&self) -> usize {
        self.len() + usize::from(self.layout.padding)
    }

    /// Length of the data, in bytes.
    #[inline]
    pub(crate) fn data_len(&self) -> usize {
        self.layout.data_len as usize
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

    /// Checks the digest of the header in `bytes`, if it has one (TCP 1.0 §3.3.1.1).
    #[inline]
    pub(crate) fn verify(&self, bytes: &[u8]) -> Result<(), FatalError> {
        if !self.has_digest {
            return Ok(());
        }
        self.verify_digest(bytes)
    }

    fn verify_digest(&self, bytes: &[u8]) -> Result<(), FatalError> {
        let (header, digest) = bytes.split_at(self.pdu_type.hlen());
        let received = digest.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        if crc32c(header) == received {
            return Ok(());
        }
        Err(FatalError::new(Violation::HeaderDigest, HeaderFault::header_digest(received)))
    }
}

/// Returns the name of the protocol that starts with these bytes. No PDU type does.
#[cold]
fn foreign_protocol(bytes: &[u8]) -> Option<&'static str> {
    let found = FOREIGN_PROTOCOLS.iter().find(|(start, _)| bytes.starts_with(start));
    found.map(|(_, name)| *name)
}

/// First bytes of peers at a wrong address or port.
const FOREIGN_PROTOCOLS: [(&[u8], &str); 9] = [
    (b"HTTP/", "HTTP"),
    (b"GET ", "HTTP"),
    (b"HEAD ", "HTTP"),
    (b"POST ", "HTTP"),
    (b"PUT ", "HTTP"),
    (b"PRI *", "HTTP/2"),
    (b"SSH-", "SSH"),
    (b"\x16\x03", "TLS"),
    (b"\x15\x03", "TLS"),
];

/// The header as the `LEN` bytes that its checked common header promises.
#[inline]
pub(crate) fn exact<const LEN: usize>(bytes: &[u8]) -> Result<&[u8; LEN], FatalError> {
    let pdu_type = bytes.first().copied().unwrap_or_default();
    bytes.first_chunk().ok_or(FatalError::header(pdu_type, HeaderFault::invalid(CommonHeader::HLEN)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_protocol_of_foreign_peer() {
        let violation = |bytes: &[u8; 8]| {
            Header::parse(bytes, Direction::ControllerToHost, &Framing::PLAIN).unwrap_err().violation
        };
        assert_eq!(violation(b"HTTP/1.1"), Violation::ForeignProtocol("HTTP"));
        assert_eq!(violation(b"GET / HT"), Violation::ForeignProtocol("HTTP"));
        assert_eq!(violation(b"SSH-2.0-"), Violation::ForeignProtocol("SSH"));
        assert_eq!(violation(b"\x16\x03\x01\0\0\0\0\0"), Violation::ForeignProtocol("TLS"));
        assert_eq!(violation(b"HTTQ/1.1"), Violation::PduType(b'H'));
        for (start, _) in FOREIGN_PROTOCOLS {
            assert_eq!(PduType::decode(start[0]), None, "a PDU could start like this");
        }
    }
}

//! The first 8 bytes of every PDU (TCP 1.0 §3.6.2.1).

use super::HeaderFault;
use crate::{Direction, Field, Framing};

codes! {
    /// PDU-Type.
    pub enum PduType: u8 {
        IcReq = 0x00, "ICReq";
        IcResp = 0x01, "ICResp";
        H2cTermReq = 0x02, "H2CTermReq";
        C2hTermReq = 0x03, "C2HTermReq";
        CapsuleCmd = 0x04, "CapsuleCmd";
        CapsuleResp = 0x05, "CapsuleResp";
        H2cData = 0x06, "H2CData";
        C2hData = 0x07, "C2HData";
        R2t = 0x09, "R2T";
    }
}

impl PduType {
    /// Returns the sender.
    pub const fn direction(self) -> Direction {
        match self {
            Self::IcReq | Self::H2cTermReq | Self::CapsuleCmd | Self::H2cData => Direction::HostToController,
            _ => Direction::ControllerToHost,
        }
    }

    /// Returns the only valid header length of this type, in bytes.
    #[inline]
    pub const fn hlen(self) -> usize {
        match self {
            Self::IcReq | Self::IcResp => 128,
            Self::CapsuleCmd => 72,
            _ => 24,
        }
    }

    /// Whether the negotiated digests apply: never to the first and last PDUs of a connection.
    #[inline]
    pub const fn has_digests(self) -> bool {
        !matches!(self, Self::IcReq | Self::IcResp | Self::H2cTermReq | Self::C2hTermReq)
    }

    /// Whether data may follow the header. (The offending header in a TermReq does not count.)
    #[inline]
    pub const fn may_have_data(self) -> bool {
        matches!(self, Self::CapsuleCmd | Self::H2cData | Self::C2hData)
    }

    /// Whether data must follow the header.
    const fn must_have_data(self) -> bool {
        matches!(self, Self::H2cData | Self::C2hData)
    }

    /// Whether this PDU terminates the connection.
    #[inline]
    pub const fn is_term_req(self) -> bool {
        matches!(self, Self::H2cTermReq | Self::C2hTermReq)
    }
}

bits! {
    /// FLAGS; the valid ones depend on the type.
    pub struct PduFlags(u8) {
        /// HDGSTF: a header digest follows the header.
        hdgst / with_hdgst: bool = [0:0],
        /// DDGSTF: a data digest follows the data.
        ddgst / with_ddgst: bool = [1:1],
        /// LAST_PDU: this is the last data of the transfer.
        last / with_last: bool = [2:2],
        /// SUCCESS: this data completes the command; no response capsule follows.
        success / with_success: bool = [3:3],
    }
}

/// PDU common header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CommonHeader {
    /// PDU-Type.
    pub pdu_type: PduType,
    /// FLAGS.
    pub flags: PduFlags,
    /// HLEN: length of the header in bytes, without its digest.
    pub hlen: u8,
    /// PDO: offset of the data in the PDU, in bytes; meaningless without data.
    pub pdo: u8,
    /// PLEN: length of the whole PDU in bytes.
    pub plen: u32,
}

impl CommonHeader {
    /// Length in bytes.
    pub const LEN: usize = 8;
    /// Offset of PDU-Type.
    pub const TYPE: usize = 0;
    /// Offset of FLAGS.
    pub const FLAGS: usize = 1;
    /// Offset of HLEN.
    pub const HLEN: usize = 2;
    /// Offset of PDO.
    pub const PDO: usize = 3;
    /// Offset of PLEN.
    pub const PLEN: usize = 4;

    /// Maximum PLEN of a TermReq (TCP 1.0 §3.5: outside 24 to 152 bytes it is ignored).
    pub const MAX_TERM_REQ_PLEN: u32 = 152;

    /// Encodes the header.
    #[inline]
    pub fn encode(&self) -> [u8; 8] {
        let mut bytes = [self.pdu_type.code(), self.flags.0, self.hlen, self.pdo, 0, 0, 0, 0];
        self.plen.write(&mut bytes[Self::PLEN..]);
        bytes
    }

    /// Decodes the fields; rejects unknown types only.
    #[inline]
    pub fn decode(bytes: &[u8; 8]) -> Result<Self, HeaderFault> {
        Ok(Self {
            pdu_type: PduType::decode(bytes[Self::TYPE]).ok_or(HeaderFault::invalid(Self::TYPE))?,
            flags: PduFlags(bytes[Self::FLAGS]),
            hlen: bytes[Self::HLEN],
            pdo: bytes[Self::PDO],
            plen: u32::read(&bytes[Self::PLEN..]),
        })
    }

    /// Checks every field against its type, the sender, and the framing, in wire order: the error
    /// names the first invalid field. Afterwards HLEN matches the type, and the data is inside the
    /// PDU.
    #[inline]
    pub fn check(&self, from: Direction, framing: &Framing) -> Result<(), HeaderFault> {
        if self.pdu_type.direction() != from {
            return Err(HeaderFault::invalid(Self::TYPE));
        }
        if !self.are_flags_right(framing) {
            return Err(HeaderFault::invalid(Self::FLAGS));
        }
        if usize::from(self.hlen) != self.pdu_type.hlen() {
            return Err(HeaderFault::invalid(Self::HLEN));
        }
        if !self.is_pdo_right(framing) {
            return Err(HeaderFault::invalid(Self::PDO));
        }
        if !self.is_plen_right(framing) {
            return Err(HeaderFault::invalid(Self::PLEN));
        }
        Ok(())
    }

    /// Whether data follows this header.
    #[inline]
    pub fn has_data(&self, framing: &Framing) -> bool {
        self.pdu_type.may_have_data() && u64::from(self.plen) > self.bare_len(framing)
    }

    /// Returns the data length of this PDU in bytes. Only after [`Self::check`].
    #[inline]
    pub fn data_len(&self, framing: &Framing) -> u32 {
        if !self.has_data(framing) {
            return 0;
        }
        self.plen.saturating_sub(u32::from(self.pdo) + framing.data_digest_len() as u32)
    }

    /// Returns the length of header, header digest, and pad: the offset of the data, or the end of
    /// a PDU without data. (For a TermReq: its header.) Only after [`Self::check`].
    #[inline]
    pub fn prefix_len(&self, framing: &Framing) -> usize {
        if self.has_data(framing) { usize::from(self.pdo) } else { self.bare_len(framing) as usize }
    }

    /// Whether a header digest follows this header.
    #[inline]
    pub fn has_header_digest(&self, framing: &Framing) -> bool {
        framing.header_digest && self.pdu_type.has_digests()
    }

    /// Returns the length of the PDU without pad and data.
    #[inline]
    fn bare_len(&self, framing: &Framing) -> u64 {
        let digest_len = if self.has_header_digest(framing) { Framing::DIGEST_LEN } else { 0 };
        (self.pdu_type.hlen() + digest_len) as u64
    }

    /// Checks the flags. TCP 1.0 §3.3.1: the digest flags match the negotiation, DDGSTF only with
    /// data. Reserved flags are ignored. SUCCESS requires the last data of a command.
    #[inline]
    fn are_flags_right(&self, framing: &Framing) -> bool {
        if !self.pdu_type.has_digests() {
            return true;
        }
        let is_ddgst_right = !self.has_data(framing) || self.flags.ddgst() == framing.data_digest;
        let is_success_right =
            self.pdu_type != PduType::C2hData || !self.flags.success() || self.flags.last();
        self.flags.hdgst() == framing.header_digest && is_ddgst_right && is_success_right
    }

    /// Checks that PDO is a multiple of the alignment after header and header digest (TCP 1.0
    /// §3.6.2.1); reserved without data.
    #[inline]
    fn is_pdo_right(&self, framing: &Framing) -> bool {
        if !self.pdu_type.must_have_data() && !self.has_data(framing) {
            return true;
        }
        let pdo = usize::from(self.pdo);
        // Most peers use the minimum alignment, and a division by a variable costs more than all
        // other checks.
        let is_aligned = match framing.pda {
            0 => pdo.is_multiple_of(4),
            _ => pdo.is_multiple_of(framing.alignment_bytes()),
        };
        pdo as u64 >= self.bare_len(framing) && is_aligned
    }

    #[inline]
    fn is_plen_right(&self, framing: &Framing) -> bool {
        let plen = u64::from(self.plen);
        if self.pdu_type.is_term_req() {
            return (24..=Self::MAX_TERM_REQ_PLEN).contains(&self.plen);
        }
        if self.pdu_type.must_have_data() || self.has_data(framing) {
            return plen > u64::from(self.pdo) + framing.data_digest_len() as u64;
        }
        plen == self.bare_len(framing)
    }
}

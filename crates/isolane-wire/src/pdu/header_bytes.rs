//! Encoded header of a PDU.

use core::ops::Deref;

use super::{CommonHeader, PduFlags, PduType};
use crate::{Field, Framing, digest};

/// Header, header digest, and pad of one PDU, everything before its data. The capacity is the
/// maximum of its kind of PDU.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HeaderBytes<const CAPACITY: usize> {
    bytes: [u8; CAPACITY],
    len: u8,
}

impl<const CAPACITY: usize> HeaderBytes<CAPACITY> {
    /// Creates an empty header. Encoding into it saves the copy of returning a complete one.
    #[inline(always)]
    pub const fn empty() -> Self {
        Self { bytes: [0; CAPACITY], len: 0 }
    }

    /// Creates a header with its first 8 bytes; adds the digest flags of the framing to `flags`.
    #[inline(always)]
    pub(super) fn new(pdu_type: PduType, flags: PduFlags, data_len: u32, framing: &Framing) -> Self {
        let mut this = Self::empty();
        this.start(pdu_type, flags, data_len, framing);
        this
    }

    /// Writes the first 8 bytes.
    #[inline(always)]
    pub(super) fn start(&mut self, pdu_type: PduType, flags: PduFlags, data_len: u32, framing: &Framing) {
        let hlen = pdu_type.hlen();
        let has_data = data_len != 0;
        let header = CommonHeader {
            pdu_type,
            flags: flags.with_hdgst(framing.header_digest).with_ddgst(framing.data_digest && has_data),
            hlen: hlen as u8,
            pdo: if has_data { framing.data_offset(hlen) as u8 } else { 0 },
            plen: framing.plen(hlen, data_len).min(u64::from(u32::MAX)) as u32,
        };
        self.len = hlen as u8;
        self.write(0, header.encode());
    }

    #[inline]
    pub(super) fn write<T: Field>(&mut self, at: usize, value: T) {
        value.write(&mut self.bytes[at..at + T::LEN]);
    }

    /// Appends the header digest and, in front of data, the pad.
    #[inline(always)]
    pub(super) fn finish(&mut self, has_data: bool, framing: &Framing) {
        let hlen = usize::from(self.len);
        if framing.header_digest {
            let digest = digest::crc32c(&self.bytes[..hlen]);
            self.write(hlen, digest);
        }
        let end = if has_data { framing.data_offset(hlen) } else { hlen + framing.header_digest_len() };
        self.len = end as u8;
    }

    /// Appends bytes to the header, as many as fit.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        let start = usize::from(self.len);
        let len = bytes.len().min(CAPACITY - start);
        self.bytes[start..start + len].copy_from_slice(&bytes[..len]);
        self.len = (start + len) as u8;
        self.write(CommonHeader::PLEN, u32::from(self.len));
    }
}

impl<const CAPACITY: usize> Deref for HeaderBytes<CAPACITY> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl<const CAPACITY: usize> core::fmt::Debug for HeaderBytes<CAPACITY> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:02x?}", &**self)
    }
}

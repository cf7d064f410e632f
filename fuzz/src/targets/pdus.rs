//! Parser of sent PDUs that checks header, pad, and digests of each, and parts of PDUs to send.

use isolane_wire::pdu::{CommonHeader, ControllerPdu, HostPdu};
use isolane_wire::{Direction, Framing, digest::crc32c};

use crate::input::Input;

/// Sent bytes that are not a complete PDU yet.
pub(crate) struct Pdus {
    from: Direction,
    pub(crate) framing: Framing,
    bytes: Vec<u8>,
}

/// A PDU of a target, and its data.
pub(crate) type FromController = (ControllerPdu, Vec<u8>);

/// A PDU of a host, and its data.
pub(crate) type FromHost = (HostPdu, Vec<u8>);

impl Pdus {
    pub(crate) fn new(from: Direction) -> Self {
        Self { from, framing: Framing::default(), bytes: Vec::new() }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn next_from_controller(&mut self) -> Option<FromController> {
        let (header, data) = self.next()?;
        let pdu = ControllerPdu::decode(&header, &self.framing).expect("a target's PDU is right");
        Some((pdu, data))
    }

    pub(crate) fn next_from_host(&mut self) -> Option<FromHost> {
        let (header, data) = self.next()?;
        let pdu = HostPdu::decode(&header, &self.framing).expect("a host's PDU is right");
        Some((pdu, data))
    }

    /// Header and data of the next complete PDU.
    fn next(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        let header = CommonHeader::decode(self.bytes.first_chunk()?).expect("the PDU type is known");
        header.check(self.from, &self.framing).expect("the header is valid");
        let plen = header.plen as usize;
        if self.bytes.len() < plen {
            return None;
        }
        let pdu: Vec<u8> = self.bytes.drain(..plen).collect();
        if header.pdu_type.is_term_req() {
            return Some((pdu, Vec::new()));
        }
        check_prefix(&header, &pdu, &self.framing);
        let (prefix, rest) = pdu.split_at(header.prefix_len(&self.framing));
        let (data, digest) = rest.split_at(header.data_len(&self.framing) as usize);
        assert!(digest.is_empty() || digest == crc32c(data).to_le_bytes(), "the data digest is right");
        Some((prefix.to_vec(), data.to_vec()))
    }
}

/// The header digest is right and the pad is zero.
fn check_prefix(header: &CommonHeader, pdu: &[u8], framing: &Framing) {
    let hlen = usize::from(header.hlen);
    let (head, rest) = pdu[..header.prefix_len(framing)].split_at(hlen);
    let pad = if header.has_header_digest(framing) {
        let (digest, pad) = rest.split_at(Framing::DIGEST_LEN);
        assert_eq!(digest, crc32c(head).to_le_bytes(), "the header digest is right");
        pad
    } else {
        rest
    };
    assert!(pad.iter().all(|&byte| byte == 0), "the pad is zero");
}

/// Appends the data of a PDU, and its digest.
pub(crate) fn append_data(bytes: &mut Vec<u8>, framing: &Framing, data: impl Iterator<Item = u8>) {
    let start = bytes.len();
    bytes.extend(data);
    if framing.data_digest && bytes.len() > start {
        let digest = crc32c(&bytes[start..]);
        bytes.extend(digest.to_le_bytes());
    }
}

/// Changes one byte of a valid PDU, with or without a matching header digest.
pub(crate) fn corrupt(bytes: &mut [u8], framing: &Framing, input: &mut Input<'_>) {
    let at = usize::from(input.u8());
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= input.u8();
    }
    let hlen = bytes.get(2).map_or(0, |&hlen| usize::from(hlen));
    if framing.header_digest && input.u8() & 1 == 0 && bytes.len() >= hlen + 4 {
        let digest = crc32c(&bytes[..hlen]).to_le_bytes();
        bytes[hlen..hlen + 4].copy_from_slice(&digest);
    }
}

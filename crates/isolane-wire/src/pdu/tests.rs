//! Golden vectors: every PDU with distinct field values, bytes and digests computed by hand from
//! TCP 1.0 §3.6.2, and errors of invalid headers.

use std::{vec, vec::Vec};

use super::*;
use crate::{CompletionEntry, Sgl, Status, SubmissionEntry, entry::CommandFlags};

const PLAIN: Framing = Framing { header_digest: false, data_digest: false, pda: 0 };

fn framing(header_digest: bool, data_digest: bool, pda: u8) -> Framing {
    Framing { header_digest, data_digest, pda }
}

/// Concatenates the parts.
fn join(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

fn entry() -> SubmissionEntry {
    SubmissionEntry {
        opcode: 0x01,
        flags: CommandFlags::SGL,
        cid: 0x0302,
        nsid: 0x0706_0504,
        cdw2: 0x0b0a_0908,
        cdw3: 0x0f0e_0d0c,
        mptr: 0x1716_1514_1312_1110,
        sgl: Sgl::Transport { len: 0x2000 },
        cdw10: 0x2b2a_2928,
        cdw11: 0x2f2e_2d2c,
        cdw12: 0x3332_3130,
        cdw13: 0x3736_3534,
        cdw14: 0x3b3a_3938,
        cdw15: 0x3f3e_3d3c,
    }
}

fn entry_bytes() -> Vec<u8> {
    let tail: Vec<u8> = (40..64).collect();
    join(&[
        &[0x01, 0x40, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f],
        &[0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17],
        &[0, 0, 0, 0, 0, 0, 0, 0, 0x00, 0x20, 0, 0, 0, 0, 0, 0x5a],
        &tail,
    ])
}

#[test]
fn ic_req_is_128_bytes() {
    let pdu = IcReq { hpda: 0x1e, digests: Digests(0x02), maxr2t: 0x0403_0201 };
    let bytes = join(&[&[0x00, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0x1e, 0x02, 1, 2, 3, 4], &[0; 112]]);
    assert_eq!(*pdu.encode(), bytes[..]);
    assert_eq!(HostPdu::decode(&bytes, &PLAIN), Ok(HostPdu::IcReq(pdu)));
}

#[test]
fn ic_resp_is_128_bytes() {
    let pdu = IcResp { cpda: 0x1f, digests: Digests(0x01), maxh2cdata: 0x0403_0204 };
    let bytes = join(&[&[0x01, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0x1f, 0x01, 4, 2, 3, 4], &[0; 112]]);
    assert_eq!(*pdu.encode(), bytes[..]);
    assert_eq!(ControllerPdu::decode(&bytes, &PLAIN), Ok(ControllerPdu::IcResp(pdu)));
}

#[test]
fn term_req_carries_the_offending_header() {
    let fault = HeaderFault { fes: FatalErrorStatus::HeaderDigestError, fei: 0x0403_0201 };
    let head = [24, 0, 27, 0, 0, 0, 3, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xaa, 0xbb, 0xcc];
    for (from, code) in [(Direction::HostToController, 0x02), (Direction::ControllerToHost, 0x03)] {
        let pdu = TermReq::new(from, fault, &[0xaa, 0xbb, 0xcc]);
        let bytes = join(&[&[code, 0], &head]);
        assert_eq!(*pdu.encode(), bytes[..]);
        assert_eq!(TermReq::decode(&bytes), Ok(pdu));
    }
}

#[test]
fn term_req_truncates_offending_header() {
    let pdu = TermReq::new(Direction::HostToController, HeaderFault::sequence(), &[7; 300]);
    assert_eq!(pdu.encode().len(), TermReq::MAX_PLEN);
    assert_eq!(pdu.offending_header(), [7; 128]);
    assert_eq!(HostPdu::decode(&pdu.encode(), &framing(true, true, 9)), Ok(HostPdu::TermReq(pdu)));
}

#[test]
fn encodes_command_without_data() {
    let pdu = CapsuleCmd { entry: entry(), data_len: 0 };
    let bytes = join(&[&[0x04, 0, 72, 0, 72, 0, 0, 0], &entry_bytes()]);
    assert_eq!(*pdu.encode(&PLAIN), bytes[..]);
    assert_eq!(HostPdu::decode(&bytes, &PLAIN), Ok(HostPdu::CapsuleCmd(pdu)));

    let framing = framing(true, true, 3);
    let digest = 0x109d_9394_u32.to_le_bytes();
    let bytes = join(&[&[0x04, 0x01, 72, 0, 76, 0, 0, 0], &entry_bytes(), &digest]);
    assert_eq!(*pdu.encode(&framing), bytes[..]);
    assert_eq!(HostPdu::decode(&bytes, &framing), Ok(HostPdu::CapsuleCmd(pdu)));
}

#[test]
fn encodes_command_with_digest_and_pad() {
    let pdu = CapsuleCmd { entry: entry(), data_len: 512 };
    let framing = framing(true, true, 3);
    let digest = 0x89fe_b467_u32.to_le_bytes();
    let bytes = join(&[&[0x04, 0x03, 72, 80, 0x54, 0x02, 0, 0], &entry_bytes(), &digest, &[0; 4]]);
    assert_eq!(*pdu.encode(&framing), bytes[..]);
    assert_eq!(HostPdu::decode(&bytes, &framing), Ok(HostPdu::CapsuleCmd(pdu)));
}

#[test]
fn encodes_response() {
    let entry = CompletionEntry {
        dw0: 0x0403_0201,
        dw1: 0x0807_0605,
        sqhd: 0x0a09,
        sqid: 0,
        cid: 0x0e0d,
        status: Status::new(1, 0x40).with_dnr(true),
    };
    let pdu = CapsuleResp { entry };
    let body = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 0, 13, 14, 0x80, 0x82];
    let digest = 0x751c_f565_u32.to_le_bytes();
    let bytes = join(&[&[0x05, 0x01, 24, 0, 28, 0, 0, 0], &body, &digest]);
    assert_eq!(*pdu.encode(&framing(true, false, 31)), bytes[..]);
    assert_eq!(ControllerPdu::decode(&bytes, &framing(true, false, 31)), Ok(ControllerPdu::CapsuleResp(pdu)));
    assert_eq!(*pdu.encode(&PLAIN), join(&[&[0x05, 0, 24, 0, 24, 0, 0, 0], &body])[..]);
}

#[test]
fn data_from_the_host() {
    let pdu = H2cData { cccid: 0x0201, ttag: 0x0403, datao: 0x0807_0605, datal: 0x1000, last: true };
    let framing = framing(true, true, 15);
    let body = [1, 2, 3, 4, 5, 6, 7, 8, 0x00, 0x10, 0, 0, 0, 0, 0, 0];
    let digest = 0x79ed_e869_u32.to_le_bytes();
    let bytes = join(&[&[0x06, 0x07, 24, 64, 0x44, 0x10, 0, 0], &body, &digest, &[0; 36]]);
    assert_eq!(*pdu.encode(&framing), bytes[..]);
    assert_eq!(HostPdu::decode(&bytes, &framing), Ok(HostPdu::H2cData(pdu)));
}

#[test]
fn data_from_the_controller() {
    let pdu = C2hData { cccid: 0x0201, datao: 0x0807_0605, datal: 0x2000, last: true, success: true };
    let framing = framing(true, false, 7);
    let body = [1, 2, 0, 0, 5, 6, 7, 8, 0x00, 0x20, 0, 0, 0, 0, 0, 0];
    let digest = 0xe8f4_2740_u32.to_le_bytes();
    let bytes = join(&[&[0x07, 0x0d, 24, 32, 0x20, 0x20, 0, 0], &body, &digest, &[0; 4]]);
    assert_eq!(*pdu.encode(&framing), bytes[..]);
    assert_eq!(ControllerPdu::decode(&bytes, &framing), Ok(ControllerPdu::C2hData(pdu)));
}

#[test]
fn ready_to_transfer() {
    let pdu = R2t { cccid: 0x0201, ttag: 0x0403, r2to: 0x0807_0605, r2tl: 0x0c0b_0a09 };
    let framing = framing(true, true, 31);
    let body = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0, 0, 0];
    let digest = 0x078d_4c17_u32.to_le_bytes();
    let bytes = join(&[&[0x09, 0x01, 24, 0, 28, 0, 0, 0], &body, &digest]);
    assert_eq!(*pdu.encode(&framing), bytes[..]);
    assert_eq!(ControllerPdu::decode(&bytes, &framing), Ok(ControllerPdu::R2t(pdu)));
}

/// Decodes a valid H2CData (24 bytes of header, 0x1000 bytes of data) with some bytes replaced.
fn h2c_with(framing: &Framing, changes: &[(usize, u8)]) -> Result<HostPdu, HeaderFault> {
    let pdu = H2cData { cccid: 1, ttag: 2, datao: 0, datal: 0x1000, last: true };
    let mut bytes = pdu.encode(framing).to_vec();
    changes.iter().for_each(|&(at, byte)| bytes[at] = byte);
    HostPdu::decode(&bytes, framing)
}

#[test]
fn reports_first_invalid_field() {
    let all = [(1, 0x01), (2, 23), (3, 25), (4, 0)];
    for (first, fei) in [(0, 1), (1, 2), (2, 3), (3, 4)] {
        assert_eq!(h2c_with(&PLAIN, &all[first..]), Err(HeaderFault::invalid(fei)), "{:?}", &all[first..]);
    }
    assert_eq!(h2c_with(&PLAIN, &[(0, 0x08), (1, 0x01)]), Err(HeaderFault::invalid(0)));
}

#[test]
fn rejects_pdu_in_wrong_direction() {
    let from_controller = R2t { r2tl: 1, ..R2t::default() }.encode(&PLAIN);
    assert_eq!(HostPdu::decode(&from_controller, &PLAIN), Err(HeaderFault::invalid(CommonHeader::TYPE)));
    let from_host = CapsuleCmd { entry: entry(), data_len: 0 }.encode(&PLAIN);
    assert_eq!(ControllerPdu::decode(&from_host, &PLAIN), Err(HeaderFault::invalid(CommonHeader::TYPE)));
}

#[test]
fn digest_flags_have_to_say_what_was_negotiated() {
    let wrong = Err(HeaderFault::invalid(CommonHeader::FLAGS));
    assert_eq!(h2c_with(&PLAIN, &[(1, 0x05)]), wrong);
    assert_eq!(h2c_with(&PLAIN, &[(1, 0x06)]), wrong);
    assert_eq!(h2c_with(&framing(true, true, 0), &[(1, 0x04)]), wrong);
    assert_eq!(h2c_with(&framing(true, true, 0), &[(1, 0x05)]), wrong);
    assert!(h2c_with(&framing(true, true, 0), &[(1, 0xf7)]).is_ok(), "reserved flags are ignored");
}

#[test]
fn plen_and_datal_have_to_agree() {
    assert_eq!(h2c_with(&PLAIN, &[(16, 4)]), Err(HeaderFault::invalid(CommonHeader::PLEN)));
    assert_eq!(h2c_with(&PLAIN, &[(4, 0x19)]), Err(HeaderFault::invalid(CommonHeader::PLEN)));
    assert_eq!(h2c_with(&PLAIN, &[(16, 0), (17, 0)]), Err(HeaderFault::invalid(H2cData::DATAL)));
}

#[test]
fn rejects_unaligned_pdo_and_pdo_in_header() {
    let wrong = Err(HeaderFault::invalid(CommonHeader::PDO));
    assert_eq!(h2c_with(&framing(false, false, 1), &[(3, 28)]), wrong);
    assert_eq!(h2c_with(&framing(true, false, 0), &[(3, 24)]), wrong);
    assert_eq!(h2c_with(&PLAIN, &[(3, 0)]), wrong);
    let moved = h2c_with(&PLAIN, &[(3, 32), (4, 0x20)]);
    assert!(moved.is_ok(), "more pad than needed is legal");
}

#[test]
fn success_without_last_is_a_wrong_flag() {
    let pdu = C2hData { cccid: 1, datao: 0, datal: 4, last: false, success: true };
    let result = ControllerPdu::decode(&pdu.encode(&PLAIN), &PLAIN);
    assert_eq!(result, Err(HeaderFault::invalid(CommonHeader::FLAGS)));
}

#[test]
fn rejects_empty_r2t() {
    let result = ControllerPdu::decode(&R2t::default().encode(&PLAIN), &PLAIN);
    assert_eq!(result, Err(HeaderFault::invalid(R2t::R2TL)));
}

#[test]
fn ic_req_of_an_unknown_format_is_unsupported() {
    let mut bytes = IcReq::default().encode().to_vec();
    (bytes[8], bytes[10]) = (1, 32);
    assert_eq!(HostPdu::decode(&bytes, &PLAIN), Err(HeaderFault::unsupported(8)));
    bytes[8] = 0;
    assert_eq!(HostPdu::decode(&bytes, &PLAIN), Err(HeaderFault::invalid(10)));
}

#[test]
fn rejects_invalid_maxh2cdata() {
    for maxh2cdata in [0, 4092, 4098] {
        let bytes = IcResp { cpda: 0, digests: Digests(0), maxh2cdata }.encode();
        assert_eq!(ControllerPdu::decode(&bytes, &PLAIN), Err(HeaderFault::invalid(12)));
    }
}

#[test]
fn rejects_term_req_of_invalid_length() {
    for plen in [23, 153] {
        let mut bytes = vec![0; 160];
        (bytes[0], bytes[2], bytes[4]) = (2, 24, plen);
        assert_eq!(HostPdu::decode(&bytes, &PLAIN), Err(HeaderFault::invalid(CommonHeader::PLEN)));
    }
}

#[test]
fn common_header_locates_the_data() {
    let framing = framing(true, true, 15);
    let bytes = H2cData { datal: 512, ..H2cData::default() }.encode(&framing);
    let header = CommonHeader::decode(bytes.first_chunk().unwrap()).unwrap();
    assert_eq!((header.prefix_len(&framing), header.data_len(&framing)), (64, 512));
    assert!(header.has_data(&framing) && header.has_header_digest(&framing));

    let bytes = CapsuleResp::default().encode(&framing);
    let header = CommonHeader::decode(bytes.first_chunk().unwrap()).unwrap();
    assert_eq!((header.prefix_len(&framing), header.data_len(&framing)), (28, 0));
}

/// CPDA 16 is an alignment of 68 bytes: data starts at 136, after 128.
#[test]
fn supports_alignment_not_a_power_of_two() {
    let framing = framing(true, true, 16);
    let pdu = CapsuleCmd { entry: entry(), data_len: 4 };
    let bytes = pdu.encode(&framing);
    assert_eq!((bytes.len(), bytes[3]), (136, 136));
    assert_eq!(HostPdu::decode(&bytes, &framing), Ok(HostPdu::CapsuleCmd(pdu)));
}

#[test]
fn lengths_do_not_wrap_at_32_bits() {
    let framing = framing(true, true, 31);
    let mut bytes = C2hData { datal: 4, last: true, ..C2hData::default() }.encode(&framing).to_vec();
    bytes[4..8].fill(0xff);
    bytes[16..20].fill(0xff);
    assert_eq!(ControllerPdu::decode(&bytes, &framing), Err(HeaderFault::invalid(CommonHeader::PLEN)));
}

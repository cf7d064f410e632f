//! Golden vectors of the commands and messages: each field has other bytes than its neighbors.

use super::*;
use crate::opcode::DataDirection;
use crate::{SubmissionEntry, golden};

#[test]
fn authentication_send_has_each_field_in_its_place() {
    let command = AuthenticationSendCommand { spsp0: 0x11, spsp1: 0x12, secp: 0x13, tl: 0x0403_0201 };
    let bytes = golden::bytes::<64>(&[
        (0, &[0x7f, 0x40]),
        (4, &[0x05]),
        (39, &[0x5a]),
        (41, &[0x11, 0x12, 0x13]),
        (44, &[1, 2, 3, 4]),
    ]);
    golden::assert_same(&command.entry().encode(), &bytes);
    assert_eq!(AuthenticationSendCommand::parse(&SubmissionEntry::decode(&bytes)), command);
    assert_eq!(DataDirection::of(0x7f, 5), DataDirection::HostToController);
}

#[test]
fn authentication_receive_has_each_field_in_its_place() {
    let command = AuthenticationReceiveCommand { spsp0: 0x11, spsp1: 0x12, secp: 0x13, al: 0x0403_0201 };
    let bytes = golden::bytes::<64>(&[
        (0, &[0x7f, 0x40]),
        (4, &[0x06]),
        (39, &[0x5a]),
        (41, &[0x11, 0x12, 0x13]),
        (44, &[1, 2, 3, 4]),
    ]);
    golden::assert_same(&command.entry().encode(), &bytes);
    assert_eq!(AuthenticationReceiveCommand::parse(&SubmissionEntry::decode(&bytes)), command);
    assert_eq!(DataDirection::of(0x7f, 6), DataDirection::ControllerToHost);
}

#[test]
fn command_is_valid_with_nvme_protocol_and_length() {
    let valid = AuthenticationSendCommand::new(16);
    assert_eq!((valid.secp, valid.spsp0, valid.spsp1), (0xe9, 1, 1));
    assert!(valid.is_valid() && AuthenticationReceiveCommand::new(4096).is_valid());
    for invalid in [
        AuthenticationSendCommand { secp: 0, ..valid },
        AuthenticationSendCommand { spsp0: 0, ..valid },
        AuthenticationSendCommand { spsp1: 2, ..valid },
        AuthenticationSendCommand { tl: 0, ..valid },
        AuthenticationSendCommand { tl: 4097, ..valid },
    ] {
        assert!(!invalid.is_valid(), "{invalid:?}");
    }
}

#[test]
fn negotiate_has_each_field_in_its_place() {
    let message = Negotiate { id: [1, 2], t_id: 0x0403, sc_c: 5, napd: 6 };
    golden::assert_same(&message.encode(), &[1, 2, 0, 0, 3, 4, 5, 6]);
    assert_eq!(Negotiate::decode(&message.encode()), message);
    let (hashes, groups) =
        (core::array::from_fn(|at| at as u8 + 10), core::array::from_fn(|at| at as u8 + 100));
    let descriptor = ProtocolDescriptor { authid: 1, halen: 2, dhlen: 3, hashes, groups };
    let bytes = golden::bytes::<64>(&[(0, &[1, 0, 2, 3]), (4, &hashes), (34, &groups)]);
    golden::assert_same(&descriptor.encode(), &bytes);
    assert_eq!(ProtocolDescriptor::decode(&bytes), descriptor);
}

#[test]
fn challenge_has_each_field_in_its_place() {
    let message =
        Challenge { id: [1, 2], t_id: 0x0403, hl: 5, hash: 6, group: 7, dhvlen: 0x0908, seqnum: 0x0d0c_0b0a };
    golden::assert_same(&message.encode(), &[1, 2, 0, 0, 3, 4, 5, 0, 6, 7, 8, 9, 10, 11, 12, 13]);
    assert_eq!(Challenge::decode(&message.encode()), message);
}

#[test]
fn reply_has_each_field_in_its_place() {
    let message = Reply { id: [1, 2], t_id: 0x0403, hl: 5, cvalid: 6, dhvlen: 0x0908, seqnum: 0x0d0c_0b0a };
    golden::assert_same(&message.encode(), &[1, 2, 0, 0, 3, 4, 5, 0, 6, 0, 8, 9, 10, 11, 12, 13]);
    assert_eq!(Reply::decode(&message.encode()), message);
}

#[test]
fn success_and_failure_have_each_field_in_their_places() {
    let message = Success1 { id: [1, 2], t_id: 0x0403, hl: 5, rvalid: 6 };
    golden::assert_same(&message.encode(), &[1, 2, 0, 0, 3, 4, 5, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(Success1::decode(&message.encode()), message);
    let message = Success2 { id: [1, 2], t_id: 0x0403 };
    golden::assert_same(&message.encode(), &[1, 2, 0, 0, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(Success2::decode(&message.encode()), message);
    let message = Failure { id: [1, 2], t_id: 0x0403, reason: 5, explanation: 6 };
    golden::assert_same(&message.encode(), &[1, 2, 0, 0, 3, 4, 5, 6]);
    assert_eq!(Failure::decode(&message.encode()), message);
    let header = MessageHeader { id: [1, 2], t_id: 0x0403 };
    golden::assert_same(&header.encode(), &[1, 2, 0, 0, 3, 4]);
    assert_eq!(MessageHeader::decode_prefix(&message.encode()), Some(header));
}

#[test]
fn codes_are_found_by_their_numbers() {
    for &hash in Hash::ALL {
        assert_eq!(Hash::decode(hash.code()), Some(hash));
        assert!((hash.len_bytes() as u32) < MAX_MESSAGE_BYTES);
    }
    for &group in DhGroup::ALL {
        assert_eq!(DhGroup::decode(group.code()), Some(group));
    }
    assert_eq!(AuthFailure::ALL.iter().map(|reason| reason.code()).max(), Some(7));
    for (id, codes) in [(MessageId::Negotiate, [0, 0]), (MessageId::Failure2, [0, 0xf0])] {
        assert_eq!((MessageId::decode_id(codes), id.codes()), (Some(id), codes));
    }
    assert_eq!(MessageId::decode_id([1, 0]), None);
}

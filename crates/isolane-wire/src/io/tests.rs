//! Golden vectors of the I/O commands (Base 1.4 §6).

use super::*;
use crate::golden;

/// The bytes of an I/O command: opcode, namespace 04030201h, and dwords from byte 40.
fn command(opcode: u8, dwords: &[u8]) -> [u8; 64] {
    golden::bytes(&[(0, &[opcode, 0x40]), (4, &[1, 2, 3, 4]), (39, &[0x5a]), (40, dwords)])
}

const NSID: u32 = 0x0403_0201;
const SLBA: u64 = 0x0807_0605_0403_0201;

#[test]
fn read_has_each_field_in_its_place() {
    let read = ReadCommand { nsid: NSID, slba: SLBA, nlb: 0x0a09, fua: true, lr: false, prinfo: 0b1001 };
    let bytes = command(0x02, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 0x64]);
    golden::assert_same(&read.entry().encode(), &bytes);
    assert_eq!(ReadCommand::parse(&SubmissionEntry::decode(&bytes)), read);
    assert_eq!(read.blocks(), 0x0a0a);
}

#[test]
fn write_has_each_field_in_its_place() {
    let write =
        WriteCommand { nsid: NSID, slba: SLBA, nlb: 0xffff, fua: false, lr: true, prinfo: 0b0110, dtype: 5 };
    let bytes = command(0x01, &[1, 2, 3, 4, 5, 6, 7, 8, 0xff, 0xff, 0x50, 0x98]);
    golden::assert_same(&write.entry().encode(), &bytes);
    assert_eq!(WriteCommand::parse(&SubmissionEntry::decode(&bytes)), write);
    assert_eq!(write.blocks(), 65536);
}

#[test]
fn write_zeroes_has_each_field_in_its_place() {
    let zeroes = WriteZeroesCommand {
        nsid: NSID,
        slba: SLBA,
        nlb: 0x0a09,
        deallocate: true,
        fua: true,
        lr: false,
        prinfo: 0b0001,
    };
    let bytes = command(0x08, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 0x46]);
    golden::assert_same(&zeroes.entry().encode(), &bytes);
    assert_eq!(WriteZeroesCommand::parse(&SubmissionEntry::decode(&bytes)), zeroes);
}

#[test]
fn dataset_management_has_each_field_in_its_place() {
    let dsm = DatasetManagementCommand {
        nsid: NSID,
        nr: 0xfe,
        deallocate: true,
        integral_write: false,
        integral_read: true,
    };
    let bytes = command(0x09, &[0xfe, 0, 0, 0, 0b101]);
    golden::assert_same(&dsm.entry().encode(), &bytes);
    assert_eq!(DatasetManagementCommand::parse(&SubmissionEntry::decode(&bytes)), dsm);
    assert_eq!((dsm.ranges(), dsm.data_len()), (255, 4080));
}

#[test]
fn encodes_range_in_16_bytes() {
    let range = DsmRange { attributes: 0x0403_0201, blocks: 0x0807_0605, slba: 0x100f_0e0d_0c0b_0a09 };
    let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
    assert_eq!(range.encode(), bytes);
    let list = [bytes, bytes].concat();
    assert!(DsmRange::decode_all(&list[..31]).eq([range]), "ignores a partial range");
}

#[test]
fn flush_has_a_namespace_only() {
    assert_eq!(flush(NSID).encode(), command(0x00, &[]));
}

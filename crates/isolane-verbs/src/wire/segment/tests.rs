use proptest::prelude::*;

use super::*;

fn encoded(segment: &Segment) -> Vec<u8> {
    let mut bytes = [0; MAX_PREFIX_BYTES];
    let len = segment.encode_to(&mut bytes);
    bytes[..len].to_vec()
}

fn send(size: u32, offset: u32, length: u32) -> Segment {
    Segment {
        opcode: Opcode::of(Operation::Send, Stage::of(offset, offset + length, size), false),
        flags: SegmentFlags(0),
        credits: 7,
        message: 9,
        size,
        receive: 0,
        rnr_count: 0,
        offset,
        length,
        acknowledged: 11,
        extension: Extension::None,
    }
}

#[test]
fn send_has_24_bytes() {
    assert_eq!(Segment::prefix_len(Opcode::SendOnly.code()), Ok(24));
    assert_eq!(encoded(&send(5, 0, 5)).len(), 24);
}

#[test]
fn write_with_immediate_golden_vector() {
    let segment = Segment {
        opcode: Opcode::WriteOnlyImmediate,
        flags: SegmentFlags(0).with_ack_requested(true),
        credits: 0x0201,
        message: 0x0605_0403,
        size: 0x0009_0807,
        receive: 0x0a,
        rnr_count: 0x0d,
        offset: 0,
        length: 0x0009_0807,
        acknowledged: 0x1514_1312,
        extension: Extension::Range(
            RemoteRange { address: 0x1d1c_1b1a_1918_1716, key: 0x2120_1f1e, length: 0x2524_2322 },
            Some(0x2928_2726),
        ),
    };
    let bytes = [
        0x0b, 0x02, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0, 0, 0, 0x0d, 0x07, 0x08,
        0x09, 0x00, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f, 0x20,
        0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x29,
    ];
    assert_eq!(encoded(&segment), bytes);
    assert_eq!(Segment::prefix_len(bytes[0]), Ok(bytes.len()));
    assert_eq!(Segment::decode(&bytes, 1 << 20), Ok(segment));
}

#[test]
fn rejects_places_outside_of_message() {
    let mut cases = vec![send(10, 0, 5), send(10, 5, 5), send(0, 0, 0)];
    cases.iter().for_each(|case| assert_eq!(Segment::decode(&encoded(case), 100).as_ref(), Ok(case)));
    // Each with an opcode, offset, length or size that no longer agrees.
    cases[0].opcode = Opcode::SendOnly;
    cases[1].offset = u32::MAX;
    cases[2].size = 1;
    for case in &cases {
        assert!(matches!(Segment::decode(&encoded(case), 100), Err(SegmentError::Place { .. })));
    }
    let empty = Segment { opcode: Opcode::SendFirst, ..send(10, 0, 0) };
    assert!(matches!(Segment::decode(&encoded(&empty), 100), Err(SegmentError::Place { .. })));
    let long = send(200, 0, 101);
    assert_eq!(Segment::decode(&encoded(&long), 100), Err(SegmentError::TooLong { length: 101, limit: 100 }));
}

#[test]
fn rejects_payload_of_requests_and_unknown_codes() {
    let mut read = send(8, 0, 8);
    read.opcode = Opcode::ReadRequest;
    read.extension = Extension::Range(RemoteRange::default(), None);
    let expected = SegmentError::Payload { opcode: "RDMA READ request", length: 8 };
    assert_eq!(Segment::decode(&encoded(&read), 100), Err(expected));
    let mut bytes = encoded(&send(8, 0, 8));
    bytes[1] = 0x10;
    assert_eq!(Segment::decode(&bytes, 100), Err(SegmentError::Flags(0x10)));
    bytes[0] = 0x15;
    assert_eq!(Segment::decode(&bytes, 100), Err(SegmentError::Opcode(0x15)));
    assert_eq!(Segment::prefix_len(0x15), Err(SegmentError::Opcode(0x15)));
}

proptest! {
    #[test]
    fn any_bytes_decode_or_fail(opcode in 0_u8..0x70, bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = opcode;
        }
        let _ = Segment::decode(&bytes, u32::MAX);
    }

    #[test]
    fn whatever_decodes_encodes_to_the_same_bytes(
        opcode in prop::sample::select(Opcode::ALL),
        size in 0_u32..1000,
        place in (0_u32..1000, 0_u32..1000),
        extension in prop::collection::vec(any::<u8>(), 36),
    ) {
        let header = SegmentHeader {
            opcode: opcode.code(),
            flags: SegmentFlags(0),
            credits: 1,
            message: 2,
            size: U24::new(size),
            receive: 4,
            offset: U24::new(place.0),
            rnr_count: 5,
            length: place.1,
            acknowledged: 3,
        };
        let mut bytes = header.encode().to_vec();
        bytes.extend(&extension);
        bytes.truncate(Segment::prefix_len(opcode.code()).unwrap());
        if let Ok(segment) = Segment::decode(&bytes, u32::MAX) {
            let again = encoded(&segment);
            prop_assert_eq!(again.len(), bytes.len());
            prop_assert_eq!(Segment::decode(&again, u32::MAX), Ok(segment));
        }
    }
}

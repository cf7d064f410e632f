//! Lanes with checksums: bytes that were changed on their way reach no memory, and are sent again.

use super::*;

/// Address of a WRITE in the far memory, and its length.
const TARGET: u64 = 1000;
const BYTES: u32 = 70_000;

/// Posts a WRITE. Returns the bytes that the near end sends.
fn send_write(pair: &mut Pair) -> VecDeque<u8> {
    let bytes: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8 | 1).collect();
    let length = (MEMORY_BYTES as u32 - TARGET as u32).min(BYTES);
    pair.near.fill(0, &bytes[..length as usize]);
    let operation = SendOperation::Write { address: TARGET, rkey: pair.far.memory.key(), immediate: None };
    pair.near.send(1, operation, &[pair.near.sge(0, length)]).unwrap();
    pair.near.transmit(usize::MAX);
    std::mem::take(&mut pair.near.sent)
}

/// Both ends find the lane ended, and open it again.
fn reopen(pair: &mut Pair) {
    pair.near.pair.handle_lane_closed(0);
    let (epoch, near_received) = pair.near.pair.start_lane(0).unwrap();
    let far_received = pair.far.pair.accept_lane(0, epoch).unwrap();
    pair.far.pair.handle_lane_open(0, near_received);
    pair.near.pair.handle_lane_open(0, far_received);
}

fn deliver(end: &mut End, mut pipe: VecDeque<u8>, chunk: usize) {
    while !pipe.is_empty() && end.pair.is_lane_open(0) {
        end.deliver(&mut pipe, chunk);
    }
}

#[test]
fn changed_bytes_reach_no_memory_and_are_sent_again() {
    let sent = send_write(&mut Pair::with_checksums());
    // Each byte of header, extension, and first bytes of the payload; then some others, and the last checksum.
    let places = (0..80).chain((80..sent.len()).step_by(4001)).chain(sent.len() - 4..sent.len());
    for at in places {
        let mut pair = Pair::with_checksums();
        let mut bytes = send_write(&mut pair);
        bytes[at] ^= 0x10;
        deliver(&mut pair.far, bytes, 3000);
        assert!(!pair.far.pair.is_lane_open(0), "byte {at}: the lane has not ended");
        assert_eq!(pair.far.pair.state(), QueuePairState::ReadyToSend, "byte {at}");
        assert!(pair.far.bytes(0, MEMORY_BYTES).iter().all(|byte| *byte == 0), "byte {at} was placed");
        assert_eq!(pair.near.completions(), []);
        reopen(&mut pair);
        pair.run();
        let length = MEMORY_BYTES - TARGET as usize;
        assert!(pair.far.bytes(TARGET as usize, length) == pair.near.bytes(0, length), "byte {at}");
        assert_eq!(pair.near.completions(), [(Queue::Send, 1, Status::Success, 0)], "byte {at}");
    }
}

#[test]
fn queue_pair_fails_if_nothing_arrives_unchanged() {
    let mut pair = Pair::with_checksums();
    let mut bytes = send_write(&mut pair);
    let mut ended = 0;
    while pair.far.pair.state() == QueuePairState::ReadyToSend {
        bytes[7] ^= 1;
        deliver(&mut pair.far, bytes, 100);
        ended += 1;
        assert!(ended < 100, "the queue pair does not fail");
        if pair.far.pair.state() == QueuePairState::ReadyToSend {
            reopen(&mut pair);
        }
        pair.near.transmit(usize::MAX);
        bytes = std::mem::take(&mut pair.near.sent);
    }
    assert_eq!(ended, 16);
    assert!(pair.far.bytes(0, MEMORY_BYTES).iter().all(|byte| *byte == 0));
}

#[test]
fn longer_segments_than_agreed_are_refused() {
    let mut pair = Pair::with_checksums();
    let length = CHECKED_SEGMENT_BYTES + 1;
    let place = Place { size: length, offset: 0, length };
    let range = RemoteRange { address: 0, key: pair.far.memory.key(), length };
    let mut prefix = [0; MAX_PREFIX_BYTES];
    segment(Operation::Write, u32::MAX, place, Extension::Range(range, None)).encode_to(&mut prefix);
    let header = &prefix[..crate::wire::SegmentHeader::LEN];
    let bytes = [header, &crate::wire::checksum(header)].concat();
    deliver(&mut pair.far, bytes.into(), 100);
    assert_eq!(pair.far.pair.state(), QueuePairState::Error);
    // The lane is still read.
    deliver(&mut pair.far, vec![0xff; 1_000_000].into(), 5000);
}

//! A peer whose answers are false fails only its queue pair, and changes no other memory than its requests name.

use super::*;
use crate::wire::{LaneReport, Syndrome, rnr_delay};

/// Memory of the near end that its request names.
const RESULT: std::ops::Range<usize> = 100..108;

/// Delivers a segment with `payload` to the near end.
fn answer(pair: &mut Pair, lane: usize, segment: &Segment, payload: &[u8]) {
    let mut prefix = [0; MAX_PREFIX_BYTES];
    let len = segment.encode_to(&mut prefix);
    let mut pipe: VecDeque<u8> = prefix[..len].iter().chain(payload).copied().collect();
    while !pipe.is_empty() && pair.near.pair.is_lane_open(lane) {
        pair.near.deliver_on(lane, &mut pipe, 50);
    }
}

/// Returns a segment after which the near end's messages up to `acknowledged` are executed.
fn segment_of(
    operation: Operation,
    message: u32,
    place: Place,
    extension: Extension,
    executed: u32,
) -> Segment {
    Segment { acknowledged: u32::MAX.wrapping_add(executed), ..segment(operation, message, place, extension) }
}

fn assert_broken(pair: &mut Pair, context: &str) {
    assert_eq!(pair.near.pair.state(), QueuePairState::Error, "{context}");
    assert_eq!(pair.near.completions(), [(Queue::Send, 1, Status::BadResponse, 0)], "{context}");
    assert_eq!(pair.near.events(), [AsyncEvent::Fatal], "{context}");
    let memory = pair.near.bytes(0, MEMORY_BYTES);
    let others = memory.iter().enumerate().filter(|(at, byte)| **byte != 0 && !RESULT.contains(at));
    assert_eq!(others.count(), 0, "{context}");
}

/// Posts a request whose result has 8 bytes, as message `u32::MAX`, and sends it.
fn pair_with(operation: impl Fn(u32) -> SendOperation) -> Pair {
    let mut pair = Pair::new();
    let key = pair.far.memory.key();
    pair.near.send(1, operation(key), &[pair.near.sge(RESULT.start as u64, 8)]).unwrap();
    pair.near.transmit(usize::MAX);
    pair
}

fn read(key: u32) -> SendOperation {
    SendOperation::Read { address: 0, rkey: key }
}

#[test]
fn refuses_response_that_does_not_fit() {
    let data = |message, size, offset, length| {
        let place = Place { size, offset, length };
        (segment_of(Operation::ReadResponse, message, place, Extension::None, 1), vec![1; length as usize])
    };
    let found = |message| {
        let place = Place { size: 8, offset: 0, length: 0 };
        (segment_of(Operation::AtomicResponse, message, place, Extension::Found(5), 1), vec![])
    };
    let cases = [
        ("too long", vec![data(u32::MAX, 16, 0, 16)]),
        ("too long, and its first part fits", vec![data(u32::MAX, 16, 0, 8)]),
        ("too short", vec![data(u32::MAX, 4, 0, 4)]),
        ("of a message that was not sent", vec![data(0, 8, 0, 8)]),
        ("of an atomic operation", vec![found(u32::MAX)]),
        ("with a part twice", vec![data(u32::MAX, 8, 0, 4), data(u32::MAX, 8, 0, 4)]),
        ("with parts that overlap", vec![data(u32::MAX, 8, 0, 4), data(u32::MAX, 8, 2, 6)]),
    ];
    for (context, responses) in cases {
        let mut pair = pair_with(read);
        for (response, payload) in &responses {
            answer(&mut pair, 0, response, payload);
        }
        assert_broken(&mut pair, context);
    }
    let mut pair = pair_with(|key| SendOperation::FetchAdd { address: 0, rkey: key, add: 1 });
    let (response, payload) = data(u32::MAX, 8, 0, 8);
    answer(&mut pair, 0, &response, &payload);
    assert_broken(&mut pair, "data for an atomic operation");

    // The right one completes the request, once.
    let mut pair = pair_with(read);
    let (response, payload) = data(u32::MAX, 8, 0, 8);
    answer(&mut pair, 0, &response, &payload);
    assert_eq!(pair.near.completions(), [(Queue::Send, 1, Status::Success, 8)]);
    pair.near.fill(RESULT.start, &[0; 8]);
    answer(&mut pair, 0, &response, &payload);
    assert_eq!((pair.near.pair.state(), pair.near.completions()), (QueuePairState::Error, vec![]));
    assert_eq!(pair.near.bytes(0, MEMORY_BYTES), vec![0; MEMORY_BYTES]);
}

#[test]
fn refusal_of_no_request_fails_the_queue_pair() {
    let refusal = |message, executed| {
        let extension = Extension::Acknowledgment(Syndrome::NakRemoteAccess, 0, 0);
        segment_of(Operation::Acknowledge, message, Place::default(), extension, executed)
    };
    let mut pair = pair_with(read);
    answer(&mut pair, 0, &refusal(0, 0), &[]);
    assert_broken(&mut pair, "a message that was not sent");
    let mut pair = pair_with(|key| SendOperation::Write { address: 0, rkey: key, immediate: None });
    answer(&mut pair, 0, &refusal(u32::MAX, 1), &[]);
    assert_eq!(pair.near.completions(), [(Queue::Send, 1, Status::Success, 0)]);
    assert_eq!(pair.near.pair.state(), QueuePairState::Error, "a message that was executed");
}

/// Two lanes; the first one has carried a WRITE of 8 bytes.
fn pair_with_lanes() -> Pair {
    let mut pair = Pair::with_lanes(2);
    let write = SendOperation::Write { address: 0, rkey: pair.far.memory.key(), immediate: None };
    pair.near.send(1, write, &[pair.near.sge(RESULT.start as u64, 8)]).unwrap();
    pair.near.transmit(usize::MAX);
    pair
}

#[test]
fn fails_on_false_lane_report() {
    let valid = LaneReport { lane: 0, epoch: 1, received_epoch: 1, segments: 0, bytes: 3 };
    let cases = [
        ("a lane that does not exist", LaneReport { lane: 2, ..valid.clone() }),
        ("the lane of the report", LaneReport { lane: 1, ..valid.clone() }),
        ("an epoch that has not begun", LaneReport { received_epoch: 9, ..valid.clone() }),
        ("more segments than were sent", LaneReport { segments: 2, ..valid.clone() }),
        ("all bytes of a segment that has not arrived", LaneReport { bytes: 8, ..valid.clone() }),
        ("more bytes than the segment has", LaneReport { bytes: u32::MAX, ..valid.clone() }),
    ];
    let report = |report: &LaneReport| {
        segment_of(Operation::LaneReport, 0, Place::default(), Extension::LaneReport(report.clone()), 0)
    };
    for (context, change) in cases {
        let mut pair = pair_with_lanes();
        answer(&mut pair, 1, &report(&change), &[]);
        assert_broken(&mut pair, context);
    }
    // A late report about an earlier epoch changes nothing.
    let mut pair = pair_with_lanes();
    answer(&mut pair, 1, &report(&LaneReport { epoch: 0, ..valid.clone() }), &[]);
    assert!(pair.near.pair.is_lane_open(0) && pair.near.pair.state() == QueuePairState::ReadyToSend);
    // The valid one closes the lane, and the other one carries the rest.
    answer(&mut pair, 1, &report(&valid), &[]);
    assert!(!pair.near.pair.is_lane_open(0) && pair.near.pair.state() == QueuePairState::ReadyToSend);
    let before = pair.near.sent.len();
    pair.near.transmit_on(1, usize::MAX);
    assert!(pair.near.sent.len() > before);
    // A second one names a segment that is no longer lost.
    answer(&mut pair, 1, &report(&valid), &[]);
    assert_eq!((pair.near.pair.state(), pair.near.completions()), (QueuePairState::ReadyToSend, vec![]));
}

#[test]
fn fails_on_false_report_in_hello() {
    let cases = [
        ("an epoch that has not begun", Received { epoch: 7, segments: 0, bytes: 0 }),
        ("more segments than were sent", Received { epoch: 1, segments: 2, bytes: 0 }),
        ("more bytes than the segment has", Received { epoch: 1, segments: 0, bytes: 9 }),
    ];
    for (context, received) in cases {
        let mut pair = pair_with_lanes();
        pair.near.pair.handle_lane_closed(0);
        pair.near.pair.start_lane(0).unwrap();
        pair.near.pair.handle_lane_open(0, received);
        assert_broken(&mut pair, context);
    }
}

#[test]
fn refusals_without_end_fail_the_request() {
    for retries in [1_u8, 5] {
        let mut pair = Pair::with_shared_receives(Limits::default(), SEGMENT_BYTES, retries);
        pair.near.send(1, SEND, &[]).unwrap();
        let delay = rnr_delay(RNR_TIMER);
        let mut rounds = 0;
        // The peer is ready again after each refusal, and never executes the request.
        while pair.near.pair.state() == QueuePairState::ReadyToSend {
            pair.near.transmit(usize::MAX);
            for (syndrome, count) in
                [(Syndrome::ReceiverNotReady, rounds), (Syndrome::ReceiverReady, rounds + 1)]
            {
                let extension = Extension::Acknowledgment(syndrome, RNR_TIMER, 0);
                let mut report = segment_of(Operation::Acknowledge, u32::MAX, Place::default(), extension, 0);
                report.rnr_count = count;
                answer(&mut pair, 0, &report, &[]);
                pair.near.now += delay / 2;
                let now = pair.near.now;
                pair.near.pair.handle_timeout(now);
            }
            rounds += 1;
            assert!(rounds <= retries + 2, "the request waits forever");
        }
        assert_eq!(pair.near.completions(), [(Queue::Send, 1, Status::RnrRetryExceeded, 0)]);
    }
}

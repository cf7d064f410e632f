//! A peer that breaks the rules reaches no memory, and stops nothing but its own queue pair.

use super::*;
use crate::wire::AtomicOperands;

/// Delivers a segment with `payload` to the far end.
fn inject(pair: &mut Pair, segment: &Segment, payload: &[u8]) {
    let mut prefix = [0; MAX_PREFIX_BYTES];
    let len = segment.encode_to(&mut prefix);
    let mut pipe: VecDeque<u8> = prefix[..len].iter().chain(payload).copied().collect();
    while !pipe.is_empty() {
        pair.far.deliver(&mut pipe, 100);
    }
}

/// A valid WRITE of 8 bytes at 0, the first message.
fn write(pair: &Pair) -> Segment {
    let range = RemoteRange { address: 0, key: pair.far.memory.key(), length: 8 };
    let place = Place { size: 8, offset: 0, length: 8 };
    let mut write = segment(Operation::Write, u32::MAX, place, Extension::Range(range, None));
    write.acknowledged = 7;
    write
}

fn assert_failed(pair: &mut Pair, context: &str) {
    assert_eq!(pair.far.pair.state(), QueuePairState::Error, "{context}");
    assert_eq!(pair.far.bytes(0, MEMORY_BYTES), vec![0; MEMORY_BYTES], "{context}");
    // The lane is still read.
    let mut pipe: VecDeque<u8> = vec![0xff; 100_000].into();
    while !pipe.is_empty() {
        pair.far.deliver(&mut pipe, 5000);
    }
}

#[test]
fn wrong_segments_place_nothing() {
    type Change = (&'static str, fn(&mut Segment));
    let changes: [Change; 7] = [
        ("a guessed key", |write| write.extension = range(|range| range.key ^= 1, write)),
        ("a range that ends one byte too far", |write| {
            write.extension = range(|range| range.address = MEMORY_BYTES as u64 - 7, write);
        }),
        ("an address that wraps", |write| {
            write.extension = range(|range| range.address = u64::MAX - 3, write);
        }),
        ("a range of another size", |write| write.extension = range(|range| range.length = 9, write)),
        ("a message beyond the window", |write| write.message = u32::MAX.wrapping_add(WINDOW)),
        ("an acknowledgment of unsent messages", |write| write.acknowledged = 8),
        ("invented credits", |write| write.credits = Limits::MAX_RECEIVES as u16 + 1),
    ];
    for (context, change) in changes {
        let mut pair = Pair::new();
        let mut segment = write(&pair);
        change(&mut segment);
        inject(&mut pair, &segment, &[1; 8]);
        assert_failed(&mut pair, context);
    }
    let mut pair = Pair::new();
    let valid = write(&pair);
    inject(&mut pair, &valid, &[1; 8]);
    assert_eq!(pair.far.bytes(0, 9), [1, 1, 1, 1, 1, 1, 1, 1, 0]);
}

fn range(change: impl Fn(&mut RemoteRange), segment: &Segment) -> Extension {
    let Extension::Range(mut range, immediate) = segment.extension.clone() else { panic!("no range") };
    change(&mut range);
    Extension::Range(range, immediate)
}

/// The first of two segments of a SEND of 20 bytes; the receive is posted.
fn half_a_send(pair: &mut Pair) -> Segment {
    pair.far.receive(1, &[pair.far.sge(100, 40)]);
    let place = Place { size: 20, offset: 0, length: 10 };
    let mut first = segment(Operation::Send, u32::MAX, place, Extension::None);
    first.acknowledged = 7;
    inject(pair, &first, &[0; 10]);
    assert_eq!(pair.far.pair.state(), QueuePairState::ReadyToSend);
    first
}

#[test]
fn message_that_changes_between_segments_is_refused() {
    let mut pair = Pair::new();
    let first = half_a_send(&mut pair);
    let longer = Segment { opcode: Opcode::SendLast, size: 40, offset: 10, length: 30, ..first.clone() };
    inject(&mut pair, &longer, &[1; 30]);
    assert_failed(&mut pair, "a size that grows");

    let mut pair = Pair::new();
    let first = half_a_send(&mut pair);
    let extension = write(&pair).extension;
    let other = Segment { opcode: Opcode::WriteLast, offset: 10, length: 10, extension, ..first };
    inject(&mut pair, &other, &[1; 10]);
    assert_failed(&mut pair, "another operation");
}

#[test]
fn duplicates_place_nothing() {
    let mut pair = Pair::new();
    let first = half_a_send(&mut pair);
    let overlapping = Segment { opcode: Opcode::SendLast, offset: 5, length: 15, ..first.clone() };
    let old = Segment { message: u32::MAX - 1, ..write(&pair) };
    for (segment, payload) in [(&first, 10), (&overlapping, 15), (&old, 8)] {
        inject(&mut pair, segment, &vec![1; payload]);
    }
    assert_eq!(pair.far.bytes(0, MEMORY_BYTES), vec![0; MEMORY_BYTES]);
    assert_eq!((pair.far.pair.state(), pair.far.completions()), (QueuePairState::ReadyToSend, vec![]));
    let last = Segment { opcode: Opcode::SendLast, offset: 10, length: 10, ..first };
    inject(&mut pair, &last, &[2; 10]);
    assert_eq!(pair.far.completions(), [(Queue::Receive, 1, Status::Success, 20)]);
    // After its completion, the memory belongs to the program.
    inject(&mut pair, &last, &[3; 10]);
    assert_eq!(pair.far.bytes(110, 11), [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 0]);
    assert_eq!(pair.far.completions(), []);
}

#[test]
fn number_of_ranges_is_bounded() {
    let mut pair = Pair::new();
    let key = pair.far.memory.key();
    // Every other byte of messages that never end.
    for number in 0..2 * WINDOW {
        for offset in 0..20 {
            if pair.far.pair.state() == QueuePairState::Error {
                return;
            }
            let range = RemoteRange { address: 0, key, length: 60 };
            let place = Place { size: 60, offset: 2 * offset + 1, length: 1 };
            let message = u32::MAX.wrapping_add(number % WINDOW);
            let mut write = segment(Operation::Write, message, place, Extension::Range(range, None));
            write.acknowledged = 7;
            inject(&mut pair, &write, &[1]);
        }
    }
    panic!("the peer was not stopped");
}

#[test]
fn long_request_that_changes_between_messages_is_refused() {
    let mut pair = Pair::new();
    let mut first = write(&pair);
    first.flags = first.flags.with_continued(true);
    inject(&mut pair, &first, &[0; 8]);
    pair.far.receive(1, &[pair.far.sge(100, 40)]);
    let send = Segment { opcode: Opcode::SendOnly, message: 0, extension: Extension::None, ..first };
    inject(&mut pair, &send, &[1; 8]);
    assert_failed(&mut pair, "a SEND that continues a WRITE");

    let mut pair = Pair::new();
    let mut last = write(&pair);
    last.opcode = Opcode::WriteOnlyImmediate;
    last.flags = last.flags.with_continued(true);
    let Extension::Range(range, _) = last.extension else { panic!("no range") };
    last.extension = Extension::Range(range, Some(1));
    pair.far.receive(1, &[]);
    inject(&mut pair, &last, &[1; 8]);
    assert_failed(&mut pair, "immediate data before the end");
    assert_eq!(pair.far.completions(), [(Queue::Receive, 1, Status::Flushed, 0)]);
}

#[test]
fn send_beyond_the_credits_is_refused() {
    let mut pair = Pair::new();
    let place = Place { size: 4, offset: 0, length: 4 };
    let mut send = segment(Operation::Send, u32::MAX, place, Extension::None);
    send.acknowledged = 7;
    inject(&mut pair, &send, b"data");
    assert_failed(&mut pair, "no receive");
}

#[test]
fn more_reads_than_agreed_are_refused() {
    let mut pair = Pair::new();
    for number in 0..=RESOURCES as u32 {
        let range = RemoteRange { address: 0, key: pair.far.memory.key(), length: 8 };
        let place = Place { size: 8, offset: 0, length: 0 };
        let message = u32::MAX.wrapping_add(number);
        let mut read = segment(Operation::ReadRequest, message, place, Extension::Range(range, None));
        read.opcode = Opcode::ReadRequest;
        read.acknowledged = 7;
        inject(&mut pair, &read, &[]);
    }
    assert_failed(&mut pair, "one read too many");
}

#[test]
fn response_to_nothing_is_refused() {
    for operation in [Operation::ReadResponse, Operation::AtomicResponse] {
        let mut pair = Pair::new();
        let found = operation == Operation::AtomicResponse;
        let place = Place { size: 8, offset: 0, length: if found { 0 } else { 8 } };
        let extension = if found { Extension::Found(5) } else { Extension::None };
        let mut response = segment(operation, 7, place, extension);
        response.acknowledged = 7;
        inject(&mut pair, &response, if found { &[] } else { &[1; 8] });
        assert_failed(&mut pair, "a response without a request");
    }
}

proptest! {
    #[test]
    fn any_bytes_end_in_an_error_or_wait(bytes in prop::collection::vec(any::<u8>(), 0..300), chunk in 1_usize..50) {
        let mut pair = Pair::new();
        pair.far.receive(1, &[pair.far.sge(0, 100)]);
        let mut pipe: VecDeque<u8> = bytes.into();
        while !pipe.is_empty() {
            pair.far.deliver(&mut pipe, chunk);
        }
        pair.far.transmit(usize::MAX);
    }

    /// Changes one byte of a valid exchange.
    #[test]
    fn one_wrong_byte_reaches_no_other_memory(at in 0_usize..200, value in any::<u8>(), chunk in 1_usize..100) {
        let mut pair = Pair::with(ALL, Limits::default(), 16);
        pair.near.fill(0, &[0xa5; 64]);
        pair.far.receive(1, &[pair.far.sge(1000, 40)]);
        pair.run();
        let key = pair.far.memory.key();
        let write = SendOperation::Write { address: 2000, rkey: key, immediate: None };
        pair.near.send(1, write, &[pair.near.sge(0, 40)]).unwrap();
        pair.near.send(2, SEND, &[pair.near.sge(0, 40)]).unwrap();
        pair.near.transmit(usize::MAX);
        let len = pair.near.sent.len();
        pair.near.sent[at % len] = value;
        while !pair.near.sent.is_empty() {
            pair.far.deliver(&mut pair.near.sent, chunk);
        }
        // The changed byte can be one of an address, but never of the key.
        let written = pair.far.bytes(0, MEMORY_BYTES).iter().filter(|byte| **byte != 0).count();
        prop_assert!(written <= 80, "{} bytes were written", written);
    }
}

#[test]
fn peer_that_does_not_read_costs_bounded_memory() {
    let mut pair = Pair::new();
    for number in 0..20_000 {
        let range = RemoteRange { address: 0, key: 0, length: 0 };
        let extension = Extension::Range(range, None);
        let mut write = segment(Operation::Write, u32::MAX.wrapping_add(number), Place::default(), extension);
        write.flags = write.flags.with_ack_requested(true);
        write.acknowledged = 7;
        inject(&mut pair, &write, &[]);
        assert!(pair.far.pair.wants_transmit(0));
    }
    assert_eq!(pair.far.pair.state(), QueuePairState::ReadyToSend);
    assert!(pair.far.pair.lanes[0].output.pending_bytes() <= 2 * OUTPUT_BYTES + MAX_PREFIX_BYTES);
}

#[test]
fn questions_cost_bounded_memory() {
    for syndrome in [Syndrome::Probe, Syndrome::ReceiveAwaited, Syndrome::Alive] {
        let mut pair = Pair::new();
        for _ in 0..20_000 {
            let extension = Extension::Acknowledgment(syndrome, 0, 0);
            let mut question = segment(Operation::Acknowledge, u32::MAX, Place::default(), extension);
            question.acknowledged = 7;
            inject(&mut pair, &question, &[]);
            // The peer reads nothing.
            pair.far.pair.wants_transmit(0);
        }
        assert_eq!(pair.far.pair.state(), QueuePairState::ReadyToSend);
        let pending = pair.far.pair.lanes[0].output.pending_bytes();
        assert!(pending <= 2 * OUTPUT_BYTES + MAX_PREFIX_BYTES, "{syndrome:?}: {pending} bytes");
    }
}

/// A SEND of 4 bytes that names a receive.
fn send_into(message: u32, receive: u8) -> Segment {
    let place = Place { size: 4, offset: 0, length: 4 };
    let mut send = segment(Operation::Send, message, place, Extension::None);
    (send.acknowledged, send.receive) = (7, receive);
    send
}

#[test]
fn receive_of_another_request_is_refused() {
    let cases = [
        ("a receive beyond the window", vec![send_into(u32::MAX, 200)]),
        ("the receive of a later request", vec![send_into(u32::MAX, 1)]),
        // The second one arrives first.
        ("the same receive twice", vec![send_into(0, 0), send_into(u32::MAX, 0)]),
    ];
    for (context, sends) in cases {
        let mut pair = Pair::new();
        (0..4).for_each(|id| pair.far.receive(id, &[pair.far.sge(100 * id, 4)]));
        for send in &sends {
            inject(&mut pair, send, b"data");
        }
        assert_eq!(pair.far.pair.state(), QueuePairState::Error, "{context}");
        let done = pair.far.completions();
        assert!(
            done.iter().map(|done| (done.1, done.2)).eq((0..4).map(|id| (id, Status::Flushed))),
            "{done:?}"
        );
        // Bytes can be in the receives only.
        let memory = pair.far.bytes(0, MEMORY_BYTES);
        let beside =
            memory.iter().enumerate().filter(|(at, byte)| **byte != 0 && (at % 100 >= 4 || *at >= 400));
        assert_eq!(beside.count(), 0, "{context}");
    }
}

#[test]
fn request_without_end_is_refused_beyond_its_receive() {
    let mut pair = Pair::new();
    pair.far.receive(1, &[pair.far.sge(100, 40)]);
    let mut messages = 0;
    while pair.far.pair.state() == QueuePairState::ReadyToSend {
        let place = Place { size: 12, offset: 0, length: 12 };
        let mut part = segment(Operation::Send, u32::MAX.wrapping_add(messages), place, Extension::None);
        part.flags = part.flags.with_continued(true);
        part.acknowledged = 7;
        inject(&mut pair, &part, &[1; 12]);
        messages += 1;
        assert!(messages < 10, "the request does not end");
    }
    assert_eq!(pair.far.completions(), [(Queue::Receive, 1, Status::LocalLength, 0)]);
    assert_eq!(pair.far.bytes(136, MEMORY_BYTES - 136), vec![0; MEMORY_BYTES - 136]);
}

#[test]
fn atomic_operation_on_other_than_8_bytes_is_refused() {
    for size in [0, 4, 9, 1 << 20] {
        let mut pair = Pair::new();
        let operands = AtomicOperands { address: 0, key: pair.far.memory.key(), swap_or_add: 1, compare: 0 };
        let place = Place { size, offset: 0, length: 0 };
        let mut add = segment(Operation::FetchAdd, u32::MAX, place, Extension::Atomic(operands));
        add.opcode = Opcode::FetchAdd;
        add.acknowledged = 7;
        inject(&mut pair, &add, &[]);
        assert_failed(&mut pair, &format!("{size} bytes"));
    }
}

#[test]
fn datagram_on_a_lane_is_refused() {
    let mut pair = Pair::new();
    let mut pipe: VecDeque<u8> = [0x64].into_iter().chain([0; 31]).collect();
    while !pipe.is_empty() {
        pair.far.deliver(&mut pipe, 100);
    }
    assert_failed(&mut pair, "a datagram");
}

#[test]
fn receive_without_memory_fails_both_ends() {
    let mut pair = Pair::new();
    let wrong = Sge { lkey: !pair.far.memory.key(), ..pair.far.sge(0, 8) };
    pair.far.receive(1, &[wrong]);
    pair.near.fill(0, &[1; 8]);
    pair.near.send(2, SEND, &[pair.near.sge(0, 8)]).unwrap();
    pair.run();
    assert_eq!(pair.far.completions(), [(Queue::Receive, 1, Status::LocalProtection, 0)]);
    assert_eq!(pair.near.completions(), [(Queue::Send, 2, Status::RemoteOperation, 0)]);
    assert_failed(&mut pair, "a receive with a wrong key");
}

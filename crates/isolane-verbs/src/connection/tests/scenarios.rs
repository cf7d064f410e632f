//! Scenarios of programs whose peer follows the rules.

use super::*;

#[test]
fn send_fills_a_receive() {
    for chunk in [1, 2, 7, 23, 24, 25, 4095, usize::MAX] {
        let mut pair = Pair::new();
        pair.near.fill(0, b"hello");
        pair.near.fill(100, b" there");
        pair.far.receive(1, &[pair.far.sge(10, 3), pair.far.sge(20, 100)]);
        pair.near.send(2, SEND, &[pair.near.sge(0, 5), pair.near.sge(100, 6)]).unwrap();
        pair.run_in(chunk);
        assert_eq!(pair.far.completions(), [(Queue::Receive, 1, Status::Success, 11)]);
        assert_eq!(pair.near.completions(), [(Queue::Send, 2, Status::Success, 0)]);
        assert_eq!((pair.far.bytes(10, 3), pair.far.bytes(20, 9)), (b"hel".to_vec(), b"lo there\0".to_vec()));
    }
}

#[test]
fn only_runs_of_short_payloads_are_received_together() {
    let limits = Limits { send_requests: 32, receives: 32, ..Limits::default() };
    let mut pair = Pair::with(ALL, limits, SEGMENT_BYTES);
    let mut overflow = vec![0; MEMORY_BYTES];
    let mut send = |pair: &mut Pair, lengths: &[u32]| {
        for length in lengths {
            pair.far.receive(0, &[pair.far.sge(0, *length)]);
            pair.near.send(0, SEND, &[pair.near.sge(0, *length)]).unwrap();
            pair.run();
        }
        pair.far.pair.fill_receive_plan(0, &mut overflow, &mut ReceivePlan::new())
    };
    assert_eq!(send(&mut pair, &[]), 4120);
    assert_eq!(send(&mut pair, &[16_384; 15]), 4120);
    assert_eq!(send(&mut pair, &[64, 0]), MEMORY_BYTES);
    assert_eq!(send(&mut pair, &[16_385]), 4120);
    // Notices between long messages.
    assert_eq!(send(&mut pair, &[64, 20_000, 64, 20_000, 64]), 4120);
}

#[test]
fn send_without_receive_waits() {
    let mut pair = Pair::new();
    pair.near.fill(0, b"abcdef");
    for id in 0..3 {
        pair.near.send(id, SEND, &[pair.near.sge(2 * id, 2)]).unwrap();
    }
    pair.run();
    assert_eq!((pair.near.completions(), pair.far.completions()), (vec![], vec![]));
    pair.far.receive(10, &[pair.far.sge(0, 2)]);
    pair.run();
    assert_eq!(pair.near.completions(), [(Queue::Send, 0, Status::Success, 0)]);
    pair.far.receive(11, &[pair.far.sge(2, 2)]);
    pair.far.receive(12, &[pair.far.sge(4, 2)]);
    pair.run();
    assert_eq!(pair.near.completions().len(), 2);
    assert_eq!(pair.far.completions().len(), 3);
    assert_eq!(pair.far.bytes(0, 6), b"abcdef");
}

#[test]
fn write_places_bytes_and_completes_after_placement() {
    let mut pair = Pair::with(ALL, Limits::default(), 1000);
    let data: Vec<u8> = (0..30_000_u32).map(|at| (at % 251) as u8).collect();
    pair.near.fill(0, &data);
    let key = pair.far.memory.key();
    let write = SendOperation::Write { address: 5000, rkey: key, immediate: None };
    pair.near.send(1, write, &[pair.near.sge(0, 30_000)]).unwrap();
    while !pair.near.pair.finished.completions.iter().any(|(queue, _)| *queue == Queue::Send) {
        exchange(&mut pair.near, &mut pair.far, 1777);
        exchange(&mut pair.far, &mut pair.near, 1777);
    }
    assert_eq!(pair.far.bytes(5000, 30_000), data);
    assert_eq!((pair.far.bytes(0, 5000), pair.far.bytes(35_000, 100)), (vec![0; 5000], vec![0; 100]));
    assert_eq!(pair.far.completions(), []);
}

#[test]
fn write_with_immediate_completes_a_receive() {
    let mut pair = Pair::new();
    pair.near.fill(0, b"data");
    pair.far.receive(5, &[]);
    let key = pair.far.memory.key();
    let write = SendOperation::Write { address: 8, rkey: key, immediate: Some(0xabcd) };
    pair.near.send(1, write, &[pair.near.sge(0, 4)]).unwrap();
    pair.run();
    let (queue, completion) = pair.far.pair.poll_completion().unwrap();
    assert_eq!((queue, completion.id, completion.length), (Queue::Receive, 5, 4));
    assert_eq!(
        (completion.immediate, completion.operation),
        (Some(0xabcd), CompletedOperation::ReceiveWrite)
    );
    assert_eq!(pair.far.bytes(8, 4), b"data");
}

#[test]
fn read_and_atomics_return_values() {
    let mut pair = Pair::with(ALL, Limits::default(), 500);
    let data: Vec<u8> = (0..2000_u32).map(|at| (at % 253) as u8).collect();
    pair.far.fill(100, &data);
    pair.far.fill(8, &41_u64.to_le_bytes());
    let key = pair.far.memory.key();
    pair.near.send(1, SendOperation::Read { address: 100, rkey: key }, &[pair.near.sge(7, 2000)]).unwrap();
    pair.near
        .send(2, SendOperation::FetchAdd { address: 8, rkey: key, add: 1 }, &[pair.near.sge(4096, 8)])
        .unwrap();
    let swap = SendOperation::CompareSwap { address: 8, rkey: key, compare: 42, swap: 7 };
    pair.near.send(3, swap, &[pair.near.sge(4104, 4), pair.near.sge(4200, 4)]).unwrap();
    pair.run_in(333);
    let done = [
        (Queue::Send, 1, Status::Success, 2000),
        (Queue::Send, 2, Status::Success, 8),
        (Queue::Send, 3, Status::Success, 8),
    ];
    assert_eq!(pair.near.completions(), done);
    assert_eq!(pair.near.bytes(7, 2000), data);
    assert_eq!(pair.near.bytes(4096, 8), 41_u64.to_le_bytes());
    assert_eq!(pair.near.bytes(4104, 4), 42_u32.to_le_bytes());
    assert_eq!(pair.far.bytes(8, 8), 7_u64.to_le_bytes());
}

#[test]
fn empty_requests_complete() {
    let mut pair = Pair::new();
    pair.far.receive(1, &[]);
    let key = pair.far.memory.key();
    pair.near.send(1, SEND, &[]).unwrap();
    pair.near.send(2, SendOperation::Write { address: 0, rkey: 0, immediate: None }, &[]).unwrap();
    pair.near.send(3, SendOperation::Read { address: 0, rkey: key }, &[]).unwrap();
    pair.run();
    let statuses: Vec<_> = pair.near.completions().iter().map(|(_, id, status, _)| (*id, *status)).collect();
    assert_eq!(statuses, [(1, Status::Success), (2, Status::Success), (3, Status::Success)]);
    assert_eq!(pair.far.completions(), [(Queue::Receive, 1, Status::Success, 0)]);
}

#[test]
fn fenced_request_waits_for_reads() {
    let mut pair = Pair::new();
    pair.far.receive(1, &[pair.far.sge(0, 8)]);
    pair.run();
    let key = pair.far.memory.key();
    pair.near.send(1, SendOperation::Read { address: 0, rkey: key }, &[pair.near.sge(0, 8)]).unwrap();
    let data = LocalData::Inline(b"after".to_vec());
    let fenced = SendRequest { id: 2, operation: SEND, data, signaled: true, solicited: true, fenced: true };
    pair.near.pair.post_send(fenced).unwrap();
    pair.near.transmit(usize::MAX);
    let read_request = Segment::prefix_len(Opcode::ReadRequest.code()).unwrap();
    assert_eq!(pair.near.sent.len(), read_request, "the fenced request was sent before the response");
    pair.run();
    assert_eq!(pair.near.completions().len(), 2);
    assert_eq!(pair.far.bytes(0, 5), b"after");
    assert!(pair.far.pair.poll_completion().unwrap().1.solicited);
}

#[test]
fn unsignaled_requests_complete_silently() {
    let mut pair = Pair::with(ALL, Limits { send_requests: 8, ..Limits::default() }, SEGMENT_BYTES);
    let key = pair.far.memory.key();
    for id in 0..100 {
        let data = LocalData::Inline(vec![id as u8]);
        let operation = SendOperation::Write { address: id, rkey: key, immediate: None };
        let request =
            SendRequest { id, operation, data, signaled: id == 99, solicited: false, fenced: false };
        while let Err(error) = pair.near.pair.post_send(request.clone()) {
            assert_eq!(error, PostError::Full(8));
            pair.run();
        }
    }
    pair.run();
    assert_eq!(pair.near.completions(), [(Queue::Send, 99, Status::Success, 0)]);
    assert_eq!(pair.far.bytes(0, 100), (0..100).collect::<Vec<u8>>());
}

/// Connected ends with `len` bytes of memory each.
fn pair_with_memory(len: usize) -> Pair {
    let mut pair = Pair::new();
    for end in [&mut pair.near, &mut pair.far] {
        end.pair.domain = Arc::default();
        end.memory = end.pair.domain.register(guarded_region(len).unwrap(), 0, ALL).unwrap();
    }
    pair
}

#[test]
fn long_request_continues_in_further_messages() {
    let len = 2 * MESSAGE_BYTES as usize + 12_345;
    let data: Vec<u8> = (0..len).map(|at| (at % 255) as u8).collect();
    let mut pair = pair_with_memory(len);
    pair.near.fill(0, &data);
    let length = len as u32;
    pair.far.receive(1, &[pair.far.sge(0, length)]);
    pair.near.send(1, SEND, &[pair.near.sge(0, length)]).unwrap();
    pair.run();
    assert_eq!(pair.far.completions(), [(Queue::Receive, 1, Status::Success, len as u64)]);
    assert!(pair.far.bytes(0, len) == data, "the SEND arrived changed");
    pair.near.fill(0, &vec![0; len]);
    let key = pair.far.memory.key();
    pair.near.send(2, SendOperation::Read { address: 0, rkey: key }, &[pair.near.sge(0, length)]).unwrap();
    pair.run();
    assert_eq!(pair.near.completions().len(), 2);
    assert!(pair.near.bytes(0, len) == data, "the READ arrived changed");
}

#[test]
fn long_write_with_immediate_reports_whole_length() {
    let len = 2 * MESSAGE_BYTES as usize + 12_345;
    let mut pair = pair_with_memory(len);
    (1..=3).for_each(|id| pair.far.receive(id, &[]));
    let key = pair.far.memory.key();
    let write = SendOperation::Write { address: 0, rkey: key, immediate: Some(6) };
    for (id, length) in [(1, len as u32), (2, 100), (3, MESSAGE_BYTES as u32 + 1)] {
        pair.near.send(id, write, &[pair.near.sge(0, length)]).unwrap();
    }
    pair.run();
    let received = |id, len| (Queue::Receive, id, Status::Success, len);
    let expected = [received(1, len as u64), received(2, 100), received(3, MESSAGE_BYTES + 1)];
    assert_eq!(pair.far.completions(), expected);
}

#[test]
fn refused_access_fails_both_ends() {
    let cases = [
        (Access(0xf & !2), SendOperation::Write { address: 0, rkey: 0, immediate: None }),
        (Access(0xf & !4), SendOperation::Read { address: 0, rkey: 0 }),
        (Access(0xf & !8), SendOperation::FetchAdd { address: 0, rkey: 0, add: 1 }),
        (ALL, SendOperation::Write { address: MEMORY_BYTES as u64 - 7, rkey: 0, immediate: None }),
        (ALL, SendOperation::Read { address: u64::MAX - 3, rkey: 0 }),
    ];
    for (access, operation) in cases {
        let mut pair = Pair::with(access, Limits::default(), SEGMENT_BYTES);
        let actual = pair.far.memory.key();
        let with_key = |key| match operation {
            SendOperation::Write { address, immediate, .. } => {
                SendOperation::Write { address, rkey: key, immediate }
            }
            SendOperation::Read { address, .. } => SendOperation::Read { address, rkey: key },
            SendOperation::FetchAdd { address, add, .. } => {
                SendOperation::FetchAdd { address, rkey: key, add }
            }
            other => other,
        };
        pair.near.send(1, SendOperation::Write { address: 0, rkey: actual, immediate: None }, &[]).unwrap();
        pair.near.send(2, with_key(actual), &[pair.near.sge(0, 8)]).unwrap();
        pair.near.send(3, SEND, &[]).unwrap();
        pair.far.receive(9, &[]);
        pair.run();
        let done: Vec<_> = pair.near.completions().iter().map(|(_, id, status, _)| (*id, *status)).collect();
        assert_eq!(done, [(1, Status::Success), (2, Status::RemoteAccess), (3, Status::Flushed)]);
        assert_eq!(pair.far.completions(), [(Queue::Receive, 9, Status::Flushed, 0)]);
        assert_eq!(pair.far.pair.poll_event(), Some(AsyncEvent::AccessViolation));
        assert_eq!(
            (pair.near.pair.state(), pair.far.pair.state()),
            (QueuePairState::Error, QueuePairState::Error)
        );
        assert_eq!(pair.far.bytes(0, MEMORY_BYTES), vec![0; MEMORY_BYTES]);
    }
}

#[test]
fn send_longer_than_the_receive_fails_both_ends() {
    let mut pair = Pair::with(ALL, Limits::default(), 10);
    pair.far.receive(1, &[pair.far.sge(0, 15)]);
    pair.near.fill(0, &[1; 16]);
    pair.near.send(1, SEND, &[pair.near.sge(0, 16)]).unwrap();
    pair.run();
    assert_eq!(pair.far.completions(), [(Queue::Receive, 1, Status::LocalLength, 0)]);
    assert_eq!(pair.near.completions(), [(Queue::Send, 1, Status::RemoteInvalidRequest, 0)]);
    assert_eq!(pair.far.bytes(10, 10), [0; 10], "bytes of the refused segment were placed");
}

#[test]
fn refusal_follows_responses_to_earlier_requests() {
    let mut pair = Pair::new();
    let key = pair.far.memory.key();
    pair.far.fill(0, &[7; MEMORY_BYTES]);
    for id in 0..16 {
        let read = SendOperation::Read { address: 0, rkey: key };
        pair.near.send(id, read, &[pair.near.sge(0, MEMORY_BYTES as u32)]).unwrap();
    }
    let write = SendOperation::Write { address: 0, rkey: !key, immediate: None };
    pair.near.send(16, write, &[pair.near.sge(0, 8)]).unwrap();
    pair.run();
    let done: Vec<_> = pair.near.completions().iter().map(|(_, id, status, _)| (*id, *status)).collect();
    let reads = (0..16).map(|id| (id, Status::Success));
    assert_eq!(done, reads.chain([(16, Status::RemoteAccess)]).collect::<Vec<_>>());
    assert_eq!(pair.near.bytes(0, MEMORY_BYTES), [7; MEMORY_BYTES]);
}

#[test]
fn response_that_arrives_after_a_failure_is_discarded() {
    let mut pair = Pair::new();
    let key = pair.far.memory.key();
    pair.far.fill(0, &[7; 100]);
    pair.near.send(1, SendOperation::Read { address: 0, rkey: key }, &[pair.near.sge(0, 100)]).unwrap();
    exchange(&mut pair.near, &mut pair.far, usize::MAX);
    pair.far.transmit(usize::MAX);
    let mut remaining = pair.far.sent.split_off(60);
    while !pair.far.sent.is_empty() {
        pair.near.deliver(&mut pair.far.sent, usize::MAX);
    }
    pair.near.pair.fail();
    while !remaining.is_empty() {
        pair.near.deliver(&mut remaining, usize::MAX);
    }
    assert_eq!(pair.near.completions(), [(Queue::Send, 1, Status::Flushed, 0)]);
    assert_eq!(pair.near.pair.poll_event(), None);
    assert_eq!(pair.near.bytes(36, 64), [0; 64]);
}

#[test]
fn unaligned_atomic_is_an_invalid_request() {
    let mut pair = Pair::new();
    let key = pair.far.memory.key();
    pair.near
        .send(1, SendOperation::FetchAdd { address: 4, rkey: key, add: 1 }, &[pair.near.sge(0, 8)])
        .unwrap();
    pair.run();
    assert_eq!(pair.near.completions(), [(Queue::Send, 1, Status::RemoteInvalidRequest, 0)]);
}

#[test]
fn wrong_local_key_fails_in_order() {
    let mut pair = Pair::new();
    let key = pair.far.memory.key();
    let write = SendOperation::Write { address: 0, rkey: key, immediate: None };
    pair.near.send(1, write, &[pair.near.sge(0, 8)]).unwrap();
    let wrong = Sge { lkey: !pair.near.memory.key(), ..pair.near.sge(0, 8) };
    pair.near.send(2, write, &[wrong]).unwrap();
    pair.run();
    let done: Vec<_> = pair.near.completions().iter().map(|(_, id, status, _)| (*id, *status)).collect();
    assert_eq!(done, [(1, Status::Success), (2, Status::LocalProtection)]);
    assert_eq!(pair.near.pair.state(), QueuePairState::Error);
}

#[test]
fn lost_lane_fails_first_request() {
    let mut pair = Pair::new();
    pair.near.receive(7, &[]);
    pair.near.send(1, SEND, &[]).unwrap();
    pair.near.send(2, SEND, &[]).unwrap();
    pair.near.pair.handle_lanes_lost();
    let done = [
        (Queue::Send, 1, Status::RetryExceeded, 0),
        (Queue::Send, 2, Status::Flushed, 0),
        (Queue::Receive, 7, Status::Flushed, 0),
    ];
    assert_eq!(pair.near.completions(), done);
    pair.near.send(3, SEND, &[]).unwrap();
    assert_eq!(pair.near.completions(), [(Queue::Send, 3, Status::Flushed, 0)]);
}

#[test]
fn each_state_takes_its_requests() {
    let mut end = End::new(ALL, Limits { sges: 1, ..Limits::default() }, false);
    let receive = || ReceiveRequest { id: 1, data: [].into_iter().collect() };
    assert_eq!(end.pair.post_receive(receive()), Err(PostError::State(QueuePairState::Reset)));
    assert_eq!(end.send(1, SEND, &[]), Err(PostError::State(QueuePairState::Reset)));
    assert!(end.pair.initialize(ALL) && !end.pair.initialize(ALL));
    assert_eq!(end.pair.post_receive(receive()), Ok(()));
    assert_eq!(end.send(1, SEND, &[]), Err(PostError::State(QueuePairState::Init)));
    assert!(!end.pair.start_sending(&SendAttributes::default()));
    let sges = [end.sge(0, 1), end.sge(1, 1)];
    let data = sges.into_iter().collect();
    assert_eq!(
        end.pair.post_receive(ReceiveRequest { id: 2, data }),
        Err(PostError::Sges { sges: 2, limit: 1 })
    );
}

#[test]
fn failed_end_drops_requests_that_are_not_begun() {
    for sent in [0, 1, 39, 40, 41, 1000, 1040] {
        let mut pair = Pair::with(ALL, Limits::default(), 1000);
        pair.near.fill(0, &[1; 4000]);
        let key = pair.far.memory.key();
        for id in 0..2 {
            let write = SendOperation::Write { address: 2000 * id, rkey: key, immediate: None };
            pair.near.send(id, write, &[pair.near.sge(2000 * id, 2000)]).unwrap();
        }
        pair.near.transmit(sent);
        pair.near.pair.fail();
        assert_eq!(pair.near.completions().len(), 2);
        // The program reuses the memory.
        let holders = Arc::strong_count(pair.near.memory.region());
        assert_eq!(holders, 1, "the memory is in use after {sent} sent bytes");
        pair.near.fill(0, &[2; 4000]);
        pair.run();
        let placed = if sent % 1040 == 0 { sent / 1040 * 1000 } else { 1000 };
        let expected = [vec![1; placed], vec![0; 4000 - placed]].concat();
        assert!(pair.far.bytes(0, 4000) == expected, "wrong memory after {sent} sent bytes");
    }
}

#[test]
fn refusal_follows_a_request_that_is_partly_sent() {
    for sent in [0, 10, 500] {
        let mut pair = Pair::new();
        pair.far.fill(0, &[1; 2000]);
        let (near_key, far_key) = (pair.near.memory.key(), pair.far.memory.key());
        let write = |address, key| SendOperation::Write { address, rkey: key, immediate: None };
        for id in 0..2 {
            let address = 1000 * id;
            pair.far.send(id, write(address, near_key), &[pair.far.sge(address, 1000)]).unwrap();
        }
        pair.far.transmit(sent);
        pair.near.send(1, write(0, !far_key), &[pair.near.sge(0, 8)]).unwrap();
        exchange(&mut pair.near, &mut pair.far, usize::MAX);
        assert_eq!(pair.far.pair.state(), QueuePairState::Error);
        pair.run();
        assert_eq!(pair.near.completions(), [(Queue::Send, 1, Status::RemoteAccess, 0)]);
        let placed = if sent == 0 { 0 } else { 1000 };
        let expected = [vec![1; placed], vec![0; 2000 - placed]].concat();
        assert!(pair.near.bytes(0, 2000) == expected, "wrong memory after {sent} sent bytes");
    }
}

#[test]
fn writes_with_immediate_data_spare_receives() {
    let mut pair = Pair::new();
    pair.near.pair.spare_receives(99);
    pair.far.pair.spare_receives(99);
    let (key, source) = (pair.far.memory.key(), [pair.near.sge(0, 8)]);
    let write = SendOperation::Write { address: 64, rkey: key, immediate: Some(5) };
    pair.near.fill(0, b"12345678");
    // More of them than any count of receives.
    for id in 0..300 {
        pair.near.send(id, write, &source).unwrap();
        pair.run();
    }
    let target = pair.far.sge(128, 8);
    pair.far.receive(7, &[target]);
    pair.near.send(300, write, &source).unwrap();
    pair.near.send(301, SEND, &source).unwrap();
    pair.run();
    let done = pair.far.completions();
    assert_eq!(done[..301], vec![(Queue::Receive, 99, Status::Success, 8); 301]);
    assert_eq!(done[301..], [(Queue::Receive, 7, Status::Success, 8)]);
    assert_eq!((pair.far.bytes(64, 8), pair.far.bytes(128, 8)), (b"12345678".to_vec(), b"12345678".to_vec()));
    assert_eq!(pair.near.completions().len(), 302);
}

#[test]
fn cancels_only_receives_that_are_not_promised() {
    let mut pair = Pair::new();
    let (source, target) = ([pair.near.sge(0, 8)], pair.far.sge(128, 8));
    pair.far.receive(1, &[target]);
    assert!(pair.far.pair.cancel_receive(1) && !pair.far.pair.cancel_receive(1));
    (2..5).for_each(|id| pair.far.receive(id, &[target]));
    assert!(pair.far.pair.cancel_receive(3));
    // A segment of the far end promises the others.
    let back = [pair.far.sge(0, 8)];
    let key = pair.near.memory.key();
    pair.far.send(9, SendOperation::Write { address: 0, rkey: key, immediate: None }, &back).unwrap();
    pair.run();
    assert!(!pair.far.pair.cancel_receive(2) && !pair.far.pair.cancel_receive(4));
    (0..3).for_each(|id| pair.near.send(id, SEND, &source).unwrap());
    pair.run();
    let received = |end: &mut End| -> Vec<u64> {
        end.completions().iter().filter(|done| done.0 == Queue::Receive).map(|done| done.1).collect()
    };
    assert_eq!(received(&mut pair.far), [2, 4]);
    pair.far.receive(5, &[target]);
    pair.run();
    assert_eq!(received(&mut pair.far), [5]);
}

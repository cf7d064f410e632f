//! Scenarios of queue pairs that take receives from a shared queue.

use std::time::Duration;

use super::*;
use crate::wire::{Syndrome, rnr_delay};

fn shared(rnr_retries: u8) -> Pair {
    Pair::with_shared_receives(Limits::default(), SEGMENT_BYTES, rnr_retries)
}

#[test]
fn requests_wait_for_a_receive_and_run_once() {
    for chunk in [1, 30, 500, usize::MAX] {
        let mut pair = Pair::with_shared_receives(Limits::default(), 100, RNR_FOREVER);
        let key = pair.far.memory.key();
        let data: Vec<u8> = (0..1000_u32).map(|at| (at % 251) as u8).collect();
        pair.near.fill(0, &data);
        let add = SendOperation::FetchAdd { address: 32_000, rkey: key, add: 1 };
        let write = SendOperation::Write { address: 8000, rkey: key, immediate: Some(5) };
        pair.near.send(1, add, &[pair.near.sge(4000, 8)]).unwrap();
        pair.near.send(2, SEND, &[pair.near.sge(0, 1000)]).unwrap();
        pair.near.send(3, add, &[pair.near.sge(4008, 8)]).unwrap();
        pair.near.send(4, write, &[pair.near.sge(0, 1000)]).unwrap();
        pair.near.send(5, add, &[pair.near.sge(4016, 8)]).unwrap();
        pair.run_in(chunk);
        let done =
            |ids: &[u64]| -> Vec<(u64, Status)> { ids.iter().map(|id| (*id, Status::Success)).collect() };
        let sent = |pair: &mut Pair| -> Vec<(u64, Status)> {
            pair.near.completions().iter().map(|done| (done.1, done.2)).collect()
        };
        assert_eq!(sent(&mut pair), done(&[1]));
        pair.far.receive(10, &[pair.far.sge(5000, 1000)]);
        pair.run_in(chunk);
        assert_eq!(sent(&mut pair), done(&[2, 3]));
        pair.far.receive(11, &[]);
        pair.run_in(chunk);
        assert_eq!(sent(&mut pair), done(&[4, 5]));
        let received: Vec<_> = pair.far.completions().iter().map(|done| (done.1, done.3)).collect();
        assert_eq!(received, [(10, 1000), (11, 1000)]);
        assert_eq!((pair.far.bytes(5000, 1000), pair.far.bytes(8000, 1000)), (data.clone(), data));
        assert_eq!(pair.far.bytes(32_000, 8), 3_u64.to_le_bytes());
        assert_eq!(pair.near.bytes(4000, 24), [0_u64, 1, 2].map(u64::to_le_bytes).concat());
    }
}

#[test]
fn refusal_overtakes_the_data_of_earlier_reads() {
    let mut pair = shared(RNR_FOREVER);
    let key = pair.far.memory.key();
    // More data than is queued for sending at a time.
    for id in 0..8 {
        pair.near
            .send(id, SendOperation::Read { address: 0, rkey: key }, &[pair.near.sge(0, 60_000)])
            .unwrap();
    }
    pair.near.send(8, SEND, &[]).unwrap();
    pair.run_in(1000);
    let done = pair.near.completions();
    assert!(done.len() == 8 && done.iter().all(|done| done.2 == Status::Success), "{done:?}");
    pair.far.receive(1, &[]);
    pair.run();
    assert_eq!(pair.near.completions(), [(Queue::Send, 8, Status::Success, 0)]);
}

#[test]
fn request_fails_after_its_retries() {
    for retries in [0_u8, 3] {
        let mut pair = shared(retries);
        pair.near.send(1, SEND, &[]).unwrap();
        pair.near.send(2, SEND, &[]).unwrap();
        pair.run();
        if retries > 0 {
            let deadline = pair.near.now + rnr_delay(RNR_TIMER) * retries.into();
            assert_eq!(pair.near.pair.deadline(), Some(deadline));
            pair.near.pair.handle_timeout(deadline - Duration::from_nanos(1));
            assert_eq!(pair.near.pair.state(), QueuePairState::ReadyToSend);
            pair.near.pair.handle_timeout(deadline);
        }
        let completions = pair.near.completions();
        let statuses: Vec<_> = completions.iter().map(|done| (done.1, done.2)).collect();
        assert_eq!(statuses, [(1, Status::RnrRetryExceeded), (2, Status::Flushed)]);
        assert_eq!(pair.near.pair.deadline(), None);
    }
}

#[test]
fn deadline_counts_from_the_first_refusal() {
    let mut pair = shared(3);
    pair.near.send(1, SEND, &[]).unwrap();
    pair.run();
    let deadline = pair.near.pair.deadline();
    // Another queue pair takes the receive that was announced.
    pair.far.receive(10, &[]);
    pair.far.transmit(usize::MAX);
    pair.far.shared.as_ref().unwrap().take().unwrap();
    pair.near.now += Duration::from_micros(1);
    pair.run();
    assert_eq!(pair.near.pair.deadline(), deadline);
    pair.far.receive(11, &[]);
    pair.run();
    assert_eq!((pair.near.completions().len(), pair.near.pair.deadline()), (1, None));
}

#[test]
fn one_queue_serves_two_queue_pairs() {
    let mut first = shared(RNR_FOREVER);
    let (memory, queue) = (Arc::clone(&first.far.memory), first.far.shared.clone());
    let far = End::over(Arc::clone(&first.far.pair.domain), memory, Limits::default(), queue);
    let near = End::new(ALL, Limits::default(), false);
    let mut second = Pair::connect([near, far], SEGMENT_BYTES, RNR_FOREVER);
    for pair in [&mut first, &mut second] {
        pair.near.send(1, SEND, &[]).unwrap();
        pair.run();
    }
    first.far.receive(10, &[]);
    second.run();
    first.run();
    assert_eq!((second.far.completions().len(), first.far.completions().len()), (1, 0));
    first.far.receive(11, &[]);
    first.run();
    assert_eq!((second.near.completions().len(), first.near.completions().len()), (1, 1));
    assert_eq!(first.far.completions(), [(Queue::Receive, 11, Status::Success, 0)]);
}

#[test]
fn reports_the_limit_and_the_last_receive() {
    let mut pair = shared(RNR_FOREVER);
    (0..3).for_each(|id| pair.far.receive(id, &[]));
    pair.far.shared.as_ref().unwrap().arm(2);
    (0..2).for_each(|id| pair.near.send(id, SEND, &[]).unwrap());
    pair.run();
    assert_eq!(pair.far.events(), [AsyncEvent::LimitReached]);
    pair.far.pair.fail();
    assert_eq!(pair.far.events(), [AsyncEvent::LastReceive]);
    // Receives of the queue belong to no queue pair.
    assert_eq!((pair.far.completions().len(), pair.far.shared.as_ref().unwrap().len()), (2, 1));
    let refused = pair.far.pair.post_receive(ReceiveRequest { id: 9, data: Default::default() });
    assert_eq!(refused, Err(PostError::SharedReceiveQueue));
}

/// Delivers an acknowledgment of the far end to the near end.
fn acknowledge(pair: &mut Pair, message: u32, syndrome: Syndrome, receive: u8) {
    let extension = Extension::Acknowledgment(syndrome, RNR_TIMER, receive);
    let mut segment = segment(Operation::Acknowledge, message, Place::default(), extension);
    segment.acknowledged = u32::MAX;
    segment.rnr_count = u8::from(syndrome == Syndrome::ReceiverReady);
    let mut prefix = [0; MAX_PREFIX_BYTES];
    let len = segment.encode_to(&mut prefix);
    let mut pipe: VecDeque<u8> = prefix[..len].iter().copied().collect();
    pair.near.deliver(&mut pipe, usize::MAX);
}

#[test]
fn false_refusals_fail_the_queue_pair() {
    // Message u32::MAX is a SEND of 8 bytes, 0 a READ, 1 an empty SEND.
    let cases = [
        ("an unsent message", 2, Syndrome::ReceiverNotReady, 0),
        ("a receive that no message consumes", u32::MAX, Syndrome::ReceiverNotReady, 2),
        ("a READ", 0, Syndrome::ReceiverNotReady, 0),
        ("a receive for a READ", 0, Syndrome::ReceiverReady, 0),
    ];
    for shares_receives in [true, false] {
        for (context, message, syndrome, accepted) in cases {
            let ends =
                [End::new(ALL, Limits::default(), false), End::new(ALL, Limits::default(), shares_receives)];
            let mut pair = Pair::connect(ends, SEGMENT_BYTES, RNR_FOREVER);
            (0..2).for_each(|id| pair.far.receive(id, &[]));
            exchange_credits(&mut pair);
            let key = pair.far.memory.key();
            pair.near.send(1, SEND, &[pair.near.sge(0, 8)]).unwrap();
            pair.near.send(2, SendOperation::Read { address: 0, rkey: key }, &[pair.near.sge(0, 8)]).unwrap();
            pair.near.send(3, SEND, &[]).unwrap();
            pair.near.transmit(usize::MAX);
            acknowledge(&mut pair, message, syndrome, accepted);
            assert_eq!(pair.near.pair.state(), QueuePairState::Error, "{context}");
            assert_eq!(pair.near.completions()[0].2, Status::BadResponse, "{context}");
        }
    }
    // A peer that promised a receive cannot refuse a SEND.
    let mut pair = Pair::new();
    pair.far.receive(0, &[pair.far.sge(0, 8)]);
    exchange_credits(&mut pair);
    pair.near.send(1, SEND, &[pair.near.sge(0, 8)]).unwrap();
    pair.near.transmit(usize::MAX);
    acknowledge(&mut pair, u32::MAX, Syndrome::ReceiverNotReady, 0);
    assert_eq!(pair.near.pair.state(), QueuePairState::Error);
}

/// Delivers the credits of the far end.
fn exchange_credits(pair: &mut Pair) {
    exchange(&mut pair.far, &mut pair.near, usize::MAX);
}

//! Opening and end of a lane, and the rights of a queue pair.

use super::*;

#[test]
fn early_requests_leave_once_the_lane_is_open() {
    let mut pair = Pair::new();
    let mut early = End::new(ALL, Limits::default(), false);
    assert!(early.pair.initialize(ALL) && early.pair.start_receiving(&ReceiveAttributes::default()));
    assert!(early.pair.start_sending(&SendAttributes::default()));
    early.send(1, SEND, &[]).unwrap();
    assert_eq!((early.pair.pending(), early.pair.wants_transmit(0)), (Pending::Nothing, false));
    let parameters = ConnectionParameters {
        first_message: u32::MAX,
        peer_first_message: 7,
        peer_segment_bytes: SEGMENT_BYTES,
        peer_responder_resources: RESOURCES,
        peer_shares_receives: true,
        lanes: 1,
        checksums: false,
    };
    early.open(&parameters);
    pair.near = early;
    pair.far.receive(2, &[]);
    pair.run();
    assert_eq!(pair.near.completions(), [(Queue::Send, 1, Status::Success, 0)]);
}

#[test]
fn outlives_a_peer_that_announces_its_end() {
    let mut pair = Pair::new();
    pair.near.receive(1, &[]);
    pair.far.pair.announce_end();
    pair.run();
    pair.near.pair.handle_lane_closed(0);
    assert_eq!((pair.near.pair.state(), pair.near.completions()), (QueuePairState::ReadyToSend, vec![]));
    // It can no longer send.
    pair.near.send(2, SEND, &[]).unwrap();
    assert_eq!((pair.near.pair.pending(), pair.near.completions()), (Pending::Nothing, vec![]));
    pair.near.pair.handle_lanes_lost();
    let done = [(Queue::Send, 2, Status::RetryExceeded, 0), (Queue::Receive, 1, Status::Flushed, 0)];
    assert_eq!((pair.near.pair.state(), pair.near.completions()), (QueuePairState::Error, done.to_vec()));
    assert!(pair.near.pair.peer_has_ended());
}

#[test]
fn failed_queue_pair_fails_its_peer() {
    let mut pair = Pair::new();
    pair.near.send(1, SEND, &[]).unwrap();
    pair.far.receive(2, &[]);
    pair.far.pair.fail();
    pair.run();
    let done = [(Queue::Send, 1, Status::RetryExceeded, 0)];
    assert_eq!((pair.near.pair.state(), pair.near.completions()), (QueuePairState::Error, done.to_vec()));
}

#[test]
fn queue_pair_allows_only_its_rights() {
    for (operation, refused) in [
        (SendOperation::Write { address: 0, rkey: 0, immediate: None }, Access(0xd)),
        (SendOperation::Read { address: 0, rkey: 0 }, Access(0xb)),
        (SendOperation::FetchAdd { address: 0, rkey: 0, add: 1 }, Access(7)),
    ] {
        let mut pair = Pair::new();
        pair.far.pair.responder.set_access(refused);
        let key = pair.far.memory.key();
        let operation = match operation {
            SendOperation::Write { .. } => SendOperation::Write { address: 0, rkey: key, immediate: None },
            SendOperation::Read { .. } => SendOperation::Read { address: 0, rkey: key },
            _ => SendOperation::FetchAdd { address: 0, rkey: key, add: 1 },
        };
        pair.near.send(1, operation, &[pair.near.sge(0, 8)]).unwrap();
        pair.run();
        assert_eq!(pair.near.completions(), [(Queue::Send, 1, Status::RemoteAccess, 0)]);
    }
}

#[test]
fn deregistered_memory_is_not_used() {
    for (is_read, is_near) in [(false, true), (false, false), (true, true), (true, false)] {
        let mut pair = Pair::with(ALL, Limits::default(), 1000);
        let key = pair.far.memory.key();
        let operation = if is_read {
            SendOperation::Read { address: 0, rkey: key }
        } else {
            SendOperation::Write { address: 0, rkey: key, immediate: None }
        };
        for id in 0..3 {
            pair.near.send(id, operation, &[pair.near.sge(0, 4000)]).unwrap();
        }
        // Parts of requests and responses are in every place.
        exchange(&mut pair.near, &mut pair.far, 1500);
        exchange(&mut pair.far, &mut pair.near, 1500);
        let end = if is_near { &mut pair.near } else { &mut pair.far };
        let region = Arc::clone(end.memory.region());
        end.pair.domain.deregister(&end.memory);
        end.pair.revoke(&region);
        assert_eq!(Arc::strong_count(&region), 2, "read {is_read}, near {is_near}");
        pair.run();
        let statuses: Vec<Status> = pair.near.completions().into_iter().map(|done| done.2).collect();
        let expected = match (is_read, is_near) {
            (_, true) => [Status::LocalProtection, Status::Flushed, Status::Flushed],
            (false, false) => [Status::RemoteAccess, Status::Flushed, Status::Flushed],
            // All responses are queued, and copied.
            (true, false) => [Status::Success; 3],
        };
        assert_eq!(statuses, expected, "read {is_read}, near {is_near}");
    }
}

/// Sends what an end has for a lane to the other end.
fn exchange_on(lane: usize, from: &mut End, to: &mut End) {
    from.transmit_on(lane, usize::MAX);
    let mut sent = std::mem::take(&mut from.sent);
    while !sent.is_empty() {
        to.deliver_on(lane, &mut sent, usize::MAX);
    }
}

/// Both ends find a lane ended.
fn lose_lane(pair: &mut Pair, lane: usize) {
    pair.near.pair.handle_lane_closed(lane);
    pair.far.pair.handle_lane_closed(lane);
}

#[test]
fn failure_that_a_lane_has_lost_is_announced_on_another() {
    for is_refused in [false, true] {
        let mut pair = Pair::with_lanes(2);
        let key = if is_refused { !pair.far.memory.key() } else { pair.far.memory.key() };
        let write = SendOperation::Write { address: 0, rkey: key, immediate: None };
        pair.near.send(1, write, &[pair.near.sge(0, 8)]).unwrap();
        if is_refused {
            exchange_on(0, &mut pair.near, &mut pair.far);
        }
        pair.far.pair.fail();
        pair.far.transmit_on(0, usize::MAX);
        pair.far.sent.clear();
        lose_lane(&mut pair, 0);
        exchange_on(1, &mut pair.far, &mut pair.near);
        let status = if is_refused { Status::RemoteAccess } else { Status::RetryExceeded };
        assert_eq!(pair.near.completions(), [(Queue::Send, 1, status, 0)]);
    }
}

#[test]
fn failure_is_announced_while_a_report_is_lost() {
    let mut pair = Pair::with_lanes(2);
    lose_lane(&mut pair, 0);
    exchange_on(1, &mut pair.far, &mut pair.near);
    exchange_on(1, &mut pair.near, &mut pair.far);
    let (epoch, near_received) = pair.near.pair.start_lane(0).unwrap();
    let far_received = pair.far.pair.accept_lane(0, epoch).unwrap();
    pair.far.pair.handle_lane_open(0, near_received);
    pair.near.pair.handle_lane_open(0, far_received);
    pair.near.send(1, SEND, &[]).unwrap();
    // This lane has carried the report about the other one.
    lose_lane(&mut pair, 1);
    pair.far.pair.fail();
    exchange_on(0, &mut pair.far, &mut pair.near);
    assert_eq!(pair.near.completions(), [(Queue::Send, 1, Status::RetryExceeded, 0)]);
}

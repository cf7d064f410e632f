//! Scenarios of requests that find no receive, where the responder has its own receive queue.

use std::time::Duration;

use super::*;
use crate::wire::rnr_delay;

const DELAY: Duration = rnr_delay(RNR_TIMER);
const WRITE: SendOperation = SendOperation::Write { address: 0, rkey: 0, immediate: Some(7) };

fn pair(rnr_retries: u8) -> Pair {
    let ends = [End::new(ALL, Limits::default(), false), End::new(ALL, Limits::default(), false)];
    Pair::connect(ends, SEGMENT_BYTES, rnr_retries)
}

impl Pair {
    /// Moves time, and all bytes that are then sent.
    fn pass(&mut self, time: Duration) {
        self.near.now += time;
        self.near.pair.handle_timeout(self.near.now);
        self.run();
    }
}

fn statuses(end: &mut End) -> Vec<(u64, Status)> {
    end.completions().iter().map(|done| (done.1, done.2)).collect()
}

#[test]
fn fails_request_without_receive_after_its_retries() {
    for operation in [SEND, WRITE] {
        for retries in 0..7 {
            let mut pair = pair(retries);
            pair.near.send(1, operation, &[]).unwrap();
            pair.near.send(2, SEND, &[]).unwrap();
            pair.run();
            for retry in 0..retries {
                assert_eq!(pair.near.pair.deadline(), Some(pair.near.now + DELAY), "retry {retry}");
                pair.pass(DELAY - Duration::from_nanos(1));
                assert_eq!(pair.near.pair.state(), QueuePairState::ReadyToSend, "retry {retry}");
                pair.pass(Duration::from_nanos(1));
            }
            assert_eq!(
                statuses(&mut pair.near),
                [(1, Status::RnrRetryExceeded), (2, Status::Flushed)],
                "{retries} retries"
            );
            assert_eq!(pair.near.pair.deadline(), None);
        }
    }
}

#[test]
fn waits_forever_for_receive_with_seven_retries() {
    let mut pair = pair(RNR_FOREVER);
    pair.near.send(1, SEND, &[]).unwrap();
    pair.run();
    assert_eq!(pair.near.pair.deadline(), None);
    pair.pass(DELAY * 1000);
    pair.far.receive(10, &[]);
    pair.run();
    assert_eq!(statuses(&mut pair.near), [(1, Status::Success)]);
}

#[test]
fn finds_receive_that_was_posted_within_the_delay() {
    for chunk in [1, 7, usize::MAX] {
        let mut pair = pair(1);
        pair.far.receive(10, &[]);
        for id in 1..=3 {
            pair.near.send(id, SEND, &[]).unwrap();
        }
        // Each request has its own retries.
        for id in 1..=3 {
            pair.run_in(chunk);
            assert_eq!(statuses(&mut pair.near), [(id, Status::Success)]);
            pair.far.receive(10 + id, &[]);
            pair.pass(DELAY);
        }
    }
}

#[test]
fn asks_for_receive_after_earlier_requests_have_completed() {
    let mut pair = pair(0);
    let key = pair.far.memory.key();
    let read = SendOperation::Read { address: 0, rkey: key };
    pair.near.send(1, read, &[pair.near.sge(0, 60_000)]).unwrap();
    pair.near.send(2, SEND, &[]).unwrap();
    pair.run_in(1000);
    assert_eq!(statuses(&mut pair.near), [(1, Status::Success), (2, Status::RnrRetryExceeded)]);
}

#[test]
fn asks_again_after_the_lane_was_lost() {
    let mut pair = pair(0);
    pair.near.send(1, SEND, &[]).unwrap();
    // The question is lost with its lane.
    pair.near.transmit(usize::MAX);
    pair.near.sent.clear();
    for end in [&mut pair.near, &mut pair.far] {
        end.pair.handle_lane_closed(0);
        end.pair.start_lane(0).unwrap();
        end.pair.handle_lane_open(0, Received::default());
    }
    pair.run();
    assert_eq!(statuses(&mut pair.near), [(1, Status::RnrRetryExceeded)]);
}

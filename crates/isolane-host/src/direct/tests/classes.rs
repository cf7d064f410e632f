//! Lane classes: the lanes of each request, also after a loss.

use isolane_wire::opcode::IoOpcode;

use super::*;
use crate::error::RequestError;
use crate::lane_class::{LaneClass, LaneCounts};
use crate::mock::Fault;

const CLASSES: LaneCounts = LaneCounts { default: 1, read: 2, poll: 1 };

fn classed() -> Options {
    Options { lanes: CLASSES.default, read_lanes: CLASSES.read, poll_lanes: CLASSES.poll, ..options() }
}

fn classed_pair(script: Script) -> (Target, Client) {
    let target = Target::start(script);
    let client = connect(&target, classed());
    (target, client)
}

/// The queues that commands of an opcode came over, each once.
fn queues_of(target: &Target, opcode: IoOpcode) -> Vec<u16> {
    let mut queues: Vec<u16> = target
        .shared
        .queues
        .lock()
        .iter()
        .copied()
        .filter(|&(_, code)| code == opcode.code())
        .map(|(qid, _)| qid)
        .collect();
    queues.sort_unstable();
    queues.dedup();
    queues
}

#[test]
fn separates_reads_writes_and_urgent_requests() {
    let (target, mut client) = classed_pair(Script::default());
    for tag in 0..20 {
        client.submit(0, write(tag, 512, 1), tag);
        client.submit(tag as usize % 2, read(tag, 512), 20 + tag);
    }
    client.submit(0, Request::Flush, 40);
    wait_for(&mut client, 41);
    assert_eq!(queues_of(&target, IoOpcode::Write), [1]);
    assert_eq!(queues_of(&target, IoOpcode::Flush), [1]);
    assert_eq!(queues_of(&target, IoOpcode::Read), [2, 3]);
    target.shared.queues.lock().clear();
    client.submit_to(LaneClass::Poll, 0, read(0, 512), 0);
    client.submit_to(LaneClass::Poll, 0, write(0, 512, 1), 1);
    wait_for(&mut client, 2);
    assert_eq!(target.shared.queues.lock().iter().map(|&(qid, _)| qid).collect::<Vec<_>>(), [4, 4]);
}

#[test]
fn rejects_missing_lane_of_class() {
    let (_target, mut client) = classed_pair(Script::default());
    client.submit(1, write(0, 512, 1), 0);
    client.submit(2, read(0, 512), 1);
    client.submit_to(LaneClass::Poll, 1, read(0, 512), 2);
    let lanes: Vec<_> = wait_for(&mut client, 3)
        .into_iter()
        .map(|completion| match completion.result {
            Err(RequestError::Lane { lane, lanes }) => (lane, lanes),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(lanes, [(1, 1), (2, 2), (1, 1)]);
}

#[test]
fn repeats_lost_requests_in_their_class() {
    let (target, mut client) = classed_pair(Script::default());
    target.inject(3, Fault::Close);
    for tag in 0..10 {
        client.submit(0, write(tag * 8, 4096, tag as u8 + 1), tag);
        client.submit(tag as usize % 2, read(1000 + tag * 8, 4096), 10 + tag);
    }
    let completions = wait_for(&mut client, 20);
    assert!(completions.iter().all(|completion| completion.result.is_ok()), "{completions:?}");
    assert_eq!(queues_of(&target, IoOpcode::Write), [1]);
    assert_eq!(queues_of(&target, IoOpcode::Read), [2, 3]);
}

#[test]
fn fewer_queues_after_reconnect_serve_all() {
    let (target, mut client) = classed_pair(Script::default());
    target.shared.refusing.store(true, std::sync::atomic::Ordering::SeqCst);
    target.drop_connections();
    idle(&mut client, Duration::from_millis(50));
    for tag in 0..8 {
        client.submit(0, write(tag, 512, 1), tag);
        client.submit(tag as usize % 2, read(100 + tag, 512), 8 + tag);
        client.submit_to(LaneClass::Poll, 0, read(200 + tag, 512), 16 + tag);
    }
    target.shared.script.lock().max_lanes = 2;
    target.shared.refusing.store(false, std::sync::atomic::Ordering::SeqCst);
    assert!(wait_for(&mut client, 24).iter().all(|completion| completion.result.is_ok()));
    assert_eq!(client.info().negotiated.lanes, LaneCounts { default: 1, read: 1, poll: 0 });
    assert_eq!(queues_of(&target, IoOpcode::Write), [1]);
    assert_eq!(queues_of(&target, IoOpcode::Read), [2]);
    client.submit(1, read(0, 512), 0);
    client.submit_to(LaneClass::Poll, 0, write(0, 512, 2), 1);
    assert!(wait_for(&mut client, 2).iter().all(|completion| completion.result.is_ok()));
    // And with all of them again.
    target.shared.script.lock().max_lanes = 8;
    target.drop_connections();
    // A request submitted earlier could choose only among the lanes of the smaller association.
    turn_until(&mut client, &mut Vec::new(), |client, _| client.info().negotiated.lanes == CLASSES);
    client.submit_to(LaneClass::Poll, 0, read(0, 512), 2);
    assert!(wait_for(&mut client, 1)[0].result.is_ok());
    assert_eq!(client.info().negotiated.lanes, CLASSES);
    assert_eq!(target.shared.queues.lock().last(), Some(&(4, IoOpcode::Read.code())));
}

#[test]
fn lists_connections_with_class_and_port() {
    let (target, mut client) = classed_pair(Script::default());
    let lanes = |client: &Client| -> Vec<_> {
        client.connections().iter().map(|status| (status.qid, status.lane)).collect()
    };
    let all = [
        (0, None),
        (1, Some((LaneClass::Default, 0))),
        (2, Some((LaneClass::Read, 0))),
        (3, Some((LaneClass::Read, 1))),
        (4, Some((LaneClass::Poll, 0))),
    ];
    assert_eq!(lanes(&client), all);
    let mut ports: Vec<_> = client.connections().iter().map(|status| status.local).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), all.len(), "the ports differ");
    target.shared.refusing.store(true, std::sync::atomic::Ordering::SeqCst);
    target.drop_connections();
    idle(&mut client, Duration::from_millis(50));
    assert_eq!(lanes(&client), [], "empty while the association is down");
}

#[test]
fn sends_poll_requests_without_coalescing() {
    let target = Target::start(Script::default());
    let coalesce = Coalesce { requests: 100, bytes: 1 << 30, time: Duration::from_secs(3600) };
    let mut client = connect(&target, Options { coalesce: Some(coalesce), ..classed() });
    target.inject(0, Fault::Silence);
    client.submit(0, write(0, 512, 1), 0);
    while target.shared.queues.lock().is_empty() {
        idle(&mut client, Duration::from_millis(1));
    }
    client.submit(0, write(1, 512, 1), 1);
    client.submit_to(LaneClass::Poll, 0, read(0, 512), 2);
    assert_eq!(wait_for(&mut client, 1)[0].tag, 2);
    assert_eq!(queues_of(&target, IoOpcode::Read), [4]);
    assert_eq!(target.shared.queues.lock().len(), 2, "the second write is held");
}

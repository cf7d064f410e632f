//! Classes of lanes: who goes where, also over a loss.

use isolane_wire::opcode::IoOpcode;

use super::*;
use crate::classes::{Class, Classes};
use crate::error::RequestError;
use crate::mock::Misdeed;

const CLASSES: Classes = Classes { default: 1, read: 2, poll: 1 };

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
fn reads_and_writes_never_share_a_lane_and_urgent_ones_have_their_own() {
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
    client.submit_to(Class::Poll, 0, read(0, 512), 0);
    client.submit_to(Class::Poll, 0, write(0, 512, 1), 1);
    wait_for(&mut client, 2);
    assert_eq!(target.shared.queues.lock().iter().map(|&(qid, _)| qid).collect::<Vec<_>>(), [4, 4]);
}

#[test]
fn a_lane_that_the_class_lacks_is_refused() {
    let (_target, mut client) = classed_pair(Script::default());
    client.submit(1, write(0, 512, 1), 0);
    client.submit(2, read(0, 512), 1);
    client.submit_to(Class::Poll, 1, read(0, 512), 2);
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
fn what_a_loss_leaves_open_is_repeated_in_its_class() {
    let (target, mut client) = classed_pair(Script::default());
    target.set_misdeed(3, Misdeed::Close);
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
fn a_target_that_comes_back_with_fewer_queues_serves_what_waited_and_what_comes() {
    let (target, mut client) = classed_pair(Script::default());
    target.shared.is_refusing.store(true, std::sync::atomic::Ordering::SeqCst);
    target.drop_connections();
    idle(&mut client, Duration::from_millis(50));
    for tag in 0..8 {
        client.submit(0, write(tag, 512, 1), tag);
        client.submit(tag as usize % 2, read(100 + tag, 512), 8 + tag);
        client.submit_to(Class::Poll, 0, read(200 + tag, 512), 16 + tag);
    }
    target.shared.script.lock().lanes_max = 2;
    target.shared.is_refusing.store(false, std::sync::atomic::Ordering::SeqCst);
    assert!(wait_for(&mut client, 24).iter().all(|completion| completion.result.is_ok()));
    assert_eq!(client.info().negotiated.lanes, Classes { default: 1, read: 1, poll: 0 });
    assert_eq!(queues_of(&target, IoOpcode::Write), [1]);
    assert_eq!(queues_of(&target, IoOpcode::Read), [2]);
    client.submit(1, read(0, 512), 0);
    client.submit_to(Class::Poll, 0, write(0, 512, 2), 1);
    assert!(wait_for(&mut client, 2).iter().all(|completion| completion.result.is_ok()));
    // And with all of them again.
    target.shared.script.lock().lanes_max = 8;
    target.drop_connections();
    // However long that takes: a request that comes before has the lanes of the poorer association to choose
    // from.
    turn_until(&mut client, &mut Vec::new(), |client, _| client.info().negotiated.lanes == CLASSES);
    client.submit_to(Class::Poll, 0, read(0, 512), 2);
    assert!(wait_for(&mut client, 1)[0].result.is_ok());
    assert_eq!(client.info().negotiated.lanes, CLASSES);
    assert_eq!(target.shared.queues.lock().last(), Some(&(4, IoOpcode::Read.code())));
}

#[test]
fn every_connection_is_told_with_its_class_queue_and_port() {
    let (target, mut client) = classed_pair(Script::default());
    let lanes = |client: &Client| -> Vec<_> {
        client.connections().iter().map(|status| (status.qid, status.lane)).collect()
    };
    let all = [
        (0, None),
        (1, Some((Class::Default, 0))),
        (2, Some((Class::Read, 0))),
        (3, Some((Class::Read, 1))),
        (4, Some((Class::Poll, 0))),
    ];
    assert_eq!(lanes(&client), all);
    let mut ports: Vec<_> = client.connections().iter().map(|status| status.local).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), all.len(), "each has a port of its own");
    target.shared.is_refusing.store(true, std::sync::atomic::Ordering::SeqCst);
    target.drop_connections();
    idle(&mut client, Duration::from_millis(50));
    assert_eq!(lanes(&client), [], "there are none while the association is down");
}

#[test]
fn what_asks_for_the_poll_class_goes_out_while_other_requests_are_held() {
    let target = Target::start(Script::default());
    let hold = Hold { requests: 100, bytes: 1 << 30, time: Duration::from_secs(3600) };
    let mut client = connect(&target, Options { hold: Some(hold), ..classed() });
    target.set_misdeed(0, Misdeed::Silence);
    client.submit(0, write(0, 512, 1), 0);
    while target.shared.queues.lock().is_empty() {
        idle(&mut client, Duration::from_millis(1));
    }
    client.submit(0, write(1, 512, 1), 1);
    client.submit_to(Class::Poll, 0, read(0, 512), 2);
    assert_eq!(wait_for(&mut client, 1)[0].tag, 2);
    assert_eq!(queues_of(&target, IoOpcode::Read), [4]);
    assert_eq!(target.shared.queues.lock().len(), 2, "the second write is held");
}

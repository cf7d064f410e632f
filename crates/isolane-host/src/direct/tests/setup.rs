//! Connecting: negotiated parameters, and refusals with their reason.

use std::net::TcpListener;
use std::sync::atomic::Ordering;

use super::*;
use crate::error::{ConnectError, Step};
use crate::lane_class::{LaneClass, LaneCounts};
use crate::mock::{Fault, NQN};

fn refusal(script: Script, options: Options) -> ConnectError {
    let target = Target::start(script);
    match Client::connect(&target.uri(), options) {
        Err(error) => error,
        Ok(_) => panic!("the connection should have been refused"),
    }
}

#[test]
fn describes_target_after_connecting() {
    let (_target, client) = pair();
    let info = client.info();
    assert_eq!(info.nqn.as_str(), NQN);
    assert_eq!((info.controller.serial.as_str(), info.controller.model.as_str()), ("serial", "mock"));
    assert_eq!(info.controller.version.to_string(), "1.4");
    assert_eq!(info.controller.max_transfer_bytes, Some(65_536));
    let negotiated = &info.negotiated;
    assert_eq!((negotiated.max_in_capsule_bytes, negotiated.max_h2c_data_bytes), (4096, 8192));
    assert!(negotiated.flow_control_disabled);
    let namespace = client.namespace();
    assert_eq!((namespace.nsid, namespace.block_bytes, namespace.blocks), (1, 512, 8192));
    assert_eq!(namespace.uuid.map(|uuid| uuid.as_u128()), Some(8));
}

#[test]
fn accepts_target_with_flow_control() {
    let target = Target::start(Script { knows_flow_control: false, ..Script::default() });
    let mut client = connect(&target, options());
    assert!(!client.info().negotiated.flow_control_disabled);
    for tag in 0..100 {
        client.submit(0, write(tag, 4096, 1), tag);
    }
    assert!(wait_for(&mut client, 100).iter().all(|completion| completion.result.is_ok()));
}

#[test]
fn accepts_unconfirmed_flow_control() {
    let target = Target::start(Script { confirms_flow_control: false, ..Script::default() });
    let mut client = connect(&target, options());
    assert!(!client.info().negotiated.flow_control_disabled);
    assert!(run(&mut client, read(0, 4096)).result.is_ok());
}

#[test]
fn digests_that_the_target_lacks_are_left_out() {
    let target = Target::start(Script { has_digests: false, ..Script::default() });
    let mut client = connect(&target, Options { header_digest: true, data_digest: true, ..options() });
    let negotiated = &client.info().negotiated;
    assert_eq!((negotiated.header_digest, negotiated.data_digest), (false, false));
    assert!(run(&mut client, read(0, 4096)).result.is_ok());
}

#[test]
fn lowers_depth_beyond_queue_size_unless_exact() {
    let script = || Script { mqes: 31, ..Script::default() };
    let error = refusal(script(), Options { depth: 32, exact_depth: true, ..options() });
    assert!(matches!(error, ConnectError::Depth { requested: 32, max: 31 }), "{error}");
    let target = Target::start(script());
    for exact_depth in [false, true] {
        let client = connect(&target, Options { depth: 31, exact_depth, ..options() });
        assert_eq!(client.info().negotiated.depth, 31);
        client.close();
    }
    let mut client = connect(&target, Options::default());
    assert_eq!(client.info().negotiated.depth, 31);
    (0..64).for_each(|tag| client.submit(0, read(tag, 512), tag));
    assert!(wait_for(&mut client, 64).iter().all(|completion| completion.result.is_ok()));
}

#[test]
fn rejects_more_lanes_than_granted() {
    let error = refusal(Script { max_lanes: 2, ..Script::default() }, Options { lanes: 3, ..options() });
    assert!(matches!(error, ConnectError::Lanes { requested: 3, granted: 2 }), "{error}");
}

#[test]
fn shrinks_read_and_poll_lanes() {
    let target = Target::start(Script { max_lanes: 3, ..Script::default() });
    let requested = Options { lanes: 1, read_lanes: 2, poll_lanes: 2, ..options() };
    let mut client = connect(&target, requested.clone());
    assert_eq!(client.lanes(), LaneCounts { default: 1, read: 2, poll: 0 });
    client.submit_to(LaneClass::Poll, 1, read(0, 512), 0);
    client.submit_to(LaneClass::Poll, 0, write(0, 512, 1), 1);
    assert!(wait_for(&mut client, 2).iter().all(|completion| completion.result.is_ok()));
    let error = refusal(Script { max_lanes: 2, ..Script::default() }, Options { lanes: 3, ..requested });
    assert!(matches!(error, ConnectError::Lanes { requested: 3, granted: 2 }), "{error}");
}

#[test]
fn several_namespaces_need_an_id() {
    let script = || Script { nsids: vec![2, 5], ..Script::default() };
    let error = refusal(script(), options());
    assert!(matches!(&error, ConnectError::AmbiguousNamespace(nsids) if *nsids == [2, 5]), "{error}");
    let target = Target::start(script());
    let uri = |nsid: u32| format!("{}?nsid={nsid}", target.uri()).parse().unwrap();
    assert_eq!(Client::connect(&uri(5), options()).unwrap().namespace().nsid, 5);
    let error = Client::connect(&uri(3), options()).err().unwrap();
    assert!(matches!(error, ConnectError::UnknownNamespace { nsid: 3, .. }), "{error}");
    assert!(matches!(
        refusal(Script { nsids: vec![], ..Script::default() }, options()),
        ConnectError::NoNamespace
    ));
}

#[test]
fn unknown_subsystem_error_has_hint() {
    let target = Target::start(Script::default());
    let uri = format!("nvme+tcp://{}/nqn.2024-01.org.example:other", target.address).parse().unwrap();
    let error = Client::connect(&uri, options()).err().unwrap();
    assert!(matches!(error, ConnectError::Refused { step: Step::ConnectAdmin, .. }), "{error}");
    assert!(error.to_string().contains("NQN"), "{error}");
}

#[test]
fn distinguishes_refused_and_silent_target() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let uri = format!("nvme+tcp://{closed}/{NQN}").parse().unwrap();
    let error = Client::connect(&uri, options()).err().unwrap();
    assert!(matches!(error, ConnectError::Socket { step: Step::Tcp, .. }), "{error}");

    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("nvme+tcp://{}/{NQN}", silent.local_addr().unwrap()).parse().unwrap();
    let options = Options { connect_timeout: Duration::from_millis(100), ..options() };
    let error = Client::connect(&uri, options).err().unwrap();
    assert!(
        matches!(error, ConnectError::Timeout { .. } | ConnectError::ProtocolViolation { .. }),
        "{error}"
    );
}

#[test]
fn idle_client_sends_keep_alive() {
    let target = Target::start(Script::default());
    let mut client = connect(&target, Options { keep_alive: Duration::from_millis(100), ..options() });
    turn_until(&mut client, &mut Vec::new(), |_, _| target.shared.keep_alives.load(Ordering::SeqCst) >= 5);
}

#[test]
fn follows_growing_volume() {
    let target = Target::start(Script::default());
    target.inject(0, Fault::Grow);
    let mut client = connect(&target, options());
    idle(&mut client, Duration::from_millis(100));
    assert_eq!(client.namespace().blocks, 16_384);
    assert_eq!(target.shared.log_reads.load(Ordering::SeqCst), 1);
}

#[test]
fn inspecting_leaves_nothing_behind() {
    let target = Target::start(Script { nsids: vec![1, 2, 9], mqes: 15, ..Script::default() });
    let info = crate::inspect(&target.uri(), &options()).unwrap();
    assert_eq!(info.namespaces.iter().map(|namespace| namespace.nsid).collect::<Vec<_>>(), [1, 2, 9]);
    assert_eq!((info.negotiated.depth, info.controller.max_queue_entries), (15, 16));
    assert_eq!(target.shared.shutdowns.load(Ordering::SeqCst), 1);
    std::thread::sleep(Duration::from_millis(50));
    assert!(target.shared.controllers.lock().is_empty());
}

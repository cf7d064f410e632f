//! Limits of connections for the target, a subsystem, and a host.

mod common;

use std::collections::BTreeMap;

use common::*;
use isolane_target::{
    ConnectionLimits, LimitKind, LimitScope, Subsystem, Target, TargetConfig, TargetLimits,
};
use isolane_wire::pdu::IcReq;
use isolane_wire::{Nqn, Status};

const OTHER_HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:22222222-2222-3333-4444-555555555555";
const OTHER_NQN: &str = "nqn.2014-08.org.example:other";

fn nqn(text: &str) -> Nqn {
    text.parse().unwrap()
}

fn busy() -> Status {
    Status::CONNECT_CONTROLLER_BUSY
}

fn connections(max: usize) -> ConnectionLimits {
    ConnectionLimits { connections: Some(max), ..ConnectionLimits::default() }
}

fn associations(max: usize) -> ConnectionLimits {
    ConnectionLimits { associations: Some(max), ..ConnectionLimits::default() }
}

fn commands(max: usize) -> ConnectionLimits {
    ConnectionLimits { commands: Some(max), ..ConnectionLimits::default() }
}

fn of_target(target: ConnectionLimits) -> TargetLimits {
    TargetLimits { target, ..TargetLimits::default() }
}

fn of_host(nqn: &str, limits: ConnectionLimits) -> TargetLimits {
    TargetLimits { hosts: [(nqn.parse().unwrap(), limits)].into(), ..TargetLimits::default() }
}

fn of_subsystem(limits: ConnectionLimits) -> TargetLimits {
    TargetLimits { subsystems: [(nqn(NQN), limits)].into(), ..TargetLimits::default() }
}

/// A target on two cores with these limits and two subsystems.
fn limited(limits: TargetLimits) -> (Target, std::net::SocketAddr) {
    let mut config = TargetConfig { cores: one_core_twice(), limits, ..config(&["mem:1M"]) };
    config
        .subsystems
        .push(Subsystem { volumes: vec![(1, volume("mem:1M"))], ..Subsystem::new(nqn(OTHER_NQN)) });
    start(config)
}

/// Returns the status of a Connect, and the connection.
fn try_connect(
    address: std::net::SocketAddr,
    (qid, cntlid): (u16, u16),
    (subsystem, host): (&str, &str),
    sqsize: u16,
) -> (Status, MockHost) {
    let mut queue = MockHost::initialized(address, IcReq::default());
    let completion = queue.connect(qid, cntlid, subsystem, host, sqsize);
    if completion.status == Status::SUCCESS {
        queue.cntlid = completion.dw0 as u16;
    }
    (completion.status, queue)
}

fn try_admin(address: std::net::SocketAddr, subsystem: &str, host: &str) -> (Status, MockHost) {
    try_connect(address, (0, 0xffff), (subsystem, host), 31)
}

fn reached(target: &Target) -> Vec<(LimitScope, LimitKind, u64)> {
    let reached: BTreeMap<_, _> = target.counters().limits_reached;
    reached.into_iter().map(|((scope, kind), count)| (scope, kind, count)).collect()
}

#[test]
fn host_has_its_connections_and_others_theirs() {
    let (target, address) = limited(of_host(HOST, connections(2)));
    let (admin, mut queue) = pair(address, 31);
    let (status, mut refused) = try_connect(address, (2, admin.cntlid), (NQN, HOST), 31);
    assert_eq!(status, busy());
    refused.expect_end();
    assert_eq!(try_admin(address, OTHER_NQN, HOST).0, busy(), "in all subsystems together");
    assert_eq!(try_admin(address, Nqn::DISCOVERY, HOST).0, Status::SUCCESS, "it finds its subsystems");
    let mut other = MockHost::admin_with(address, IcReq::default(), OTHER_HOST);
    let _other_queue = other.io_queue_with(1, 31, IcReq::default(), OTHER_HOST);
    let _third = other.io_queue_with(2, 31, IcReq::default(), OTHER_HOST);
    assert_eq!(reached(&target), [(LimitScope::Host, LimitKind::Connections, 2)]);
    assert_eq!(target.counters().connections_refused, 2);
    assert_eq!(queue.fetch(read_entry(0, 1), 512).0.status, Status::SUCCESS);

    target.set_limits(of_host(HOST, connections(3)));
    assert_eq!(try_connect(address, (2, admin.cntlid), (NQN, HOST), 31).0, Status::SUCCESS);
    target.set_limits(TargetLimits::default());
    assert_eq!(try_admin(address, OTHER_NQN, HOST).0, Status::SUCCESS);
    target.set_limits(of_host(HOST, connections(1)));
    assert_eq!(queue.fetch(read_entry(0, 1), 512).0.status, Status::SUCCESS, "a change ends none");
    other.property(CSTS);
}

#[test]
fn ended_connection_makes_room_for_the_next() {
    for limits in [of_target(connections(2)), of_subsystem(associations(1)), of_host(HOST, commands(64))] {
        let (target, address) = limited(limits);
        for _ in 0..8 {
            let (mut admin, queue) = pair(address, 31);
            let (status, refused) = try_admin(address, NQN, HOST);
            assert_eq!(status, busy());
            drop(refused);
            admin.property(CSTS);
            drop((queue, admin));
            eventually("both have ended", || target.counters().connections_open == 0);
        }
        let counted: u64 = reached(&target).iter().map(|(.., count)| count).sum();
        assert_eq!(counted, 8);
    }
}

#[test]
fn host_reconnects_within_its_limits() {
    let (target, address) = limited(of_host(HOST, associations(1)));
    for _ in 0..20 {
        // The target reads the end of the old connections before it answers the new one.
        let mut admin = MockHost::admin(address);
        admin.property(CSTS);
        drop(admin.io_queue(1, 31));
    }
    assert_eq!(reached(&target), []);
}

#[test]
fn subsystem_has_its_associations() {
    let (target, address) = limited(of_subsystem(associations(1)));
    let (admin, _queue) = pair(address, 31);
    assert_eq!(try_admin(address, NQN, OTHER_HOST).0, busy());
    assert_eq!(try_admin(address, OTHER_NQN, OTHER_HOST).0, Status::SUCCESS);
    let _second = admin.io_queue(2, 31);
    assert_eq!(reached(&target), [(LimitScope::Subsystem, LimitKind::Associations, 1)]);
}

#[test]
fn sizes_of_queues_limit_commands() {
    let (target, address) = limited(of_target(commands(128)));
    let (admin, _queue) = pair(address, 63);
    assert_eq!(try_connect(address, (2, admin.cntlid), (NQN, HOST), 32).0, busy());
    assert_eq!(try_connect(address, (2, admin.cntlid), (NQN, HOST), 31).0, Status::SUCCESS);
    assert_eq!(reached(&target), [(LimitScope::Target, LimitKind::Commands, 1)]);
}

#[test]
fn limit_holds_for_hosts_at_the_same_time() {
    let (target, address) = limited(of_target(connections(5)));
    let connect = |_| std::thread::spawn(move || try_admin(address, NQN, HOST));
    let threads: Vec<_> = (0..16).map(connect).collect();
    let connected: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let admitted = connected.iter().filter(|(status, _)| *status == Status::SUCCESS).count();
    assert_eq!(admitted, 5);
    assert_eq!(reached(&target), [(LimitScope::Target, LimitKind::Connections, 11)]);
}

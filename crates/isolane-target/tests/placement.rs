//! Placement of connections on cores, and the states that the target reports.

mod common;

use std::net::SocketAddr;

use common::*;
use isolane_target::{ConnectionStatus, Placement, Target};
use isolane_wire::{Sgl, SubmissionEntry};

/// As many reactors as this machine has cores, two at most.
fn target(placement: Placement) -> (Target, SocketAddr, Vec<usize>) {
    let mut config = config(&["mem:1M"]);
    config.cores = isolane_reactor::cpu::allowed().unwrap().into_iter().take(2).collect();
    config.placement = placement;
    let cores = config.cores.clone();
    let (target, address) = start(config);
    (target, address, cores)
}

fn of_queue(connections: &[ConnectionStatus], qid: u16) -> &ConnectionStatus {
    connections.iter().find(|status| status.qid == Some(qid)).unwrap()
}

#[test]
fn reports_host_queue_and_core_of_connections() {
    let (target, address, cores) = target(Placement::RoundRobin);
    let (_admin, mut queue) = pair(address, 31);
    assert_eq!(
        queue.run(SubmissionEntry { sgl: Sgl::Transport { len: 4096 }, ..read_entry(0, 8) }).status,
        isolane_wire::Status::SUCCESS
    );
    let connections = target.connections();
    assert_eq!(connections.len(), 2);
    for status in &connections {
        assert_eq!(status.host_nqn.as_ref().map(|nqn| nqn.as_str()), Some(HOST));
        assert_eq!(status.core, Some(cores[status.reactor]));
        assert_eq!(status.unsent_bytes, 0, "all of it was answered");
    }
    assert_eq!(of_queue(&connections, 1).peer, queue.stream.local_addr().unwrap());
    assert!(of_queue(&connections, 1).moved_bytes > 4096);
    assert_eq!(of_queue(&connections, 0).reactor, 0);
    assert_eq!(of_queue(&connections, 1).reactor, 1 % cores.len());
}

/// Packets from this machine say nothing about a network card.
#[test]
fn hosts_on_this_machine_are_spread_in_turn() {
    let (target, address, cores) = target(Placement::IncomingCpu);
    let hosts: Vec<_> = (0..6).map(|_| MockHost::initialized(address, Default::default())).collect();
    let mut counts = vec![0; cores.len()];
    eventually("all are there", || target.connections().len() == hosts.len());
    target.connections().iter().for_each(|status| counts[status.reactor] += 1);
    assert!(counts.iter().all(|count| *count == hosts.len() / cores.len()), "{counts:?}");
}

//! Other addresses of ports that hosts use.

mod common;

use std::net::{SocketAddr, TcpListener, TcpStream};

use common::ports::*;
use common::*;
use isolane_target::{PortChanges, Target, TargetConfig, TargetControl, TargetPort};
use isolane_wire::Status;
use isolane_wire::log::DiscoveryEntry;
use isolane_wire::pdu::IcReq;

fn port(name: &str, at: impl ToString) -> TargetPort {
    TargetPort::named(name, at.to_string().parse().unwrap())
}

fn start_at(addresses: [&str; 2]) -> (Target, Vec<SocketAddr>) {
    let mut config = TargetConfig { cores: one_core_twice(), ..config(&["mem:1M"]) };
    config.listen = vec![port("left", addresses[0]), port("right", addresses[1])];
    start_all(config)
}

fn replace(control: &TargetControl, ports: Vec<TargetPort>) -> Result<Vec<SocketAddr>, String> {
    let bound = control.bind_ports(PortChanges { replaced: ports, ..PortChanges::default() });
    let bound = bound.map_err(|error| error.to_string())?;
    let addresses = bound.addresses().iter().map(|(_, address)| *address).collect();
    bound.finish().map_err(|error| error.to_string())?;
    Ok(addresses)
}

/// PORTID and port of the address of each record, ordered by PORTID.
fn discover(address: SocketAddr) -> Vec<(u16, u16)> {
    let record = |entry: DiscoveryEntry| (entry.portid, entry.trsvcid.as_str().unwrap().parse().unwrap());
    let mut records: Vec<_> = records_at(address).into_iter().map(record).collect();
    records.sort_unstable();
    records
}

#[test]
fn port_moves_to_another_address() {
    let (target, at) = start_at(["127.0.0.1:0", "127.0.0.1:0"]);
    let control = target.control();
    let (_right_admin, mut right) = pair_of(at[1], NQN);
    let mut old = at[0];
    for byte in 0..3 {
        let generation = control.discovery_generation().unwrap();
        let (mut admin, mut queue) = pair_of(old, NQN);
        let mut late = MockHost::initialized(old, IcReq::default());
        assert_eq!(queue.write(write_entry(1, 1), &[byte; 512]).0.status, Status::SUCCESS);
        let watcher = watch(at[1]);
        let new = replace(&control, vec![port("left", "127.0.0.1:0")]).unwrap()[0];
        expect_notice(watcher);
        assert_eq!(control.discovery_generation().unwrap(), generation + 1);
        queue.expect_end();
        admin.expect_end();
        assert!(!late.connect(0, 0xffff, NQN, HOST, 31).status.is_success(), "it came by the old address");
        assert!(TcpStream::connect(old).is_err());
        assert_eq!(discover(new), [(1, new.port()), (2, at[1].port())]);
        assert_eq!(right.fetch(read_entry(1, 1), 512).1, [byte; 512], "other ports keep their connections");
        old = new;
    }
    pair_of(old, NQN);
}

#[test]
fn ports_exchange_their_addresses() {
    let (target, at) = start_at(["127.0.0.1:0", "127.0.0.1:0"]);
    let control = target.control();
    let (mut left, mut right) = (pair_of(at[0], NQN), pair_of(at[1], NQN));
    for [first, second] in [[at[1], at[0]], [at[0], at[1]], [at[1], at[0]]] {
        let swapped = replace(&control, vec![port("left", first), port("right", second)]);
        assert_eq!(swapped, Ok(vec![first, second]));
        for (mut admin, mut queue) in [left, right] {
            queue.expect_end();
            admin.expect_end();
        }
        assert_eq!(discover(at[0]), [(1, first.port()), (2, second.port())]);
        // No listener of before takes some of the connections.
        for _ in 0..20 {
            pair_of(first, NQN);
            pair_of(second, NQN);
        }
        (left, right) = (pair_of(first, NQN), pair_of(second, NQN));
    }
    assert!(TcpListener::bind(at[0]).is_err(), "no other program can listen there");
}

#[test]
fn one_address_replaces_all_and_back() {
    for (all, one) in [("0.0.0.0", "127.0.0.1"), ("[::]", "[::1]"), ("[::]", "127.0.0.1")] {
        let (target, at) = start_at([&format!("{all}:0"), "127.0.0.1:0"]);
        let number = at[0].port();
        let (one, all) = (format!("{one}:{number}"), format!("{all}:{number}"));
        let reached: SocketAddr = one.parse().unwrap();
        let control = target.control();
        for address in [&one, &all, &one] {
            let (mut admin, mut queue) = pair_of(reached, NQN);
            assert_eq!(replace(&control, vec![port("left", address)]).unwrap()[0].to_string(), *address);
            queue.expect_end();
            admin.expect_end();
            pair_of(reached, NQN);
        }
    }
}

#[test]
fn added_and_replaced_ports_take_addresses_of_others() {
    let (target, at) = start_at(["127.0.0.1:0", "127.0.0.1:0"]);
    let control = target.control();
    let changes = PortChanges {
        added: vec![port("new", at[0])],
        replaced: vec![port("left", at[1])],
        removed: vec!["right".into()],
    };
    control.bind_ports(changes).unwrap().finish().unwrap();
    assert_eq!(discover(at[0]), [(1, at[1].port()), (3, at[0].port())]);
    for _ in 0..10 {
        pair_of(at[0], NQN);
        pair_of(at[1], NQN);
    }
}

#[test]
fn failed_change_of_ports_changes_nothing() {
    let (target, at) = start_at(["127.0.0.1:0", "127.0.0.1:0"]);
    let control = target.control();
    let (_admin, mut queue) = pair_of(at[0], NQN);
    let (generation, ports) = (control.discovery_generation(), control.ports());
    let other = || port("left", "127.0.0.1:0");
    for (second, reason) in [
        (port("right", "192.0.2.1:4420"), "port right: cannot listen on 192.0.2.1:4420"),
        (port("right", "127.0.0.1:0,congestion=nosuch"), "port right: cannot listen on 127.0.0.1:0"),
    ] {
        let error = replace(&control, vec![other(), second]).unwrap_err();
        assert!(error.starts_with(reason), "{error}");
    }
    let error = replace(&control, vec![port("left", at[1])]).unwrap_err();
    assert!(error.contains("given twice"), "{error}");
    let error = replace(&control, vec![port("middle", "127.0.0.1:0")]).unwrap_err();
    assert!(error.contains("there is no port middle"), "{error}");
    // Everything is bound, and then not used.
    let changes = PortChanges {
        added: vec![port("new", "127.0.0.1:0")],
        replaced: vec![port("left", at[1]), port("right", at[0])],
        removed: Vec::new(),
    };
    drop(control.bind_ports(changes).unwrap());
    assert_eq!(control.ports(), ports);
    // Only the port that was there for some time.
    assert_eq!(control.discovery_generation().unwrap(), generation.unwrap() + 2);
    assert_eq!(queue.write(write_entry(1, 1), &[1; 512]).0.status, Status::SUCCESS);
    for _ in 0..10 {
        pair_of(at[0], NQN);
    }
}

#[test]
fn refused_change_serves_the_connections_of_its_sockets() {
    let (target, at) = start_at(["127.0.0.1:0", "127.0.0.1:0"]);
    let control = target.control();
    for _ in 0..5 {
        let replaced = vec![port("left", at[1]), port("right", "127.0.0.1:0")];
        let bound = control.bind_ports(PortChanges { replaced, ..PortChanges::default() }).unwrap();
        let new = bound.addresses()[1].1;
        // These are at the sockets of both ports.
        let known: Vec<_> = (0..10).map(|_| MockHost::dial(at[1])).collect();
        let unknown: Vec<_> = (0..10).map(|_| MockHost::dial(new)).collect();
        drop(bound);
        // Another name for the same address.
        let (added, removed) = (vec![port("middle", at[1])], vec!["right".to_owned()]);
        let changes = PortChanges { added, removed, ..PortChanges::default() };
        let bound = control.bind_ports(changes).unwrap();
        let known: Vec<_> = known.into_iter().chain((0..10).map(|_| MockHost::dial(at[1]))).collect();
        drop(bound);
        for mut host in known {
            host.initialize(IcReq::default());
            assert!(host.connect(0, 0xffff, NQN, HOST, 31).status.is_success());
        }
        for mut host in unknown {
            host.initialize(IcReq::default());
            assert!(!host.connect(0, 0xffff, NQN, HOST, 31).status.is_success());
            host.expect_end();
        }
        assert!(TcpStream::connect(new).is_err());
    }
}

#[test]
fn command_at_a_volume_completes_before_its_port_moves() {
    let mut config = config(&[]);
    config.listen = vec![port("left", "127.0.0.1:0")];
    completes_before_its_port_closes(config, |target| {
        replace(&target.control(), vec![port("left", "127.0.0.1:0")]).unwrap();
    });
}

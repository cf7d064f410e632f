//! Other addresses of ports that hosts use.

mod common;

use std::net::{SocketAddr, TcpListener, TcpStream};

use common::stuck::Stuck;
use common::*;
use isolane_target::{PortChanges, Target, TargetConfig, TargetControl, TargetPort};
use isolane_wire::Nqn;
use isolane_wire::admin::{AsyncEvent, GetLogPageCommand, LogPage, Notice, async_event_request};
use isolane_wire::log::{DiscoveryEntry, DiscoveryHeader};
use isolane_wire::pdu::IcReq;
use isolane_wire::registers::Cc;
use isolane_wire::{CompletionEntry, Status};

fn port(name: &str, at: impl ToString) -> TargetPort {
    TargetPort::named(name, at.to_string().parse().unwrap())
}

fn start_at(addresses: [&str; 2]) -> (Target, Vec<SocketAddr>) {
    let mut config = TargetConfig { cores: one_core_twice(), ..config(&["mem:1M"]) };
    config.listen = vec![port("left", addresses[0]), port("right", addresses[1])];
    let (target, _) = start(config);
    let addresses = target.local_addrs();
    (target, addresses)
}

fn replace(control: &TargetControl, ports: Vec<TargetPort>) -> Result<Vec<SocketAddr>, String> {
    let bound = control.bind_ports(PortChanges { replaced: ports, ..PortChanges::default() });
    let bound = bound.map_err(|error| error.to_string())?;
    let addresses = bound.addresses().iter().map(|(_, address)| *address).collect();
    bound.finish().map_err(|error| error.to_string())?;
    Ok(addresses)
}

fn connect_to(address: SocketAddr, nqn: &str) -> (MockHost, CompletionEntry) {
    let mut host = MockHost::initialized(address, IcReq::default());
    let answer = host.connect(0, 0xffff, nqn, HOST, 31);
    (host, answer)
}

/// The admin queue of an enabled controller at a port, and one I/O queue.
fn pair_of(address: SocketAddr) -> (MockHost, MockHost) {
    let (mut admin, answer) = connect_to(address, NQN);
    assert_eq!(answer.status, Status::SUCCESS);
    admin.set_property(CC, Cc::enabled().0);
    let mut queue = MockHost::initialized(address, IcReq::default());
    assert_eq!(queue.connect(1, answer.dw0 as u16, NQN, HOST, 31).status, Status::SUCCESS);
    (admin, queue)
}

fn discovery_at(address: SocketAddr) -> MockHost {
    let (mut host, answer) = connect_to(address, Nqn::DISCOVERY);
    assert_eq!(answer.status, Status::SUCCESS);
    host.set_property(CC, Cc::enabled().0);
    host
}

/// PORTID and port of the address of each record, ordered by PORTID.
fn discover(address: SocketAddr) -> Vec<(u16, u16)> {
    let mut host = discovery_at(address);
    let page = host.fetch(GetLogPageCommand::new(LogPage::Discovery, 0, 8192).entry(), 8192).1;
    let records = DiscoveryHeader::decode_prefix(&page).unwrap().numrec as usize;
    let entries = page[1024..].chunks_exact(1024).take(records);
    let entries = entries.map(|entry| DiscoveryEntry::decode_prefix(entry).unwrap());
    let record = |entry: DiscoveryEntry| (entry.portid, entry.trsvcid.as_str().unwrap().parse().unwrap());
    let mut records: Vec<_> = entries.map(record).collect();
    records.sort_unstable();
    records
}

#[test]
fn port_moves_to_another_address() {
    let (target, at) = start_at(["127.0.0.1:0", "127.0.0.1:0"]);
    let control = target.control();
    let (_right_admin, mut right) = pair_of(at[1]);
    let mut old = at[0];
    for byte in 0..3 {
        let generation = control.discovery_generation().unwrap();
        let (mut admin, mut queue) = pair_of(old);
        let mut late = MockHost::initialized(old, IcReq::default());
        assert_eq!(queue.write(write_entry(1, 1), &[byte; 512]).0.status, Status::SUCCESS);
        let mut watcher = discovery_at(at[1]);
        let cid = watcher.send(async_event_request(), &[]);
        let new = replace(&control, vec![port("left", "127.0.0.1:0")]).unwrap()[0];
        let notice = AsyncEvent::notice(Notice::DiscoveryLogPageChange, LogPage::Discovery);
        assert_eq!(watcher.completion(cid).0.dw0, notice.0);
        assert_eq!(control.discovery_generation().unwrap(), generation + 1);
        queue.expect_end();
        admin.expect_end();
        assert!(!late.connect(0, 0xffff, NQN, HOST, 31).status.is_success(), "it came by the old address");
        assert!(TcpStream::connect(old).is_err());
        assert_eq!(discover(new), [(1, new.port()), (2, at[1].port())]);
        assert_eq!(right.fetch(read_entry(1, 1), 512).1, [byte; 512], "other ports keep their connections");
        old = new;
    }
    pair_of(old);
}

#[test]
fn ports_exchange_their_addresses() {
    let (target, at) = start_at(["127.0.0.1:0", "127.0.0.1:0"]);
    let control = target.control();
    let (mut left, mut right) = (pair_of(at[0]), pair_of(at[1]));
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
            pair_of(first);
            pair_of(second);
        }
        (left, right) = (pair_of(first), pair_of(second));
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
            let (mut admin, mut queue) = pair_of(reached);
            assert_eq!(replace(&control, vec![port("left", address)]).unwrap()[0].to_string(), *address);
            queue.expect_end();
            admin.expect_end();
            pair_of(reached);
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
        pair_of(at[0]);
        pair_of(at[1]);
    }
}

#[test]
fn failed_change_of_ports_changes_nothing() {
    let (target, at) = start_at(["127.0.0.1:0", "127.0.0.1:0"]);
    let control = target.control();
    let (_admin, mut queue) = pair_of(at[0]);
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
        pair_of(at[0]);
    }
}

#[test]
fn command_at_a_volume_completes_before_its_port_moves() {
    let (stuck, relief) = Stuck::new();
    let mut config = config(&[]);
    config.subsystems[0].volumes = vec![(1, stuck.clone())];
    config.listen = vec![port("left", "127.0.0.1:0")];
    let (target, address) = start(config);
    let (mut admin, mut queue) = pair_of(address);
    let cid = queue.send(in_capsule(write_entry(0, 1), &[6; 512]), &[6; 512]);
    eventually("the write is at the volume", || stuck.started() == 1);
    replace(&target.control(), vec![port("left", "127.0.0.1:0")]).unwrap();
    let reader = relief.release();
    assert_eq!(queue.completion(cid).0.status, Status::SUCCESS);
    queue.expect_end();
    admin.expect_end();
    drop((target, stuck));
    assert!(reader.join().unwrap().starts_with(&[6; 512]));
}

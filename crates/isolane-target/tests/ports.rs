//! Ports with names: which subsystems hosts reach at each of them.

mod common;

use std::net::SocketAddr;

use common::ports::*;
use common::*;
use isolane_target::{NamespaceError, StartError, Subsystem, Target, TargetConfig, TargetPort};
use isolane_wire::fabrics::{ConnectData, ConnectRejection};
use isolane_wire::log::DiscoveryEntry;
use isolane_wire::{Nqn, Status};

const OTHER: &str = "nqn.2014-08.org.example:other";

fn port(name: &str) -> TargetPort {
    TargetPort::named(name, "127.0.0.1:0".parse().unwrap())
}

/// Two ports and one for discovery, on two cores. One subsystem is on both, the other on the right one.
fn ports() -> TargetConfig {
    let mut config = TargetConfig { cores: one_core_twice(), ..config(&["mem:1M"]) };
    config.listen = vec![port("left"), port("right"), TargetPort { discovery_only: true, ..port("finder") }];
    let volumes = vec![(1, volume("mem:2M"))];
    let ports = Some(vec!["right".to_owned()]);
    config.subsystems.push(Subsystem { volumes, ports, ..Subsystem::new(OTHER.parse().unwrap()) });
    config
}

/// Name, PORTID, and port of the address of each record.
fn discover(address: SocketAddr) -> Vec<(String, u16, u16)> {
    let shown = |entry: DiscoveryEntry| {
        let name: Nqn = entry.subnqn.parse().unwrap();
        (name.to_string(), entry.portid, entry.trsvcid.as_str().unwrap().parse().unwrap())
    };
    records_at(address).into_iter().map(shown).collect()
}

#[test]
fn host_reaches_subsystems_of_its_port() {
    let (_target, at) = start_all(ports());
    let unknown = ConnectRejection::Data(ConnectData::SUBNQN).completion();
    for (port, nqn, is_there) in [
        (0, NQN, true),
        (1, NQN, true),
        (2, NQN, false),
        (0, OTHER, false),
        (1, OTHER, true),
        (2, OTHER, false),
    ] {
        let (_host, answer) = connect_to(at[port], nqn);
        assert_eq!(answer.status.is_success(), is_there, "{nqn} at {port}");
        if !is_there {
            assert_eq!((answer.status, answer.dw0), (unknown.status, unknown.dw0));
        }
    }
    let (other, both) = (OTHER.to_owned(), NQN.to_owned());
    let expected = [(other, 2, at[1].port()), (both.clone(), 1, at[0].port()), (both, 2, at[1].port())];
    for address in at {
        assert_eq!(discover(address), expected);
    }
}

#[test]
fn rejects_unknown_and_equal_names() {
    let error = |config| Target::start(config).err().unwrap();
    let mut unknown = ports();
    unknown.subsystems[1].ports = Some(vec!["middle".into()]);
    assert_eq!(
        error(unknown).to_string(),
        "there is no port middle: correct the name, or add the port first"
    );
    let mut twice = ports();
    twice.listen[1].name = Some("left".into());
    assert!(matches!(error(twice), StartError::Config(_)));
}

#[test]
fn ports_come_and_go_while_others_are_in_use() {
    let (target, at) = start_all(ports());
    let control = target.control();
    let (_admin, mut queue) = pair_of(at[1], NQN);
    let mut port_ids = Vec::new();
    for byte in 0..3 {
        let watcher = watch(at[2]);
        let address = control.add_port(port("extra")).unwrap();
        expect_notice(watcher);
        let records = discover(address);
        let found = records.iter().find(|record| record.2 == address.port()).unwrap();
        assert_eq!((found.0.as_str(), records.len()), (NQN, 4), "the other one lists its ports");
        port_ids.push(found.1);
        let (mut admin, mut extra) = pair_of(address, NQN);
        assert!(!connect_to(address, OTHER).1.status.is_success());
        assert_eq!(extra.write(write_entry(1, 1), &[byte; 512]).0.status, Status::SUCCESS);

        let watcher = watch(at[2]);
        control.remove_port("extra").unwrap();
        extra.expect_end();
        admin.expect_end();
        expect_notice(watcher);
        assert!(std::net::TcpStream::connect(address).is_err());
        assert_eq!(queue.fetch(read_entry(1, 1), 512).1, [byte; 512]);
        assert_eq!(discover(at[0]).len(), 3);
    }
    assert_eq!(port_ids, [4, 4, 4], "a name keeps its PORTID");
    control.remove_port("left").unwrap();
    let left = TargetPort::named("left", at[0].to_string().parse().unwrap());
    assert_eq!(control.add_port(left).unwrap(), at[0]);
    pair_of(at[0], NQN);
    assert!(control.remove_port("extra").unwrap_err().to_string().starts_with("there is no port extra"));
    assert_eq!(control.ports().len(), 3);
    drop(target);
    assert_eq!(control.remove_port("left"), Err(NamespaceError::Ended));
}

#[test]
fn command_at_a_volume_completes_before_its_port_closes() {
    completes_before_its_port_closes(ports(), |target| target.control().remove_port("left").unwrap());
}

#[test]
fn subsystem_leaves_and_joins_a_port() {
    let (target, at) = start_all(ports());
    let control = target.control();
    let (mut admin, mut queue) = pair_of(at[0], NQN);
    let (_other_admin, mut other) = pair_of(at[1], NQN);
    control.set_ports(&NQN.parse().unwrap(), Some(vec!["right".into()])).unwrap();
    queue.expect_end();
    admin.expect_end();
    assert!(!connect_to(at[0], NQN).1.status.is_success());
    assert_eq!(other.write(write_entry(1, 1), &[7; 512]).0.status, Status::SUCCESS);
    assert_eq!(discover(at[0]).len(), 2);
    control.set_ports(&NQN.parse().unwrap(), None).unwrap();
    pair_of(at[0], NQN);
    let error = control.set_ports(&NQN.parse().unwrap(), Some(vec!["middle".into()])).unwrap_err();
    assert!(error.to_string().starts_with("there is no port middle"), "{error}");
}

#[test]
fn failed_addition_of_a_port_changes_nothing() {
    let (target, at) = start_all(ports());
    let control = target.control();
    let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    for (port, reason) in [
        (port("left"), "two ports have the name left"),
        (TargetPort::named("new", at[0].to_string().parse().unwrap()), "given twice"),
        (TargetPort::named("new", held.local_addr().unwrap().into()), "stop the program that uses it"),
        (TargetPort::named("new", "127.0.0.1:0,congestion=nosuch".parse().unwrap()), "congestion=nosuch"),
    ] {
        let error = control.add_port(port).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    assert_eq!((control.ports().len(), discover(at[2]).len()), (3, 3));
}

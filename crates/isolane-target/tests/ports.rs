//! Ports with names: which subsystems hosts reach at each of them.

mod common;

use std::net::SocketAddr;

use common::*;
use isolane_target::{StartError, Subsystem, Target, TargetConfig, TargetPort};
use isolane_wire::admin::{GetLogPageCommand, LogPage};
use isolane_wire::fabrics::{ConnectData, ConnectRejection};
use isolane_wire::log::{DiscoveryEntry, DiscoveryHeader};
use isolane_wire::pdu::IcReq;
use isolane_wire::registers::Cc;
use isolane_wire::{CompletionEntry, Nqn, Status};

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

fn start_all(config: TargetConfig) -> (Target, Vec<SocketAddr>) {
    let (target, _) = start(config);
    let addresses = target.local_addrs();
    (target, addresses)
}

fn connect_to(address: SocketAddr, nqn: &str) -> CompletionEntry {
    MockHost::initialized(address, IcReq::default()).connect(0, 0xffff, nqn, HOST, 31)
}

/// Name, PORTID, and port of the address of each record.
fn discover(address: SocketAddr) -> Vec<(String, u16, u16)> {
    let mut host = MockHost::initialized(address, IcReq::default());
    assert_eq!(host.connect(0, 0xffff, Nqn::DISCOVERY, HOST, 31).status, Status::SUCCESS);
    host.set_property(CC, Cc::enabled().0);
    let page = host.fetch(GetLogPageCommand::new(LogPage::Discovery, 0, 8192).entry(), 8192).1;
    let records = DiscoveryHeader::decode_prefix(&page).unwrap().numrec as usize;
    let entries = page[1024..].chunks_exact(1024).take(records);
    let entries = entries.map(|entry| DiscoveryEntry::decode_prefix(entry).unwrap());
    let shown = |entry: DiscoveryEntry| {
        let name: Nqn = entry.subnqn.parse().unwrap();
        (name.to_string(), entry.portid, entry.trsvcid.as_str().unwrap().parse().unwrap())
    };
    entries.map(shown).collect()
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
        let answer = connect_to(at[port], nqn);
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

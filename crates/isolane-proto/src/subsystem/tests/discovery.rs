//! The discovery log, as nvme-cli reads it: header, records in pieces, header again.

use super::*;
use isolane_wire::log::{DiscoveryEntry, DiscoveryHeader};

impl Harness {
    fn header(&mut self, id: AssociationId) -> DiscoveryHeader {
        DiscoveryHeader::decode_prefix(&self.log(id, LogPage::Discovery, 0, 1024).unwrap()).unwrap()
    }

    fn records(&mut self, id: AssociationId) -> Vec<DiscoveryEntry> {
        let count = self.header(id).numrec;
        let offsets = (1..=count).map(|record| record * 1024);
        offsets
            .map(|offset| {
                let data = self.log(id, LogPage::Discovery, offset, 1024).unwrap();
                DiscoveryEntry::decode_prefix(&data).unwrap()
            })
            .collect()
    }
}

fn address(record: &DiscoveryEntry) -> (u8, String, String) {
    let text = |text: Option<&str>| text.unwrap().to_owned();
    (record.adrfam, text(record.traddr.as_str()), text(record.trsvcid.as_str()))
}

#[test]
fn log_lists_address_of_connection() {
    let mut harness = Harness::new();
    let id = harness.discovery();
    let records = harness.records(id);
    assert_eq!(records.len(), 1);
    let record = &records[0];
    assert_eq!(address(record), (1, "192.0.2.1".into(), "4420".into()));
    assert_eq!(record.subnqn.parse(), Ok(Nqn::new(SUBNQN).unwrap()));
    assert_eq!((record.trtype, record.subtype, record.treq.0, record.sectype), (3, 2, 0b100, 0));
    assert_eq!((record.portid, record.cntlid, record.asqsz), (1, 0xffff, 128));
}

#[test]
fn reports_mapped_ipv6_as_ipv4() {
    for (local, expected) in [
        ("[2001:db8::1]:4420", (2, "2001:db8::1", "4420")),
        ("[::ffff:192.0.2.7]:4421", (1, "192.0.2.7", "4421")),
    ] {
        let mut harness = Harness::with(PortConfig { listeners: vec![listener("[::]:4420")], ..config() });
        let from = ConnectionInfo { local: local.parse().unwrap(), ..from() };
        let connect = MockConnect::discovery();
        let connected =
            harness.port.connect(&connect.command.entry(), &connect.data.encode(), from, harness.now);
        let id = connected.unwrap().id;
        harness.set_cc(id, Cc::enabled());
        let (adrfam, traddr, trsvcid) = address(&harness.records(id)[0]);
        assert_eq!((adrfam, traddr.as_str(), trsvcid.as_str()), expected);
    }
}

/// Returns the records for a host that has reached `local`, one of these listeners.
fn found(local: &str, listeners: &[&str]) -> Vec<String> {
    let listeners: Vec<Listener> = listeners.iter().map(|address| listener(address)).collect();
    let local: SocketAddr = local.parse().unwrap();
    let is_at = |it: &Listener| {
        it.address.port() == local.port()
            && (it.address.ip() == local.ip() || it.address.ip().is_unspecified())
    };
    let at = listeners.iter().position(is_at).expect("the host has reached a listener");
    let mut harness = Harness::with(PortConfig { listeners, ..config() });
    let from = ConnectionInfo { listener: ListenerId::at(at), local, ..from() };
    let connect = MockConnect::discovery();
    let connected = harness.port.connect(&connect.command.entry(), &connect.data.encode(), from, harness.now);
    let id = connected.unwrap().id;
    harness.set_cc(id, Cc::enabled());
    let records = harness.records(id);
    let addresses = records.iter().map(address).map(|(_, address, port)| format!("{address} {port}"));
    addresses.collect()
}

#[test]
fn log_lists_all_listeners_of_family() {
    let listeners = ["192.0.2.1:4420", "198.51.100.1:4420", "192.0.2.1:4421", "[2001:db8::1]:4420"];
    let ipv4 = ["192.0.2.1 4420", "198.51.100.1 4420", "192.0.2.1 4421"];
    assert_eq!(found("192.0.2.1:4420", &listeners), ipv4);
    assert_eq!(found("192.0.2.1:4421", &listeners), ipv4, "the same log at each listener");
    assert_eq!(found("[2001:db8::1]:4420", &listeners), ["2001:db8::1 4420"]);
}

#[test]
fn log_has_reached_address_for_wildcards() {
    let any = ["0.0.0.0:4420", "[::]:4420", "0.0.0.0:4421"];
    assert_eq!(found("192.0.2.1:4420", &any), ["192.0.2.1 4420", "192.0.2.1 4421"]);
    assert_eq!(found("[2001:db8::1]:4420", &any), ["2001:db8::1 4420"]);
    assert_eq!(
        found("192.0.2.1:4421", &["192.0.2.1:4420", "[::]:4421"]),
        ["192.0.2.1 4420", "192.0.2.1 4421"]
    );
    assert_eq!(found("192.0.2.1:4420", &["0.0.0.0:4420", "192.0.2.1:4420"]), ["192.0.2.1 4420"]);
}

#[test]
fn log_leaves_out_unreachable_listeners() {
    let local = ["127.0.0.1:4420", "10.0.0.1:4420"];
    assert_eq!(found("10.0.0.1:4420", &local), ["10.0.0.1 4420"]);
    assert_eq!(found("127.0.0.1:4420", &local), ["127.0.0.1 4420", "10.0.0.1 4420"]);
    let zoned = ["[fe80::1%2]:4420", "[2001:db8::1]:4420"];
    assert_eq!(found("[2001:db8::1]:4420", &zoned), ["2001:db8::1 4420"]);
    assert_eq!(found("[fe80::1%2]:4420", &zoned), ["fe80::1 4420", "2001:db8::1 4420"]);
}

#[test]
fn advertised_addresses_replace_local_ones() {
    let advertise = vec!["198.51.100.1:4420".parse().unwrap(), "0.0.0.0:4500".parse().unwrap()];
    let mut harness = Harness::with(PortConfig { advertise, ..config() });
    let id = harness.discovery();
    let reported: Vec<_> = harness.records(id).iter().map(address).collect();
    let expected = [(1, "198.51.100.1".into(), "4420".into()), (1, "192.0.2.1".into(), "4500".into())];
    assert_eq!(reported, expected);
}

#[test]
fn discovery_log_reads_alike_in_any_segments() {
    let advertise = (1..=9).map(|host| format!("198.51.100.{host}:4420").parse().unwrap()).collect();
    let mut harness = Harness::with(PortConfig { advertise, ..config() });
    let id = harness.discovery();
    let whole = harness.log(id, LogPage::Discovery, 0, 10 * 1024).unwrap();
    for piece in [4, 16, 1024, 4096] {
        let mut pieces = Vec::new();
        for offset in (0..whole.len() as u64).step_by(piece) {
            pieces.extend(harness.log(id, LogPage::Discovery, offset, piece as u32).unwrap());
        }
        assert!(whole == pieces[..whole.len()], "pieces of {piece}");
    }
}

#[test]
fn rejects_offset_after_log() {
    let mut harness = Harness::new();
    let id = harness.discovery();
    assert_eq!(harness.log(id, LogPage::Discovery, 2048, 1024), Ok(vec![0; 1024]));
    for offset in [2052, 1 << 40, u64::MAX - 3] {
        let result = harness.log(id, LogPage::Discovery, offset, 1024);
        assert_eq!(result, Err(Status::INVALID_FIELD.with_dnr(true)));
    }
}

#[test]
fn hides_subsystem_from_unauthorized_host() {
    let mut config = config();
    config.subsystems[0].allowed_hosts = Some(Vec::new());
    let mut harness = Harness::with(config);
    let id = harness.discovery();
    assert_eq!(harness.header(id).numrec, 0);
}

#[test]
fn reports_generation_of_the_log() {
    let mut harness = Harness::new();
    let id = harness.discovery();
    assert_eq!(harness.header(id).genctr, 100);
}

#[test]
fn drops_discovery_host_without_kato() {
    let mut harness = Harness::new();
    let id = harness.discovery();
    harness.wait(119 * S);
    harness.header(id);
    harness.wait(119 * S);
    assert_eq!(harness.events(), []);
    harness.wait(121 * S);
    assert_eq!(harness.events(), [ControlEvent::Close { id, reason: CloseReason::KeepAliveExpired }]);
}

#[test]
fn discovery_rejects_abort() {
    let mut harness = Harness::new();
    let id = harness.discovery();
    let abort = isolane_wire::admin::AbortCommand { sqid: 0, cid: 1 }.entry();
    assert_eq!(harness.complete(id, abort), rejected_with(Status::INVALID_OPCODE));
}

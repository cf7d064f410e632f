//! Connections before Connect: a crowd of them keeps no host out and disturbs no connected queue.

mod common;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Mutex;

use common::*;
use isolane_target::{Target, TargetConfig};
use isolane_wire::fabrics::ConnectData;
use isolane_wire::pdu::IcReq;
use isolane_wire::{NqnField, Status};

/// Keeps the target's warnings.
struct Warnings(Mutex<Vec<String>>);

static WARNINGS: Warnings = Warnings(Mutex::new(Vec::new()));

impl log::Log for Warnings {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        println!("{:5} {}", record.level(), record.args());
        if self.enabled(record.metadata()) {
            self.0.lock().unwrap().push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// Returns the number of lines with this text, and the number of events that they count.
fn warnings(with: &str) -> (usize, usize) {
    assert!(log::flush(TEST_TIMEOUT));
    let lines = WARNINGS.0.lock().unwrap();
    let lines: Vec<&String> = lines.iter().filter(|line| line.contains(with)).collect();
    let count = |line: &&String| {
        let counted = line.strip_suffix(" such lines within 1 s)").and_then(|line| line.rsplit_once('('));
        counted.map_or(1, |(_, count)| count.parse().unwrap())
    };
    (lines.len(), lines.iter().map(count).sum())
}

/// A target with little room, on two reactors, whose newcomers have all the time they want.
fn small(max_newcomers: usize, max_connections: usize) -> (Target, SocketAddr) {
    let _ = log::set_logger(&WARNINGS);
    let config =
        TargetConfig { cores: one_core_twice(), handshake_timeout: 10 * TEST_TIMEOUT, ..config(&["mem:1M"]) };
    start(TargetConfig { max_newcomers, max_connections, ..config })
}

/// A connection from an address of this machine.
fn dial_from(from: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::new(IpAddr::V4(Ipv4Addr::from(from)), 0).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream
}

fn is_closed(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let received = (&*stream).read(&mut [0; 256]);
    stream.set_nonblocking(false).unwrap();
    received.map_or_else(|error| error.kind() != std::io::ErrorKind::WouldBlock, |count| count == 0)
}

#[test]
fn admits_a_host_among_many_silent_connections() {
    let (target, address) = small(8, 16);
    let (_admin, mut good) = pair(address, 31);
    let mut crowd = Vec::new();
    for accepted in (22..=202).step_by(20) {
        crowd.extend((0..20).map(|_| dial_from([127, 0, 0, 2], address)));
        // A target whose cores are slow refuses connections while too many wait to be closed.
        eventually("these were accepted", || target.counters().connections_total == accepted);
    }
    let (_new_admin, mut new) = pair(address, 31);
    for queue in [&mut good, &mut new] {
        assert_eq!(queue.fetch(read_entry(0, 1), 512).0.status, Status::SUCCESS);
    }
    eventually("all were accepted", || target.counters().connections_total == 204);
    // The new host's connections displace as many, if they come last.
    eventually("no more are left than may be", || target.counters().connections_open <= 12);
    let counters = target.counters();
    assert!((6..=8).contains(&counters.connections_before_connect));
    assert_eq!(counters.connections_refused, 200 - counters.connections_before_connect);
    let refused = counters.connections_refused as usize;
    let closed = || crowd.iter().filter(|socket| is_closed(socket)).count();
    eventually("the others are closed", || closed() == refused);
}

#[test]
fn closes_connections_of_the_address_with_the_most() {
    let (target, address) = small(8, 16);
    let oldest = dial_from([127, 0, 0, 3], address);
    eventually("it is there", || target.counters().connections_before_connect == 1);
    let crowd: Vec<_> = (0..50).map(|_| dial_from([127, 0, 0, 2], address)).collect();
    eventually("all were accepted", || target.counters().connections_total == 51);
    eventually("the crowd displaced its own", || target.counters().connections_refused == 43);
    assert!(!is_closed(&oldest));
    drop(crowd);
}

#[test]
fn trickling_connection_counts_as_newcomer() {
    let (target, address) = small(4, 16);
    let request = IcReq::default().encode();
    let mut trickling = dial_from([127, 0, 0, 2], address);
    for byte in &request[..64] {
        trickling.write_all(&[*byte]).unwrap();
    }
    let initialised = MockHost::initialized(address, IcReq::default());
    eventually("both are there", || target.counters().connections_before_connect == 2);
    let _crowd: Vec<_> = (0..40).map(|_| dial_from([127, 0, 0, 2], address)).collect();
    eventually("it was displaced", || is_closed(&trickling));
    assert!(!is_closed(&initialised.stream), "another address has more");
}

#[test]
fn rejects_queues_beyond_limit() {
    let (target, address) = small(8, 3);
    let (admin, mut good) = pair(address, 31);
    let _second = admin.io_queue(2, 31);
    let mut fourth = MockHost::initialized(address, IcReq::default());
    assert_eq!(fourth.connect(0, 0xffff, NQN, HOST, 31).status, Status::CONNECT_CONTROLLER_BUSY);
    assert_eq!(good.fetch(read_entry(0, 1), 512).0.status, Status::SUCCESS);
    assert_eq!(target.counters().connections_refused, 1);
    drop(good);
    drop(fourth);
    eventually("the limit allows another", || target.counters().connections_open == 2);
    drop(admin.io_queue(1, 31));
}

#[test]
fn grants_queues_within_limit_of_connections() {
    let (_target, address) = small(8, 3);
    let admin = MockHost::admin(address);
    let mut third = MockHost::initialized(address, IcReq::default());
    let refused = third.connect(3, admin.cntlid, NQN, HOST, 31);
    assert_eq!(refused.status, Status::CONNECT_INVALID_PARAMETERS.with_dnr(true));
    let _queues = [admin.io_queue(1, 31), admin.io_queue(2, 31)];
}

#[test]
fn warns_of_unnamed_hosts() {
    let (_target, address) = small(8, 64);
    let data = ConnectData { hostnqn: NqnField::EMPTY, ..connect_data_of(NQN, HOST) }.encode();
    let hosts: Vec<_> = (0..20)
        .map(|_| {
            let mut host = MockHost::initialized(address, IcReq::default());
            let entry = in_capsule(connect_entry(0, 31), &data);
            assert_eq!(host.write(entry, &data).0.status, Status::SUCCESS);
            host
        })
        .collect();
    let (_, counted) =
        warnings("accepted a host without a name (identifier 07070707070707070707070707070707)");
    assert_eq!(counted, 20);
    drop(hosts);
}

#[test]
fn names_the_host_that_is_not_allowed() {
    let _ = log::set_logger(&WARNINGS);
    let allowed = "nqn.2014-08.org.example:friend".parse().unwrap();
    let mut config = config(&["mem:1M"]);
    config.subsystems[0].allowed_hosts = Some(vec![allowed]);
    let (target, address) = start(config);
    let unlisted = "nqn.2014-08.org.example:unlisted";
    let mut count = 0;
    eventually("a line names the host", || {
        let mut host = MockHost::initialized(address, IcReq::default());
        let refused = host.connect(0, 0xffff, NQN, unlisted, 31).status;
        assert_eq!(refused.kind(), Status::CONNECT_INVALID_HOST);
        count += 1;
        warnings(unlisted).0 > 0
    });
    assert_eq!(target.counters().connections_refused, count);
    let data = ConnectData { hostnqn: NqnField::EMPTY, ..connect_data_of(NQN, unlisted) }.encode();
    let mut unnamed = MockHost::initialized(address, IcReq::default());
    let entry = in_capsule(connect_entry(0, 31), &data);
    assert_eq!(unnamed.write(entry, &data).0.status.kind(), Status::CONNECT_INVALID_HOST);
}

fn connect_data_of(subnqn: &str, hostnqn: &str) -> ConnectData {
    ConnectData::decode(connect_data(0xffff, subnqn, hostnqn)[..].try_into().unwrap())
}

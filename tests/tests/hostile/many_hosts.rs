//! Slow, silent, or many hosts: each has a deadline, and the others are served in the meantime.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use isolane_target::Target;
use isolane_wire::fabrics::ConnectCommand;
use isolane_wire::io::{DatasetManagementCommand, DsmRange};
use isolane_wire::pdu::{CapsuleCmd, ControllerPdu, IcReq};
use isolane_wire::{Framing, Sgl, Status, SubmissionEntry};

use crate::common::*;

/// Number of open sockets on the target's port: entries with an inode.
fn sockets(address: SocketAddr) -> usize {
    let local = format!(":{:04X}", address.port());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let lines = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines.filter(|fields| fields[1].ends_with(&local) && fields[9] != "0").count()
}

/// Number of connections, limited by the descriptors of the process: each uses two, and other tests run at the
/// same time.
fn affordable(connections: u64) -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    connections.min(limit / 10) as usize
}

/// Runs one small read, which must complete during the attack.
fn probe(good: &mut MockHost) {
    assert_eq!(good.fetch(read_entry(0, 1), 512).0.status, Status::SUCCESS);
}

fn connect_capsule() -> Vec<u8> {
    let data = connect_data(0xffff, NQN, HOST);
    let entry = in_capsule(connect_entry(0, 31), &data);
    [&CapsuleCmd { entry, data_len: 1024 }.encode(&Framing::default())[..], &data].concat()
}

#[test]
fn drops_hosts_with_unfinished_handshakes() {
    let (target, address) = start(config(&["mem:1M"]));
    let request = IcReq::default().encode();
    let silent = MockHost::dial(address);
    let mut half = MockHost::dial(address);
    half.send_bytes(&request[..100]);
    let initialised = MockHost::initialized(address, IcReq::default());
    let mut half_connect = MockHost::initialized(address, IcReq::default());
    half_connect.send_bytes(&connect_capsule()[..600]);
    let mut by_r2t = MockHost::initialized(address, IcReq::default());
    by_r2t.send(SubmissionEntry { sgl: Sgl::Transport { len: 1024 }, ..connect_entry(0, 31) }, &[]);
    let mut dripping = MockHost::dial(address);
    // The complete request would take twice the handshake timeout.
    let cut_off = request.iter().any(|byte| {
        std::thread::sleep(Duration::from_millis(150));
        dripping.stream.write_all(&[*byte]).is_err()
    });
    assert!(cut_off, "the slow host was not dropped");
    eventually("all are dropped", || target.counters().connections_open == 0);
    drop((silent, half, initialised, half_connect, by_r2t));
}

#[test]
fn closes_hosts_that_ignore_a_term_req() {
    let (target, address) = start(config(&["mem:1M"]));
    let mut host = MockHost::dial(address);
    host.send_bytes(&[0xff; 8]);
    host.expect_termination();
    eventually("it is closed", || {
        // The host continues to send.
        let _ = host.stream.write_all(&[0; 1024]);
        target.counters().connections_open == 0
    });
}

#[test]
fn keep_alive_drops_only_silent_hosts() {
    let (target, address) = start(config(&["mem:1M"]));
    let with_kato = || {
        let mut host = MockHost::initialized(address, IcReq::default());
        let entry = ConnectCommand { sqsize: 31, kato_ms: 1, ..ConnectCommand::default() }.entry();
        let (answer, _) = host.write(entry, &connect_data(0xffff, NQN, HOST));
        assert_eq!(answer.status, Status::SUCCESS);
        host.cntlid = answer.dw0 as u16;
        host.set_property(CC, isolane_wire::registers::Cc::enabled().0);
        host
    };
    let (silent, busy) = (with_kato(), with_kato());
    let mut open_transfer = silent.io_queue(1, 31);
    open_transfer.send(SubmissionEntry { sgl: Sgl::Transport { len: 8192 }, ..write_entry(0, 16) }, &[]);
    let ControllerPdu::R2t(r2t) = open_transfer.answer().pdu else { panic!("no R2T") };
    let mut queue = busy.io_queue(1, 31);
    eventually("the silent host is gone", || {
        probe(&mut queue);
        target.associations().len() == 1
    });
    let _ = open_transfer.stream.write_all(&[0; 100]);
    assert_eq!(r2t.r2tl, 8192);
    assert_eq!(queue.fetch(read_entry(0, 16), 8192).1, vec![0; 8192]);
    drop((silent, busy));
}

#[test]
fn closed_connections_leak_no_descriptor() {
    let (target, address) = start(crowd_config());
    let (_admin, mut good) = pair(address, 31);
    let before = sockets(address);
    for round in 0..3 {
        let crowd: Vec<TcpStream> =
            (0..affordable(1000)).map(|_| TcpStream::connect(address).unwrap()).collect();
        for mut socket in &crowd {
            socket.write_all(&IcReq::default().encode()[..64 * round]).unwrap();
            probe(&mut good);
        }
        drop(crowd);
        eventually("the crowd is gone", || target.counters().connections_open == 2);
    }
    eventually("only the listener and two connections are left", || sockets(address) == before);
}

#[test]
fn refuses_connections_beyond_the_limit() {
    let (target, address) =
        start(isolane_target::TargetConfig { max_connections: 4, max_newcomers: 16, ..config(&["mem:1M"]) });
    let (_admin, mut good) = pair(address, 31);
    let crowd: Vec<_> = (0..100).map(|_| MockHost::dial(address)).collect();
    probe(&mut good);
    // A connection evicted on another core is open until that core closes it.
    eventually("the limit is kept", || target.counters().connections_open <= 20);
    drop(crowd);
    // The kernel's queue may still hold closed connections of the crowd, which count when they are accepted.
    eventually("connections are possible again", || {
        let mut host = MockHost::dial(address);
        host.stream.write_all(&IcReq::default().encode()).is_ok() && host.try_answer().is_some()
    });
    // The crowd was accepted before this host; its closed connections displace newcomers until they are read.
    eventually("the crowd is gone", || target.counters().connections_open <= 2);
    drop(MockHost::admin(address));
}

#[test]
fn connect_storms_do_not_stop_other_hosts() {
    let (target, address) = start(crowd_config());
    let mut good = other_pair(address);
    let crowd: Vec<MockHost> = (0..affordable(400)).map(|_| MockHost::admin(address)).collect();
    let mut storm: Vec<MockHost> =
        (0..affordable(400)).map(|_| MockHost::initialized(address, IcReq::default())).collect();
    let capsule = connect_capsule();
    storm.iter_mut().for_each(|host| host.send_bytes(&capsule));
    (0..50).for_each(|_| probe(&mut good.1));
    for host in &mut storm {
        assert!(host.completion(0).0.status.is_success());
    }
    drop((crowd, storm));
    eventually("the crowd is gone", || target.associations().len() == 1);
}

#[test]
fn repeated_deallocations_do_not_stop_other_hosts() {
    let (_target, address) = start(config(&["mem:4G"]));
    let (_bad_admin, mut bad) = pair(address, 127);
    let (_admin, mut good) = pair(address, 31);
    let all = DsmRange { attributes: 0, blocks: 8 << 20, slba: 0 };
    let data = all.encode().repeat(256);
    let command = DatasetManagementCommand { nsid: 1, nr: 255, deallocate: true, ..Default::default() };
    for cid in 0..100 {
        let entry = SubmissionEntry { cid, ..in_capsule(command.entry(), &data) };
        let header = CapsuleCmd { entry, data_len: data.len() as u32 }.encode(&bad.outbound);
        bad.send_bytes(&[&header[..], &data].concat());
    }
    std::thread::sleep(Duration::from_millis(100));
    (0..20).for_each(|_| probe(&mut good));
}

/// Another host's admin and I/O queue.
fn other_pair(address: SocketAddr) -> (MockHost, MockHost) {
    let other = "nqn.2014-08.org.nvmexpress:uuid:99999999-2222-3333-4444-555555555555";
    let admin = MockHost::admin_with(address, IcReq::default(), other);
    let queue = admin.io_queue_with(1, 31, IcReq::default(), other);
    (admin, queue)
}

fn crowd_config() -> isolane_target::TargetConfig {
    isolane_target::TargetConfig { max_pool_pages: 32 * 1024, ..config(&["mem:1M"]) }
}

#[test]
fn dropped_target_closes_every_connection() {
    let (target, address): (Target, _) = start(crowd_config());
    let crowd: Vec<MockHost> = (0..affordable(200)).map(|_| MockHost::admin(address)).collect();
    drop(target);
    crowd.into_iter().for_each(|mut host| host.expect_end());
    assert_eq!(sockets(address), 0);
}

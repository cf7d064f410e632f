//! The order between a host's new association and the commands of its older ones.

mod common;

use std::io::Read;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::interposer::{Decision, Interposer};
use common::*;
use isolane_target::{Target, TargetConfig};
use isolane_volume::Request;
use isolane_wire::io::{DatasetManagementCommand, DsmRange};
use isolane_wire::pdu::IcReq;
use isolane_wire::{Nqn, Sgl, Status, SubmissionEntry};

/// Two reactors, wherever the test runs.
fn two_cores(volumes: &[&str]) -> TargetConfig {
    TargetConfig { cores: one_core_twice(), queue_depth: 1024, ..config(volumes) }
}

/// A target whose volume puts off each request that `is_held` chooses, until the flag is cleared.
fn holding(is_held: impl Fn(&Request) -> bool + Send + Sync + 'static) -> (TargetConfig, Arc<AtomicBool>) {
    let holds = Arc::new(AtomicBool::new(true));
    let flag = Arc::clone(&holds);
    let volume = Interposer::over("mem:1M", move |request| {
        if is_held(&request) && flag.load(Ordering::Acquire) {
            Decision::Later(request)
        } else {
            Decision::Pass(request)
        }
    });
    (TargetConfig { subsystems: serving(vec![(1, volume)]).subsystems, ..two_cores(&[]) }, holds)
}

fn send_write(queue: &mut MockHost, lba: u64, byte: u8) -> u16 {
    let data = [byte; 4096];
    queue.send(in_capsule(write_entry(lba, 8), &data), &data)
}

fn send_deallocate(queue: &mut MockHost, slba: u64, blocks: u32) -> u16 {
    let data = DsmRange { attributes: 0, blocks, slba }.encode();
    let command = DatasetManagementCommand { nsid: 1, nr: 0, deallocate: true, ..Default::default() };
    queue.send(in_capsule(command.entry(), &data), &data)
}

/// A command that waits for nothing has completed, so every command that can complete before it has.
fn assert_answers_only_elsewhere(queue: &mut MockHost) {
    for lba in [1024, 1536] {
        assert_eq!(queue.fetch(read_entry(lba, 1), 512).0.status, Status::SUCCESS);
    }
}

#[test]
fn orders_new_commands_after_waiting_deallocate() {
    let (config, holds) = holding(|request| matches!(request, Request::Deallocate { .. }));
    let (_target, address) = start(config);
    let (_old_admin, mut old) = pair(address, 31);
    assert_eq!(old.write(write_entry(0, 8), &[0xee; 4096]).0.status, Status::SUCCESS);
    let deallocate = send_deallocate(&mut old, 0, 1000);
    assert_eq!(old.fetch(read_entry(1024, 1), 512).0.status, Status::SUCCESS);

    let mut discovery = MockHost::initialized(address, IcReq::default());
    assert_eq!(discovery.connect(0, 0xffff, Nqn::DISCOVERY, HOST, 31).status, Status::SUCCESS);
    let (_admin, mut new) = pair(address, 31);
    let write = send_write(&mut new, 992, 1);
    assert_answers_only_elsewhere(&mut new);
    holds.store(false, Ordering::Release);
    assert_eq!(new.completion(write).0.status, Status::SUCCESS);
    assert_eq!(old.completion(deallocate).0.status, Status::SUCCESS);
    assert!(new.fetch(read_entry(992, 8), 4096).1 == [1; 4096], "the older Deallocate came later");
    assert!(new.fetch(read_entry(0, 8), 4096).1 == [0; 4096]);
}

#[test]
fn orders_reads_behind_older_writes_they_overlap() {
    let (config, holds) = holding(|request| matches!(request, Request::Write { .. }));
    let (_target, address) = start(config);
    let (_old_admin, mut old) = pair(address, 31);
    let write = send_write(&mut old, 0, 0xee);
    assert_eq!(old.fetch(read_entry(1024, 1), 512).0.status, Status::SUCCESS);
    let (_admin, mut new) = pair(address, 31);
    let read = SubmissionEntry { sgl: Sgl::Transport { len: 512 }, ..read_entry(7, 1) };
    let read = new.send(read, &[]);
    assert_answers_only_elsewhere(&mut new);
    holds.store(false, Ordering::Release);
    assert!(new.completion(read).1 == [0xee; 512]);
    assert_eq!(old.completion(write).0.status, Status::SUCCESS);
}

#[test]
fn cancels_waiting_changes_with_their_association() {
    let (config, _holds) =
        holding(|request| matches!(request, Request::Write { data, .. } if is(data, 0xee)));
    let (target, address) = start(config);
    let (old_admin, mut old) = pair(address, 31);
    send_write(&mut old, 0, 0xee);
    assert_eq!(old.fetch(read_entry(1024, 1), 512).0.status, Status::SUCCESS);
    let (_admin, mut new) = pair(address, 31);
    let write = send_write(&mut new, 0, 1);
    assert_answers_only_elsewhere(&mut new);
    drop((old_admin, old));
    assert_eq!(new.completion(write).0.status, Status::SUCCESS);
    eventually("the older association is gone", || target.associations().len() == 1);
    assert!(new.fetch(read_entry(0, 8), 4096).1 == [1; 4096]);
}

#[test]
fn cancels_fenced_commands_with_their_connection() {
    let (config, holds) = holding(|request| matches!(request, Request::Write { data, .. } if is(data, 0xee)));
    let (target, address) = start(config);
    let (_old_admin, mut old) = pair(address, 31);
    let older = send_write(&mut old, 0, 0xee);
    assert_eq!(old.fetch(read_entry(1024, 1), 512).0.status, Status::SUCCESS);
    let (admin, mut new) = pair(address, 31);
    send_write(&mut new, 0, 1);
    assert_answers_only_elsewhere(&mut new);
    drop((admin, new));
    eventually("the newer association is gone", || target.associations().len() == 1);
    holds.store(false, Ordering::Release);
    assert_eq!(old.completion(older).0.status, Status::SUCCESS);
    assert!(old.fetch(read_entry(0, 8), 4096).1 == [0xee; 4096]);
}

fn is(data: &isolane_memory::Buffer, byte: u8) -> bool {
    data.to_vec().first() == Some(&byte)
}

/// A connection with more answers than it holds, followed by a write that the target cannot read.
fn fill(target: &Target, admin: &MockHost) -> MockHost {
    fill_queue(target, admin.io_queue(1, 1023))
}

fn fill_queue(target: &Target, mut old: MockHost) -> MockHost {
    let read = SubmissionEntry { sgl: Sgl::Transport { len: 64 << 10 }, ..read_entry(0, 128) };
    (0..512).for_each(|_| _ = old.send(read, &[]));
    let mut held = None;
    eventually("nothing more is sent", || {
        std::thread::sleep(Duration::from_millis(50));
        let sent = target.counters().sent_bytes;
        held.replace(sent) == Some(sent)
    });
    send_write(&mut old, 0, 0xee);
    old
}

#[test]
fn orders_new_io_after_slow_connection() {
    let (target, address) = start(two_cores(&["mem:64K"]));
    let admin = MockHost::admin(address);
    let old = fill(&target, &admin);
    let (_admin, mut new) = pair(address, 31);
    let write = send_write(&mut new, 0, 1);
    let open = target.counters().connections_open;
    assert_eq!(open, 4, "a connection was closed");
    let mut stream = old.stream.try_clone().unwrap();
    let reader = std::thread::spawn(move || {
        let mut taken = vec![0; 1 << 20];
        while stream.read(&mut taken).is_ok_and(|count| count > 0) {}
    });
    assert_eq!(new.completion(write).0.status, Status::SUCCESS);
    assert!(new.fetch(read_entry(0, 8), 4096).1 == [1; 4096], "the older write came later");
    assert_eq!(target.counters().connections_open, 4);
    old.stream.shutdown(std::net::Shutdown::Both).unwrap();
    reader.join().unwrap();
}

#[test]
fn releases_new_io_when_unread_connection_ends() {
    let (target, address) = start(two_cores(&["mem:64K"]));
    let admin = MockHost::admin(address);
    let old = fill(&target, &admin);
    let (_admin, mut new) = pair(address, 31);
    let write = send_write(&mut new, 0, 1);
    drop((admin, old));
    assert_eq!(new.completion(write).0.status, Status::SUCCESS);
    assert!(new.fetch(read_entry(0, 8), 4096).1 == [1; 4096], "the older write came later");
}

/// A core that reads a host lets no connection go, so one that moves shows that its core has stopped reading.
#[test]
fn stops_draining_when_new_association_ends() {
    let config =
        TargetConfig { rebalance_interval: Some(Duration::from_secs(3600)), ..two_cores(&["mem:64K"]) };
    let (target, address) = start(config);
    let admin = MockHost::admin(address);
    let queues = [1, 2].map(|qid| admin.io_queue(qid, 1023));
    let peers = queues.each_ref().map(|queue| queue.stream.local_addr().unwrap());
    move_to(&target, peers[0], 0);
    move_to(&target, peers[1], 1);
    let _old = queues.map(|queue| fill_queue(&target, queue));
    drop(pair(address, 31));
    eventually("the newer association is gone", || target.associations().len() == 1);

    let other = "nqn.2014-08.org.nvmexpress:uuid:99999999-2222-3333-4444-555555555555";
    let other = MockHost::admin_with(address, IcReq::default(), other);
    let peer = other.stream.local_addr().unwrap();
    for reactor in [0, 1, 0] {
        move_to(&target, peer, reactor);
    }
}

fn move_to(target: &Target, peer: SocketAddr, reactor: usize) {
    eventually("it has moved", || {
        target.relocate(peer, reactor);
        target.connections().iter().any(|status| status.peer == peer && status.reactor == reactor)
    });
}

#[test]
fn discovery_and_other_hosts_drain_nothing() {
    let (target, address) = start(two_cores(&["mem:64K"]));
    let admin = MockHost::admin(address);
    let _old = fill(&target, &admin);
    let mut discovery = MockHost::initialized(address, IcReq::default());
    assert_eq!(discovery.connect(0, 0xffff, Nqn::DISCOVERY, HOST, 31).status, Status::SUCCESS);
    let other = "nqn.2014-08.org.nvmexpress:uuid:99999999-2222-3333-4444-555555555555";
    let other_admin = MockHost::admin_with(address, IcReq::default(), other);
    let mut queue = other_admin.io_queue_with(1, 31, IcReq::default(), other);
    assert_eq!(queue.write(write_entry(0, 8), &[1; 4096]).0.status, Status::SUCCESS);
    assert_eq!(target.counters().connections_open, 5, "a connection was closed");
}

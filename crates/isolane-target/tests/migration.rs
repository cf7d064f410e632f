//! Lanes that move between cores keep their commands, data, and limits.

mod common;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::*;
use isolane_target::{Target, TargetConfig};
use isolane_wire::pdu::{ControllerPdu, IcReq};
use isolane_wire::registers::Cc;
use isolane_wire::{Sgl, Status, SubmissionEntry};

/// Two reactors, and a scheduler that moves nothing during a test.
fn two_reactors(volumes: &[&str]) -> TargetConfig {
    TargetConfig {
        cores: one_core_twice(),
        rebalance_interval: Some(Duration::from_secs(3600)),
        ..config(volumes)
    }
}

fn reactor_of(target: &Target, peer: SocketAddr) -> Option<usize> {
    target.connections().iter().find(|status| status.peer == peer).map(|status| status.reactor)
}

fn peer_of(host: &MockHost) -> SocketAddr {
    host.stream.local_addr().unwrap()
}

/// Moves a connection to the reactor that it is not on.
fn relocate(target: &Target, peer: SocketAddr) {
    let Some(before) = reactor_of(target, peer) else { panic!("no connection of {peer}") };
    eventually("it has moved", || {
        target.relocate(peer, 1 - before);
        reactor_of(target, peer) == Some(1 - before)
    });
}

#[test]
fn migrated_connection_still_serves() {
    let (target, address) = start(two_reactors(&["mem:4M"]));
    let (mut admin, mut queue) = pair(address, 31);
    for round in 0..6 {
        let data = pattern(round, 64 << 10);
        assert_eq!(queue.push(write_entry(0, 128), &data).status, Status::SUCCESS);
        relocate(&target, peer_of(&queue));
        assert_eq!(queue.fetch(read_entry(0, 128), 64 << 10).1, data);
        relocate(&target, peer_of(&admin));
        assert_ne!(admin.property(CSTS), 0);
    }
    assert_eq!(target.counters().connections_open, 2);
}

/// Requests of the port reach a lane on every core; here, a close.
#[test]
fn disabled_controller_closes_migrated_connections() {
    let (target, address) = start(two_reactors(&["mem:1M"]));
    let (mut admin, mut queue) = pair(address, 31);
    relocate(&target, peer_of(&queue));
    relocate(&target, peer_of(&admin));
    admin.set_property(CC, 0);
    queue.expect_end();
    eventually("it is not ready", || admin.property(CSTS) & 1 == 0);
    admin.set_property(CC, Cc::enabled().0);
    let mut queue = admin.io_queue(1, 31);
    assert_eq!(queue.fetch(read_entry(0, 1), 512).0.status, Status::SUCCESS);
}

/// Deep queues that are driven all the time, on memory and on a file, with short and long commands.
#[test]
fn busy_connections_survive_migrations() {
    let directory = tempfile::tempdir().unwrap();
    let file = format!("{},size=8M", directory.path().join("volume").display());
    let (target, address) = start(two_reactors(&["mem:8M", &file]));
    let admin = MockHost::admin(address);
    let is_over = AtomicBool::new(false);
    let queues: Vec<_> = (1..5).map(|qid| admin.io_queue(qid, 31)).collect();
    let peers: Vec<_> = queues.iter().map(peer_of).collect();
    std::thread::scope(|scope| {
        for (at, mut queue) in queues.into_iter().enumerate() {
            let is_over = &is_over;
            scope.spawn(move || {
                let mut round = 0;
                while !is_over.load(Ordering::Relaxed) || round < 10 {
                    exercise(&mut queue, at, round);
                    round += 1;
                }
            });
        }
        for _ in 0..4 {
            peers.iter().for_each(|peer| relocate(&target, *peer));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    drop(admin);
    assert_eq!(target.shutdown(Duration::from_secs(20)).into_result(), Ok(()));
}

/// Writes several ranges at a time and reads them back at once; long ones use R2T.
fn exercise(queue: &mut MockHost, at: usize, round: u64) {
    let (nsid, base) = (1 + at as u32 % 2, at as u64 * 4096);
    let len = if round.is_multiple_of(3) { 128 << 10 } else { 4096 };
    let blocks = (len / 512) as u64;
    let on = |entry: SubmissionEntry| SubmissionEntry { nsid, ..entry };
    for part in 0..4 {
        let data = pattern(round ^ part, len);
        let written = queue.push(on(write_entry(base + part * blocks, blocks as u32)), &data);
        assert_eq!(written.status, Status::SUCCESS);
    }
    let read = |part| SubmissionEntry {
        sgl: Sgl::Transport { len: len as u32 },
        ..on(read_entry(base + part * blocks, blocks as u32))
    };
    let cids: Vec<_> = (0..4).map(|part| queue.send(read(part), &[])).collect();
    for (part, data) in answers(queue, &cids).into_iter().enumerate() {
        assert!(data == pattern(round ^ part as u64, len), "round {round}, part {part}");
    }
}

/// The data of reads, whose answers come in any order.
fn answers(queue: &mut MockHost, cids: &[u16]) -> Vec<Vec<u8>> {
    let mut all = vec![Vec::new(); cids.len()];
    let mut left = cids.len();
    let at = |cid| cids.iter().position(|it| *it == cid).unwrap();
    while left > 0 {
        let answer = queue.answer();
        match answer.pdu {
            ControllerPdu::C2hData(header) => {
                assert_eq!(header.datao as usize, all[at(header.cccid)].len());
                all[at(header.cccid)].extend(answer.data);
                left -= usize::from(header.success);
            }
            ControllerPdu::CapsuleResp(response) => {
                assert_eq!(response.entry.status, Status::SUCCESS);
                assert!(!all[at(response.entry.cid)].is_empty());
                left -= 1;
            }
            other => panic!("{other:?}"),
        }
    }
    all
}

/// The memory that each core guarantees to its lanes is promised to no more lanes than it
/// suffices for.
#[test]
fn full_core_accepts_no_migration() {
    let config = two_reactors(&["mem:1M"]);
    let (target, address) = start(TargetConfig { max_pool_pages: 1024, max_connections: 4096, ..config });
    let (_admin, mut queue) = pair(address, 31);
    let peer = peer_of(&queue);
    let before = reactor_of(&target, peer).unwrap();
    // Both cores are full when several in a row are refused.
    let (mut others, mut refused_in_a_row) = (Vec::new(), 0);
    while refused_in_a_row < 8 {
        let mut other = MockHost::initialized(address, IcReq::default());
        let is_admitted = other.connect(0, 0xffff, NQN, HOST, 31).status == Status::SUCCESS;
        refused_in_a_row = if is_admitted { 0 } else { refused_in_a_row + 1 };
        others.extend(Some(other).filter(|_| is_admitted));
    }
    eventually("the rejected connections are closed", || {
        target.counters().connections_open == 2 + others.len() as u64
    });
    let counts = target.counters().connections_per_core;
    for _ in 0..100 {
        target.relocate(peer, 1 - before);
        std::thread::sleep(Duration::from_millis(3));
    }
    assert_eq!(target.counters().connections_per_core, counts);
    assert_eq!(queue.fetch(read_entry(0, 1), 512).0.status, Status::SUCCESS);
    // The core stops reading from a busy connection until it is quiescent. The other core is full, so reading
    // resumes. The host receives nothing before, and the responses exceed the socket buffers.
    rustix::net::sockopt::set_socket_recv_buffer_size(&queue.stream, 64 << 10).unwrap();
    let read = SubmissionEntry { sgl: Sgl::Transport { len: 256 << 10 }, ..read_entry(0, 512) };
    for _ in 0..5 {
        let reads: Vec<_> = (0..30).map(|_| queue.send(read, &[])).collect();
        target.relocate(peer, 1 - before);
        std::thread::sleep(Duration::from_millis(50));
        assert!(answers(&mut queue, &reads).iter().all(|data| data.len() == 256 << 10));
        assert_eq!(queue.fetch(read_entry(0, 1), 512).0.status, Status::SUCCESS);
    }
    assert_eq!(target.counters().connections_per_core, counts);
    drop(others);
    eventually("the others are gone", || target.counters().connections_open == 2);
    relocate(&target, peer);
    assert_eq!(queue.fetch(read_entry(0, 1), 512).0.status, Status::SUCCESS);
}

#[test]
fn idle_connections_gather_on_first_reactor() {
    let rebalance_interval = Some(Duration::from_millis(10));
    let (target, address) = start(TargetConfig { rebalance_interval, ..two_reactors(&["mem:1M"]) });
    let admin = MockHost::admin(address);
    let mut queues: Vec<_> = (1..6).map(|qid| admin.io_queue(qid, 31)).collect();
    eventually("all are on the first", || target.counters().connections_per_core == [6, 0]);
    for queue in &mut queues {
        assert_eq!(queue.fetch(read_entry(0, 1), 512).0.status, Status::SUCCESS);
    }
    drop((admin, queues));
    eventually("all are gone", || target.counters().connections_per_core == [0, 0]);
    assert!(target.associations().is_empty());
}

#[test]
fn stops_cleanly_during_migrations() {
    for _ in 0..20 {
        let (target, address) = start(two_reactors(&["mem:1M"]));
        let admin = MockHost::admin(address);
        let queues: Vec<_> = (1..9).map(|qid| admin.io_queue(qid, 31)).collect();
        queues.iter().for_each(|queue| target.relocate(peer_of(queue), 1));
        target.relocate(peer_of(&admin), 1);
        assert_eq!(target.shutdown(Duration::from_secs(20)).into_result(), Ok(()));
    }
}

//! The life of an association: its connections on several cores, its end, and what may follow it.

mod common;

use std::time::Duration;

use common::interposer::{Decision, Interposer};
use common::*;
use isolane_target::TargetConfig;
use isolane_volume::Request;
use isolane_wire::fabrics::DisconnectCommand;
use isolane_wire::pdu::{ControllerPdu, IcReq};
use isolane_wire::registers::{Cc, Csts};
use isolane_wire::{Sgl, Status, SubmissionEntry, admin, io as nvm};

/// Two reactors, wherever the test runs.
fn two_cores(volumes: &[&str]) -> TargetConfig {
    TargetConfig { cores: one_core_twice(), ..config(volumes) }
}

#[test]
fn connections_are_spread_over_the_cores() {
    let (target, address) = start(two_cores(&["mem:1M"]));
    let admin = MockHost::admin(address);
    let _queues: Vec<_> = (1..8).map(|qid| admin.io_queue(qid, 31)).collect();
    assert_eq!(target.counters().connections_per_core, [4, 4]);
}

#[test]
fn lost_admin_connection_closes_io_connections() {
    let (target, address) = start(two_cores(&["mem:1M"]));
    let admin = MockHost::admin(address);
    let mut queues: Vec<_> = (1..6).map(|qid| admin.io_queue(qid, 31)).collect();
    drop(admin);
    queues.iter_mut().for_each(MockHost::expect_end);
    drop(queues);
    eventually("all connections are gone", || target.counters().connections_open == 0);
    eventually("the association is gone", || target.associations().is_empty());
}

#[test]
fn ended_association_sends_no_error() {
    let (_target, address) = start(two_cores(&["mem:1M"]));
    for _ in 0..60 {
        let admin = MockHost::admin(address);
        let mut queues: Vec<_> = (1..4).map(|qid| admin.io_queue(qid, 31)).collect();
        for queue in &mut queues {
            let read = |lba| SubmissionEntry { sgl: Sgl::Transport { len: 512 }, ..read_entry(lba, 1) };
            for lba in 0..30 {
                queue.send(read(lba), &[]);
            }
        }
        drop(admin);
        for queue in &mut queues {
            while let Some(answer) = queue.try_answer() {
                if let ControllerPdu::CapsuleResp(response) = answer.pdu {
                    assert_eq!(response.entry.status, Status::SUCCESS);
                }
            }
        }
    }
}

#[test]
fn lost_io_connection_frees_queue_id() {
    let (_target, address) = start(two_cores(&["mem:1M"]));
    let admin = MockHost::admin(address);
    for _ in 0..20 {
        let mut queue = admin.io_queue(1, 31);
        assert_eq!(queue.run(nvm::flush(1)).status, Status::SUCCESS);
        drop(queue);
        let mut probe = MockHost::initialized(address, IcReq::default());
        eventually("the queue id is free", || {
            let is_free = probe.connect(1, admin.cntlid, NQN, HOST, 31).status == Status::SUCCESS;
            if !is_free {
                probe = MockHost::initialized(address, IcReq::default());
            }
            is_free
        });
        probe.run(DisconnectCommand::default().entry());
        probe.expect_end();
    }
}

#[test]
fn silent_host_loses_association() {
    let (target, address) = start(two_cores(&["mem:1M"]));
    let mut admin = MockHost::initialized(address, IcReq::default());
    let entry = SubmissionEntry { cdw12: 1000, ..connect_entry(0, 31) };
    let (answer, _) = admin.write(entry, &connect_data(0xffff, NQN, HOST));
    assert_eq!(answer.status, Status::SUCCESS);
    admin.cntlid = answer.dw0 as u16;
    admin.set_property(CC, Cc::enabled().0);
    let mut queue = admin.io_queue(1, 31);
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(admin.run(admin::keep_alive()).status, Status::SUCCESS);
    }
    admin.expect_end();
    queue.expect_end();
    eventually("the association is gone", || target.associations().is_empty());
}

#[test]
fn shutdown_completes_after_flush() {
    let (_target, address) = start(two_cores(&["mem:1M", "mem:1M"]));
    let mut admin = MockHost::admin(address);
    let mut queue = admin.io_queue(1, 31);
    assert_eq!(queue.write(write_entry(0, 1), &[1; 512]).0.status, Status::SUCCESS);
    admin.set_property(CC, Cc::enabled().with_shn(Cc::SHN_NORMAL).0);
    eventually("the shutdown is complete", || {
        Csts(admin.property(CSTS) as u32).shst() == Csts::SHST_COMPLETE
    });
}

#[test]
fn disabled_controller_can_be_enabled_again() {
    let (_target, address) = start(two_cores(&["mem:1M"]));
    let mut admin = MockHost::admin(address);
    let mut queues = [admin.io_queue(1, 31), admin.io_queue(2, 31)];
    admin.set_property(CC, 0);
    queues.iter_mut().for_each(MockHost::expect_end);
    eventually("it is not ready", || !Csts(admin.property(CSTS) as u32).rdy());
    admin.set_property(CC, Cc::enabled().0);
    let mut queue = admin.io_queue(1, 31);
    assert_eq!(queue.fetch(read_entry(0, 1), 512).0.status, Status::SUCCESS);
}

#[test]
fn reconnect_waits_for_data_of_older_connections() {
    let mut config = TargetConfig { queue_depth: 1024, ..two_cores(&[]) };
    let slow = Interposer::over("mem:1M", |request| {
        if matches!(request, Request::Write { .. }) {
            std::thread::sleep(Duration::from_micros(500));
        }
        Decision::Pass(request)
    });
    config.subsystems[0].volumes.push((1, slow));
    let (_target, address) = start(config);
    let admin = MockHost::admin(address);
    let mut old: Vec<_> = (1..5).map(|qid| admin.io_queue(qid, 1023)).collect();
    let mut new_admin = MockHost::initialized(address, IcReq::default());
    for queue in &mut old {
        for _ in 0..250 {
            queue.send(in_capsule(write_entry(0, 8), &[0xee; 4096]), &[0xee; 4096]);
        }
    }
    let answer = new_admin.connect(0, 0xffff, NQN, HOST, 31);
    assert_eq!(answer.status, Status::SUCCESS);
    new_admin.cntlid = answer.dw0 as u16;
    new_admin.set_property(CC, Cc::enabled().0);
    let mut queue = new_admin.io_queue(1, 31);
    let new = vec![1; 4096];
    assert_eq!(queue.write(write_entry(0, 8), &new).0.status, Status::SUCCESS);
    std::thread::sleep(Duration::from_millis(300));
    assert!(queue.fetch(read_entry(0, 8), 4096).1 == new, "a write of the old association landed");
}

#[test]
fn repeated_reconnects_end_older_associations() {
    let (target, address) = start(two_cores(&["mem:1M"]));
    for round in 0..20u8 {
        let admin = MockHost::admin(address);
        let mut queues: Vec<_> = (1..5).map(|qid| admin.io_queue(qid, 127)).collect();
        for queue in &mut queues {
            for _ in 0..100 {
                queue.send(in_capsule(write_entry(0, 8), &[0xee; 4096]), &[0xee; 4096]);
            }
        }
        drop((admin, queues));
        let (_admin, mut queue) = pair(address, 31);
        let new = vec![round; 4096];
        assert_eq!(queue.write(write_entry(0, 8), &new).0.status, Status::SUCCESS);
        assert!(queue.fetch(read_entry(0, 8), 4096).1 == new, "a write of the old association landed");
    }
    eventually("older associations are gone", || target.associations().is_empty());
}

#[test]
fn serves_two_associations_of_one_host() {
    let (_target, address) = start(two_cores(&["mem:1M"]));
    let first = MockHost::admin(address);
    let mut queue = first.io_queue(1, 31);
    let second = MockHost::admin(address);
    assert_ne!(first.cntlid, second.cntlid);
    assert_eq!(queue.fetch(read_entry(0, 1), 512).0.status, Status::SUCCESS);
    assert_eq!(second.io_queue(1, 31).fetch(read_entry(0, 1), 512).0.status, Status::SUCCESS);
}

#[test]
fn held_async_event_request_delays_nothing() {
    let (_target, address) = start(two_cores(&["mem:1M"]));
    let mut admin = MockHost::admin(address);
    admin.send(admin::async_event_request(), &[]);
    assert_eq!(admin.run(admin::keep_alive()).status, Status::SUCCESS);
    let mut queue = admin.io_queue(1, 31);
    assert_eq!(queue.run(nvm::flush(1)).status, Status::SUCCESS);
}

/// SPDK's host gives up its Async Event Requests on its own side, and then reuses their CIDs to shut down.
#[test]
fn shutdown_reuses_cid_of_async_event_request() {
    let (target, address) = start(two_cores(&["mem:1M"]));
    let mut admin = MockHost::admin(address);
    let held: Vec<u16> = (0..4).map(|_| admin.send(admin::async_event_request(), &[])).collect();
    admin.reuse_cid(held[0]);
    let cc = Cc(admin.property(CC) as u32);
    admin.set_property(CC, cc.with_shn(Cc::SHN_NORMAL).0);
    eventually("the shutdown is complete", || {
        admin.reuse_cid(held[2]);
        Csts(admin.property(CSTS) as u32).shst() == Csts::SHST_COMPLETE
    });
    drop(admin);
    eventually("the association has ended", || target.associations().is_empty());
}

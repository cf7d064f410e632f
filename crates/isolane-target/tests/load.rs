//! Memory under load: bounded pools serve every host, and no host or volume takes all of it.

mod common;

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use common::interposer::{Decision, Interposer};
use common::*;
use isolane_target::TargetConfig;
use isolane_volume::Request;
use isolane_wire::pdu::ControllerPdu;
use isolane_wire::{Sgl, Status, SubmissionEntry};

#[test]
fn two_cores_serve_many_connections() {
    let (target, address) = start(TargetConfig { cores: one_core_twice(), ..config(&["mem:64M"]) });
    let admin = MockHost::admin(address);
    let queues: Vec<_> = (1..=48).map(|qid| admin.io_queue(qid, 31)).collect();
    let threads = queues.into_iter().enumerate().map(|(at, mut queue)| {
        thread::spawn(move || {
            for round in 0..20 {
                let (slba, data) = (at as u64 * 256, pattern(at as u64 * 1000 + round, 64 * 1024));
                assert_eq!(queue.push(write_entry(slba, 128), &data).status, Status::SUCCESS);
                assert!(queue.fetch(read_entry(slba, 128), 65536).1 == data, "queue {at}, round {round}");
            }
        })
    });
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
    drop(admin);
    eventually("all connections are gone", || target.counters().connections_open == 0);
}

#[test]
fn small_pool_serves_larger_transfers() {
    let (target, address) = start(TargetConfig { max_pool_pages: 1024, ..config(&["mem:64M"]) });
    let admin = MockHost::admin(address);
    let len = 1 << 20;
    let mut queues: Vec<_> = (1..=16).map(|qid| admin.io_queue(qid, 31)).collect();
    for (at, queue) in queues.iter_mut().enumerate() {
        let entry = SubmissionEntry { sgl: Sgl::Transport { len }, ..write_entry(at as u64 * 2048, 2048) };
        queue.send(entry, &[]);
    }
    // Small commands pass the ones that wait for memory.
    let mut small = admin.io_queue(20, 31);
    for _ in 0..50 {
        assert_eq!(small.write(write_entry(100_000, 8), &[1; 4096]).0.status, Status::SUCCESS);
    }
    assert!(target.counters().deferred_commands > 0);
    let threads = queues.into_iter().enumerate().map(|(at, mut queue)| {
        thread::spawn(move || {
            let data = pattern(at as u64, len as usize);
            let ControllerPdu::R2t(r2t) = queue.answer().pdu else { panic!("no R2T") };
            queue.send_granted(&r2t, &data);
            let ControllerPdu::CapsuleResp(response) = queue.answer().pdu else { panic!("no response") };
            assert_eq!(response.entry.status, Status::SUCCESS);
            assert!(queue.fetch(read_entry(at as u64 * 2048, 2048), len).1 == data);
        })
    });
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn stalled_queue_resumes_with_memory() {
    let attempts = AtomicU32::new(0);
    let slow = Interposer::over("mem:64M", move |request| match request {
        Request::Write { blocks: 32, .. } if attempts.fetch_add(1, Ordering::Relaxed) % 5 != 4 => {
            Decision::Later(request)
        }
        _ => Decision::Pass(request),
    });
    let (_target, address) = start(TargetConfig { max_pool_pages: 1024, ..serving(vec![(1, slow)]) });
    let admin = MockHost::admin(address);
    let mut greedy: Vec<_> = (1..=5).map(|qid| admin.io_queue(qid, 31)).collect();
    for queue in &mut greedy {
        let entry = write_entry(0, 2048);
        queue.send(SubmissionEntry { sgl: Sgl::Transport { len: 1 << 20 }, ..entry }, &[]);
    }
    let mut queues: Vec<_> = (6..=9).map(|qid| admin.io_queue(qid, 127)).collect();
    let data = pattern(5, 16 * 1024);
    for queue in &mut queues {
        for at in 0..100 {
            queue.send(in_capsule(write_entry(at * 32, 32), &data), &data);
        }
    }
    for queue in &mut queues {
        for _ in 0..100 {
            let ControllerPdu::CapsuleResp(response) = queue.answer().pdu else { panic!("no response") };
            assert_eq!(response.entry.status, Status::SUCCESS);
        }
        assert!(queue.fetch(read_entry(32 * 50, 32), 16 * 1024).1 == data);
    }
}

#[test]
fn idle_memory_hog_delays_no_host() {
    let (_target, address) = start(TargetConfig { max_pool_pages: 1024, ..config(&["mem:64M"]) });
    let admin = MockHost::admin(address);
    let mut greedy = admin.io_queue(1, 127);
    for at in 0..100 {
        greedy.send(SubmissionEntry { sgl: Sgl::Transport { len: 1 << 20 }, ..write_entry(at, 2048) }, &[]);
    }
    let mut good = admin.io_queue(2, 31);
    let data = pattern(1, 1 << 20);
    for _ in 0..10 {
        assert_eq!(good.push(write_entry(0, 2048), &data).status, Status::SUCCESS);
    }
    // The greedy one is served as well, in its own time.
    for _ in 0..100 {
        let r2t = loop {
            if let ControllerPdu::R2t(r2t) = greedy.answer().pdu {
                break r2t;
            }
        };
        greedy.send_granted(&r2t, &data);
    }
}

#[test]
fn closes_stalled_hosts_when_memory_is_short() {
    let (target, address) = start(TargetConfig { max_pool_pages: 1024, ..config(&["mem:64M"]) });
    let admin = MockHost::admin(address);
    let mut idle: Vec<_> = (1..=8).map(|qid| admin.io_queue(qid, 31)).collect();
    for queue in &mut idle {
        queue.send(SubmissionEntry { sgl: Sgl::Transport { len: 1 << 20 }, ..write_entry(0, 2048) }, &[]);
    }
    let mut good = admin.io_queue(9, 31);
    assert_eq!(good.push(write_entry(0, 2048), &pattern(1, 1 << 20)).status, Status::SUCCESS);
    assert!(target.counters().connections_open < 10, "none of the idle ones was closed");
}

#[test]
fn writes_with_memory_pass_waiting_ones() {
    let attempts = AtomicU32::new(0);
    let slow = Interposer::over("mem:64M", move |request| match request {
        Request::Write { blocks: 2048, .. } if attempts.fetch_add(1, Ordering::Relaxed) < 20 => {
            Decision::Later(request)
        }
        _ => Decision::Pass(request),
    });
    let (target, address) = start(TargetConfig { max_pool_pages: 1024, ..serving(vec![(1, slow)]) });
    let admin = MockHost::admin(address);
    let transport = |slba, blocks: u32| SubmissionEntry {
        sgl: Sgl::Transport { len: blocks * 512 },
        ..write_entry(slba, blocks)
    };
    let mut holders: Vec<_> = (1..=3).map(|qid| admin.io_queue(qid, 31)).collect();
    let granted = holders.iter_mut().map(|queue| {
        queue.send(transport(0, 2048), &[]);
        let ControllerPdu::R2t(r2t) = queue.answer().pdu else { panic!("no R2T") };
        r2t
    });
    let granted: Vec<_> = granted.collect();
    let mut others: Vec<_> = (4..=8).map(|qid| admin.io_queue(qid, 31)).collect();
    others.iter_mut().for_each(|queue| (0..15).for_each(|at| _ = queue.send(transport(at * 136, 136), &[])));
    eventually("the others wait for memory", || target.counters().deferred_commands > 64);

    for (queue, r2t) in holders.iter_mut().zip(granted) {
        queue.send_granted(&r2t, &pattern(1, 1 << 20));
    }
    for queue in &mut holders {
        let ControllerPdu::CapsuleResp(response) = queue.answer().pdu else { panic!("no response") };
        assert_eq!(response.entry.status, Status::SUCCESS);
    }
    assert_eq!(target.counters().connections_open, 9, "no connection was closed for it");
}

#[test]
fn serves_full_queue_in_one_segment() {
    let (_target, address) = start(config(&["mem:16M"]));
    let (_admin, mut queue) = pair(address, 127);
    let data = pattern(5, 4096);
    for round in 0..20 {
        let mut cids: Vec<_> =
            (0..127).map(|at| queue.send(in_capsule(write_entry(at * 8, 8), &data), &data)).collect();
        for _ in 0..127 {
            let ControllerPdu::CapsuleResp(response) = queue.answer().pdu else { panic!("no response") };
            assert_eq!(response.entry.status, Status::SUCCESS, "round {round}");
            cids.retain(|cid| *cid != response.entry.cid);
        }
        assert!(cids.is_empty());
    }
}

//! Limits of the memory that commands of a host, a subsystem, or the target hold.

mod common;

use std::collections::HashMap;
use std::thread;
use std::time::Duration;

use common::stuck::Stuck;
use common::*;
use isolane_target::{ConnectionLimits, LimitKind, LimitScope, Target, TargetConfig, TargetLimits};
use isolane_wire::pdu::{ControllerPdu, IcReq, R2t};
use isolane_wire::{Sgl, Status, SubmissionEntry, io as nvm};

const OTHER_HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:22222222-2222-3333-4444-555555555555";
const MIB: usize = 1 << 20;
/// Commands of 1 MiB that the limit has space for.
const MAX: usize = 4;
const QUEUES: u16 = 8;
/// More than the limits.
const POOL_PAGES: usize = 32 * 1024;

fn memory(bytes: usize) -> ConnectionLimits {
    ConnectionLimits { memory: Some(bytes), ..ConnectionLimits::default() }
}

fn of_host() -> TargetLimits {
    let hosts = [(HOST.parse().unwrap(), memory(MAX * MIB))].into();
    TargetLimits { hosts, ..TargetLimits::default() }
}

fn of_subsystem() -> TargetLimits {
    let subsystems = [(NQN.parse().unwrap(), memory(MAX * MIB))].into();
    TargetLimits { subsystems, ..TargetLimits::default() }
}

fn of_target() -> TargetLimits {
    TargetLimits { target: memory(MAX * MIB), ..TargetLimits::default() }
}

fn on_two_cores(volume: &str, limits: TargetLimits) -> (Target, std::net::SocketAddr) {
    start(TargetConfig { cores: one_core_twice(), limits, max_pool_pages: POOL_PAGES, ..config(&[volume]) })
}

fn waits(target: &Target, scope: LimitScope) -> u64 {
    target.counters().limits_reached.get(&(scope, LimitKind::Memory)).copied().unwrap_or_default()
}

/// A write of 1 MiB whose data the target has to request.
fn long_write(at: usize) -> SubmissionEntry {
    let entry = write_entry(at as u64 * 2048, 2048);
    SubmissionEntry { sgl: Sgl::Transport { len: MIB as u32 }, ..entry }
}

/// Returns the requests for data that have come.
fn granted(queue: &mut MockHost) -> Vec<R2t> {
    let flush = queue.send(nvm::flush(1), &[]);
    let mut granted = Vec::new();
    loop {
        match queue.answer().pdu {
            ControllerPdu::R2t(r2t) => granted.push(r2t),
            ControllerPdu::CapsuleResp(response) => {
                assert_eq!((response.entry.cid, response.entry.status), (flush, Status::SUCCESS));
                return granted;
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Sends the data of a write once it is requested.
fn complete(queue: &mut MockHost, granted: Vec<R2t>, data: &[u8]) {
    granted.iter().for_each(|r2t| queue.send_granted(r2t, data));
    loop {
        match queue.answer().pdu {
            ControllerPdu::R2t(r2t) => queue.send_granted(&r2t, data),
            ControllerPdu::CapsuleResp(response) => {
                return assert_eq!(response.entry.status, Status::SUCCESS);
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Each queue of a host sends a write of 1 MiB while another host works.
fn check_writes(limits: TargetLimits, scope: LimitScope) {
    let (target, address) = on_two_cores("mem:64M", limits);
    let admin = MockHost::admin(address);
    let mut queues: Vec<_> = (1..=QUEUES).map(|qid| admin.io_queue(qid, 31)).collect();
    let send = |(at, queue): (usize, &mut MockHost)| {
        queue.send(long_write(at), &[]);
    };
    queues.iter_mut().enumerate().for_each(send);
    let mut requests = vec![Vec::new(); queues.len()];
    let mut receive = || {
        for (queue, requests) in queues.iter_mut().zip(&mut requests) {
            requests.extend(granted(queue));
        }
        requests.iter().flatten().count()
    };
    eventually("the limit is used", || receive() >= MAX);
    assert!((0..20).all(|_| receive() == MAX), "the others wait");
    assert!(waits(&target, scope) > 0);
    let other = MockHost::admin_with(address, IcReq::default(), OTHER_HOST);
    let mut other = other.io_queue_with(1, 31, IcReq::default(), OTHER_HOST);
    for _ in 0..10 {
        // Its data is in the memory guaranteed to its queue, or has no limit.
        assert_eq!(other.write(write_entry(100_000, 8), &[1; 4096]).0.status, Status::SUCCESS);
    }
    let data = pattern(1, MIB);
    let threads = queues.into_iter().zip(requests).map(|(mut queue, requests)| {
        let data = data.clone();
        thread::spawn(move || {
            complete(&mut queue, requests, &data);
            queue
        })
    });
    let threads: Vec<_> = threads.collect();
    let mut queues: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    target.set_limits(TargetLimits::default());
    eventually("both cores know that they need not wait", || {
        let before = waits(&target, scope);
        queues.iter_mut().enumerate().for_each(send);
        queues.iter_mut().for_each(|queue| complete(queue, Vec::new(), &data));
        waits(&target, scope) == before
    });
}

#[test]
fn writes_of_a_host_wait_before_their_data_is_requested() {
    check_writes(of_host(), LimitScope::Host);
}

#[test]
fn writes_of_a_subsystem_wait_before_their_data_is_requested() {
    check_writes(of_subsystem(), LimitScope::Subsystem);
}

#[test]
fn writes_of_all_hosts_wait_before_their_data_is_requested() {
    check_writes(of_target(), LimitScope::Target);
}

/// Takes the answers to `count` reads, in any order: a volume completes operations in its own.
fn check_reads(queue: &mut MockHost, count: usize, expected: &[u8]) {
    let (mut reads, mut completed) = (HashMap::<u16, Vec<u8>>::new(), 0);
    while completed < count {
        let answer = queue.answer();
        let cid = match answer.pdu {
            ControllerPdu::C2hData(header) => {
                let read = reads.entry(header.cccid).or_default();
                assert_eq!(header.datao as usize, read.len());
                read.extend(answer.data);
                if !header.success {
                    continue;
                }
                header.cccid
            }
            ControllerPdu::CapsuleResp(response) => {
                assert_eq!(response.entry.status, Status::SUCCESS);
                response.entry.cid
            }
            other => panic!("{other:?}"),
        };
        assert!(reads.remove(&cid).as_deref() == Some(expected), "command {cid}");
        completed += 1;
    }
}

#[test]
fn reads_of_a_host_that_takes_no_data_wait() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(64 << 20).unwrap();
    for volume in ["mem:64M", &file.path().display().to_string()] {
        let (target, address) = on_two_cores(volume, of_host());
        let admin = MockHost::admin(address);
        let mut queues = [admin.io_queue(1, 127), admin.io_queue(2, 127)];
        let data = pattern(7, MIB);
        assert_eq!(queues[0].push(long_write(3), &data).status, Status::SUCCESS);
        for queue in &mut queues {
            for _ in 0..64 {
                let read = read_entry(3 * 2048, 2048);
                queue.send(SubmissionEntry { sgl: Sgl::Transport { len: MIB as u32 }, ..read }, &[]);
            }
        }
        eventually("some wait", || waits(&target, LimitScope::Host) > 0);
        let other = MockHost::admin_with(address, IcReq::default(), OTHER_HOST);
        let mut other = other.io_queue_with(1, 31, IcReq::default(), OTHER_HOST);
        for _ in 0..10 {
            assert!(other.fetch(read_entry(3 * 2048, 2048), MIB as u32).1 == data);
        }
        let threads = queues.map(|mut queue| {
            let data = data.clone();
            thread::spawn(move || check_reads(&mut queue, 64, &data))
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn reads_with_fua_of_more_than_the_limit_complete() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(64 << 20).unwrap();
    let (_target, address) = on_two_cores(&file.path().display().to_string(), of_target());
    let admin = MockHost::admin(address);
    let mut queue = admin.io_queue(1, 127);
    for at in 0..64 {
        let read = nvm::ReadCommand { fua: true, ..nvm::ReadCommand::parse(&read_entry(at * 256, 256)) };
        queue.send(SubmissionEntry { sgl: Sgl::Transport { len: 128 << 10 }, ..read.entry() }, &[]);
    }
    let mut left = 64;
    while left > 0 {
        match queue.answer().pdu {
            ControllerPdu::C2hData(data) => left -= usize::from(data.success),
            ControllerPdu::CapsuleResp(response) => {
                assert_eq!(response.entry.status, Status::SUCCESS);
                left -= 1;
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Queues that hold all memory of the limit: their host does not send the data of its writes.
fn hold_all(admin: &MockHost) -> Vec<MockHost> {
    let mut holders: Vec<_> = (1..=MAX as u16).map(|qid| admin.io_queue(qid, 31)).collect();
    for holder in &mut holders {
        holder.send(long_write(0), &[]);
        assert!(matches!(holder.answer().pdu, ControllerPdu::R2t(_)));
    }
    holders
}

#[test]
fn commands_that_wait_for_too_long_are_answered() {
    let limits = of_target();
    let times = TargetConfig { answer_within: Duration::from_millis(100), ..config(&["mem:64M"]) };
    let (_target, address) = start(TargetConfig { limits, max_pool_pages: POOL_PAGES, ..times });
    let admin = MockHost::admin(address);
    let _holders = hold_all(&admin);
    let mut queue = admin.io_queue(9, 31);
    let write = queue.send(long_write(0), &[]);
    assert!(queue.completion(write).0.status.is(Status::NAMESPACE_NOT_READY));
    let read = SubmissionEntry { sgl: Sgl::Transport { len: MIB as u32 }, ..read_entry(0, 2048) };
    let read = queue.send(read, &[]);
    assert!(queue.completion(read).0.status.is(Status::NAMESPACE_NOT_READY));
}

#[test]
fn write_whose_queue_waits_for_too_long_is_answered() {
    let (stuck, relief) = Stuck::new();
    let mut config = serving(vec![(1, stuck.clone())]);
    (config.stall_after, config.answer_within) = (Duration::from_secs(3600), Duration::from_millis(100));
    let (target, address) = start(TargetConfig { limits: of_target(), max_pool_pages: POOL_PAGES, ..config });
    let admin = MockHost::admin(address);
    let holders = hold_all(&admin);
    let mut queue = admin.io_queue(9, 31);
    // The first one is in the memory guaranteed to its queue, and stays at the volume.
    let mut cids = [4096, 4097].map(|lba| queue.send(in_capsule(write_entry(lba, 1), &[1; 512]), &[1; 512]));
    for _ in 0..2 {
        let ControllerPdu::CapsuleResp(response) = queue.answer().pdu else { panic!("no response") };
        assert!(response.entry.status.is(Status::NAMESPACE_NOT_READY));
        assert!(cids.contains(&response.entry.cid), "{cids:?}");
        cids = cids.map(|cid| if cid == response.entry.cid { u16::MAX } else { cid });
    }
    // The queue is read again.
    assert!(queue.fetch(read_entry(0, 1), 512).0.status.is(Status::NAMESPACE_NOT_READY));
    relief.release();
    drop((holders, queue, admin, target, stuck));
}

#[test]
fn stalled_namespace_leaves_memory_for_others_of_its_host() {
    let (stuck, relief) = Stuck::new();
    let mut config = serving(vec![(1, stuck.clone()), (2, volume("mem:64M"))]);
    (config.stall_after, config.answer_within) = (Duration::from_millis(50), Duration::from_millis(100));
    let limits = TargetLimits { hosts: [(HOST.parse().unwrap(), memory(8 * MIB))].into(), ..of_target() };
    let limits = TargetLimits { target: ConnectionLimits::default(), ..limits };
    let (target, address) = start(TargetConfig { limits, max_pool_pages: POOL_PAGES, ..config });
    let admin = MockHost::admin(address);
    let data = pattern(1, MIB);
    let mut queues: Vec<_> = (1..=8).map(|qid| admin.io_queue(qid, 31)).collect();
    for (at, queue) in queues.iter_mut().enumerate() {
        queue.send(long_write(at % 4), &[]);
        // A late one waits, because its namespace is stalled already.
        if let ControllerPdu::R2t(r2t) = queue.answer().pdu {
            queue.send_granted(&r2t, &data);
        }
    }
    let mut other = admin.io_queue(20, 31);
    // The volume keeps the memory, but the commands are complete. One that has waited as long as they is answered as well.
    let (cid, r2t) = loop {
        let cid = other.send(SubmissionEntry { nsid: 2, ..long_write(0) }, &[]);
        match other.answer().pdu {
            ControllerPdu::R2t(r2t) => break (cid, r2t),
            ControllerPdu::CapsuleResp(response) => {
                assert!(response.entry.status.is(Status::NAMESPACE_NOT_READY));
            }
            unexpected => panic!("{unexpected:?}"),
        }
    };
    other.send_granted(&r2t, &data);
    assert_eq!(other.completion(cid).0.status, Status::SUCCESS);
    assert!(waits(&target, LimitScope::Host) > 0);
    relief.release();
    drop((queues, other, admin, target, stuck));
}

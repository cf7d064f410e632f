//! Commands that wait when their namespace gets another volume: their hosts repeat them, and find the new one.

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use common::stuck::Stuck;
use common::*;
use isolane_memory::Pool;
use isolane_target::{ConnectionLimits, NamespaceChange, Target, TargetConfig, TargetLimits};
use isolane_volume::Volume;
use isolane_wire::pdu::{ControllerPdu, R2t};
use isolane_wire::{Sgl, Status, SubmissionEntry};

const MIB: usize = 1 << 20;
const BLOCK: [u8; 512] = [3; 512];
/// Commands of 1 MiB that the limits have space for.
const MAX: u16 = 4;

/// No command is answered because it is late.
fn serve(volume: Arc<dyn Volume>, limits: TargetLimits, max_pool_pages: usize) -> (Target, SocketAddr) {
    let never = Duration::from_secs(3600);
    let config = serving(vec![(1, volume)]);
    start(TargetConfig { stall_after: never, answer_within: never, limits, max_pool_pages, ..config })
}

fn limited() -> TargetLimits {
    let memory = Some(usize::from(MAX) * MIB);
    let target = ConnectionLimits { memory, ..ConnectionLimits::default() };
    TargetLimits { target, ..TargetLimits::default() }
}

fn replace(target: &Target) {
    let replace = NamespaceChange::Replace { nsid: 1, volume: volume("mem:64M"), may_shrink: false };
    target.change_namespaces(vec![replace]).unwrap();
}

/// A command of 1 MiB whose data is not in its capsule.
fn long(entry: SubmissionEntry) -> SubmissionEntry {
    SubmissionEntry { sgl: Sgl::Transport { len: MIB as u32 }, ..entry }
}

/// A queue whose write has memory for its data, which has not come.
fn holder(admin: &MockHost, qid: u16) -> (MockHost, R2t) {
    let mut queue = admin.io_queue(qid, 31);
    queue.send(long(write_entry(0, 2048)), &[]);
    let ControllerPdu::R2t(r2t) = queue.answer().pdu else { panic!("no R2T") };
    (queue, r2t)
}

fn expect_status(queue: &mut MockHost, status: Status) {
    let ControllerPdu::CapsuleResp(response) = queue.answer().pdu else { panic!("no response") };
    assert!(response.entry.status.is(status), "{:?}", response.entry.status);
}

fn wait_for(target: &Target, waiting: u64) {
    eventually("they wait", || target.counters().deferred_commands >= waiting);
}

#[test]
fn commands_over_a_limit_of_memory_are_given_back() {
    let before = volume("mem:64M");
    let (target, address) = serve(Arc::clone(&before), limited(), 32 * 1024);
    let admin = MockHost::admin(address);
    let holders: Vec<_> = (1..=MAX).map(|qid| holder(&admin, qid)).collect();
    let mut queue = admin.io_queue(9, 31);
    queue.send(long(write_entry(8192, 2048)), &[]);
    queue.send(long(read_entry(8192, 2048)), &[]);
    wait_for(&target, 2);
    replace(&target);
    expect_status(&mut queue, Status::NAMESPACE_NOT_READY);
    expect_status(&mut queue, Status::NAMESPACE_NOT_READY);
    // These had started.
    let data = pattern(1, MIB);
    for (mut holder, r2t) in holders {
        holder.send_granted(&r2t, &data);
        expect_status(&mut holder, Status::SUCCESS);
    }
    assert_eq!(before.try_read(0, 8, &mut Pool::new(16)).unwrap().to_vec(), data[..4096]);
    assert_eq!(queue.push(write_entry(8192, 2048), &data).status, Status::SUCCESS);
    assert!(queue.fetch(read_entry(8192, 2048), MIB as u32).1 == data);
    assert_eq!(before.try_read(8192, 8, &mut Pool::new(16)).unwrap().to_vec(), [0; 4096]);
}

#[test]
fn commands_that_wait_for_memory_are_given_back() {
    let (target, address) = serve(volume("mem:64M"), TargetLimits::default(), 1024);
    let admin = MockHost::admin(address);
    let mut queues: Vec<_> = (1..=8).map(|qid| admin.io_queue(qid, 31)).collect();
    for queue in &mut queues {
        queue.send(long(write_entry(0, 2048)), &[]);
    }
    wait_for(&target, 4);
    replace(&target);
    let data = pattern(1, MIB);
    let mut given_back = 0;
    for queue in &mut queues {
        match queue.answer().pdu {
            ControllerPdu::R2t(r2t) => {
                queue.send_granted(&r2t, &data);
                expect_status(queue, Status::SUCCESS);
            }
            ControllerPdu::CapsuleResp(response) => {
                assert!(response.entry.status.is(Status::NAMESPACE_NOT_READY));
                given_back += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(given_back >= 4, "{given_back}");
    for queue in &mut queues {
        assert_eq!(queue.push(write_entry(0, 2048), &data).status, Status::SUCCESS);
    }
}

#[test]
fn command_that_waits_for_its_blocks_is_given_back() {
    let (stuck, relief) = Stuck::new();
    let (target, address) = serve(stuck.clone(), TargetLimits::default(), 4096);
    let (_admin, mut queue) = pair(address, 31);
    queue.send(in_capsule(write_entry(5, 1), &BLOCK), &BLOCK);
    eventually("the write is at the volume", || stuck.started() == 1);
    queue.send(in_capsule(write_entry(5, 1), &[9; 512]), &[9; 512]);
    wait_for(&target, 1);
    replace(&target);
    expect_status(&mut queue, Status::NAMESPACE_NOT_READY);
    assert_eq!(queue.write(write_entry(5, 1), &[9; 512]).0.status, Status::SUCCESS);
    let reader = relief.release();
    expect_status(&mut queue, Status::SUCCESS);
    assert_eq!(queue.fetch(read_entry(5, 1), 512).1, [9; 512]);
    drop((target, stuck));
    // The flush at its end follows.
    let written = reader.join().unwrap();
    assert!(written.starts_with(&BLOCK) && !written.contains(&9), "it has the first one only");
}

#[test]
fn write_whose_queue_waits_for_memory_is_given_back() {
    let (stuck, relief) = Stuck::new();
    let (target, address) = serve(stuck.clone(), limited(), 32 * 1024);
    let admin = MockHost::admin(address);
    let holders: Vec<_> = (1..=MAX).map(|qid| holder(&admin, qid)).collect();
    let mut queue = admin.io_queue(9, 31);
    // In the memory guaranteed to its queue.
    queue.send(in_capsule(write_entry(4096, 1), &BLOCK), &BLOCK);
    eventually("the write is at the volume", || stuck.started() == 1);
    queue.send(in_capsule(write_entry(4097, 1), &[9; 512]), &[9; 512]);
    wait_for(&target, 1);
    replace(&target);
    expect_status(&mut queue, Status::NAMESPACE_NOT_READY);
    let reader = relief.release();
    expect_status(&mut queue, Status::SUCCESS);
    assert_eq!(queue.write(write_entry(4097, 1), &[9; 512]).0.status, Status::SUCCESS);
    assert_eq!(queue.fetch(read_entry(4097, 1), 512).1, [9; 512]);
    drop((holders, queue, admin, target, stuck));
    assert!(reader.join().unwrap().starts_with(&BLOCK));
}

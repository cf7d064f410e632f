//! Namespaces whose volumes do not complete commands: what hosts are told, and what becomes of the operations.

mod common;

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use common::gate::Gate;
use common::*;
use isolane_target::{
    Fault, NamespaceChange, NamespaceState, NamespaceStatus, Operation, Orphan, QosConfig, StallTimes,
    Target, TargetConfig,
};
use isolane_wire::admin::SetFeaturesCommand;
use isolane_wire::feature::{FeatureId, HostBehaviorSupport};
use isolane_wire::io::{DatasetManagementCommand, DsmRange};
use isolane_wire::pdu::ControllerPdu;
use isolane_wire::registers::{Cc, Csts};
use isolane_wire::{CompletionEntry, Sgl, Status, SubmissionEntry, io};

/// A target whose namespace 1 hangs and whose namespace 2 is memory.
struct Place {
    target: Target,
    address: std::net::SocketAddr,
    gate: Arc<Gate>,
}

impl Place {
    fn new() -> Place {
        Place::with(one_core_twice(), Duration::from_millis(200))
    }

    fn with(cores: Vec<usize>, answer_within: Duration) -> Place {
        let gate = Gate::closed();
        let config = TargetConfig {
            cores,
            queue_depth: 1024,
            stall_after: Duration::from_millis(100),
            stuck_after: Duration::from_millis(300),
            answer_within,
            ..serving(vec![(1, gate.clone()), (2, volume("mem:16M"))])
        };
        let (target, address) = start(config);
        Place { target, address, gate }
    }

    fn status(&self) -> NamespaceStatus {
        self.target.namespace_control().list().swap_remove(0)
    }

    /// Returns the operation and blocks of each orphan.
    fn orphans(&self) -> Vec<(Operation, u64, u64)> {
        let part = |orphan: Orphan| (orphan.operation, orphan.first_block, orphan.blocks);
        self.status().orphans.into_iter().map(part).collect()
    }

    /// Lets all operations end, checks that nothing remains of them, and stops the target.
    fn expect_nothing_left(self, queue: &mut MockHost) {
        self.gate.open();
        eventually("it is online", || {
            let status = self.status();
            status.state == NamespaceState::Online && status.oldest_command.is_none()
        });
        assert_eq!(self.orphans(), []);
        // All memory and all command IDs are free: large commands to both namespaces, and no late answer.
        for nsid in [1, 2] {
            let data = pattern(u64::from(nsid), 1 << 20);
            assert_eq!(queue.push(on(nsid, write_entry(0, 2048)), &data).status, Status::SUCCESS);
            assert!(queue.fetch(on(nsid, read_entry(0, 2048)), 1 << 20).1 == data);
        }
        expect_two_works(queue);
        self.target.shutdown(Target::SHUTDOWN_TIMEOUT).into_result().unwrap();
    }
}

fn on(nsid: u32, entry: SubmissionEntry) -> SubmissionEntry {
    SubmissionEntry { nsid, ..entry }
}

fn read(lba: u64, blocks: u32) -> SubmissionEntry {
    SubmissionEntry { sgl: Sgl::Transport { len: blocks * 512 }, ..read_entry(lba, blocks) }
}

fn send_write(queue: &mut MockHost, lba: u64, byte: u8) -> u16 {
    queue.send(in_capsule(write_entry(lba, 8), &[byte; 4096]), &[byte; 4096])
}

/// Returns the status and the data of each of these commands, in whatever order they complete.
fn answers(queue: &mut MockHost, mut cids: Vec<u16>) -> BTreeMap<u16, (Status, Vec<u8>)> {
    let mut all = BTreeMap::<u16, (Status, Vec<u8>)>::new();
    while !cids.is_empty() {
        let Answer { pdu, data } = queue.answer();
        let (cid, status) = match pdu {
            ControllerPdu::C2hData(header) => {
                all.entry(header.cccid).or_default().1.extend(data);
                (header.cccid, header.success.then_some(Status::SUCCESS))
            }
            ControllerPdu::CapsuleResp(response) => (response.entry.cid, Some(response.entry.status)),
            other => panic!("expected an answer, got {other:?}"),
        };
        if let Some(status) = status {
            assert!(cids.contains(&cid), "{cid} was answered twice, or never sent");
            cids.retain(|other| *other != cid);
            all.entry(cid).or_default().0 = status;
        }
    }
    all
}

#[track_caller]
fn assert_not_ready(status: Status, crd: u8) {
    assert!(status.is(Status::NAMESPACE_NOT_READY) && !status.dnr() && status.crd() == crd, "{status:?}");
}

fn expect_two_works(queue: &mut MockHost) {
    assert_eq!(queue.write(on(2, write_entry(8, 8)), &[9; 4096]).0.status, Status::SUCCESS);
    assert_eq!(queue.fetch(on(2, read_entry(8, 8)), 4096).1, [9; 4096]);
}

/// Sends a write until the namespace takes it.
fn write_until_success(queue: &mut MockHost, lba: u64, byte: u8) {
    eventually("it is written", || {
        let cid = send_write(queue, lba, byte);
        let status = queue.completion(cid).0.status;
        assert!(status == Status::SUCCESS || status.is(Status::NAMESPACE_NOT_READY), "{status:?}");
        status == Status::SUCCESS
    });
}

#[test]
fn answers_commands_of_stalled_namespace_and_serves_others() {
    let place = Place::new();
    let (admin, mut queue) = pair(place.address, 31);
    let write = send_write(&mut queue, 0, 0xee);
    let held = queue.send(read(8, 8), &[]);
    let flush = queue.send(io::flush(1), &[]);
    let other = queue.send(on(2, read(0, 8)), &[]);
    let all = answers(&mut queue, vec![write, held, flush, other]);
    assert_eq!(all[&other], (Status::SUCCESS, vec![0; 4096]));
    [write, held, flush].iter().for_each(|cid| assert_not_ready(all[cid].0, 0));
    assert_eq!(place.gate.arrived(), 3, "nothing was given up");
    assert_eq!(place.status().state, NamespaceState::Stalled);
    assert_eq!(place.orphans(), [(Operation::Write, 0, 8)]);
    expect_two_works(&mut queue);
    expect_two_works(&mut admin.io_queue(2, 31));

    // Its command ID and slot are free, and a late result goes nowhere.
    queue.reuse_cid(write);
    expect_two_works(&mut queue);
    place.expect_nothing_left(&mut queue);
}

#[test]
fn tells_hosts_that_know_delays_to_wait() {
    let place = Place::new();
    let (mut admin, mut queue) = pair(place.address, 31);
    let fid = FeatureId::HostBehaviorSupport.code();
    let behavior = HostBehaviorSupport { acre: 1, ..HostBehaviorSupport::default() };
    let enable = SetFeaturesCommand { fid, ..SetFeaturesCommand::default() }.entry();
    assert_eq!(admin.write(enable, &behavior.encode()).0.status, Status::SUCCESS);
    let cid = send_write(&mut queue, 0, 1);
    assert_not_ready(queue.completion(cid).0.status, 1);
    place.expect_nothing_left(&mut queue);
}

#[test]
fn later_writes_follow_orphan_on_all_cores() {
    let place = Place::new();
    let (admin, mut queue) = pair(place.address, 31);
    let mut other = admin.io_queue(2, 31);
    let older = send_write(&mut queue, 0, 0xee);
    assert_not_ready(queue.completion(older).0.status, 0);
    for newer in [&mut queue, &mut other] {
        // Writes, reads, and other changes of its blocks do not reach the volume.
        let mut held = vec![send_write(newer, 0, 1), newer.send(read(7, 2), &[])];
        held.push(
            newer
                .send(io::WriteZeroesCommand { nsid: 1, slba: 1, nlb: 0, ..Default::default() }.entry(), &[]),
        );
        let range = DsmRange { attributes: 0, blocks: 20, slba: 4 }.encode();
        let deallocate = DatasetManagementCommand { nsid: 1, nr: 0, deallocate: true, ..Default::default() };
        held.push(newer.send(in_capsule(deallocate.entry(), &range), &range));
        let all = answers(newer, held);
        all.values().for_each(|(status, _)| assert_not_ready(*status, 0));
        assert_eq!(place.gate.arrived(), 1);
    }
    assert_eq!(place.orphans(), [(Operation::Write, 0, 8)], "commands that wait leave nothing");
    // A command on other blocks does.
    let cid = send_write(&mut other, 8, 2);
    assert_not_ready(other.completion(cid).0.status, 0);
    assert_eq!(place.gate.arrived(), 2);
    assert_eq!(place.orphans(), [(Operation::Write, 0, 8), (Operation::Write, 8, 8)]);

    let newest = send_write(&mut other, 0, 1);
    expect_other_has_arrived(&mut queue);
    place.gate.open();
    let status = answers(&mut other, vec![newest])[&newest].0;
    if status != Status::SUCCESS {
        assert_not_ready(status, 0);
        write_until_success(&mut other, 0, 1);
    }
    assert_eq!(place.gate.content(0), [1; 512], "the older write landed last");
    assert_eq!(place.gate.content(8), [2; 512]);
    place.expect_nothing_left(&mut queue);
}

fn expect_other_has_arrived(queue: &mut MockHost) {
    expect_two_works(queue);
}

/// The commands wait, and nothing but the end of the orphan lets them go on.
#[test]
fn end_of_orphan_releases_waiting_commands() {
    let place = Place::with(one_core_twice(), Duration::from_secs(3600));
    let (old_admin, mut old) = pair(place.address, 31);
    send_write(&mut old, 0, 0xee);
    eventually("it has arrived", || place.gate.arrived() == 1);
    let host = "nqn.2014-08.org.nvmexpress:uuid:99999999-2222-3333-4444-555555555555";
    let admin = MockHost::admin_with(place.address, Default::default(), host);
    let mut queues = [1, 2].map(|qid| admin.io_queue_with(qid, 127, Default::default(), host));
    // Of another host, so no association fences it.
    drop((old_admin, old));
    eventually("it is an orphan", || place.orphans() == [(Operation::Write, 0, 8)]);
    let writes = queues.each_mut().map(|queue| {
        let cids: Vec<_> = (0..100).map(|byte| send_write(queue, 0, byte)).collect();
        expect_two_works(queue);
        cids
    });
    assert_eq!(place.gate.arrived(), 1, "a write has passed the orphan");
    place.gate.fail();
    eventually("all others have arrived", || place.gate.arrived() == 201);
    place.gate.open();
    for (queue, cids) in queues.iter_mut().zip(writes) {
        let all = answers(queue, cids);
        assert!(all.values().all(|(status, _)| *status == Status::SUCCESS));
    }
    let [mut queue, _second] = queues;
    place.expect_nothing_left(&mut queue);
}

#[test]
fn disconnect_and_reset_leave_orphans() {
    let place = Place::new();
    let (old_admin, mut queue) = pair(place.address, 31);
    let mut second = old_admin.io_queue(2, 31);
    let answered = send_write(&mut queue, 0, 0xee);
    assert_not_ready(queue.completion(answered).0.status, 0);
    send_write(&mut queue, 16, 0xee);
    queue.send(read(0, 8), &[]);
    send_write(&mut second, 32, 0xee);
    eventually("they have arrived", || place.gate.arrived() == 3);
    drop((queue, second));
    let both = [(Operation::Write, 0, 8), (Operation::Write, 16, 8), (Operation::Write, 32, 8)];
    eventually("all are orphans", || {
        let mut orphans = place.orphans();
        orphans.sort_by_key(|orphan| orphan.1);
        orphans == both
    });

    let mut admin = old_admin;
    admin.set_property(CC, 0);
    eventually("it is not ready", || !Csts(admin.property(CSTS) as u32).rdy());
    admin.set_property(CC, Cc::enabled().0);
    let mut queue = admin.io_queue(1, 31);
    for lba in [0, 16, 32] {
        let cid = send_write(&mut queue, lba, 1);
        assert_not_ready(queue.completion(cid).0.status, 0);
    }
    assert_eq!((place.gate.arrived(), place.orphans().len()), (3, 3));
    expect_two_works(&mut queue);

    // The next controller of the host, and another host.
    drop((admin, queue));
    let (_admin, mut queue) = pair(place.address, 31);
    let host = "nqn.2014-08.org.nvmexpress:uuid:99999999-2222-3333-4444-555555555555";
    let other_admin = MockHost::admin_with(place.address, Default::default(), host);
    let mut other = other_admin.io_queue_with(1, 31, Default::default(), host);
    for queue in [&mut queue, &mut other] {
        let cid = send_write(queue, 16, 1);
        assert_not_ready(queue.completion(cid).0.status, 0);
        expect_two_works(queue);
    }
    assert_eq!(place.gate.arrived(), 3);
    place.gate.open();
    write_until_success(&mut other, 16, 1);
    assert_eq!(place.gate.content(16), [1; 512]);
    place.expect_nothing_left(&mut queue);
}

/// More data than the memory of the core, in capsules and requested, on the connection that others use.
#[test]
fn stalled_namespace_leaves_memory_and_its_connections_to_others() {
    let place = Place::with(one_core_twice()[..1].to_vec(), Duration::from_millis(200));
    let (_admin, mut queue) = pair(place.address, 1023);
    let reads = (0..100).map(|at| queue.send(read(at * 256, 256), &[])).collect::<Vec<_>>();
    let large = SubmissionEntry { sgl: Sgl::Transport { len: 128 << 10 }, ..write_entry(40_000, 256) };
    let requested = (0..100).map(|_| queue.send(large, &[])).collect::<Vec<_>>();
    let data = vec![0xee; 16 << 10];
    let sent =
        (0..600).map(|at| queue.send(in_capsule(write_entry(at * 32, 32), &data), &data)).collect::<Vec<_>>();
    let other = queue.send(on(2, read(0, 8)), &[]);
    let mut left = [reads, requested, sent].concat();
    left.push(other);
    while !left.is_empty() {
        let Answer { pdu, data } = queue.answer();
        match pdu {
            ControllerPdu::R2t(r2t) => queue.send_granted(&r2t, &[0xee; 128 << 10]),
            ControllerPdu::C2hData(header) => {
                assert!(header.cccid == other && data == [0; 4096]);
                left.retain(|cid| !(*cid == other && header.success));
            }
            ControllerPdu::CapsuleResp(response) => {
                let CompletionEntry { cid, status, .. } = response.entry;
                if cid != other {
                    assert_not_ready(status, 0);
                }
                assert!(left.contains(&cid));
                left.retain(|other| *other != cid);
            }
            pdu => panic!("expected an answer, got {pdu:?}"),
        }
    }
    for _ in 0..20 {
        assert_eq!(queue.push(on(2, write_entry(0, 256)), &[8; 128 << 10]).status, Status::SUCCESS);
        expect_two_works(&mut queue);
    }
    place.expect_nothing_left(&mut queue);
}

/// The data of a write comes after its namespace has stalled.
#[test]
fn answers_write_whose_data_comes_late() {
    let place = Place::new();
    let (_admin, mut queue) = pair(place.address, 31);
    let late = queue.send(SubmissionEntry { sgl: Sgl::Transport { len: 4096 }, ..write_entry(0, 8) }, &[]);
    let ControllerPdu::R2t(r2t) = queue.answer().pdu else { panic!("no R2T") };
    let cid = send_write(&mut queue, 4, 0xee);
    assert_not_ready(queue.completion(cid).0.status, 0);
    queue.send_granted(&r2t, &[1; 4096]);
    assert_not_ready(queue.completion(late).0.status, 0);
    assert_eq!((place.gate.arrived(), place.orphans()), (1, vec![(Operation::Write, 4, 8)]));
    place.expect_nothing_left(&mut queue);
}

/// Each answered command may hold memory and a place in the kernel.
#[test]
fn bounds_commands_at_stalled_volume() {
    let place = Place::with(one_core_twice()[..1].to_vec(), Duration::from_millis(1));
    let (_admin, mut queue) = pair(place.address, 1023);
    for round in 0..4 {
        let cids = (0..512).map(|at| send_write(&mut queue, (round * 512 + at) * 8, 1)).collect();
        let all = answers(&mut queue, cids);
        all.values().for_each(|(status, _)| assert_not_ready(*status, 0));
    }
    assert!(place.gate.arrived() <= 1024 + 512, "{} commands are at the volume", place.gate.arrived());
    expect_two_works(&mut queue);
    place.gate.open();
    write_until_success(&mut queue, 30_000, 2);
    place.gate.close();
    place.expect_nothing_left(&mut queue);
}

/// Commands that wait at a volume, for a limit, and for a volume: the new times apply to all.
#[test]
fn times_change_for_commands_that_wait() {
    const LONG: Duration = Duration::from_secs(3600);
    const SHORT: Duration = Duration::from_millis(1);
    let place = Place::with(one_core_twice(), LONG);
    let set = |stall_after, answer_within| {
        place.target.set_stall_times(StallTimes { stall_after, answer_within });
    };
    let qos = Some(QosConfig { bytes: NonZeroU64::new(1), ..QosConfig::default() });
    place.target.change_namespaces(vec![NamespaceChange::Qos { nsid: 2, qos }]).unwrap();
    let add = NamespaceChange::Add { nsid: Some(3), volume: volume("mem:16M") };
    place.target.change_namespaces(vec![add]).unwrap();
    let (_admin, mut queue) = pair(place.address, 31);
    assert_eq!(queue.fetch(on(2, read_entry(0, 8)), 4096).0.status, Status::SUCCESS, "the first one");
    place.target.change_namespaces(vec![NamespaceChange::Offline { nsid: 3 }]).unwrap();
    let stalled = send_write(&mut queue, 0, 0xee);
    let limited = queue.send(on(2, read(0, 8)), &[]);
    let offline = queue.send(on(3, io::flush(3)), &[]);
    eventually("it is stalled", || place.status().state == NamespaceState::Stalled);
    set(LONG, LONG);
    assert_eq!(place.status().state, NamespaceState::Online);
    set(SHORT, LONG);
    eventually("it is stalled again", || place.status().state == NamespaceState::Stalled);
    assert_eq!(place.orphans(), []);
    place.target.control().set_stall_times(StallTimes { stall_after: SHORT, answer_within: SHORT }).unwrap();
    let all = answers(&mut queue, vec![stalled, limited, offline]);
    all.values().for_each(|(status, _)| assert_not_ready(*status, 0));
    assert_eq!(place.orphans(), [(Operation::Write, 0, 8)]);
    set(SHORT, LONG);
    place.target.change_namespaces(vec![NamespaceChange::Qos { nsid: 2, qos: None }]).unwrap();
    place.expect_nothing_left(&mut queue);
}

fn set_fault(target: &Target, fault: Option<Fault>) {
    target.change_namespaces(vec![NamespaceChange::Fault { nsid: 1, fault }]).unwrap();
}

#[test]
fn fault_stalls_a_namespace_until_it_ends() {
    let Place { target, address, gate } = Place::new();
    gate.open();
    let admin = MockHost::admin(address);
    let mut queue = admin.io_queue(1, 127);
    set_fault(&target, Some(Fault::Stall));
    let status = || target.namespace_control().list().swap_remove(0);
    assert_eq!((status().state, status().fault), (NamespaceState::Stalled, Some(Fault::Stall)));
    let cids: Vec<u16> =
        vec![send_write(&mut queue, 0, 1), queue.send(read(0, 8), &[]), queue.send(io::flush(1), &[])];
    // The other namespace of the connection continues.
    expect_two_works(&mut queue);
    for (_, (status, _)) in answers(&mut queue, cids) {
        assert_eq!((status.kind(), status.dnr()), (Status::NAMESPACE_NOT_READY, false));
    }
    assert_eq!(status().orphans, [], "nothing has reached the volume");
    let late = send_write(&mut queue, 0, 2);
    set_fault(&target, None);
    let (late, _) = answers(&mut queue, vec![late]).remove(&late).unwrap();
    assert_eq!(late, Status::SUCCESS, "a command that was not answered continues");
    assert_eq!(queue.fetch(read_entry(0, 8), 4096).1, [2; 4096]);
    eventually("it is online", || status().state == NamespaceState::Online && status().fault.is_none());
    target.shutdown(Target::SHUTDOWN_TIMEOUT).into_result().unwrap();
}

#[test]
fn fault_fails_changes_and_flushes_of_a_namespace() {
    let (target, address) = start(serving(vec![(1, volume("mem:16M")), (2, volume("mem:16M"))]));
    let mut admin = MockHost::admin(address);
    let mut queue = admin.io_queue(1, 127);
    assert_eq!(queue.push(write_entry(0, 2048), &pattern(1, 1 << 20)).status, Status::SUCCESS);
    set_fault(&target, Some(Fault::Fail));
    let status = || target.namespace_control().list().swap_remove(0);
    assert_eq!(status().state, NamespaceState::Failed);
    let small = send_write(&mut queue, 0, 7);
    let zeroes = io::WriteZeroesCommand { nsid: 1, slba: 0, nlb: 7, ..Default::default() };
    let zeroes = queue.send(zeroes.entry(), &[]);
    let flushed = queue.send(io::flush(1), &[]);
    let mut failed: Vec<Status> =
        answers(&mut queue, vec![small, zeroes, flushed]).into_values().map(|(status, _)| status).collect();
    failed.push(queue.push(write_entry(0, 2048), &pattern(2, 1 << 20)).status);
    for status in failed {
        assert_eq!((status.kind(), status.dnr()), (Status::WRITE_FAULT, true));
    }
    assert!(queue.fetch(read_entry(0, 2048), 1 << 20).1 == pattern(1, 1 << 20), "nothing was written");
    expect_two_works(&mut queue);
    // It ends with the volume also.
    let replaced = NamespaceChange::Replace { nsid: 1, volume: volume("mem:16M"), may_shrink: false };
    target.change_namespaces(vec![replaced]).unwrap();
    assert_eq!((status().state, status().fault), (NamespaceState::Online, None));
    assert_eq!(queue.push(write_entry(0, 2048), &pattern(2, 1 << 20)).status, Status::SUCCESS);
    let offline = vec![NamespaceChange::Offline { nsid: 1 }];
    target.change_namespaces(offline).unwrap();
    let fault = NamespaceChange::Fault { nsid: 1, fault: Some(Fault::Stall) };
    assert!(target.change_namespaces(vec![fault]).is_err(), "it has no volume");
    admin.set_property(CC, Cc::enabled().with_shn(Cc::SHN_NORMAL).0);
    eventually("the controller has shut down", || {
        Csts(admin.property(CSTS) as u32).shst() == Csts::SHST_COMPLETE
    });
    target.shutdown(Target::SHUTDOWN_TIMEOUT).into_result().unwrap();
}

/// The volume before must get no change that has not started: hosts would find it nowhere.
#[test]
fn commands_that_a_fault_holds_are_given_back_when_the_volume_goes() {
    let replace = || NamespaceChange::Replace { nsid: 1, volume: volume("mem:32M"), may_shrink: false };
    let changes = [replace(), NamespaceChange::Offline { nsid: 1 }, NamespaceChange::Remove { nsid: 1 }];
    for change in changes {
        let place = Place::with(one_core_twice(), Duration::from_secs(3600));
        place.gate.open();
        let (_admin, mut queue) = pair(place.address, 127);
        set_fault(&place.target, Some(Fault::Stall));
        let cids =
            vec![send_write(&mut queue, 0, 1), queue.send(read(0, 8), &[]), queue.send(io::flush(1), &[])];
        expect_two_works(&mut queue);
        let closing = place.target.change_namespaces(vec![change]).unwrap().closing;
        answers(&mut queue, cids).values().for_each(|(status, _)| assert_not_ready(*status, 0));
        assert!(closing.wait(Target::SHUTDOWN_TIMEOUT), "none uses the volume before");
        assert_eq!(place.gate.content(0), [0; 512]);
        expect_two_works(&mut queue);
        place.target.shutdown(Target::SHUTDOWN_TIMEOUT).into_result().unwrap();
    }
}

/// By a fault, and by a limit.
#[test]
fn held_changes_fail_once_their_namespace_is_read_only() {
    let place = Place::with(one_core_twice(), Duration::from_secs(3600));
    place.gate.open();
    let change = |change| place.target.change_namespaces(vec![change]).map(drop).unwrap();
    let (_admin, mut queue) = pair(place.address, 127);
    let fault = |fault| NamespaceChange::Fault { nsid: 1, fault };
    let qos = |bytes| NamespaceChange::Qos { nsid: 1, qos: bytes };
    let slow = Some(QosConfig { bytes: NonZeroU64::new(1), ..QosConfig::default() });
    for (is_limit, hold, release) in
        [(false, fault(Some(Fault::Stall)), fault(None)), (true, qos(slow), qos(None))]
    {
        change(hold);
        if is_limit {
            assert_eq!(queue.fetch(read_entry(0, 8), 4096).0.status, Status::SUCCESS, "the first one");
        }
        let reading = queue.send(read(0, 8), &[]);
        let zeroes = io::WriteZeroesCommand { nsid: 1, slba: 0, nlb: 7, ..Default::default() };
        let changes = [send_write(&mut queue, 0, 1), queue.send(zeroes.entry(), &[])];
        expect_two_works(&mut queue);
        change(NamespaceChange::ReadOnly { nsid: 1, read_only: true });
        change(release);
        let all = answers(&mut queue, vec![reading, changes[0], changes[1]]);
        assert_eq!(all[&reading].0, Status::SUCCESS);
        for cid in changes {
            assert!(all[&cid].0.is(Status::NAMESPACE_WRITE_PROTECTED), "{:?}", all[&cid].0);
        }
        assert_eq!(place.gate.content(0), [0; 512]);
        change(NamespaceChange::ReadOnly { nsid: 1, read_only: false });
    }
    place.expect_nothing_left(&mut queue);
}

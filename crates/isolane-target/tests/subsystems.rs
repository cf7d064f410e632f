//! Several subsystems of one target, which come and go while hosts use others.

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use common::stuck::Stuck;
use common::*;
use isolane_target::{
    ApplyError, NamespaceChange, NamespaceError, Subsystem, Target, TargetChange, TargetConfig,
};
use isolane_volume::Volume;
use isolane_wire::admin::{Cns, GetLogPageCommand, IdentifyCommand, LogPage};
use isolane_wire::log::{DiscoveryEntry, DiscoveryHeader};
use isolane_wire::pdu::IcReq;
use isolane_wire::registers::Cc;
use isolane_wire::{Nqn, Status, SubmissionEntry};

const OTHER: &str = "nqn.2014-08.org.example:other";

fn subsystem(nqn: &str, volumes: Vec<(u32, Arc<dyn Volume>)>) -> Subsystem {
    Subsystem { volumes, ..Subsystem::new(nqn.parse().unwrap()) }
}

fn other() -> Nqn {
    OTHER.parse().unwrap()
}

/// A target on two cores with a subsystem of one volume, and another one with the namespace IDs 1 and 7.
fn two() -> (Target, SocketAddr) {
    let mut config = TargetConfig { cores: one_core_twice(), ..config(&["mem:1M"]) };
    config.subsystems.push(subsystem(OTHER, vec![(1, volume("mem:2M")), (7, volume("mem:4M"))]));
    start(config)
}

/// The admin queue of an enabled controller of a subsystem, and one I/O queue.
fn pair_of(address: SocketAddr, nqn: &str) -> (MockHost, MockHost) {
    let mut admin = MockHost::initialized(address, IcReq::default());
    let answer = admin.connect(0, 0xffff, nqn, HOST, 31);
    assert_eq!(answer.status, Status::SUCCESS);
    admin.set_property(CC, Cc::enabled().0);
    let mut queue = MockHost::initialized(address, IcReq::default());
    assert_eq!(queue.connect(1, answer.dw0 as u16, nqn, HOST, 31).status, Status::SUCCESS);
    (admin, queue)
}

fn refusal_of(address: SocketAddr, nqn: &str) -> Status {
    MockHost::initialized(address, IcReq::default()).connect(0, 0xffff, nqn, HOST, 31).status
}

fn active(admin: &mut MockHost) -> Vec<u32> {
    let command = IdentifyCommand { cns: Cns::ActiveNamespaces.code(), ..IdentifyCommand::default() };
    let list = admin.fetch(command.entry(), 4096).1;
    let ids = list.chunks_exact(4).map(|id| u32::from_le_bytes(id.try_into().unwrap()));
    ids.take_while(|nsid| *nsid != 0).collect()
}

/// The names in the discovery log.
fn discover(address: SocketAddr) -> Vec<String> {
    let mut host = MockHost::initialized(address, IcReq::default());
    assert_eq!(host.connect(0, 0xffff, Nqn::DISCOVERY, HOST, 31).status, Status::SUCCESS);
    host.set_property(CC, Cc::enabled().0);
    let page = host.fetch(GetLogPageCommand::new(LogPage::Discovery, 0, 8192).entry(), 8192).1;
    let records = DiscoveryHeader::decode_prefix(&page).unwrap().numrec as usize;
    let entries = page[1024..].chunks_exact(1024).take(records);
    entries
        .map(|entry| DiscoveryEntry::decode_prefix(entry).unwrap().subnqn.parse().unwrap().to_string())
        .collect()
}

#[test]
fn same_namespace_id_is_another_volume_in_each() {
    let (target, address) = two();
    let (mut admin, mut queue) = pair_of(address, NQN);
    let (mut other_admin, mut other_queue) = pair_of(address, OTHER);
    assert_eq!((active(&mut admin), active(&mut other_admin)), (vec![1], vec![1, 7]));
    for (queue, byte) in [(&mut queue, 1), (&mut other_queue, 2)] {
        assert_eq!(queue.write(write_entry(9, 1), &[byte; 512]).0.status, Status::SUCCESS);
    }
    assert_eq!(queue.fetch(read_entry(9, 1), 512).1, [1; 512]);
    assert_eq!(other_queue.fetch(read_entry(9, 1), 512).1, [2; 512]);
    // The second volume is larger.
    assert!(!queue.fetch(read_entry(2048, 1), 512).0.status.is_success());
    assert!(other_queue.fetch(read_entry(2048, 1), 512).0.status.is_success());
    assert_eq!(discover(address), [OTHER, NQN]);
    assert_eq!(target.snapshot().volumes.len(), 3);
}

#[test]
fn subsystems_come_and_go_while_another_is_in_use() {
    let (target, address) = start(TargetConfig { cores: one_core_twice(), ..config(&["mem:1M"]) });
    let (_admin, mut queue) = pair_of(address, NQN);
    assert!(refusal_of(address, OTHER).dnr(), "it does not exist yet");
    for round in 0..3 {
        target.add_subsystem(subsystem(OTHER, vec![(3, volume("mem:1M"))])).unwrap();
        assert_eq!(discover(address), [OTHER, NQN]);
        let (mut admin, mut other_queue) = pair_of(address, OTHER);
        assert_eq!(active(&mut admin), [3]);
        let entry = |entry| SubmissionEntry { nsid: 3, ..entry };
        let written = other_queue.write(entry(write_entry(1, 1)), &[round; 512]).0;
        assert_eq!(written.status, Status::SUCCESS);
        assert_eq!(queue.write(write_entry(1, 1), &[round; 512]).0.status, Status::SUCCESS);

        let closing = target.remove_subsystem(&other()).unwrap();
        admin.expect_end();
        other_queue.expect_end();
        assert!(closing.wait(TEST_TIMEOUT));
        assert_eq!(discover(address), [NQN]);
        assert_eq!(queue.fetch(read_entry(1, 1), 512).1, [round; 512]);
    }
    let gone = target.remove_subsystem(&other()).unwrap_err();
    assert_eq!(gone.to_string(), format!("this target has no subsystem {OTHER}"));
}

#[test]
fn failed_addition_changes_nothing() {
    let (target, address) = start(config(&["mem:1M"]));
    let twice = volume("mem:1M");
    for (added, reason) in [
        (subsystem(NQN, Vec::new()), "two subsystems have the name"),
        (subsystem(OTHER, vec![(1, twice.clone()), (2, twice)]), "identity"),
        (subsystem(OTHER, vec![(0, volume("mem:1M"))]), "namespace"),
        (Subsystem { serial: "é".into(), ..subsystem(OTHER, Vec::new()) }, "serial number"),
    ] {
        let error = target.add_subsystem(added).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    assert_eq!(discover(address), [NQN]);
    assert_eq!(target.snapshot().volumes.len(), 1);
}

#[test]
fn host_loses_access_to_one_subsystem() {
    let (target, address) = two();
    let (_admin, mut queue) = pair_of(address, NQN);
    let (mut other_admin, mut other_queue) = pair_of(address, OTHER);
    let friend = "nqn.2014-08.org.example:friend".parse().unwrap();
    target.set_allowed_hosts(&other(), Some(vec![friend])).unwrap();
    other_admin.expect_end();
    other_queue.expect_end();
    assert!(!refusal_of(address, OTHER).is_success());
    assert_eq!(discover(address), [NQN]);
    assert_eq!(queue.write(write_entry(1, 1), &[5; 512]).0.status, Status::SUCCESS);
    target.set_allowed_hosts(&other(), None).unwrap();
    pair_of(address, OTHER);
}

#[test]
fn namespaces_of_each_change_alone() {
    let (target, address) = two();
    let (mut admin, _queue) = pair_of(address, NQN);
    let (mut other_admin, _other_queue) = pair_of(address, OTHER);
    let control = target.control().namespaces(&other()).unwrap();
    let add = NamespaceChange::Add { nsid: None, volume: volume("mem:1M") };
    let changed = control.change(vec![NamespaceChange::Remove { nsid: 1 }, add]).unwrap();
    assert_eq!(changed.added, [8]);
    assert!(changed.closing.wait(TEST_TIMEOUT));
    assert_eq!((active(&mut admin), active(&mut other_admin)), (vec![1], vec![7, 8]));
    assert_eq!(control.list().iter().map(|it| it.nsid).collect::<Vec<_>>(), [7, 8]);
    assert_eq!(target.namespace_control().list().len(), 1);
    let twin = NamespaceChange::Remove { nsid: 7 };
    assert_eq!(target.change_namespaces(vec![twin]).unwrap_err(), NamespaceError::Unknown(7));
    assert!(target.control().namespaces(&"nqn.2014-08.org.example:none".parse().unwrap()).is_none());
}

#[test]
fn command_at_a_volume_of_a_removed_subsystem_ends_there() {
    let (target, address) = start(config(&["mem:1M"]));
    let (stuck, relief) = Stuck::new();
    target.add_subsystem(subsystem(OTHER, vec![(1, stuck.clone())])).unwrap();
    let (admin, mut queue) = pair_of(address, OTHER);
    queue.send(in_capsule(write_entry(0, 1), &[6; 512]), &[6; 512]);
    eventually("the write is at the volume", || stuck.started() == 1);
    let closing = target.remove_subsystem(&other()).unwrap();
    assert!(!closing.wait(Duration::ZERO), "the write still uses the volume");
    drop((admin, queue));
    let reader = relief.release();
    assert!(closing.wait(TEST_TIMEOUT));
    assert_eq!(Arc::strong_count(&stuck), 1, "only this test has the volume");
    drop(stuck);
    assert!(reader.join().unwrap().starts_with(&[6; 512]));
}

#[test]
fn set_of_changes_happens_as_a_whole() {
    let (target, address) = two();
    let control = target.control();
    let (mut admin, mut queue) = pair_of(address, NQN);
    let (mut other_admin, mut other_queue) = pair_of(address, OTHER);
    let third = "nqn.2014-08.org.example:third";
    let add = |nsid, text| NamespaceChange::Add { nsid, volume: volume(text) };
    let changes = || {
        vec![
            TargetChange::Namespaces {
                subsystem: NQN.parse().unwrap(),
                changes: vec![add(Some(4), "mem:1M"), NamespaceChange::Remove { nsid: 1 }],
            },
            TargetChange::AddSubsystem(subsystem(third, vec![(2, volume("mem:1M"))])),
            TargetChange::AddSubsystem(subsystem(OTHER, vec![(8, volume("mem:1M"))])),
            TargetChange::RemoveSubsystem(other()),
        ]
    };
    let refused = control.apply(changes(), || Err("no")).unwrap_err();
    assert_eq!(refused, ApplyError::Commit("no"));
    let late = [changes(), vec![TargetChange::AddSubsystem(subsystem(third, Vec::new()))]].concat();
    let error = control.apply(late, || -> Result<(), String> { panic!("not checked") }).unwrap_err();
    assert!(error.to_string().contains("two subsystems have the name"), "{error}");
    assert_eq!(discover(address), [OTHER, NQN]);
    assert_eq!(active(&mut admin), [1]);
    assert_eq!(other_queue.write(write_entry(1, 1), &[3; 512]).0.status, Status::SUCCESS);

    let changed = control.apply(changes(), || Ok::<_, String>(())).unwrap();
    other_admin.expect_end();
    other_queue.expect_end();
    assert!(changed.closing.wait(TEST_TIMEOUT));
    assert_eq!((active(&mut admin), changed.added), (vec![4], vec![4]));
    let entry = SubmissionEntry { nsid: 4, ..write_entry(1, 1) };
    assert_eq!(queue.write(entry, &[3; 512]).0.status, Status::SUCCESS);
    assert!(queue.write(write_entry(1, 1), &[3; 512]).0.status.dnr());
    assert_eq!(discover(address), [OTHER, third, NQN]);
    let (mut admin, _queue) = pair_of(address, OTHER);
    assert_eq!(active(&mut admin), [8]);
    drop(target);
    let ended = control.apply(Vec::new(), || Ok::<_, String>(())).unwrap_err();
    assert_eq!(ended, ApplyError::Change(NamespaceError::Ended));
}

#[test]
fn sizes_return_if_the_set_fails() {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(2 << 20).unwrap();
    let mut config = config(&["mem:1M"]);
    let served = volume(&image.path().display().to_string());
    config.subsystems.push(subsystem(OTHER, vec![(1, Arc::clone(&served))]));
    let (target, address) = start(config);
    let control = target.control();
    let (_admin, mut queue) = pair_of(address, OTHER);
    let resize =
        |bytes| TargetChange::Resize { subsystem: other(), nsid: 1, bytes: Some(bytes), may_shrink: true };
    let last_block =
        |queue: &mut MockHost, bytes: u64| queue.fetch(read_entry(bytes / 512 - 1, 1), 512).0.status;
    for bytes in [4 << 20, 1 << 20] {
        control.apply(vec![resize(bytes)], || Err("no")).unwrap_err();
        let unknown = TargetChange::RemoveSubsystem("nqn.2014-08.org.example:none".parse().unwrap());
        control.apply(vec![resize(bytes), unknown], || Ok::<_, String>(())).unwrap_err();
        assert_eq!(served.blocks() * 512, 2 << 20);
        assert_eq!(last_block(&mut queue, 2 << 20), Status::SUCCESS);
        assert!(!last_block(&mut queue, 4 << 20).is_success());
    }
    for bytes in [4 << 20, 1 << 20] {
        control.apply(vec![resize(bytes)], || Ok::<_, String>(())).unwrap();
        assert_eq!(last_block(&mut queue, bytes), Status::SUCCESS);
        assert!(!last_block(&mut queue, 2 * bytes).is_success());
    }
}

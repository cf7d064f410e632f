//! Namespaces that only some hosts of the subsystem see.

mod common;

use std::net::SocketAddr;
use std::time::Duration;

use common::stuck::Stuck;
use common::*;
use isolane_target::{NamespaceChange, Subsystem, Target, TargetConfig};
use isolane_wire::admin::{
    AsyncEvent, Cns, GetLogPageCommand, IdentifyCommand, LogPage, Notice, async_event_request,
};
use isolane_wire::pdu::IcReq;
use isolane_wire::{Nqn, Status, SubmissionEntry};

const FRIEND: &str = "nqn.2014-08.org.example:friend";

/// Namespace 1 for all, 2 for the host of the tests, 3 for its friend; on two cores.
fn masked() -> TargetConfig {
    let mut config = TargetConfig { cores: one_core_twice(), ..config(&["mem:1M", "mem:1M", "mem:1M"]) };
    config.subsystems[0].masks = vec![(2, vec![nqn(HOST)]), (3, vec![nqn(FRIEND)])];
    config
}

fn nqn(name: &str) -> Nqn {
    name.parse().unwrap()
}

fn pair_as(address: SocketAddr, host: &str) -> (MockHost, MockHost) {
    let admin = MockHost::admin_with(address, IcReq::default(), host);
    let queue = admin.io_queue_with(1, 31, IcReq::default(), host);
    (admin, queue)
}

fn active(admin: &mut MockHost) -> Vec<u32> {
    let command = IdentifyCommand { cns: Cns::ActiveNamespaces.code(), ..IdentifyCommand::default() };
    ids(&admin.fetch(command.entry(), 4096).1)
}

fn ids(list: &[u8]) -> Vec<u32> {
    let ids = list.chunks_exact(4).map(|id| u32::from_le_bytes(id.try_into().unwrap()));
    ids.take_while(|nsid| *nsid != 0).collect()
}

/// The statuses of a read and a write of this namespace.
fn statuses(queue: &mut MockHost, nsid: u32) -> [Status; 2] {
    let entry = |entry| SubmissionEntry { nsid, ..entry };
    let read = queue.fetch(entry(read_entry(0, 1)), 512).0.status;
    [read, queue.write(entry(write_entry(0, 1)), &[1; 512]).0.status]
}

fn refused() -> [Status; 2] {
    [Status::INVALID_NAMESPACE.with_dnr(true); 2]
}

const SERVED: [Status; 2] = [Status::SUCCESS, Status::SUCCESS];

fn set_hosts(target: &Target, nsid: u32, hosts: Option<&[&str]>) {
    let hosts = hosts.map(|hosts| hosts.iter().map(|name| nqn(name)).collect());
    target.change_namespaces(vec![NamespaceChange::Hosts { nsid, hosts }]).unwrap();
}

#[test]
fn each_host_has_its_namespaces() {
    let (_target, address) = start(masked());
    let (mut admin, mut queue) = pair_as(address, HOST);
    let (mut friend_admin, mut friend) = pair_as(address, FRIEND);
    assert_eq!((active(&mut admin), active(&mut friend_admin)), (vec![1, 2], vec![1, 3]));
    assert_eq!([1, 2, 3].map(|nsid| statuses(&mut queue, nsid)), [SERVED, SERVED, refused()]);
    assert_eq!([1, 2, 3].map(|nsid| statuses(&mut friend, nsid)), [SERVED, refused(), SERVED]);
}

#[test]
fn masks_change_while_hosts_are_connected() {
    let (target, address) = start(masked());
    let (mut admin, mut queue) = pair_as(address, HOST);
    let (mut friend_admin, mut friend) = pair_as(address, FRIEND);
    let cid = admin.send(async_event_request(), &[]);
    set_hosts(&target, 1, Some(&[FRIEND]));
    let notice = AsyncEvent::notice(Notice::NamespaceAttributeChanged, LogPage::ChangedNamespaces);
    assert_eq!(admin.completion(cid).0.dw0, notice.0);
    let log = GetLogPageCommand::new(LogPage::ChangedNamespaces, 0, 4096).entry();
    assert_eq!(ids(&admin.fetch(log, 4096).1), [1]);
    assert_eq!(active(&mut admin), [2]);
    assert_eq!([1, 2].map(|nsid| statuses(&mut queue, nsid)), [refused(), SERVED]);
    assert_eq!([1, 3].map(|nsid| statuses(&mut friend, nsid)), [SERVED, SERVED]);
    assert!(ids(&friend_admin.fetch(log, 4096).1).is_empty(), "nothing that it sees has changed");

    set_hosts(&target, 3, Some(&[HOST, FRIEND]));
    set_hosts(&target, 1, None);
    assert_eq!([1, 2, 3].map(|nsid| statuses(&mut queue, nsid)), [SERVED; 3]);
    assert_eq!([1, 2, 3].map(|nsid| statuses(&mut friend, nsid)), [SERVED, refused(), SERVED]);
    set_hosts(&target, 1, Some(&[]));
    assert_eq!((statuses(&mut queue, 1), statuses(&mut friend, 1)), (refused(), refused()));
}

#[test]
fn mask_stays_with_replaced_and_offline_volume() {
    let (target, address) = start(TargetConfig { answer_within: Duration::ZERO, ..masked() });
    let (mut admin, mut queue) = pair_as(address, HOST);
    let (mut friend_admin, mut friend) = pair_as(address, FRIEND);
    target.change_namespaces(vec![NamespaceChange::Offline { nsid: 2 }]).unwrap();
    assert_eq!((active(&mut admin), active(&mut friend_admin)), (vec![1, 2], vec![1, 3]));
    assert_eq!(statuses(&mut friend, 2), refused());
    let [read, _] = statuses(&mut queue, 2);
    assert!(!read.is_success() && !read.dnr(), "it can come back");
    let replace = NamespaceChange::Replace { nsid: 2, volume: volume("mem:1M"), may_shrink: false };
    target.change_namespaces(vec![replace]).unwrap();
    assert_eq!((statuses(&mut friend, 2), statuses(&mut queue, 2)), (refused(), SERVED));

    let offline = NamespaceChange::Offline { nsid: 3 };
    let hosts = NamespaceChange::Hosts { nsid: 3, hosts: Some(vec![nqn(HOST)]) };
    target.change_namespaces(vec![offline, hosts]).unwrap();
    assert_eq!((active(&mut admin), active(&mut friend_admin)), (vec![1, 2, 3], vec![1]));
    assert_eq!(statuses(&mut friend, 3), refused());
}

#[test]
fn command_at_a_volume_completes_after_its_host_lost_it() {
    let (stuck, relief) = Stuck::new();
    let mut config = masked();
    config.subsystems[0].volumes[1].1 = stuck.clone();
    let (target, address) = start(config);
    let (_admin, mut queue) = pair_as(address, HOST);
    let write = SubmissionEntry { nsid: 2, ..write_entry(0, 1) };
    let cid = queue.send(in_capsule(write, &[6; 512]), &[6; 512]);
    eventually("the write is at the volume", || stuck.started() == 1);
    set_hosts(&target, 2, Some(&[FRIEND]));
    let reader = relief.release();
    assert_eq!(queue.completion(cid).0.status, Status::SUCCESS);
    assert_eq!(statuses(&mut queue, 2), refused());
    drop((target, stuck));
    assert!(reader.join().unwrap().starts_with(&[6; 512]));
}

#[test]
fn added_subsystem_has_masks() {
    let (target, address) = start(config(&["mem:1M"]));
    target.remove_subsystem(&nqn(NQN)).unwrap();
    let volumes = vec![(1, volume("mem:1M")), (2, volume("mem:1M"))];
    let masks = vec![(2, vec![nqn(FRIEND)])];
    target.add_subsystem(Subsystem { volumes, masks, ..Subsystem::new(nqn(NQN)) }).unwrap();
    let (_admin, mut queue) = pair_as(address, HOST);
    let (_friend_admin, mut friend) = pair_as(address, FRIEND);
    assert_eq!([1, 2].map(|nsid| statuses(&mut queue, nsid)), [SERVED, refused()]);
    assert_eq!([1, 2].map(|nsid| statuses(&mut friend, nsid)), [SERVED, SERVED]);
}

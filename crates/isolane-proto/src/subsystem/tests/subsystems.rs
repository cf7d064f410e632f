//! Several subsystems of one port, which come and go while hosts are connected.

use super::*;
use crate::subsystem::connect::bad_data;
use isolane_wire::admin::{AsyncEvent, Cns, IdentifyCommand, Notice, async_event_request};
use isolane_wire::identify::NamespaceList;
use isolane_wire::log::{DiscoveryEntry, DiscoveryHeader};

const SECOND: &str = "nqn.2014-08.org.example:second";

fn nqn(name: &str) -> Nqn {
    Nqn::new(name).unwrap()
}

fn second() -> SubsystemConfig {
    let namespaces = vec![namespace(7)];
    SubsystemConfig { nqn: nqn(SECOND), serial: "2".into(), namespaces, ..SubsystemConfig::default() }
}

fn two() -> Harness {
    let mut config = config();
    config.subsystems.push(second());
    Harness::with(config)
}

impl Harness {
    /// A host that has enabled its controller of this subsystem.
    fn ready_at(&mut self, subnqn: &str) -> AssociationId {
        let id = self.connect(&admin_of(subnqn)).unwrap().id;
        assert_eq!(self.set_cc(id, Cc::enabled()), Completion::success());
        id
    }

    fn names(&mut self, id: AssociationId) -> Vec<Nqn> {
        let page = self.log(id, LogPage::Discovery, 0, 16 * 1024).unwrap();
        let records = DiscoveryHeader::decode_prefix(&page).unwrap().numrec as usize;
        let records = page[1024..].chunks_exact(1024).take(records);
        records.map(|record| DiscoveryEntry::decode_prefix(record).unwrap().subnqn.parse().unwrap()).collect()
    }

    fn generation(&mut self, id: AssociationId) -> u64 {
        DiscoveryHeader::decode_prefix(&self.log(id, LogPage::Discovery, 0, 1024).unwrap()).unwrap().genctr
    }

    /// A discovery controller that waits for changes.
    fn watch(&mut self, cid: u16) -> AssociationId {
        let id = self.discovery();
        let action = self.execute(id, SubmissionEntry { cid, ..async_event_request() }, 0);
        assert_eq!(action, Action::HoldAsyncEvent);
        id
    }

    fn notice(&mut self, id: AssociationId) -> Option<(u16, AsyncEvent)> {
        self.port.poll_async_event(id).map(|(cid, completion)| (cid, AsyncEvent(completion.dw0)))
    }

    fn closed(&mut self) -> Vec<(AssociationId, CloseReason)> {
        let closed =
            |event| if let ControlEvent::Close { id, reason } = event { Some((id, reason)) } else { None };
        self.events().into_iter().filter_map(closed).collect()
    }
}

fn admin_of(subnqn: &str) -> MockConnect {
    let mut connect = MockConnect::admin();
    connect.data.subnqn = nqn(subnqn).into();
    connect
}

fn changed() -> AsyncEvent {
    AsyncEvent::notice(Notice::DiscoveryLogPageChange, LogPage::Discovery)
}

#[test]
fn each_has_its_own_controllers_and_namespaces() {
    let mut harness = two();
    let (first, second) = (harness.ready(), harness.ready_at(SECOND));
    assert_eq!((first.cntlid, second.cntlid), (1, 1), "controller IDs count in each subsystem");
    assert_ne!(first, second);
    for (id, expected) in [(first, vec![1, 3]), (second, vec![7])] {
        let entry = IdentifyCommand { cns: Cns::ActiveNamespaces.code(), ..Default::default() }.entry();
        let list = harness.fetch(id, entry).unwrap();
        assert_eq!(NamespaceList::decode(list[..].try_into().unwrap()).nsids(), expected);
    }
    harness.drop_queue(first, 0);
    harness.set_cc(second, Cc::enabled());
    assert_eq!(harness.port.associations().len(), 1);
}

#[test]
fn io_queue_joins_controller_of_its_subsystem() {
    let mut harness = two();
    harness.ready();
    let other = harness.ready_at(SECOND);
    let mut io = MockConnect::io(other, 1);
    io.data.subnqn = nqn(SECOND).into();
    assert_eq!(harness.connect(&io).unwrap().id, other);
}

#[test]
fn names_are_different() {
    let mut config = config();
    config.subsystems.push(config.subsystems[0].clone());
    assert_eq!(Port::new(config).unwrap_err(), ConfigError::SameNqn(Box::new(nqn(SUBNQN))));
    let mut harness = two();
    assert_eq!(harness.port.add_subsystem(second()), Err(ConfigError::SameNqn(Box::new(nqn(SECOND)))));
}

#[test]
fn associations_of_all_subsystems_count() {
    let mut config = PortConfig { max_associations: 2, ..config() };
    config.subsystems.push(second());
    let mut harness = Harness::with(config);
    harness.ready();
    harness.discovery();
    assert!(harness.connect(&admin_of(SECOND)).is_err());
}

#[test]
fn discovery_lists_subsystems_of_its_host() {
    let mut harness = two();
    let id = harness.discovery();
    assert_eq!(harness.names(id), [nqn(SUBNQN), nqn(SECOND)]);
    harness.port.set_allowed_hosts(SubsystemId::FIRST, Some(Vec::new())).unwrap();
    assert_eq!(harness.names(id), [nqn(SECOND)]);
}

#[test]
fn added_subsystem_is_announced_and_usable() {
    let mut harness = Harness::new();
    let (watcher, refused) = (harness.watch(3), harness.connect(&admin_of(SECOND)));
    assert!(refused.is_err(), "it does not exist yet");
    let before = harness.generation(watcher);
    let id = harness.port.add_subsystem(second()).unwrap();
    assert_eq!(harness.port.find_subsystem(&nqn(SECOND)), Some(id));
    assert_eq!(harness.notice(watcher), Some((3, changed())));
    assert!(harness.generation(watcher) > before);
    assert_eq!(harness.names(watcher), [nqn(SUBNQN), nqn(SECOND)]);
    assert_eq!(harness.ready_at(SECOND).subsystem, id);
}

#[test]
fn one_notice_until_the_log_is_read() {
    let mut harness = Harness::new();
    let id = harness.watch(3);
    harness.execute(id, SubmissionEntry { cid: 4, ..async_event_request() }, 0);
    let added = harness.port.add_subsystem(second()).unwrap();
    harness.port.remove_subsystem(added).unwrap();
    assert_eq!((harness.notice(id), harness.notice(id)), (Some((3, changed())), None));
    harness.names(id);
    harness.port.add_subsystem(second()).unwrap();
    assert_eq!(harness.notice(id), Some((4, changed())));
}

#[test]
fn hosts_that_never_see_the_subsystem_get_no_notice() {
    let mut harness = Harness::new();
    let id = harness.watch(3);
    let friend = Some(vec![nqn("nqn.2014-08.org.example:friend")]);
    let added = SubsystemConfig { allowed_hosts: friend, ..second() };
    let added = harness.port.add_subsystem(added).unwrap();
    harness.port.remove_subsystem(added).unwrap();
    assert_eq!(harness.notice(id), None);
}

#[test]
fn removed_subsystem_ends_after_its_io() {
    let mut harness = two();
    let (first, second) = (harness.ready(), harness.ready_at(SECOND));
    let mut io = MockConnect::io(second, 1);
    io.data.subnqn = nqn(SECOND).into();
    harness.connect(&io).unwrap();
    let removed = second.subsystem;
    harness.port.remove_subsystem(removed).unwrap();
    assert_eq!(harness.closed(), [(second, CloseReason::SubsystemRemoved)]);
    assert_eq!(harness.port.remove_subsystem(removed), Err(ConfigError::UnknownSubsystem));
    assert_eq!(harness.port.set_allowed_hosts(removed, None), Err(ConfigError::UnknownSubsystem));
    let refused = harness.connect(&admin_of(SECOND)).unwrap_err();
    assert_eq!(refused.completion, bad_data(ConnectData::SUBNQN).completion);

    // A successor of the same name is another subsystem, although I/O of the removed one is in flight.
    let successor = harness.port.add_subsystem(self::second()).unwrap();
    assert_ne!(successor, removed);
    assert_eq!(harness.port.namespaces(removed).count(), 1);
    let later = harness.ready_at(SECOND);
    harness.drop_queue(second, 1);
    assert_eq!(harness.port.namespaces(removed).count(), 1);
    harness.drop_queue(second, 0);
    assert_eq!(harness.port.namespaces(removed).count(), 0);
    assert!(harness.events().contains(&ControlEvent::Ended(second)));
    assert_eq!(harness.port.associations().iter().map(|it| it.id).collect::<Vec<_>>(), [first, later]);
}

#[test]
fn host_that_loses_access_is_disconnected() {
    let mut harness = two();
    let (first, second) = (harness.ready(), harness.ready_at(SECOND));
    let watcher = harness.watch(3);
    harness.port.set_allowed_hosts(first.subsystem, Some(Vec::new())).unwrap();
    assert_eq!(harness.closed(), [(first, CloseReason::HostRemoved)]);
    assert_eq!(harness.notice(watcher), Some((3, changed())));
    assert!(harness.connect(&MockConnect::admin()).is_err());
    harness.names(watcher);
    harness.execute(watcher, SubmissionEntry { cid: 4, ..async_event_request() }, 0);

    // A list that names the host instead of all hosts changes nothing for it.
    harness.port.set_allowed_hosts(second.subsystem, Some(vec![nqn(HOSTNQN)])).unwrap();
    assert_eq!((harness.closed(), harness.notice(watcher)), (vec![], None));
}

#[test]
fn failed_flush_degrades_its_subsystem_only() {
    let mut harness = two();
    let (first, second) = (harness.ready(), harness.ready_at(SECOND));
    harness.port.handle_flushed(first, false);
    let warning = |harness: &mut Harness, id| harness.log(id, LogPage::Smart, 0, 512).unwrap()[0];
    assert_eq!((warning(&mut harness, first), warning(&mut harness, second)), (0b100, 0));
}

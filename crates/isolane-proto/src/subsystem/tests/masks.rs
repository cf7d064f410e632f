//! Namespaces that only some hosts of the subsystem see.

use super::*;
use isolane_wire::admin::{AsyncEvent, Cns, IdentifyCommand, Notice, async_event_request};
use isolane_wire::identify::NamespaceList;

const FRIEND: &str = "nqn.2014-08.org.example:friend";

fn nqn(name: &str) -> Nqn {
    Nqn::new(name).unwrap()
}

fn masked(nsid: u32, hosts: &[&str]) -> NamespaceConfig {
    NamespaceConfig { hosts: Some(hosts.iter().map(|name| nqn(name)).collect()), ..namespace(nsid) }
}

/// Namespace 1 for all, 2 for the host of the tests, 3 for its friend.
fn masks() -> Harness {
    let mut config = config();
    config.subsystems[0].namespaces = vec![namespace(1), masked(2, &[HOSTNQN]), masked(3, &[FRIEND])];
    Harness::with(config)
}

impl Harness {
    fn ready_as(&mut self, hostnqn: &str) -> AssociationId {
        let mut connect = MockConnect::admin();
        connect.data.hostnqn = nqn(hostnqn).into();
        let id = self.connect(&connect).unwrap().id;
        self.set_cc(id, Cc::enabled());
        self.execute(id, async_event_request(), 0);
        id
    }

    fn page(&mut self, id: AssociationId, cns: Cns, nsid: u32) -> Result<Vec<u8>, Status> {
        self.fetch(id, IdentifyCommand { cns: cns.code(), nsid, ..Default::default() }.entry())
    }

    fn listed(&mut self, id: AssociationId, cns: Cns) -> Vec<u32> {
        let list = self.page(id, cns, 0).unwrap();
        NamespaceList::decode(list[..].try_into().unwrap()).nsids().to_vec()
    }

    /// The changed namespaces, if the host was notified.
    fn changes(&mut self, id: AssociationId) -> Option<Vec<u32>> {
        let notice = AsyncEvent::notice(Notice::NamespaceAttributeChanged, LogPage::ChangedNamespaces);
        let (_, completion) = self.port.poll_async_event(id)?;
        assert_eq!(completion.dw0, notice.0);
        let list = self.log(id, LogPage::ChangedNamespaces, 0, 4096).unwrap();
        self.execute(id, async_event_request(), 0);
        Some(NamespaceList::decode(list[..].try_into().unwrap()).nsids().to_vec())
    }
}

#[test]
fn hosts_see_their_namespaces_only() {
    let mut harness = masks();
    let (host, friend) = (harness.ready(), harness.ready_as(FRIEND));
    for (id, seen, hidden) in [(host, 2, 3), (friend, 3, 2)] {
        for cns in [Cns::ActiveNamespaces, Cns::CommandSetActiveNamespaces] {
            assert_eq!(harness.listed(id, cns), [1, seen]);
        }
        for cns in [Cns::Namespace, Cns::IndependentNamespace, Cns::CommandSetNamespace] {
            assert_eq!(harness.page(id, cns, hidden), Ok(vec![0; 4096]), "as an ID without a namespace");
        }
        assert_ne!(harness.page(id, Cns::Namespace, seen), Ok(vec![0; 4096]));
        let invalid = Err(Status::INVALID_NAMESPACE.with_dnr(true));
        assert_eq!(harness.page(id, Cns::NamespaceDescriptors, hidden), invalid);
        assert!(harness.page(id, Cns::NamespaceDescriptors, seen).is_ok());
        let log = |nsid| {
            let command = GetLogPageCommand::new(LogPage::Generation, 0, 512);
            SubmissionEntry { nsid, ..command.entry() }
        };
        assert_eq!(harness.fetch(id, log(hidden)), invalid);
        assert!(harness.fetch(id, log(seen)).is_ok());
    }
}

#[test]
fn host_without_a_name_sees_no_masked_namespace() {
    let mut harness = masks();
    let mut connect = MockConnect::admin();
    connect.data.hostnqn = NqnField::EMPTY;
    let id = harness.connect(&connect).unwrap().id;
    harness.set_cc(id, Cc::enabled());
    assert_eq!(harness.listed(id, Cns::ActiveNamespaces), [1]);
}

#[test]
fn only_hosts_that_see_a_change_are_notified() {
    let mut harness = masks();
    let (host, friend) = (harness.ready_as(HOSTNQN), harness.ready_as(FRIEND));
    let set = |harness: &mut Harness, namespaces| {
        harness.port.set_namespaces(SubsystemId::FIRST, namespaces).unwrap();
        (harness.changes(host), harness.changes(friend))
    };
    let grown = |mut it: NamespaceConfig| {
        it.geometry.blocks *= 2;
        it
    };
    let own = masked(2, &[HOSTNQN]);
    let other = grown(masked(3, &[FRIEND]));
    let changes = set(&mut harness, vec![namespace(1), own.clone(), other.clone()]);
    assert_eq!(changes, (None, Some(vec![3])));

    // The host gains namespace 3, and its friend loses it.
    let other = NamespaceConfig { hosts: own.hosts.clone(), ..other };
    let changes = set(&mut harness, vec![namespace(1), own.clone(), other.clone()]);
    assert_eq!(changes, (Some(vec![3]), Some(vec![3])));
    assert_eq!(harness.listed(host, Cns::ActiveNamespaces), [1, 2, 3]);
    assert_eq!(harness.listed(friend, Cns::ActiveNamespaces), [1]);

    // A longer list changes nothing for a host that was in it.
    let own = masked(2, &[HOSTNQN, "nqn.2014-08.org.example:third"]);
    let changes = set(&mut harness, vec![namespace(1), own, other]);
    assert_eq!(changes, (None, None));
    let changes = set(&mut harness, vec![namespace(1), namespace(2)]);
    assert_eq!(changes, (Some(vec![3]), Some(vec![2])));
}

#[test]
fn volatile_cache_of_hidden_namespace_is_hidden() {
    let mut config = config();
    config.subsystems[0].namespaces =
        vec![NamespaceConfig { volatile_cache: false, ..namespace(1) }, masked(3, &[FRIEND])];
    let mut harness = Harness::with(config);
    for (name, expected) in [(HOSTNQN, 0), (FRIEND, 1)] {
        let id = harness.ready_as(name);
        assert_eq!(harness.page(id, Cns::Controller, 0).unwrap()[525] & 1, expected);
    }
}

//! Namespaces that change while hosts are connected.

use super::*;
use isolane_wire::admin::{AsyncEvent, Cns, IdentifyCommand, Notice, async_event_request};
use isolane_wire::feature::AsyncEventConfiguration;
use isolane_wire::identify::{Controller, NamespaceList};

impl Harness {
    fn set_namespaces(&mut self, namespaces: impl IntoIterator<Item = NamespaceConfig>) {
        self.port.set_namespaces(SubsystemId::FIRST, namespaces.into_iter().collect()).unwrap();
    }

    fn hold_request(&mut self, id: AssociationId, cid: u16) {
        let action = self.execute(id, SubmissionEntry { cid, ..async_event_request() }, 0);
        assert_eq!(action, Action::HoldAsyncEvent);
    }

    /// The requests of a host that complete, and their events.
    fn notices(&mut self, id: AssociationId) -> Vec<(u16, AsyncEvent)> {
        let is_announced = self.events().contains(&ControlEvent::AsyncEvents(id));
        let completions = std::iter::from_fn(|| self.port.poll_async_event(id));
        let notices: Vec<_> = completions.map(|(cid, found)| (cid, AsyncEvent(found.dw0))).collect();
        assert_eq!(is_announced, !notices.is_empty());
        notices
    }

    fn changed(&mut self, id: AssociationId, rae: bool) -> Vec<u32> {
        let command = GetLogPageCommand::new(LogPage::ChangedNamespaces, 0, 4096);
        nsids(&self.fetch(id, GetLogPageCommand { rae, ..command }.entry()).unwrap())
    }

    fn identify_page(&mut self, id: AssociationId, cns: Cns, nsid: u32) -> Result<Vec<u8>, Status> {
        self.fetch(id, IdentifyCommand { cns: cns.code(), nsid, ..Default::default() }.entry())
    }
}

fn nsids(list: &[u8]) -> Vec<u32> {
    NamespaceList::decode(list.try_into().unwrap()).nsids().to_vec()
}

fn larger(nsid: u32) -> NamespaceConfig {
    let geometry = NamespaceGeometry { blocks: 4096, ..namespace(nsid).geometry };
    NamespaceConfig { geometry, ..namespace(nsid) }
}

fn changed_notice() -> AsyncEvent {
    AsyncEvent::notice(Notice::NamespaceAttributeChanged, LogPage::ChangedNamespaces)
}

#[test]
fn one_notice_for_all_changes_of_one_update() {
    let mut harness = Harness::new();
    let id = harness.ready();
    harness.hold_request(id, 7);
    harness.hold_request(id, 8);
    harness.set_namespaces([larger(1), namespace(2)]);
    assert_eq!(harness.notices(id), [(7, changed_notice())]);
    assert_eq!(nsids(&harness.identify_page(id, Cns::ActiveNamespaces, 0).unwrap()), [1, 2]);
    assert_eq!(harness.identify_page(id, Cns::Namespace, 1).unwrap()[..8], 4096_u64.to_le_bytes());
    assert_eq!(harness.identify_page(id, Cns::Namespace, 3).unwrap(), [0; 4096], "inactive");
    assert!(harness.identify_page(id, Cns::NamespaceDescriptors, 3).is_err());
    assert_eq!(harness.changed(id, true), [1, 2, 3]);

    harness.set_namespaces([larger(1), namespace(2), namespace(5)]);
    assert_eq!(harness.notices(id), [], "the host has not read the list");
    assert_eq!(harness.changed(id, false), [1, 2, 3, 5]);
    assert_eq!(harness.changed(id, false), []);
    harness.set_namespaces([]);
    assert_eq!(harness.notices(id), [(8, changed_notice())]);
    assert_eq!(harness.changed(id, false), [1, 2, 5]);
}

#[test]
fn same_namespaces_are_no_change() {
    let mut harness = Harness::new();
    let id = harness.ready();
    harness.hold_request(id, 7);
    harness.set_namespaces([namespace(3), namespace(1)]);
    assert_eq!((harness.notices(id), harness.changed(id, false)), (vec![], vec![]));
}

#[test]
fn notice_waits_for_request() {
    let mut harness = Harness::new();
    let id = harness.ready();
    harness.set_namespaces([namespace(1)]);
    assert_eq!(harness.notices(id), []);
    harness.hold_request(id, 7);
    assert_eq!(harness.notices(id), [(7, changed_notice())]);
    harness.hold_request(id, 8);
    assert_eq!(harness.notices(id), []);
}

#[test]
fn disabled_event_only_updates_list() {
    let mut harness = Harness::new();
    let id = harness.ready();
    harness.set_feature(id, FeatureId::AsyncEventConfiguration, AsyncEventConfiguration(0).0);
    harness.hold_request(id, 7);
    harness.set_namespaces([namespace(1)]);
    assert_eq!(harness.notices(id), []);
    assert_eq!(harness.changed(id, false), [3]);
}

#[test]
fn reset_clears_list() {
    let mut harness = Harness::new();
    let id = harness.ready();
    harness.set_namespaces([namespace(1)]);
    harness.set_cc(id, Cc(0));
    harness.set_namespaces([]);
    harness.set_cc(id, Cc::enabled());
    harness.hold_request(id, 7);
    assert_eq!((harness.notices(id), harness.changed(id, false)), (vec![], vec![]));
}

#[test]
fn discovery_controller_gets_no_notice() {
    let mut harness = Harness::new();
    let id = harness.discovery();
    harness.hold_request(id, 7);
    harness.set_namespaces([]);
    assert_eq!(harness.notices(id), []);
}

#[test]
fn rejected_update_changes_nothing() {
    let mut harness = Harness::new();
    let id = harness.ready();
    harness.hold_request(id, 7);
    let twice = harness.port.set_namespaces(SubsystemId::FIRST, vec![namespace(2), namespace(2)]);
    assert_eq!(twice, Err(ConfigError::NsidTwice(2)));
    assert_eq!(
        harness.port.set_namespaces(SubsystemId::FIRST, vec![namespace(0)]),
        Err(ConfigError::Nsid(0))
    );
    assert_eq!(harness.notices(id), []);
    assert_eq!(nsids(&harness.identify_page(id, Cns::ActiveNamespaces, 0).unwrap()), [1, 3]);
}

#[test]
fn writes_of_hosts_that_never_flush_stay_durable() {
    let mut config = config();
    config.subsystems[0].namespaces.iter_mut().for_each(|namespace| namespace.volatile_cache = false);
    let mut harness = Harness::with(config);
    let id = harness.ready();
    harness.set_namespaces([namespace(1)]);
    let present = |harness: &mut Harness, id| {
        let data = harness.identify_page(id, Cns::Controller, 0).unwrap();
        Controller::decode(data[..].try_into().unwrap()).vwc.present()
    };
    assert!(!present(&mut harness, id), "as its host has read it");
    let status =
        Arc::clone(&harness.port.nvm.get_mut(&SubsystemId::FIRST).unwrap().association(id).unwrap().status);
    assert!(!status.is_write_cache_enabled());
    harness.set_cc(id, Cc(0));
    harness.set_cc(id, Cc::enabled());
    assert!(!status.is_write_cache_enabled(), "after a reset");
    harness.drop_queue(id, 0);

    let id = harness.ready();
    harness.set_namespaces([]);
    assert!(present(&mut harness, id), "as its host has read it");
}

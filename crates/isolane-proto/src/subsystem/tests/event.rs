//! Async events and Abort.

use std::collections::BTreeSet;

use super::*;
use isolane_wire::admin::{self, AbortCommand, AsyncEvent, LogPage, async_event_request};
use isolane_wire::feature::AsyncEventConfiguration;

impl Harness {
    fn hold(&mut self, id: AssociationId, cid: u16) -> Action {
        self.execute(id, SubmissionEntry { cid, ..async_event_request() }, 0)
    }

    /// The completions that a driver takes when the port reports them.
    fn completions(&mut self) -> Vec<(AssociationId, u16, Completion)> {
        let reported: BTreeSet<_> = self
            .events()
            .into_iter()
            .map(|event| match event {
                ControlEvent::AsyncEvents(id) => id,
                other => panic!("{other:?}"),
            })
            .collect();
        let mut answers = Vec::new();
        for id in reported {
            while let Some((cid, completion)) = self.port.poll_async_event(id) {
                answers.push((id, cid, completion));
            }
        }
        answers
    }

    fn abort(&mut self, id: AssociationId, sqid: u16, cid: u16) -> Completion {
        self.complete(id, AbortCommand { sqid, cid }.entry())
    }
}

fn namespace_changed(id: AssociationId, cid: u16) -> (AssociationId, u16, Completion) {
    let event = AsyncEvent::notice(admin::Notice::NamespaceAttributeChanged, LogPage::ChangedNamespaces);
    (id, cid, Completion::with_dw0(event.0))
}

#[test]
fn completes_held_request_on_namespace_change() {
    let mut harness = Harness::new();
    let id = harness.ready();
    let changes: [fn(&mut Port); 3] = [
        |port| port.add_namespace(namespace(2)).unwrap(),
        |port| port.change_namespace(namespace(2)).unwrap(),
        |port| port.remove_namespace(2).unwrap(),
    ];
    for (cid, change) in (10..).zip(changes) {
        assert_eq!(harness.hold(id, cid), Action::HoldAsyncEvent);
        change(&mut harness.port);
        assert_eq!(harness.completions(), [namespace_changed(id, cid)]);
        harness.log(id, LogPage::ChangedNamespaces, 0, 4096).unwrap();
    }
}

#[test]
fn keeps_event_for_next_request() {
    let mut harness = Harness::new();
    let id = harness.ready();
    harness.port.add_namespace(namespace(2)).unwrap();
    assert_eq!(harness.completions(), []);
    assert_eq!(harness.hold(id, 1), Action::HoldAsyncEvent);
    assert_eq!(harness.completions(), [namespace_changed(id, 1)]);
}

#[test]
fn masks_event_until_log_is_read() {
    let mut harness = Harness::new();
    let id = harness.ready();
    harness.hold(id, 1);
    harness.hold(id, 2);
    harness.port.add_namespace(namespace(2)).unwrap();
    harness.port.remove_namespace(2).unwrap();
    assert_eq!(harness.completions(), [namespace_changed(id, 1)]);

    let retain =
        GetLogPageCommand { rae: true, ..GetLogPageCommand::new(LogPage::ChangedNamespaces, 0, 4096) };
    harness.fetch(id, retain.entry()).unwrap();
    harness.port.add_namespace(namespace(2)).unwrap();
    assert_eq!(harness.completions(), []);

    harness.log(id, LogPage::ChangedNamespaces, 0, 4096).unwrap();
    harness.port.remove_namespace(2).unwrap();
    assert_eq!(harness.completions(), [namespace_changed(id, 2)]);
}

#[test]
fn notifies_all_but_discovery_hosts() {
    let mut harness = Harness::new();
    let ids = [harness.ready(), harness.ready(), harness.discovery()];
    for id in ids {
        harness.hold(id, 1);
    }
    harness.port.add_namespace(namespace(2)).unwrap();
    assert_eq!(harness.completions(), [namespace_changed(ids[0], 1), namespace_changed(ids[1], 1)]);
}

#[test]
fn does_not_report_disabled_event() {
    let mut harness = Harness::new();
    let id = harness.ready();
    harness.port.add_namespace(namespace(2)).unwrap();
    harness.set_feature(id, FeatureId::AsyncEventConfiguration, 0);
    harness.hold(id, 1);
    harness.port.remove_namespace(2).unwrap();
    assert_eq!(harness.completions(), []);
    let on = AsyncEventConfiguration(0).with_namespace_attribute(true);
    harness.set_feature(id, FeatureId::AsyncEventConfiguration, on.0);
    harness.port.remove_namespace(1).unwrap();
    assert_eq!(harness.completions(), [namespace_changed(id, 1)]);
}

#[test]
fn rejects_requests_above_aerl_plus_one() {
    let mut harness = Harness::new();
    let id = harness.ready();
    for cid in 0..4 {
        assert_eq!(harness.hold(id, cid), Action::HoldAsyncEvent);
    }
    for cid in 4..100 {
        assert_eq!(completion(harness.hold(id, cid)), rejected_with(Status::ASYNC_EVENT_LIMIT_EXCEEDED));
    }
    harness.port.add_namespace(namespace(2)).unwrap();
    assert_eq!(harness.completions(), [namespace_changed(id, 0)]);
    assert_eq!(harness.hold(id, 100), Action::HoldAsyncEvent, "an entry is free again");
}

#[test]
fn abort_ends_held_request_only() {
    let mut harness = Harness::new();
    let id = harness.ready();
    harness.hold(id, 5);
    assert_eq!(harness.abort(id, 0, 5), Completion::with_dw0(0));
    let aborted = Completion::failed(Status::ABORTED_BY_REQUEST);
    assert_eq!(harness.completions(), [(id, 5, aborted)]);
    for (sqid, cid) in [(0, 5), (1, 5), (0xffff, 0xffff)] {
        assert_eq!(harness.abort(id, sqid, cid), Completion::with_dw0(1), "not aborted");
    }
    assert_eq!(harness.completions(), []);
}

#[test]
fn reset_ends_held_requests() {
    let mut harness = Harness::new();
    let id = harness.ready();
    harness.hold(id, 1);
    harness.hold(id, 2);
    harness.set_cc(id, Cc(0));
    let completion = Completion::failed(Status::ABORTED_SQ_DELETION);
    assert_eq!(harness.completions(), [1, 2].map(|cid| (id, cid, completion)));
    harness.port.add_namespace(namespace(2)).unwrap();
    assert_eq!(harness.completions(), []);
}

#[test]
fn ended_association_gets_no_events() {
    let mut harness = Harness::new();
    let id = harness.ready();
    harness.io_queue(id, 1).unwrap();
    harness.hold(id, 1);
    harness.drop_queue(id, 0);
    harness.events();
    harness.port.add_namespace(namespace(2)).unwrap();
    assert_eq!(harness.completions(), []);
    assert_eq!(harness.port.poll_async_event(id), None);
}

#[test]
fn replaced_request_never_completes() {
    let mut harness = Harness::new();
    let id = harness.ready();
    for cid in 0..4 {
        harness.hold(id, cid);
    }
    assert_eq!(harness.port.replace_async_event(id, 1), None);
    assert_eq!(harness.hold(id, 1), Action::HoldAsyncEvent, "the new request takes the place of the old one");
    assert_eq!(completion(harness.hold(id, 4)), rejected_with(Status::ASYNC_EVENT_LIMIT_EXCEEDED));
    assert_eq!(harness.port.replace_async_event(id, 0), None);
    harness.port.add_namespace(namespace(2)).unwrap();
    assert_eq!(harness.completions(), [namespace_changed(id, 2)]);
    harness.set_cc(id, Cc(0));
    let completion = Completion::failed(Status::ABORTED_SQ_DELETION);
    assert_eq!(harness.completions(), [3, 1].map(|cid| (id, cid, completion)));
}

#[test]
fn completes_request_before_cid_reuse() {
    let mut harness = Harness::new();
    let id = harness.ready();
    harness.hold(id, 1);
    harness.port.add_namespace(namespace(2)).unwrap();
    let (_, _, expected) = namespace_changed(id, 1);
    assert_eq!(harness.port.replace_async_event(id, 1), Some(expected));
    assert_eq!(harness.completions(), [], "it has been taken");
}

#[test]
fn untaken_completions_count_as_outstanding() {
    let mut harness = Harness::new();
    let id = harness.ready();
    for cid in 0..4 {
        harness.hold(id, cid);
        harness.abort(id, 0, cid);
    }
    assert_eq!(completion(harness.hold(id, 4)), rejected_with(Status::ASYNC_EVENT_LIMIT_EXCEEDED));
    assert_eq!(harness.completions().len(), 4);
    assert_eq!(harness.hold(id, 4), Action::HoldAsyncEvent);
}

#[test]
fn rejects_impossible_changes() {
    let mut harness = Harness::new();
    let id = harness.ready();
    harness.hold(id, 1);
    assert_eq!(harness.port.add_namespace(namespace(1)), Err(ConfigError::NsidTwice(1)));
    assert_eq!(harness.port.remove_namespace(2), Err(ConfigError::NoNamespace(2)));
    assert_eq!(harness.port.change_namespace(namespace(2)), Err(ConfigError::NoNamespace(2)));
    assert_eq!(harness.port.add_namespace(namespace(MAX_NSID + 1)), Err(ConfigError::Nsid(MAX_NSID + 1)));
    assert_eq!(harness.completions(), []);
}

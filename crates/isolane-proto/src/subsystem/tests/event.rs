//! Async events and Abort.

use std::collections::BTreeSet;

use super::*;
use isolane_wire::admin::{self, AbortCommand, AsyncEvent, LogPage, async_event_request};
use isolane_wire::feature::AsyncEventConfiguration;

impl World {
    fn hold(&mut self, id: AssociationId, cid: u16) -> Action {
        self.execute(id, SubmissionEntry { cid, ..async_event_request() }, 0)
    }

    /// The completions that a driver takes when the port reports them.
    fn answers(&mut self) -> Vec<(AssociationId, u16, Completion)> {
        let reported: BTreeSet<_> = self
            .events()
            .into_iter()
            .map(|event| match event {
                ControlEvent::AsyncEvents { id } => id,
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
    let mut world = World::new();
    let id = world.ready();
    let changes: [fn(&mut Port); 3] = [
        |port| port.add_namespace(namespace(2)).unwrap(),
        |port| port.change_namespace(namespace(2)).unwrap(),
        |port| port.remove_namespace(2).unwrap(),
    ];
    for (cid, change) in (10..).zip(changes) {
        assert_eq!(world.hold(id, cid), Action::HoldAsyncEvent);
        change(&mut world.port);
        assert_eq!(world.answers(), [namespace_changed(id, cid)]);
        world.log(id, LogPage::ChangedNamespaces, 0, 4096).unwrap();
    }
}

#[test]
fn keeps_event_for_next_request() {
    let mut world = World::new();
    let id = world.ready();
    world.port.add_namespace(namespace(2)).unwrap();
    assert_eq!(world.answers(), []);
    assert_eq!(world.hold(id, 1), Action::HoldAsyncEvent);
    assert_eq!(world.answers(), [namespace_changed(id, 1)]);
}

#[test]
fn masks_event_until_log_is_read() {
    let mut world = World::new();
    let id = world.ready();
    world.hold(id, 1);
    world.hold(id, 2);
    world.port.add_namespace(namespace(2)).unwrap();
    world.port.remove_namespace(2).unwrap();
    assert_eq!(world.answers(), [namespace_changed(id, 1)]);

    let retain =
        GetLogPageCommand { rae: true, ..GetLogPageCommand::new(LogPage::ChangedNamespaces, 0, 4096) };
    world.fetch(id, retain.entry()).unwrap();
    world.port.add_namespace(namespace(2)).unwrap();
    assert_eq!(world.answers(), []);

    world.log(id, LogPage::ChangedNamespaces, 0, 4096).unwrap();
    world.port.remove_namespace(2).unwrap();
    assert_eq!(world.answers(), [namespace_changed(id, 2)]);
}

#[test]
fn notifies_all_but_discovery_hosts() {
    let mut world = World::new();
    let ids = [world.ready(), world.ready(), world.discovery()];
    for id in ids {
        world.hold(id, 1);
    }
    world.port.add_namespace(namespace(2)).unwrap();
    assert_eq!(world.answers(), [namespace_changed(ids[0], 1), namespace_changed(ids[1], 1)]);
}

#[test]
fn does_not_report_disabled_event() {
    let mut world = World::new();
    let id = world.ready();
    world.port.add_namespace(namespace(2)).unwrap();
    world.set_feature(id, FeatureId::AsyncEventConfiguration, 0);
    world.hold(id, 1);
    world.port.remove_namespace(2).unwrap();
    assert_eq!(world.answers(), []);
    let on = AsyncEventConfiguration(0).with_namespace_attribute(true);
    world.set_feature(id, FeatureId::AsyncEventConfiguration, on.0);
    world.port.remove_namespace(1).unwrap();
    assert_eq!(world.answers(), [namespace_changed(id, 1)]);
}

#[test]
fn more_requests_than_aerl_plus_one_are_refused() {
    let mut world = World::new();
    let id = world.ready();
    for cid in 0..4 {
        assert_eq!(world.hold(id, cid), Action::HoldAsyncEvent);
    }
    for cid in 4..100 {
        assert_eq!(completion(world.hold(id, cid)), refused(Status::ASYNC_EVENT_LIMIT_EXCEEDED));
    }
    world.port.add_namespace(namespace(2)).unwrap();
    assert_eq!(world.answers(), [namespace_changed(id, 0)]);
    assert_eq!(world.hold(id, 100), Action::HoldAsyncEvent, "there is room again");
}

#[test]
fn abort_ends_held_request_only() {
    let mut world = World::new();
    let id = world.ready();
    world.hold(id, 5);
    assert_eq!(world.abort(id, 0, 5), Completion::with_dw0(0));
    let aborted = Completion::failed(Status::ABORTED_BY_REQUEST);
    assert_eq!(world.answers(), [(id, 5, aborted)]);
    for (sqid, cid) in [(0, 5), (1, 5), (0xffff, 0xffff)] {
        assert_eq!(world.abort(id, sqid, cid), Completion::with_dw0(1), "not aborted");
    }
    assert_eq!(world.answers(), []);
}

#[test]
fn reset_ends_held_requests() {
    let mut world = World::new();
    let id = world.ready();
    world.hold(id, 1);
    world.hold(id, 2);
    world.set_cc(id, Cc(0));
    let completion = Completion::failed(Status::ABORTED_SQ_DELETION);
    assert_eq!(world.answers(), [1, 2].map(|cid| (id, cid, completion)));
    world.port.add_namespace(namespace(2)).unwrap();
    assert_eq!(world.answers(), []);
}

#[test]
fn ended_association_gets_no_events() {
    let mut world = World::new();
    let id = world.ready();
    world.io_queue(id, 1).unwrap();
    world.hold(id, 1);
    world.drop_queue(id, 0);
    world.events();
    world.port.add_namespace(namespace(2)).unwrap();
    assert_eq!(world.answers(), []);
    assert_eq!(world.port.poll_async_event(id), None);
}

#[test]
fn replaced_request_never_completes() {
    let mut world = World::new();
    let id = world.ready();
    for cid in 0..4 {
        world.hold(id, cid);
    }
    assert_eq!(world.port.replace_async_event(id, 1), None);
    assert_eq!(world.hold(id, 1), Action::HoldAsyncEvent, "the new request takes the place of the old one");
    assert_eq!(completion(world.hold(id, 4)), refused(Status::ASYNC_EVENT_LIMIT_EXCEEDED));
    assert_eq!(world.port.replace_async_event(id, 0), None);
    world.port.add_namespace(namespace(2)).unwrap();
    assert_eq!(world.answers(), [namespace_changed(id, 2)]);
    world.set_cc(id, Cc(0));
    let completion = Completion::failed(Status::ABORTED_SQ_DELETION);
    assert_eq!(world.answers(), [3, 1].map(|cid| (id, cid, completion)));
}

#[test]
fn completes_request_before_cid_reuse() {
    let mut world = World::new();
    let id = world.ready();
    world.hold(id, 1);
    world.port.add_namespace(namespace(2)).unwrap();
    let (_, _, expected) = namespace_changed(id, 1);
    assert_eq!(world.port.replace_async_event(id, 1), Some(expected));
    assert_eq!(world.answers(), [], "it has been taken");
}

#[test]
fn answers_that_no_driver_takes_count_as_outstanding() {
    let mut world = World::new();
    let id = world.ready();
    for cid in 0..4 {
        world.hold(id, cid);
        world.abort(id, 0, cid);
    }
    assert_eq!(completion(world.hold(id, 4)), refused(Status::ASYNC_EVENT_LIMIT_EXCEEDED));
    assert_eq!(world.answers().len(), 4);
    assert_eq!(world.hold(id, 4), Action::HoldAsyncEvent);
}

#[test]
fn rejects_impossible_changes() {
    let mut world = World::new();
    let id = world.ready();
    world.hold(id, 1);
    assert_eq!(world.port.add_namespace(namespace(1)), Err(ConfigError::NsidTwice(1)));
    assert_eq!(world.port.remove_namespace(2), Err(ConfigError::NoNamespace(2)));
    assert_eq!(world.port.change_namespace(namespace(2)), Err(ConfigError::NoNamespace(2)));
    assert_eq!(world.port.add_namespace(namespace(MAX_NSID + 1)), Err(ConfigError::Nsid(MAX_NSID + 1)));
    assert_eq!(world.answers(), []);
}

//! Async events and Abort.

use std::collections::BTreeSet;

use super::*;
use isolane_wire::admin::{AbortCommand, async_event_request};

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

fn aborted(id: AssociationId, cid: u16) -> (AssociationId, u16, Completion) {
    (id, cid, Completion::failed(Status::ABORTED_BY_REQUEST))
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
    harness.abort(id, 0, 0);
    assert_eq!(harness.completions(), [aborted(id, 0)]);
    assert_eq!(harness.hold(id, 100), Action::HoldAsyncEvent, "an entry is free again");
}

#[test]
fn abort_ends_held_request_only() {
    let mut harness = Harness::new();
    let id = harness.ready();
    harness.hold(id, 5);
    assert_eq!(harness.abort(id, 0, 5), Completion::with_dw0(0));
    assert_eq!(harness.completions(), [aborted(id, 5)]);
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
    assert_eq!(harness.abort(id, 0, 2), Completion::with_dw0(0));
    assert_eq!(harness.completions(), [aborted(id, 2)]);
    harness.set_cc(id, Cc(0));
    let completion = Completion::failed(Status::ABORTED_SQ_DELETION);
    assert_eq!(harness.completions(), [3, 1].map(|cid| (id, cid, completion)));
}

#[test]
fn completes_request_before_cid_reuse() {
    let mut harness = Harness::new();
    let id = harness.ready();
    harness.hold(id, 1);
    harness.abort(id, 0, 1);
    let (_, _, expected) = aborted(id, 1);
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

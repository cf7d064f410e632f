//! Asynchronous events of one controller: what is held, what waits, what has been told (Base 1.4 §5.2).
//!
//! Tracks Async Event Requests by their CIDs: a request is held until it is answered, and its completion
//! stays here until the driver of the admin queue takes it.
//!
//! Invariant: a kind of event that was reported is not reported again before the host has read its log page
//! without Retain Asynchronous Event.

use std::collections::BTreeSet;

use arrayvec::ArrayVec;
use isolane_wire::Status;
use isolane_wire::admin::{self, AsyncEvent, LogPage};
use isolane_wire::feature::AsyncEventConfiguration;

use crate::completion::Completion;
use crate::target::MAX_ASYNC_EVENTS;

/// A kind of event that this controller can report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Notice {
    /// Namespaces came, went or changed; the changed namespace list (04h) tells which.
    NamespaceChanged,
    /// The discovery log (70h) has another generation.
    DiscoveryChanged,
}

impl Notice {
    fn result(self) -> AsyncEvent {
        match self {
            Notice::NamespaceChanged => {
                AsyncEvent::notice(admin::Notice::NamespaceAttributeChanged, LogPage::ChangedNamespaces)
            }
            Notice::DiscoveryChanged => {
                AsyncEvent::notice(admin::Notice::DiscoveryLogPageChange, LogPage::Discovery)
            }
        }
    }

    fn is_enabled(self, config: AsyncEventConfiguration) -> bool {
        match self {
            Notice::NamespaceChanged => config.namespace_attribute(),
            Notice::DiscoveryChanged => config.discovery_log(),
        }
    }
}

/// The async events of one controller.
#[derive(Debug)]
pub(super) struct AsyncEvents {
    held: ArrayVec<u16, MAX_ASYNC_EVENTS>,
    /// Completions that the driver has not taken, the oldest first.
    answered: ArrayVec<(u16, Completion), MAX_ASYNC_EVENTS>,
    waiting: BTreeSet<Notice>,
    reported: BTreeSet<Notice>,
    config: AsyncEventConfiguration,
}

impl AsyncEvents {
    /// Nothing held; every kind in `config` is on.
    pub(super) fn new(config: AsyncEventConfiguration) -> AsyncEvents {
        AsyncEvents {
            held: ArrayVec::new(),
            answered: ArrayVec::new(),
            waiting: BTreeSet::new(),
            reported: BTreeSet::new(),
            config,
        }
    }

    /// A request came in; more than AERL + 1 of them are refused (Base 1.4 §5.2).
    pub(super) fn hold(&mut self, cid: u16) -> Result<(), Status> {
        if self.held.len() + self.answered.len() >= MAX_ASYNC_EVENTS {
            return Err(Status::ASYNC_EVENT_LIMIT_EXCEEDED.with_dnr(true));
        }
        self.held.push(cid);
        Ok(())
    }

    /// Answers the held request of this CID. Returns `false` if none is held.
    pub(super) fn answer(&mut self, cid: u16, completion: Completion) -> bool {
        let is_held = self.release(cid);
        if is_held {
            self.answered.push((cid, completion));
        }
        is_held
    }

    /// Answers all held requests.
    pub(super) fn answer_all(&mut self, completion: Completion) {
        self.answered.extend(self.held.drain(..).map(|cid| (cid, completion)));
    }

    /// Another command bears the CID of a request. Returns the request's completion if it has been answered;
    /// otherwise the request is forgotten.
    pub(super) fn replace(&mut self, cid: u16) -> Option<Completion> {
        if self.release(cid) {
            return None;
        }
        let place = self.answered.iter().position(|(answered, _)| *answered == cid)?;
        Some(self.answered.remove(place).1)
    }

    /// Takes the next completion.
    pub(super) fn poll(&mut self) -> Option<(u16, Completion)> {
        self.answered.pop_at(0)
    }

    /// Whether completions wait for the driver.
    pub(super) fn has_answers(&self) -> bool {
        !self.answered.is_empty()
    }

    /// Forgets all notices, but no request.
    pub(super) fn reset(&mut self, config: AsyncEventConfiguration) {
        self.waiting.clear();
        self.reported.clear();
        self.config = config;
    }

    /// Forgets all requests.
    pub(super) fn clear_requests(&mut self) {
        self.held.clear();
        self.answered.clear();
    }

    /// Something happened.
    pub(super) fn raise(&mut self, notice: Notice) {
        if notice.is_enabled(self.config) && !self.reported.contains(&notice) {
            self.waiting.insert(notice);
        }
    }

    /// The host has read the log page of this kind: it may be reported again.
    pub(super) fn clear(&mut self, notice: Notice) {
        self.waiting.remove(&notice);
        self.reported.remove(&notice);
    }

    /// Answers held requests with the notices that wait.
    pub(super) fn report(&mut self) {
        while let Some(notice) = self.waiting.first().copied()
            && let Some(cid) = self.held.pop_at(0)
        {
            self.waiting.remove(&notice);
            self.reported.insert(notice);
            self.answered.push((cid, Completion::with_dw0(notice.result().0)));
        }
    }

    /// Feature 0Bh as it is.
    pub(super) fn config(&self) -> AsyncEventConfiguration {
        self.config
    }

    /// Feature 0Bh is set; what is off now is not reported any more.
    pub(super) fn set_config(&mut self, config: AsyncEventConfiguration) {
        self.config = config;
        self.waiting.retain(|notice| notice.is_enabled(config));
    }

    fn release(&mut self, cid: u16) -> bool {
        let place = self.held.iter().position(|&held| held == cid);
        place.map(|place| self.held.remove(place)).is_some()
    }
}

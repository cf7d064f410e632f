//! Asynchronous events of one controller: what is held, what waits, what has been told (Base 1.4 §5.2).
//!
//! What it is: the bookkeeping of Async Event Requests by their CIDs. What it is not: it holds no permit; the
//! driver does. Invariant: a kind of event that was reported is not reported again before the host has read
//! its log page without Retain Asynchronous Event.

use std::collections::BTreeSet;

use arrayvec::ArrayVec;
use isolane_wire::Status;
use isolane_wire::admin::{self, AsyncEvent, LogPage};
use isolane_wire::feature::AsyncEventConfiguration;

use crate::completion::Completion;

/// Requests that a controller holds: AERL is this less one.
pub(super) const HELD_MAX: usize = 4;

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
    held: ArrayVec<u16, HELD_MAX>,
    waiting: BTreeSet<Notice>,
    reported: BTreeSet<Notice>,
    config: AsyncEventConfiguration,
}

impl AsyncEvents {
    /// Nothing held; every kind in `config` is on.
    pub(super) fn new(config: AsyncEventConfiguration) -> AsyncEvents {
        AsyncEvents { held: ArrayVec::new(), waiting: BTreeSet::new(), reported: BTreeSet::new(), config }
    }

    /// A request came in; more than AERL + 1 of them are refused (Base 1.4 §5.2).
    pub(super) fn hold(&mut self, cid: u16) -> Result<(), Status> {
        self.held.try_push(cid).map_err(|_| Status::ASYNC_EVENT_LIMIT_EXCEEDED.with_dnr(true))
    }

    /// Whether a request of this CID was held; it is no longer.
    pub(super) fn release(&mut self, cid: u16) -> bool {
        let place = self.held.iter().position(|&held| held == cid);
        place.map(|place| self.held.remove(place)).is_some()
    }

    /// All held requests, which are held no longer.
    pub(super) fn release_all(&mut self) -> ArrayVec<u16, HELD_MAX> {
        std::mem::take(&mut self.held)
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

    /// The next answer to a held request.
    pub(super) fn poll(&mut self) -> Option<(u16, Completion)> {
        let notice = *self.waiting.first()?;
        let cid = self.held.pop_at(0)?;
        self.waiting.remove(&notice);
        self.reported.insert(notice);
        Some((cid, Completion::result(notice.result().0)))
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
}

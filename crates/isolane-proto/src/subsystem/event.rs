//! Asynchronous events of one controller: held requests, pending notices, and reported notices
//! (Base 1.4 §5.2).
//!
//! Tracks Async Event Requests by CID. A request is held until it completes, and its completion
//! stays here until the driver of the admin queue takes it.
//!
//! Invariant: a kind of event that was reported is not reported again before the host has read its
//! log page without Retain Asynchronous Event.

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
    /// Namespaces were added, removed, or changed; log page 04h lists them.
    NamespaceChanged,
    /// The discovery log (70h) has a new generation.
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
    /// Completions that the driver has not taken, oldest first.
    completions: ArrayVec<(u16, Completion), MAX_ASYNC_EVENTS>,
    pending: BTreeSet<Notice>,
    reported: BTreeSet<Notice>,
    config: AsyncEventConfiguration,
}

impl AsyncEvents {
    /// Nothing held; every kind in `config` is enabled.
    pub(super) fn new(config: AsyncEventConfiguration) -> AsyncEvents {
        AsyncEvents {
            held: ArrayVec::new(),
            completions: ArrayVec::new(),
            pending: BTreeSet::new(),
            reported: BTreeSet::new(),
            config,
        }
    }

    /// Holds a request. Rejects it if AERL + 1 requests are held (Base 1.4 §5.2).
    pub(super) fn hold(&mut self, cid: u16) -> Result<(), Status> {
        if self.held.len() + self.completions.len() >= MAX_ASYNC_EVENTS {
            return Err(Status::ASYNC_EVENT_LIMIT_EXCEEDED.with_dnr(true));
        }
        self.held.push(cid);
        Ok(())
    }

    /// Completes the held request with this CID. Returns `false` if the CID is not held.
    pub(super) fn complete(&mut self, cid: u16, completion: Completion) -> bool {
        let is_held = self.release(cid);
        if is_held {
            self.completions.push((cid, completion));
        }
        is_held
    }

    /// Completes all held requests.
    pub(super) fn complete_all(&mut self, completion: Completion) {
        self.completions.extend(self.held.drain(..).map(|cid| (cid, completion)));
    }

    /// Drops the request with this CID, which another command uses now. Returns the completion of
    /// the request if it has one.
    pub(super) fn replace(&mut self, cid: u16) -> Option<Completion> {
        if self.release(cid) {
            return None;
        }
        let at = self.completions.iter().position(|(completed, _)| *completed == cid)?;
        Some(self.completions.remove(at).1)
    }

    /// Takes the next completion.
    pub(super) fn poll(&mut self) -> Option<(u16, Completion)> {
        self.completions.pop_at(0)
    }

    /// Whether the driver must take completions.
    pub(super) fn has_completions(&self) -> bool {
        !self.completions.is_empty()
    }

    /// Clears all notices, and keeps all requests.
    pub(super) fn reset(&mut self, config: AsyncEventConfiguration) {
        self.pending.clear();
        self.reported.clear();
        self.config = config;
    }

    /// Clears all requests.
    pub(super) fn clear_requests(&mut self) {
        self.held.clear();
        self.completions.clear();
    }

    /// Makes a notice pending, unless it is disabled or was reported already.
    pub(super) fn raise(&mut self, notice: Notice) {
        if notice.is_enabled(self.config) && !self.reported.contains(&notice) {
            self.pending.insert(notice);
        }
    }

    /// Re-enables a notice whose log page the host has read.
    pub(super) fn clear(&mut self, notice: Notice) {
        self.pending.remove(&notice);
        self.reported.remove(&notice);
    }

    /// Completes held requests with the pending notices.
    pub(super) fn report(&mut self) {
        while let Some(notice) = self.pending.first().copied()
            && let Some(cid) = self.held.pop_at(0)
        {
            self.pending.remove(&notice);
            self.reported.insert(notice);
            self.completions.push((cid, Completion::with_dw0(notice.result().0)));
        }
    }

    /// Feature 0Bh.
    pub(super) fn config(&self) -> AsyncEventConfiguration {
        self.config
    }

    /// Sets feature 0Bh, and drops the pending notices that it disables.
    pub(super) fn set_config(&mut self, config: AsyncEventConfiguration) {
        self.config = config;
        self.pending.retain(|notice| notice.is_enabled(config));
    }

    fn release(&mut self, cid: u16) -> bool {
        let at = self.held.iter().position(|&held| held == cid);
        at.map(|at| self.held.remove(at)).is_some()
    }
}

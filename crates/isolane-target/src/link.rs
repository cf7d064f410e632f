//! The way from handles of other threads to a target.
//!
//! It does not keep the target running. A target that continues another one takes its place, so that the handles lead
//! there; see [`Target::take_place_of`](crate::Target::take_place_of).

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::error::NamespaceError;
use crate::shared::Shared;

/// Leads to a target; a clone always leads to the same one.
#[derive(Clone)]
pub(crate) struct Link(Arc<Mutex<Linked>>);

/// A target, as handles find it.
#[derive(Clone)]
pub(crate) struct Linked {
    shared: Weak<Shared>,
    /// Time of its start.
    pub started_ns: u64,
    /// Number of targets that were here before.
    pub number: u64,
}

impl Link {
    pub(crate) fn new(shared: &Arc<Shared>, started_ns: u64) -> Link {
        Link(Arc::new(Mutex::new(Linked { shared: Arc::downgrade(shared), started_ns, number: 0 })))
    }

    /// Makes it lead to another target.
    pub(crate) fn set(&self, shared: &Arc<Shared>, started_ns: u64) {
        let mut linked = self.0.lock();
        *linked = Linked { shared: Arc::downgrade(shared), started_ns, number: linked.number + 1 };
    }

    /// Returns where it leads at present.
    pub(crate) fn get(&self) -> Linked {
        self.0.lock().clone()
    }

    /// Returns the target.
    ///
    /// # Errors
    /// If it has ended.
    pub(crate) fn shared(&self) -> Result<Arc<Shared>, NamespaceError> {
        self.get().shared()
    }
}

impl Linked {
    /// Returns the target.
    ///
    /// # Errors
    /// If it has ended.
    pub(crate) fn shared(&self) -> Result<Arc<Shared>, NamespaceError> {
        self.shared.upgrade().ok_or(NamespaceError::Ended)
    }
}

//! A request to a file in progress: what the driver keeps while the kernel works.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::claims::{Announcement, Claim};
use super::health::{Overlap, Unrecorded};
use super::zeroing::Zeroing;
use crate::Request;

/// A request in progress. Dropping it unfinished lets go of what it claimed.
#[derive(Debug)]
pub struct Task(pub(crate) Work);

impl Task {
    /// Whether it may still change blocks.
    pub fn is_change(&self) -> bool {
        match &self.0 {
            Work::Write { .. } | Work::Repeat { .. } | Work::Zero { .. } | Work::Announced { .. } => true,
            Work::Check { before } => before.as_ref().is_some_and(|request| request.is_change()),
            Work::Read { .. } | Work::Sync { .. } | Work::Promise { .. } => false,
        }
    }

    /// Whether its success would promise that data is durable.
    pub(crate) fn is_promise(&self) -> bool {
        matches!(self.0, Work::Sync { .. } | Work::Promise { .. } | Work::Write { is_durable: true, .. })
    }
}

#[derive(Debug)]
pub(crate) enum Work {
    Read {
        _claim: Claim,
    },
    Write {
        claim: Claim,
        is_durable: bool,
        /// Of one that the kernel makes durable.
        unrecorded: Option<Unrecorded>,
    },
    /// A durable write that found no space is repeated without being durable: if that succeeds, the space was
    /// missing for its sync.
    Repeat {
        _claim: Claim,
        raw_os_error: i32,
        unrecorded: Option<Unrecorded>,
    },
    Zero {
        zeroing: Zeroing,
        claim: Claim,
    },
    /// Waits until nobody else works on the range of its next step.
    Announced {
        zeroing: Zeroing,
        announcement: Announcement,
    },
    Sync {
        unrecorded: Unrecorded,
        turn: Option<SyncTurn>,
    },
    /// Has succeeded, unless an operation that overlapped it turns out to have failed.
    Promise {
        overlap: Overlap,
    },
    /// The size of a file that may hang is asked for: before this request starts, or after one that succeeded.
    Check {
        before: Option<Box<Request>>,
    },
}

/// The right to be the one sync of a file.
#[derive(Debug)]
pub(crate) struct SyncTurn(Arc<AtomicBool>);

impl SyncTurn {
    pub(crate) fn take(is_taken: &Arc<AtomicBool>) -> Option<SyncTurn> {
        let was_taken = is_taken.swap(true, Ordering::Acquire);
        (!was_taken).then(|| SyncTurn(Arc::clone(is_taken)))
    }
}

impl Drop for SyncTurn {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

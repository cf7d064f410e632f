//! Requests in progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::pending::Pending;
use super::{Outcome, Request};
use crate::file::health::{Overlap, Unrecorded};
use crate::file::range_lock::{Announcement, RangeLock};
use crate::file::zeroing::Zeroing;

/// A request in progress. Dropping it abandons the request and releases its locks.
#[derive(Debug)]
pub struct Task(pub(crate) TaskState);

impl Task {
    /// Whether the request may still change blocks.
    pub fn is_change(&self) -> bool {
        match &self.0 {
            TaskState::Write(_) | TaskState::Zero { .. } | TaskState::Announced { .. } => true,
            TaskState::Check { before } => before.as_ref().is_some_and(|request| request.is_change()),
            TaskState::Pending(pending) => pending.change,
            TaskState::Read { .. } | TaskState::Sync { .. } | TaskState::Promise { .. } => false,
        }
    }

    /// Returns the outcome of a pending request after its completion.
    ///
    /// # Panics
    /// If the task is not of a [`Step::Pending`](crate::Step::Pending).
    pub fn into_outcome(self) -> Outcome {
        match self.0 {
            TaskState::Pending(pending) => pending.into_outcome(),
            state => panic!("{state:?} is not pending"),
        }
    }

    /// Whether success would guarantee that data is durable.
    pub(crate) fn is_promise(&self) -> bool {
        matches!(
            self.0,
            TaskState::Sync { .. }
                | TaskState::Promise { .. }
                | TaskState::Write(WriteTask { durable: true, repeats: None, .. })
        )
    }
}

impl From<&Pending> for Task {
    fn from(pending: &Pending) -> Task {
        Task(TaskState::Pending(pending.share()))
    }
}

#[derive(Debug)]
pub(crate) enum TaskState {
    /// Completes outside of the driver.
    Pending(Pending),
    Read {
        _lock: RangeLock,
    },
    Write(WriteTask),
    Zero {
        zeroing: Zeroing,
        lock: RangeLock,
    },
    /// Waits for exclusive access to the range of its next step.
    Announced {
        zeroing: Zeroing,
        announcement: Announcement,
    },
    Sync {
        unrecorded: Unrecorded,
        turn: Option<SyncPermit>,
    },
    /// Succeeded unless an overlapping operation turns out to have failed.
    Promise {
        overlap: Overlap,
    },
    /// A query of the size of a file that can hang, before `before` starts or after a request that
    /// succeeded.
    Check {
        before: Option<Box<Request>>,
    },
}

/// A write in progress.
#[derive(Debug)]
pub(crate) struct WriteTask {
    pub(crate) lock: RangeLock,
    pub(crate) durable: bool,
    /// Set for writes that the kernel makes durable.
    pub(crate) unrecorded: Option<Unrecorded>,
    /// Error of a durable write that failed with ENOSPC, which this one repeats without durability: if that
    /// succeeds, the space was missing for its sync.
    pub(crate) repeats: Option<i32>,
}

/// Permission to run the only sync of a file.
#[derive(Debug)]
pub(crate) struct SyncPermit(Arc<AtomicBool>);

impl SyncPermit {
    pub(crate) fn take(taken: &Arc<AtomicBool>) -> Option<SyncPermit> {
        let was_taken = taken.swap(true, Ordering::Acquire);
        (!was_taken).then(|| SyncPermit(Arc::clone(taken)))
    }
}

impl Drop for SyncPermit {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

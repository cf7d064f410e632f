//! A request to a file in progress: what the driver keeps while the kernel works.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::claims::Claim;
use super::zeroing::Zeroing;

/// A request in progress. Dropping it unfinished lets go of what it claimed.
#[derive(Debug)]
pub struct Task(pub(crate) Work);

#[derive(Debug)]
pub(crate) enum Work {
    Read { _claim: Claim },
    Write { claim: Claim, is_durable: bool },
    Zero { zeroing: Zeroing, claim: Claim },
    Sync { _turn: Option<SyncTurn> },
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

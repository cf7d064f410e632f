//! What went wrong with a file for good, and what may just be going wrong, seen by all cores.
//!
//! A failed sync concerns all cores from the time of its failure, but each core learns the results of its
//! operations at a time of its own. So syncs and durable writes are registered here ([`Unrecorded`]) until
//! their results are noted, and a promise waits ([`Overlap`]) for those that were in flight with it.
//!
//! Invariants: what is noted here stays until the volume is opened anew; a promise is kept back while an
//! earlier failure may not have been noted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use rustix::io::Errno;

use super::in_flight::{Epoch, InFlight};
use crate::VolumeError;

/// The lasting condition of a file.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// What the first failed sync said; 0 while none failed.
    sync_error: AtomicI32,
    is_shrunk: AtomicBool,
    syncs: InFlight,
    durable_writes: InFlight,
}

/// What makes data durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Promise {
    /// A sync: for everything that completed before it.
    Sync,
    /// A durable write: for its own data.
    DurableWrite,
}

/// A sync or durable write whose result is not noted yet. One that is dropped without a result counts as a
/// failed sync: nobody knows how it ended.
#[derive(Debug)]
pub(crate) struct Unrecorded {
    health: Arc<Health>,
    promise: Promise,
    epoch: Epoch,
    is_recorded: bool,
}

/// What overlapped an operation: the syncs, and for a sync also the durable writes, that were in flight when it
/// ended.
///
/// A durable write does not wait for other durable writes: each has synced its own data.
#[derive(Debug)]
pub(crate) struct Overlap {
    syncs: Epoch,
    durable_writes: Option<Epoch>,
}

impl Unrecorded {
    pub(crate) fn new(health: &Arc<Health>, promise: Promise) -> Unrecorded {
        let epoch = health.in_flight(promise).enter();
        Unrecorded { health: Arc::clone(health), promise, epoch, is_recorded: false }
    }

    /// The result is noted. Returns what its promise waits for.
    pub(crate) fn record(mut self) -> Overlap {
        self.is_recorded = true;
        let Health { syncs, durable_writes, .. } = &*self.health;
        let durable_writes = (self.promise == Promise::Sync).then(|| durable_writes.now());
        Overlap { syncs: syncs.now(), durable_writes }
    }
}

impl Drop for Unrecorded {
    fn drop(&mut self) {
        if !self.is_recorded {
            // An earlier error is kept.
            let _ = self.health.set_sync_error(Errno::IO.raw_os_error());
        }
        self.health.in_flight(self.promise).leave(self.epoch);
    }
}

impl Health {
    /// Whether the results of all operations of an overlap are noted.
    pub(crate) fn has_passed(&self, overlap: &Overlap) -> bool {
        self.syncs.is_empty_up_to(overlap.syncs)
            && overlap.durable_writes.is_none_or(|epoch| self.durable_writes.is_empty_up_to(epoch))
    }

    fn in_flight(&self, promise: Promise) -> &InFlight {
        match promise {
            Promise::Sync => &self.syncs,
            Promise::DurableWrite => &self.durable_writes,
        }
    }

    /// Keeps the first error; returns an earlier one.
    fn set_sync_error(&self, raw_os_error: i32) -> Result<(), i32> {
        let first = self.sync_error.compare_exchange(0, raw_os_error, Ordering::AcqRel, Ordering::Acquire);
        first.map(drop)
    }

    /// Whether anything may still be written or promised.
    pub(crate) fn check(&self) -> Result<(), VolumeError> {
        match self.sync_error.load(Ordering::Acquire) {
            0 => self.check_read(),
            raw_os_error => Err(VolumeError::SyncFailed { raw_os_error }),
        }
    }

    /// Whether anything may still be read. A truncated file may have grown again, with zeroes where data was;
    /// after a failed sync everything that was written is still read.
    pub(crate) fn check_read(&self) -> Result<(), VolumeError> {
        if self.is_shrunk.load(Ordering::Acquire) { Err(VolumeError::Shrunk) } else { Ok(()) }
    }

    /// A sync failed.
    pub(crate) fn note_sync_failure(&self, name: &str, raw_os_error: i32) -> VolumeError {
        let first = self.set_sync_error(raw_os_error);
        let error = VolumeError::SyncFailed { raw_os_error: first.err().unwrap_or(raw_os_error) };
        if first.is_ok() {
            log::error!("{name}: {error}");
        }
        error
    }

    /// The file ends before the volume does.
    pub(crate) fn note_shrunk(&self, name: &str) -> VolumeError {
        let error = VolumeError::Shrunk;
        if !self.is_shrunk.swap(true, Ordering::AcqRel) {
            log::error!("{name}: {error}");
        }
        error
    }
}

/// What an error of a read means.
pub(crate) fn read_error(raw_os_error: i32) -> VolumeError {
    VolumeError::ReadFailed { raw_os_error }
}

/// What an error of a write means.
pub(crate) fn write_error(raw_os_error: i32) -> VolumeError {
    if is_out_of_space(raw_os_error) {
        VolumeError::NoSpace { raw_os_error }
    } else {
        VolumeError::WriteFailed { raw_os_error }
    }
}

/// Whether space was missing. If it was missing for a write, that loses nothing that was written before.
pub(crate) fn is_out_of_space(raw_os_error: i32) -> bool {
    [Errno::NOSPC, Errno::DQUOT, Errno::FBIG].iter().any(|errno| errno.raw_os_error() == raw_os_error)
}

/// Whether the operation may simply be given to the kernel again.
pub(crate) fn is_interrupted(raw_os_error: i32) -> bool {
    [Errno::INTR, Errno::AGAIN].iter().any(|errno| errno.raw_os_error() == raw_os_error)
}

/// Whether the file cannot do this kind of operation at all.
pub(crate) fn is_unsupported(raw_os_error: i32) -> bool {
    let kinds = [Errno::OPNOTSUPP, Errno::NOSYS, Errno::NOTTY, Errno::INVAL, Errno::NODEV];
    kinds.iter().any(|errno| errno.raw_os_error() == raw_os_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sync_failure_is_kept_for_good() {
        let health = Health::default();
        assert_eq!(health.check(), Ok(()));
        health.note_shrunk("disk");
        assert_eq!(health.check(), Err(VolumeError::Shrunk));
        health.note_sync_failure("disk", 5);
        assert_eq!(health.note_sync_failure("disk", 28), VolumeError::SyncFailed { raw_os_error: 5 });
        assert_eq!(health.check(), Err(VolumeError::SyncFailed { raw_os_error: 5 }));
    }

    #[test]
    fn no_space_is_told_apart_from_a_fault() {
        assert_eq!(write_error(28), VolumeError::NoSpace { raw_os_error: 28 });
        assert_eq!(write_error(5), VolumeError::WriteFailed { raw_os_error: 5 });
        assert!(is_interrupted(4) && is_unsupported(95) && !is_unsupported(5));
    }
}

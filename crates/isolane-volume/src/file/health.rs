//! Permanent errors of a file and results not yet known, shared by all cores.
//!
//! A failed sync affects all cores from the time of its failure, but each core learns the results of its
//! operations at a different time. So syncs and durable writes are registered here ([`Unrecorded`]) until
//! their results are recorded, and a durable completion waits ([`Overlap`]) for the operations that were in
//! flight at the same time.
//!
//! Invariants: a recorded error stays until the volume is reopened; a durable completion is delayed while an
//! earlier failure may be unrecorded.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use rustix::io::Errno;

use super::in_flight::{Epoch, InFlight};
use crate::VolumeError;

/// Permanent state of a file.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// OS error of the first failed sync; 0 if none.
    sync_error: AtomicI32,
    shrunk: AtomicBool,
    /// OS error of the first operation that did not find the device; 0 if none.
    gone_error: AtomicI32,
    syncs: InFlight,
    durable_writes: InFlight,
}

/// Operation that makes data durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Promise {
    /// A sync, for all writes completed before it.
    Sync,
    /// A durable write, for its own data.
    DurableWrite,
}

/// A sync or durable write without a recorded result. Dropping it counts as a failed sync, because
/// its result is unknown.
#[derive(Debug)]
pub(crate) struct Unrecorded {
    health: Arc<Health>,
    promise: Promise,
    epoch: Epoch,
    recorded: bool,
}

/// Operations that overlapped another one: the syncs, and for a sync also the durable writes, in
/// flight when it ended.
///
/// A durable write does not wait for other durable writes: each syncs its own data.
#[derive(Debug)]
pub(crate) struct Overlap {
    syncs: Epoch,
    durable_writes: Option<Epoch>,
}

impl Unrecorded {
    pub(crate) fn new(health: &Arc<Health>, promise: Promise) -> Unrecorded {
        let epoch = health.in_flight(promise).enter();
        Unrecorded { health: Arc::clone(health), promise, epoch, recorded: false }
    }

    /// Records the result. Returns the operations that a durable completion must wait for.
    pub(crate) fn record(mut self) -> Overlap {
        self.recorded = true;
        let Health { syncs, durable_writes, .. } = &*self.health;
        let durable_writes = (self.promise == Promise::Sync).then(|| durable_writes.now());
        Overlap { syncs: syncs.now(), durable_writes }
    }
}

impl Drop for Unrecorded {
    fn drop(&mut self) {
        if !self.recorded {
            // Keeps an earlier error.
            let _ = self.health.set_sync_error(Errno::IO.raw_os_error());
        }
        self.health.in_flight(self.promise).leave(self.epoch);
    }
}

impl Health {
    /// Whether the results of all overlapping operations are recorded.
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

    /// Sets the first error; returns an earlier one.
    fn set_sync_error(&self, raw_os_error: i32) -> Result<(), i32> {
        let first = self.sync_error.compare_exchange(0, raw_os_error, Ordering::AcqRel, Ordering::Acquire);
        first.map(drop)
    }

    /// Checks that writes and durable completions are allowed.
    pub(crate) fn check(&self) -> Result<(), VolumeError> {
        self.check_sync().and_then(|()| self.check_presence())
    }

    /// Checks that reads are allowed. After a failed sync, the page cache may show what the disk does not have; a direct
    /// read shows what it has.
    pub(crate) fn check_read(&self, is_direct: bool) -> Result<(), VolumeError> {
        if is_direct { self.check_presence() } else { self.check() }
    }

    fn check_sync(&self) -> Result<(), VolumeError> {
        match self.sync_error.load(Ordering::Acquire) {
            0 => Ok(()),
            raw_os_error => Err(VolumeError::SyncFailed { raw_os_error }),
        }
    }

    /// A truncated file may have grown again, with zeroes in place of data.
    fn check_presence(&self) -> Result<(), VolumeError> {
        match self.gone_error.load(Ordering::Acquire) {
            0 if self.shrunk.load(Ordering::Acquire) => Err(VolumeError::Shrunk),
            0 => Ok(()),
            raw_os_error => Err(VolumeError::Gone { raw_os_error }),
        }
    }

    /// Records that the device is gone.
    pub(crate) fn record_gone(&self, name: &str, raw_os_error: i32) -> VolumeError {
        let error = VolumeError::Gone { raw_os_error };
        if self.gone_error.swap(raw_os_error, Ordering::AcqRel) == 0 {
            log::error!("{name}: {error}");
        }
        error
    }

    /// Records a failed sync.
    pub(crate) fn record_sync_failure(&self, name: &str, raw_os_error: i32) -> VolumeError {
        let first = self.set_sync_error(raw_os_error);
        let error = VolumeError::SyncFailed { raw_os_error: first.err().unwrap_or(raw_os_error) };
        if first.is_ok() {
            log::error!("{name}: {error}");
        }
        error
    }

    /// Records that the file is smaller than the volume.
    pub(crate) fn record_shrunk(&self, name: &str) -> VolumeError {
        let error = VolumeError::Shrunk;
        if !self.shrunk.swap(true, Ordering::AcqRel) {
            log::error!("{name}: {error}");
        }
        error
    }
}

/// Converts the error of a write.
pub(crate) fn write_error(raw_os_error: i32) -> VolumeError {
    if is_out_of_space(raw_os_error) {
        VolumeError::NoSpace { raw_os_error }
    } else {
        VolumeError::WriteFailed { raw_os_error }
    }
}

/// Whether the error means that the device does not exist any more.
pub(crate) fn is_gone(raw_os_error: i32) -> bool {
    [Errno::NODEV, Errno::NXIO].iter().any(|errno| errno.raw_os_error() == raw_os_error)
}

/// Whether the error means lack of space. In a write, that loses no earlier data.
pub(crate) fn is_out_of_space(raw_os_error: i32) -> bool {
    [Errno::NOSPC, Errno::DQUOT, Errno::FBIG].iter().any(|errno| errno.raw_os_error() == raw_os_error)
}

/// Whether the operation may be repeated.
pub(crate) fn is_interrupted(raw_os_error: i32) -> bool {
    [Errno::INTR, Errno::AGAIN].iter().any(|errno| errno.raw_os_error() == raw_os_error)
}

/// Whether the file does not support this kind of operation.
pub(crate) fn is_unsupported(raw_os_error: i32) -> bool {
    let kinds = [Errno::OPNOTSUPP, Errno::NOSYS, Errno::NOTTY, Errno::INVAL, Errno::NODEV];
    kinds.iter().any(|errno| errno.raw_os_error() == raw_os_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_sync_failure_is_permanent() {
        let health = Health::default();
        assert_eq!(health.check(), Ok(()));
        health.record_shrunk("disk");
        assert_eq!(health.check(), Err(VolumeError::Shrunk));
        health.record_sync_failure("disk", 5);
        assert_eq!(health.record_sync_failure("disk", 28), VolumeError::SyncFailed { raw_os_error: 5 });
        assert_eq!(health.check(), Err(VolumeError::SyncFailed { raw_os_error: 5 }));
        assert_eq!(health.check_read(true), Err(VolumeError::Shrunk));
        assert_eq!(health.check_read(false), Err(VolumeError::SyncFailed { raw_os_error: 5 }));
        let gone = VolumeError::Gone { raw_os_error: 6 };
        assert_eq!((health.record_gone("disk", 6), health.check_read(true)), (gone.clone(), Err(gone)));
    }

    #[test]
    fn enospc_is_not_a_write_fault() {
        assert_eq!(write_error(28), VolumeError::NoSpace { raw_os_error: 28 });
        assert_eq!(write_error(5), VolumeError::WriteFailed { raw_os_error: 5 });
        assert!(is_interrupted(4) && is_unsupported(95) && !is_unsupported(5));
    }
}

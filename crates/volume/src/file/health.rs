//! What went wrong with a file for good, seen by all cores.
//!
//! Invariant: what is noted here stays until the volume is opened anew.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use rustix::io::Errno;

use crate::VolumeError;

/// The lasting condition of a file.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// What the first failed sync said; 0 while none failed.
    sync_error: AtomicI32,
    is_shrunk: AtomicBool,
}

impl Health {
    /// Whether anything may still be written or promised.
    pub(crate) fn check(&self) -> Result<(), VolumeError> {
        match self.sync_error.load(Ordering::Acquire) {
            0 if self.is_shrunk.load(Ordering::Acquire) => Err(VolumeError::Shrunk),
            0 => Ok(()),
            raw_os_error => Err(VolumeError::SyncFailed { raw_os_error }),
        }
    }

    /// A sync failed.
    pub(crate) fn note_sync_failure(&self, name: &str, raw_os_error: i32) -> VolumeError {
        let first = self.sync_error.compare_exchange(0, raw_os_error, Ordering::AcqRel, Ordering::Acquire);
        let error =
            VolumeError::SyncFailed { raw_os_error: first.map_or_else(|earlier| earlier, |_| raw_os_error) };
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

/// Whether the write was refused for want of space, which loses nothing that was written before.
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

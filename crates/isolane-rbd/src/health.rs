//! Health and progress of one image.
//!
//! Invariant: a lost lock is permanent until the volume is reopened.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use isolane_volume::VolumeError;

use crate::ffi::Errno;

/// State of an image, shared by all cores.
pub(crate) struct Health {
    /// Error of the first request after the lock was lost; 0 if none.
    lost: AtomicI32,
    /// Whether the loss is in the log.
    is_reported: AtomicBool,
    /// Size in bytes that is served, and the present one.
    served: AtomicU64,
    present: AtomicU64,
    started: AtomicU64,
    started_changes: AtomicU64,
    finished: AtomicU64,
    finished_changes: AtomicU64,
}

/// Progress of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Number of requests that have completed.
    pub finished: u64,
    /// Whether there are others.
    pub is_busy: bool,
    /// Whether changes are among them.
    pub is_changing: bool,
}

impl Health {
    pub fn new(bytes: u64) -> Health {
        Health {
            lost: AtomicI32::new(0),
            is_reported: AtomicBool::new(false),
            served: AtomicU64::new(bytes),
            present: AtomicU64::new(bytes),
            started: AtomicU64::new(0),
            started_changes: AtomicU64::new(0),
            finished: AtomicU64::new(0),
            finished_changes: AtomicU64::new(0),
        }
    }

    pub fn on_start(&self, is_change: bool) {
        self.started.fetch_add(1, Ordering::Relaxed);
        self.started_changes.fetch_add(u64::from(is_change), Ordering::Relaxed);
    }

    pub fn on_finish(&self, is_change: bool) {
        self.finished_changes.fetch_add(u64::from(is_change), Ordering::Relaxed);
        self.finished.fetch_add(1, Ordering::Relaxed);
    }

    pub fn progress(&self) -> Progress {
        let finished = self.finished.load(Ordering::Relaxed);
        let finished_changes = self.finished_changes.load(Ordering::Relaxed);
        Progress {
            finished,
            is_busy: self.started.load(Ordering::Relaxed) > finished,
            is_changing: self.started_changes.load(Ordering::Relaxed) > finished_changes,
        }
    }

    /// Checks that a request that ends at this byte can start.
    pub fn check(&self, is_promise: bool, end: u64) -> Result<(), VolumeError> {
        match self.lost.load(Ordering::Acquire) {
            0 => {}
            raw_os_error if is_promise => return Err(VolumeError::SyncFailed { raw_os_error }),
            _ => {}
        }
        if end > self.present.load(Ordering::Relaxed) { Err(VolumeError::Shrunk) } else { Ok(()) }
    }

    /// Records that the lock of the image is lost.
    pub fn lose(&self, Errno(raw_os_error): Errno) {
        // Keeps the first error.
        let _ = self.lost.compare_exchange(0, raw_os_error, Ordering::AcqRel, Ordering::Acquire);
    }

    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire) != 0
    }

    /// Returns `true` once after the lock was lost.
    pub fn take_unreported_loss(&self) -> bool {
        self.is_lost() && !self.is_reported.swap(true, Ordering::Relaxed)
    }

    /// Records the size of the image. Returns the previous one if it was different.
    pub fn resize(&self, bytes: u64) -> Option<u64> {
        Some(self.present.swap(bytes, Ordering::Relaxed)).filter(|previous| *previous != bytes)
    }

    /// Returns the size that is served and the present one.
    pub fn sizes(&self) -> (u64, u64) {
        (self.served.load(Ordering::Relaxed), self.present.load(Ordering::Relaxed))
    }

    /// Serves this size.
    pub fn serve(&self, bytes: u64) {
        self.served.store(bytes, Ordering::Relaxed);
    }

    /// Converts the error of a request.
    pub fn error(&self, Errno(raw_os_error): Errno, is_change: bool) -> VolumeError {
        // librbd returns EROFS if it cannot take the lock again.
        if raw_os_error == libc::ESHUTDOWN || (is_change && raw_os_error == libc::EROFS) {
            self.lose(Errno(raw_os_error));
        }
        match raw_os_error {
            _ if self.is_lost() && is_change => VolumeError::SyncFailed { raw_os_error },
            _ if !is_change => VolumeError::ReadFailed { raw_os_error },
            libc::ENOSPC | libc::EDQUOT => VolumeError::NoSpace { raw_os_error },
            _ => VolumeError::WriteFailed { raw_os_error },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_lock_fails_changes_until_reopened() {
        let health = Health::new(4096);
        assert_eq!(health.check(true, 4096), Ok(()));
        assert_eq!(health.error(Errno(5), true), VolumeError::WriteFailed { raw_os_error: 5 });
        assert!(!health.take_unreported_loss());
        assert_eq!(health.error(Errno(108), true), VolumeError::SyncFailed { raw_os_error: 108 });
        assert_eq!(health.check(true, 0), Err(VolumeError::SyncFailed { raw_os_error: 108 }));
        assert_eq!(health.check(false, 4096), Ok(()));
        assert!(health.take_unreported_loss() && !health.take_unreported_loss());
    }

    #[test]
    fn blocklisted_read_reports_loss() {
        let health = Health::new(4096);
        assert_eq!(health.error(Errno(108), false), VolumeError::ReadFailed { raw_os_error: 108 });
        assert!(health.is_lost());
    }

    #[test]
    fn shrunk_image_rejects_missing_blocks() {
        let health = Health::new(8192);
        assert_eq!((health.resize(8192), health.resize(4096)), (None, Some(8192)));
        assert_eq!(health.check(false, 4096), Ok(()));
        assert_eq!(health.check(false, 8192), Err(VolumeError::Shrunk));
    }

    #[test]
    fn counts_requests() {
        let health = Health::new(0);
        health.on_start(false);
        health.on_start(true);
        health.on_finish(false);
        assert_eq!(health.progress(), Progress { finished: 1, is_busy: true, is_changing: true });
        health.on_finish(true);
        assert_eq!(health.progress(), Progress { finished: 2, is_busy: false, is_changing: false });
    }
}

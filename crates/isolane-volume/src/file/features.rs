//! Range operations supported by a file or device.
//!
//! Invariant: an operation found unsupported is not tried again while the volume is open.

use std::sync::atomic::{AtomicU8, Ordering};

use isolane_reactor::file::FileOpKind;

/// Set of range operations worth trying. Unsupported ones are removed on failure.
#[derive(Debug)]
pub struct Features(AtomicU8);

impl Features {
    /// Returns the empty set.
    pub fn none() -> Features {
        Features(AtomicU8::new(0))
    }

    /// Returns the operations that a regular file may support.
    pub fn file() -> Features {
        Features(AtomicU8::new(bit(FileOpKind::PunchHole) | bit(FileOpKind::ZeroRange)))
    }

    /// Returns the operations that a block device may support.
    pub fn device() -> Features {
        let device_kinds = bit(FileOpKind::DeviceZero) | bit(FileOpKind::DeviceDiscard);
        Features(AtomicU8::new(bit(FileOpKind::PunchHole) | bit(FileOpKind::ZeroRange) | device_kinds))
    }

    /// Whether this kind of operation is worth trying.
    pub fn has(&self, kind: FileOpKind) -> bool {
        self.0.load(Ordering::Relaxed) & bit(kind) != 0
    }

    /// Removes an unsupported operation.
    pub fn disable(&self, kind: FileOpKind) {
        self.0.fetch_and(!bit(kind), Ordering::Relaxed);
    }
}

fn bit(kind: FileOpKind) -> u8 {
    match kind {
        FileOpKind::PunchHole => 1,
        FileOpKind::ZeroRange => 2,
        FileOpKind::DeviceZero => 4,
        FileOpKind::DeviceDiscard => 8,
        FileOpKind::Read | FileOpKind::Write { .. } | FileOpKind::Sync | FileOpKind::Size => 0,
    }
}

//! What a file or device can do to a range of itself besides being written.
//!
//! Invariant: what turned out to be impossible is not tried again while the volume is open.

use std::sync::atomic::{AtomicU8, Ordering};

use isolane_reactor::file::Kind;

/// What a file can do to a range besides being written. What it turns out to be unable to do is struck out.
#[derive(Debug)]
pub struct Abilities(AtomicU8);

impl Abilities {
    /// Nothing but writing.
    pub fn none() -> Abilities {
        Abilities(AtomicU8::new(0))
    }

    /// What a regular file may be able to do.
    pub fn file() -> Abilities {
        Abilities(AtomicU8::new(bit(Kind::PunchHole) | bit(Kind::ZeroRange)))
    }

    /// What a block device may be able to do.
    pub fn device() -> Abilities {
        let device_kinds = bit(Kind::DeviceZero) | bit(Kind::DeviceDiscard);
        Abilities(AtomicU8::new(bit(Kind::PunchHole) | bit(Kind::ZeroRange) | device_kinds))
    }

    /// Whether this kind of operation is worth trying.
    pub fn has(&self, kind: Kind) -> bool {
        self.0.load(Ordering::Relaxed) & bit(kind) != 0
    }

    /// This kind of operation failed for good.
    pub fn strike(&self, kind: Kind) {
        self.0.fetch_and(!bit(kind), Ordering::Relaxed);
    }
}

fn bit(kind: Kind) -> u8 {
    match kind {
        Kind::PunchHole => 1,
        Kind::ZeroRange => 2,
        Kind::DeviceZero => 4,
        Kind::DeviceDiscard => 8,
        Kind::Read | Kind::Write { .. } | Kind::Sync | Kind::Size => 0,
    }
}

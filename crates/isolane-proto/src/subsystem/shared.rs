//! The few words that the cores of one association share.
//!
//! What it is: atomics that an I/O queue reads on every command (`ControllerStatus`) or writes alone
//! (`IoCounters`). What it is not: a place for anything that needs two of them to agree. Invariant: no I/O
//! writes a word that another core writes, except the first command after a keep-alive turn.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};

/// What every queue of an association must know of its controller.
#[derive(Debug, Default)]
pub struct ControllerStatus {
    ready: AtomicBool,
    ended: AtomicBool,
    had_traffic: AtomicBool,
    write_cache: AtomicBool,
}

impl ControllerStatus {
    pub(super) fn new(write_cache: bool) -> ControllerStatus {
        ControllerStatus { write_cache: AtomicBool::new(write_cache), ..ControllerStatus::default() }
    }

    /// Whether I/O commands are taken (CSTS.RDY is 1, no shutdown, no fatal status).
    pub fn is_ready(&self) -> bool {
        self.ready.load(Acquire)
    }

    /// Whether the association is over. What still comes on its connections gets no answer: an error that is
    /// answered is one that a host reports, silence one that it repeats.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }

    /// Whether a write without FUA may complete before it is durable (feature 06h). If not, every write,
    /// Write Zeroes and Deallocate is to be made durable before its completion.
    pub fn is_write_cache_enabled(&self) -> bool {
        self.write_cache.load(Relaxed)
    }

    /// A command came in on any queue: the keep-alive timer counts it (TBKAS).
    pub fn record_traffic(&self) {
        if !self.had_traffic.load(Relaxed) {
            self.had_traffic.store(true, Relaxed);
        }
    }

    pub(super) fn take_traffic(&self) -> bool {
        self.had_traffic.swap(false, Relaxed)
    }

    pub(super) fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Release);
    }

    pub(super) fn set_ended(&self) {
        self.ended.store(true, Relaxed);
    }

    pub(super) fn set_write_cache(&self, enabled: bool) {
        self.write_cache.store(enabled, Relaxed);
    }
}

/// What one I/O queue has done, for the SMART log. Written by the core that owns the queue and by no other.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct IoCounters {
    reads: AtomicU64,
    bytes_read: AtomicU64,
    writes: AtomicU64,
    bytes_written: AtomicU64,
}

impl IoCounters {
    /// A Read has completed.
    pub fn record_read(&self, bytes: u64) {
        add(&self.reads, 1);
        add(&self.bytes_read, bytes);
    }

    /// A Write has completed.
    pub fn record_write(&self, bytes: u64) {
        add(&self.writes, 1);
        add(&self.bytes_written, bytes);
    }

    pub(super) fn totals(&self) -> IoTotals {
        IoTotals {
            reads: self.reads.load(Relaxed),
            bytes_read: self.bytes_read.load(Relaxed),
            writes: self.writes.load(Relaxed),
            bytes_written: self.bytes_written.load(Relaxed),
        }
    }
}

/// Sums of [`IoCounters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoTotals {
    /// Completed Reads.
    pub reads: u64,
    /// Bytes they returned.
    pub bytes_read: u64,
    /// Completed Writes.
    pub writes: u64,
    /// Bytes they took.
    pub bytes_written: u64,
}

impl std::ops::AddAssign for IoTotals {
    fn add_assign(&mut self, more: IoTotals) {
        self.reads = self.reads.wrapping_add(more.reads);
        self.bytes_read = self.bytes_read.wrapping_add(more.bytes_read);
        self.writes = self.writes.wrapping_add(more.writes);
        self.bytes_written = self.bytes_written.wrapping_add(more.bytes_written);
    }
}

/// A load and a store: the only writer is the owner of the queue, so no locked instruction is needed.
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(more), Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_is_seen_once_and_then_forgotten() {
        let status = ControllerStatus::default();
        assert!(!status.take_traffic());
        status.record_traffic();
        status.record_traffic();
        assert!(status.take_traffic());
        assert!(!status.take_traffic());
    }

    #[test]
    fn counters_of_queues_add_up() {
        let (one, two) = (IoCounters::default(), IoCounters::default());
        one.record_read(4096);
        two.record_read(512);
        two.record_write(1024);
        let mut totals = one.totals();
        totals += two.totals();
        assert_eq!(totals, IoTotals { reads: 2, bytes_read: 4608, writes: 1, bytes_written: 1024 });
    }
}

//! Atomics that the cores of one association share.
//!
//! An I/O queue reads `ControllerStatus` on every command, and is the only writer of its
//! `IoCounters`. The atomics are independent of each other.
//!
//! Invariant: no I/O writes a word that another core writes, except the first command after a
//! keep-alive check.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};

/// State of a controller that all of its queues read.
#[derive(Debug, Default)]
pub struct ControllerStatus {
    ready: AtomicBool,
    ended: AtomicBool,
    had_traffic: AtomicBool,
    write_cache: AtomicBool,
    retry_delays: AtomicBool,
}

impl ControllerStatus {
    pub(super) fn new(write_cache: bool) -> ControllerStatus {
        ControllerStatus { write_cache: AtomicBool::new(write_cache), ..ControllerStatus::default() }
    }

    /// Whether I/O commands are accepted (CSTS.RDY is 1, no shutdown, no fatal status).
    pub fn is_ready(&self) -> bool {
        self.ready.load(Acquire)
    }

    /// Whether the association has ended. Later commands get no completion: a host reports an error
    /// completion, but repeats a command without completion.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }

    /// Whether a write without FUA can complete before it is durable (feature 06h). Otherwise,
    /// every Write, Write Zeroes, and Deallocate must be durable before its completion.
    pub fn is_write_cache_enabled(&self) -> bool {
        self.write_cache.load(Relaxed)
    }

    /// Records a command on any queue for the keep-alive timer (TBKAS).
    pub fn record_traffic(&self) {
        if !self.had_traffic.load(Relaxed) {
            self.had_traffic.store(true, Relaxed);
        }
    }

    pub(super) fn had_traffic(&self) -> bool {
        self.had_traffic.load(Relaxed)
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

    /// Whether the host waits before a retry as a status tells it (ACRE of feature 16h).
    pub fn has_retry_delays(&self) -> bool {
        self.retry_delays.load(Relaxed)
    }

    pub(super) fn set_retry_delays(&self, enabled: bool) {
        self.retry_delays.store(enabled, Relaxed);
    }

    pub(super) fn set_write_cache(&self, enabled: bool) {
        self.write_cache.store(enabled, Relaxed);
    }
}

/// Counters of one I/O queue for the SMART log. Only the core that owns the queue writes them.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct IoCounters {
    reads: AtomicU64,
    bytes_read: AtomicU64,
    writes: AtomicU64,
    bytes_written: AtomicU64,
}

impl IoCounters {
    /// Records a completed Read.
    pub fn record_read(&self, bytes: u64) {
        add(&self.reads, 1);
        add(&self.bytes_read, bytes);
    }

    /// Records a completed Write.
    pub fn record_write(&self, bytes: u64) {
        add(&self.writes, 1);
        add(&self.bytes_written, bytes);
    }

    /// Counters that continue from these totals.
    pub(super) fn from_totals(totals: IoTotals) -> IoCounters {
        IoCounters {
            reads: AtomicU64::new(totals.reads),
            bytes_read: AtomicU64::new(totals.bytes_read),
            writes: AtomicU64::new(totals.writes),
            bytes_written: AtomicU64::new(totals.bytes_written),
        }
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
    /// Returned bytes.
    pub bytes_read: u64,
    /// Completed Writes.
    pub writes: u64,
    /// Stored bytes.
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

/// Adds without a locked instruction, because the owner of the queue is the only writer.
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(more), Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_is_reported_once() {
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

//! Times of interrupt handlers, tasks, and disk requests, from trace events of the kernel.

use serde::{Deserialize, Serialize};

use super::units::{show_count, show_ns, show_percent};

/// Least part of the time that a handler or task takes to be named.
pub(super) const MIN_PART: f64 = 0.005;
/// Times of [`Measured::not_seen`].
pub const HANDLERS: &str = "time inside interrupt handlers";
/// Times of [`Measured::not_seen`].
pub const TASKS: &str = "tasks that ran on the cores";
/// Times of [`Measured::not_seen`].
pub const REQUESTS: &str = "times of disk requests";

/// Times of a few seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Measured {
    /// Length of the measurement, in seconds; 0 if it was not possible.
    pub seconds: f64,
    /// Interrupt handlers, those with the most time first.
    pub handlers: Vec<Handler>,
    /// Tasks on the cores of the program, with the longest delays first.
    pub tasks: Vec<RanTask>,
    /// Requests of disks, those with the most time first.
    pub disks: Vec<Requests>,
    /// Events that the kernel or this program dropped.
    pub lost_events: u64,
    /// Times that could not be measured, with the requirement for each.
    pub not_seen: Vec<(String, String)>,
}

impl Measured {
    pub(super) fn lacks(&self, what: &str) -> bool {
        self.not_seen.iter().any(|missing| missing.0 == what)
    }
}

/// Times of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// Number of times.
    pub count: u64,
    /// Sum, in nanoseconds.
    pub sum_ns: u64,
    /// Longest time, in nanoseconds.
    pub max_ns: u64,
}

impl Times {
    /// Adds a time.
    pub fn add(&mut self, ns: u64) {
        self.count = self.count.saturating_add(1);
        self.sum_ns = self.sum_ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    pub(super) fn mean_ns(&self) -> f64 {
        self.sum_ns as f64 / self.count.max(1) as f64
    }

    pub(super) fn part_of(&self, seconds: f64) -> f64 {
        self.sum_ns as f64 / (seconds * 1e9).max(1.0)
    }

    pub(super) fn is_long(&self, seconds: f64) -> bool {
        self.part_of(seconds) >= MIN_PART
    }

    pub(super) fn show(&self, seconds: f64) -> String {
        format!(
            "{} of the time ({} x {}, at most {})",
            show_percent(self.part_of(seconds)),
            show_count(self.count),
            show_ns(self.mean_ns()),
            show_ns(self.max_ns as f64),
        )
    }
}

/// An interrupt handler on one core.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handler {
    /// Number of the line.
    pub line: u32,
    /// Name of the handler.
    pub name: String,
    /// Core.
    pub cpu: u32,
    /// Its times.
    pub times: Times,
}

/// A task on one core.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RanTask {
    /// Thread ID.
    pub thread: u32,
    /// Process ID; none if the thread has ended.
    pub process: Option<u32>,
    /// Name of the thread.
    pub name: String,
    /// Core.
    pub cpu: u32,
    /// All of its times on the core.
    pub times: Times,
    /// The parts of them in which a thread of the program was ready to run on that core.
    pub delayed: Times,
}

/// Requests of one disk, from issue to completion.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    /// Name, or its number: `8:0`.
    pub disk: String,
    /// Their times.
    pub times: Times,
    /// Threads that issued them, those with the most requests first.
    pub issuers: Vec<Issuer>,
}

/// A thread that issues requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Issuer {
    /// Thread ID.
    pub thread: u32,
    /// Process ID; none if the thread has ended.
    pub process: Option<u32>,
    /// Name of the thread.
    pub name: String,
    /// Number of requests.
    pub requests: u64,
}

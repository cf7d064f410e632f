//! The verdict as a document.

use serde::{Deserialize, Serialize};

use super::times::Measured;
use crate::stage::{Operation, Stage};

/// Version of the document.
pub const VERSION: u32 = 1;

/// The answer to the question of what causes the tail.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Verdict {
    /// [`VERSION`].
    pub version: u32,
    /// Length of the window, in seconds.
    pub window_s: f64,
    /// Operations in the window.
    pub operations: u64,
    /// Volumes with operations in the window.
    pub volumes: u64,
    /// Groups of streams, each of one session and core of an engine, with operations in the window.
    pub streams: u64,
    /// Queue pairs of verbs with operations in the window.
    #[serde(skip_serializing_if = "is_zero")]
    pub queue_pairs: u64,
    /// The slow operations.
    pub tail: Tail,
    /// Causes with at least a tenth of the lost time, the largest first.
    pub findings: Vec<Finding>,
    /// Causes that the numbers rule out.
    pub cleared: Vec<Cleared>,
    /// Data that was not available.
    pub not_seen: Vec<NotSeen>,
    /// Sampled acknowledgments of the hosts with the highest p99, the highest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<PeerTimes>,
    /// Times of trace events, if they were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
}

/// Operations beyond a quantile.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tail {
    /// The quantile, from 0 to 1.
    pub quantile: f64,
    /// The quantile that the user requested. It is higher if too few operations are beyond it.
    pub requested_quantile: f64,
    /// Number of operations.
    pub operations: u64,
    /// Shortest of them, in microseconds.
    pub us: f64,
    /// Median of all operations, in microseconds.
    pub median_us: f64,
    /// Time that the operations lost, in microseconds: the part above the median of each stage.
    pub lost_us: f64,
}

/// Upper bounds of the stage `peer` of a host: from the kernel has accepted a send until the host has acknowledged it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerTimes {
    /// NQN, or the address of a host without one.
    pub host: String,
    /// Sampled sends.
    pub sends: u64,
    /// Median, in microseconds.
    pub p50_us: f64,
    /// 99th percentile, in microseconds.
    pub p99_us: f64,
}

/// A cause of slow operations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Kind of the cause.
    pub kind: Kind,
    /// The volume, device, core, connection, or host.
    pub name: String,
    /// Stage that lost most of the time.
    pub stage: Option<Stage>,
    /// Operation, if only one is affected.
    pub operation: Option<Operation>,
    /// Cause in one word, such as `process` or `rwnd`, or the filter that injects the delay.
    pub cause: Option<String>,
    /// Part of the time that the tail lost, from 0 to 1.
    pub share: f64,
    /// Start, as in RFC 3339; none if it began before the recorded steps.
    pub since: Option<String>,
    /// Facts for this cause.
    pub evidence: Vec<Evidence>,
    /// Others that use the same device, core, or line.
    #[serde(rename = "neighbours")]
    pub neighbors: Vec<Neighbor>,
    /// Next step.
    pub remedy: String,
}

/// Kind of a cause: a closed list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Slower than its peers, or than its own past.
    Device,
    /// All members of a group became slower at the same time.
    Common,
    /// Gets more work than its peers, and is not slow for that load.
    Hot,
    /// Other I/O on the same disk.
    SharedDevice,
    /// The core was not available to its thread.
    Core,
    /// One turn took too long.
    Turn,
    /// Bulk I/O of another connection.
    Connection,
    /// Receives responses or sends data late.
    Host,
    /// A pool or a share is used up.
    Memory,
    /// Other commands on the same blocks.
    Conflict,
    /// All file threads are busy.
    FileThreads,
    /// Waits for syncs.
    Flush,
    /// Loss, retransmission, or a small congestion window.
    Network,
    /// A delay between the two ends that TCP does not see.
    Path,
    /// The application fetches completions late.
    Caller,
}

impl Kind {
    /// Returns the name in text and documents.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Device => "device",
            Kind::Common => "common",
            Kind::Hot => "hot",
            Kind::SharedDevice => "shared-device",
            Kind::Core => "core",
            Kind::Turn => "turn",
            Kind::Connection => "connection",
            Kind::Host => "host",
            Kind::Memory => "memory",
            Kind::Conflict => "conflict",
            Kind::FileThreads => "file-threads",
            Kind::Flush => "flush",
            Kind::Network => "network",
            Kind::Path => "path",
            Kind::Caller => "caller",
        }
    }
}

/// Strength of a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Grade {
    /// Both use the same thing: topology.
    Shares,
    /// Both change at the same time: correlation.
    MovesWith,
    /// The time itself was measured.
    Measured,
}

impl Grade {
    /// Returns the words for text.
    pub const fn name(self) -> &'static str {
        match self {
            Grade::Shares => "shares",
            Grade::MovesWith => "moves with",
            Grade::Measured => "measured",
        }
    }
}

/// A fact for a cause.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// The measured quantity.
    pub what: String,
    /// Its value.
    pub value: f64,
    /// Unit of the value; empty for a number.
    pub unit: String,
    /// The value that it is compared with, in the same unit.
    pub compared_to: Option<f64>,
    /// Value divided by the compared value.
    pub ratio: Option<f64>,
    /// Source of the value.
    pub source: String,
    /// Strength of the fact.
    pub grade: Grade,
    /// The fact as a sentence without an end.
    pub text: String,
}

/// Something that uses the same device, core, or line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Neighbor {
    /// `process`, `volume`, `irq`, `host`, `filter`, `call`, …
    pub kind: String,
    /// Name, with the number of a process or a line.
    pub name: String,
    /// Strength of the link.
    pub grade: Grade,
}

/// A cause that the numbers rule out, or a part that was left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cleared {
    /// Kind of the cause.
    pub kind: Kind,
    /// The numbers.
    pub text: String,
}

/// Data that was not available.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotSeen {
    /// The data.
    pub what: String,
    /// Requirement for reading it.
    pub needs: String,
}

impl Evidence {
    /// Returns a measured value without a comparison.
    pub(super) fn measured(what: &str, value: f64, unit: &str, source: &str, text: String) -> Evidence {
        Evidence {
            what: what.to_owned(),
            value: finite(value),
            unit: unit.to_owned(),
            compared_to: None,
            ratio: None,
            source: source.to_owned(),
            grade: Grade::Measured,
            text,
        }
    }

    /// Adds the compared value, and the ratio to it.
    pub(super) fn compared_to(self, other: f64) -> Evidence {
        let ratio = (other > 0.0).then(|| finite(self.value / other));
        Evidence { compared_to: Some(finite(other)), ratio, ..self }
    }

    /// Sets the grade.
    pub(super) fn graded(self, grade: Grade) -> Evidence {
        Evidence { grade, ..self }
    }
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// Returns the value, or 0 if JSON has no form for it. A sum of nothing is -0, which becomes 0.
pub(super) fn finite(value: f64) -> f64 {
    if value.is_finite() { value + 0.0 } else { 0.0 }
}

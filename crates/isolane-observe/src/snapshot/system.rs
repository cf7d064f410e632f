//! Readings of the system: devices beneath volumes, and the other users of cores and disks.

use serde::{Deserialize, Serialize};

/// A disk beneath volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Device {
    /// Name in /sys/block.
    pub name: String,
    /// Major and minor number, `8:0`.
    pub number: String,
    /// Model.
    pub model: String,
    /// Disks beneath it (md, dm, loop).
    pub beneath: Vec<String>,
    /// Address of its PCI function.
    pub pci: Option<String>,
    /// NUMA node.
    pub node: Option<u32>,
    /// Its interrupt lines.
    pub interrupts: Vec<Line>,
    /// State of a resync, a check, or a rebuild; `idle` without one.
    pub resync: String,
}

/// An interrupt line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Line {
    /// Number.
    pub number: u32,
    /// Handlers that share it.
    pub actions: Vec<String>,
    /// Cores that can get it.
    pub cpus: Vec<u32>,
}

/// Readings of the system.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct System {
    /// Interrupts, by line and core, if the count grew.
    pub interrupts: Vec<Interrupts>,
    /// Times of the cores.
    pub cpus: Vec<Cpu>,
    /// Disks that did I/O.
    pub disks: Vec<Disk>,
    /// Other tasks that ran on cores of the program. Listed only if a core of the program waited.
    pub tasks: Vec<Task>,
    /// Programs that did I/O on disks. Listed only if a disk had I/O of others.
    pub users: Vec<DiskUser>,
    /// Limits of the control group.
    pub quota: Quota,
    /// Readings that were not available, with the requirement for each.
    pub not_seen: Vec<(String, String)>,
}

/// Interrupts of one line on one core.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Interrupts {
    /// Line or kind, as in /proc/interrupts: `142`, `LOC`, `NET_RX`, …
    pub line: String,
    /// Core.
    pub cpu: u32,
    /// Number of interrupts.
    pub count: u64,
}

/// Time of one core of the machine, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Cpu {
    /// Core.
    pub cpu: u32,
    /// Taken by the hypervisor.
    pub steal_ms: u64,
    /// In interrupt handlers.
    pub irq_ms: u64,
    /// In soft interrupts.
    pub softirq_ms: u64,
    /// Idle.
    pub idle_ms: u64,
}

/// I/O of one disk, all programs together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Disk {
    /// Name in /proc/diskstats.
    pub name: String,
    /// Completed reads.
    pub reads: u64,
    /// Completed writes.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Sum of the times of all reads and writes, in milliseconds.
    pub time_ms: u64,
    /// Reads and writes of this program, as far as it knows.
    pub own: u64,
    /// Number of bytes read and written by this program, as far as it knows.
    pub own_bytes: u64,
}

/// A task that ran on a core of the program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Task {
    /// Process ID.
    pub pid: u32,
    /// Name.
    pub name: String,
    /// Core.
    pub cpu: u32,
    /// Time on the core, in milliseconds.
    pub ran_ms: u64,
}

/// A process that did I/O on disks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct DiskUser {
    /// Process ID.
    pub pid: u32,
    /// Name.
    pub name: String,
    /// Bytes read from disks.
    pub read_bytes: u64,
    /// Bytes written to disks.
    pub written_bytes: u64,
}

/// Limit of processor time of the control group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Quota {
    /// Periods in which it was throttled.
    pub throttled: u64,
    /// Time for which it was throttled, in milliseconds.
    pub throttled_ms: u64,
}

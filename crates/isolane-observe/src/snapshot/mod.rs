//! All data of a running program, as one document.
//!
//! Programs fill in the parts that they have; the side threads of `isolane` add the recorder's steps and the readings
//! of the system. Every command that explains or draws reads this document.

mod difference;
mod merge;
#[cfg(feature = "schema")]
mod schema;
mod system;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::histogram::{Histogram, Resolution};
use crate::stage::{Operation, Side, SizeClass, Stage};

pub(crate) use self::merge::merge_times;
#[cfg(feature = "schema")]
pub use self::schema::schema;
pub use self::system::{Cpu, Device, Disk, DiskUser, Interrupts, Line, Quota, System, Task};

/// Version of the document.
pub const VERSION: u32 = 1;

/// The document.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Snapshot {
    /// [`VERSION`].
    pub version: u32,
    /// The program.
    pub program: Program,
    /// Time of the copy, in milliseconds since 1970.
    pub at_unix_ms: u64,
    /// Volumes, with their members.
    pub volumes: Vec<Volume>,
    /// Numbers since the start of the program.
    pub numbers: Numbers,
    /// Slow operations, the oldest first.
    pub slow: Vec<SlowOperation>,
    /// Turns that took too long, the oldest first.
    pub stuck: Vec<StuckTurn>,
    /// Devices beneath the volumes, by [`Volume::device`].
    pub devices: Vec<Device>,
    /// The last minutes, the oldest first.
    pub steps: Vec<Step>,
}

/// The program that a snapshot describes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Program {
    /// `serve`, `engine`, or the name of a program with a host.
    pub name: String,
    /// Version and commit.
    pub version: String,
    /// Process ID.
    pub pid: u32,
    /// Time since its start, in milliseconds.
    pub uptime_ms: u64,
    /// Clock of the stages: `tsc` or `vdso`.
    pub clock: String,
    /// Name of the machine.
    pub machine: String,
    /// Values of options that limit commands or set listeners, by the option's name without dashes: `pool`,
    /// `file-threads`, `busy-poll`, …
    pub limits: BTreeMap<String, u64>,
}

/// A volume, or a member of one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Volume {
    /// Number in this document.
    pub id: u32,
    /// Volume that it is a member of.
    pub parent: Option<u32>,
    /// Namespace ID; none for members.
    pub nsid: Option<u32>,
    /// Name, as the user wrote it or as the volume calls itself.
    pub name: String,
    /// `memory`, `file`, `device`, `stripe`, `mirror`, `remote`, `delay`, `stall`, `queue-pair`, …
    pub kind: String,
    /// Peers are the volumes with the same group.
    pub group: Option<String>,
    /// Path of the file or device.
    pub path: Option<String>,
    /// Parameters of a filter, as text.
    pub parameters: Option<String>,
    /// Size in bytes.
    pub bytes: u64,
    /// Age of its oldest command in flight, in milliseconds.
    pub oldest_ms: Option<u64>,
    /// Name of the disk beneath it ([`Device::name`]).
    pub device: Option<String>,
    /// Application that uses it through an engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub application: Option<String>,
    /// State of a mirror that is not in sync, or of its member: `copying 40 %`, `degraded`, `failed`, `removed`. None for
    /// other volumes.
    pub background: Option<String>,
}

/// Numbers that only grow. The difference of two copies describes the time between them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Numbers {
    /// Latencies, by volume, operation, size class, and core. Members of volumes have no stages.
    pub series: Vec<Series>,
    /// Connections that are open or were open since the last copy.
    pub connections: Vec<Connection>,
    /// Cores of the program.
    pub cores: Vec<Core>,
    /// Other counters, by name: `memory-waits`, `range-waits`, `file-thread-waits`, `flush-waits`, `errors`, …
    pub counters: BTreeMap<String, u64>,
}

/// Latencies of one (volume, operation, size class) on one core.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Series {
    /// Program that measures.
    pub side: Side,
    /// [`Volume::id`].
    pub volume: u32,
    /// [`Core::index`].
    pub core: u32,
    /// Kind of the operations.
    pub operation: Operation,
    /// Size class of the operations.
    pub size: SizeClass,
    /// Totals.
    pub total: Histogram,
    /// Histograms of the stages that took time. A stage that is missing, or an operation that is missing in the
    /// histogram of a stage, took none.
    #[serde(default)]
    pub stages: Vec<StageHistogram>,
    /// Sums of the stages, separately for each doubling of the total.
    #[serde(default)]
    pub tail: Vec<TailRow>,
    /// Bytes moved by successful operations.
    #[serde(default)]
    pub bytes: u64,
    /// Failed operations.
    #[serde(default)]
    pub errors: u64,
    /// Writes of the parent that this member completed last.
    #[serde(default)]
    pub last: u64,
    /// Sum of the times by which it was last, in nanoseconds.
    #[serde(default)]
    pub last_by_ns: u64,
    /// Longest total since the start, in nanoseconds. A difference has the value of the later copy.
    #[serde(default)]
    pub max_ns: u64,
    /// Upper bounds of the times between the arrival of a command and the start of its total: since the last poll of
    /// its socket that found no data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unseen: Option<Histogram>,
}

/// Names the numbers of one (volume, operation, size class) on one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeriesKey {
    /// Program that measures.
    pub side: Side,
    /// [`Volume::id`].
    pub volume: u32,
    /// [`Core::index`].
    pub core: u32,
    /// Kind of the operations.
    pub operation: Operation,
    /// Size class of the operations.
    pub size: SizeClass,
}

impl SeriesKey {
    /// Returns numbers with this name and without operations.
    pub fn empty(self) -> Series {
        let SeriesKey { side, volume, core, operation, size } = self;
        Series {
            side,
            volume,
            core,
            operation,
            size,
            total: Histogram::new(Resolution::Eight),
            stages: Vec::new(),
            tail: Vec::new(),
            bytes: 0,
            errors: 0,
            last: 0,
            last_by_ns: 0,
            max_ns: 0,
            unseen: None,
        }
    }
}

/// Durations of one stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StageHistogram {
    /// The stage.
    pub stage: Stage,
    /// Its durations above zero.
    pub times: Histogram,
}

/// Sums of the stages of all operations whose total is in one doubling.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TailRow {
    /// [`crate::histogram::tail_row_of`] of the totals.
    pub row: u8,
    /// Sum of each stage in nanoseconds, in the order of [`Side::stages`].
    pub sums_ns: Vec<u64>,
}

/// An open connection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Connection {
    /// Number that no other connection of the program has had.
    pub id: u64,
    /// NQN of the host. For a lane of a queue pair, it is the address of the peer.
    pub host: String,
    /// Host identifier.
    pub host_id: String,
    /// Controller ID.
    pub controller: u16,
    /// Queue ID; 0 is the admin queue. For a lane of a queue pair, it is the index of the lane.
    pub queue: u16,
    /// [`Core::index`].
    pub core: u32,
    /// CPU that last processed its packets. For a peer on this machine, it is the CPU of the peer.
    pub incoming_cpu: Option<u32>,
    /// Local address and port.
    pub local: String,
    /// Address and port of the peer.
    pub peer: String,
    /// Totals, by size class.
    pub totals: Vec<(SizeClass, Histogram)>,
    /// Sum of each stage that took time, in nanoseconds.
    pub stages_ns: Vec<(Stage, u64)>,
    /// Longest time of each stage since the start, in nanoseconds. A difference has the values of the later copy.
    pub stage_max_ns: Vec<(Stage, u64)>,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Commands in flight now.
    pub in_flight: u32,
    /// Age of its oldest command in flight, in milliseconds.
    pub oldest_ms: Option<u64>,
    /// Queue pair that it is a lane of ([`Volume::id`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_pair: Option<u32>,
    /// Upper bounds of the stage `peer` of sampled sends: accepted by the kernel → acknowledged by the peer. For a lane
    /// of a queue pair, they are the round trips of probes. None without a sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_times: Option<Histogram>,
    /// Readings of the kernel.
    pub tcp: Option<Tcp>,
}

/// State of a TCP connection, from TCP_INFO. Fields that only grow are subtracted in a difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Tcp {
    /// Time with data to send or in flight, in microseconds. Grows.
    pub busy_us: u64,
    /// Part of it in which the receive window of the peer was full. Grows.
    pub rwnd_limited_us: u64,
    /// Part of it in which our send buffer was too small. Grows.
    pub sndbuf_limited_us: u64,
    /// Retransmitted segments. Grows.
    pub retransmits: u64,
    /// Sent segments. Grows.
    pub segments: u64,
    /// Smoothed round-trip time, in microseconds.
    pub rtt_us: u64,
    /// Minimum round-trip time, in microseconds.
    pub min_rtt_us: u64,
    /// Number of bytes not sent yet.
    pub unsent_bytes: u64,
    /// Congestion window, in segments.
    pub cwnd: u64,
    /// Maximum segment size, in bytes.
    pub mss: u64,
}

/// A thread that does I/O.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Core {
    /// Position, from 0.
    pub index: u32,
    /// Core that the thread is pinned to.
    pub cpu: Option<u32>,
    /// Thread ID.
    pub thread: u32,
    /// Time in turns that did work, in nanoseconds.
    pub busy_ns: u64,
    /// Time asleep in the kernel, in nanoseconds.
    pub asleep_ns: u64,
    /// Time between the end of a sleep and the continuation of the thread, as far as a timer shows it, in nanoseconds.
    pub late_ns: u64,
    /// Time in which the thread was ready to run but another task had the core, in nanoseconds (schedstat).
    pub waited_ns: u64,
    /// Time on a processor, in nanoseconds (schedstat).
    pub ran_ns: u64,
    /// Turns.
    pub turns: Option<Histogram>,
}

/// An operation that was slower than almost all others of its second.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SlowOperation {
    /// Program that measured.
    pub side: Side,
    /// Time of its completion, in microseconds since 1970.
    pub at_unix_us: u64,
    /// [`Volume::id`].
    pub volume: u32,
    /// Kind.
    pub operation: Operation,
    /// Length in bytes.
    pub bytes: u64,
    /// First block.
    pub lba: u64,
    /// [`Core::index`].
    pub core: u32,
    /// [`Connection::id`], or for a host the number of [`SlowOperation::host_connection`]; 0 without one.
    pub connection: u64,
    /// Command ID.
    pub cid: u16,
    /// Commands of the connection in flight when it arrived.
    pub depth: u16,
    /// Its total, in nanoseconds.
    pub total_ns: u64,
    /// Its stages that took time, in nanoseconds.
    pub stages: Vec<(Stage, u64)>,
    /// Member that completed last ([`Volume::id`]), for a write of a stripe or mirror.
    pub last_member: Option<u32>,
}

impl SlowOperation {
    /// Returns the number of a host's connection: a queue of a controller.
    pub const fn host_connection(controller: u16, queue: u16) -> u64 {
        1 << 32 | (controller as u64) << 16 | queue as u64
    }

    /// Returns the controller and the queue of a host's operation.
    pub fn host_queue(&self) -> Option<(u16, u16)> {
        let is_known = self.side == Side::Host && self.connection > 0;
        is_known.then_some(((self.connection >> 16) as u16, self.connection as u16))
    }

    /// Returns `true` for a command of a connection. Operations of an engine, and operations of a host that took several
    /// commands, have no queue.
    pub fn has_connection(&self) -> bool {
        self.connection != 0
    }
}

/// A turn that took too long, as a side thread saw it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct StuckTurn {
    /// Time of the observation, in microseconds since 1970.
    pub at_unix_us: u64,
    /// [`Core::index`].
    pub core: u32,
    /// Minimum duration, in nanoseconds.
    pub lasted_ns: u64,
    /// Part of the turn: `receive`, `send`, `volume`, …
    pub phase: String,
    /// State of the thread, one letter as in /proc.
    pub state: String,
    /// Function of the kernel in which it waits.
    pub wchan: String,
    /// System call.
    pub call: String,
}

/// Numbers and readings of one interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Step {
    /// End of the interval, in milliseconds since 1970.
    pub at_unix_ms: u64,
    /// Length in milliseconds.
    pub length_ms: u64,
    /// Differences.
    pub numbers: Numbers,
    /// Differences of the readings of the system.
    pub system: System,
}

//! Bodies of requests and responses on the control socket. The OpenAPI document has their schemas.

use std::net::SocketAddr;
use std::path::PathBuf;

use isolane_inspect::program::Reply;
use isolane_target::NamespaceState;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A volume that becomes a namespace.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Add {
    /// Volume, as for `isolane serve`.
    pub volume: String,
    /// Namespace ID (default: one that no volume has had).
    pub nsid: Option<u32>,
}

/// A volume that replaces that of a namespace.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Replace {
    /// Volume, as for `isolane serve`.
    pub volume: String,
    /// Allow a smaller volume.
    #[serde(default)]
    pub shrink: bool,
}

/// Options to open a volume again.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Open {
    /// Allow a smaller volume.
    #[serde(default)]
    pub shrink: bool,
}

/// Size of a namespace.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// Size in bytes (default: the present one of the file or device).
    pub bytes: Option<u64>,
    /// Allow a smaller size.
    #[serde(default)]
    pub shrink: bool,
}

/// Write protection of a namespace.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadOnly {
    /// Reject writes.
    pub read_only: bool,
}

/// A fault of a namespace, for tests.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetFault {
    /// The fault.
    pub fault: FaultKind,
}

/// Kind of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FaultKind {
    /// Commands are held, as by a volume that does not complete them.
    Stall,
    /// Changes and Flush fail, as after a failed sync.
    Fail,
    /// None.
    Clear,
}

/// The fault of a namespace.
#[derive(Serialize, JsonSchema)]
pub struct Faulty {
    /// Namespace ID.
    pub nsid: u32,
    /// The fault.
    pub fault: FaultKind,
}

/// No options.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoOptions {}

/// Another program.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Upgrade {
    /// Path of the program (default: the file from which the target was started).
    pub program: Option<PathBuf>,
}

/// A configuration file.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Apply {
    /// Text of the file.
    pub text: String,
    /// Check and list the changes, and make none.
    #[serde(default)]
    pub dry_run: bool,
    /// Allow smaller namespaces.
    #[serde(default)]
    pub shrink: bool,
}

/// Edits, which are all applied or none.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Edits {
    /// The edits.
    pub edits: Vec<ObjectEdit>,
    /// Check and list the changes, and make none.
    #[serde(default)]
    pub dry_run: bool,
    /// Allow smaller namespaces.
    #[serde(default)]
    pub shrink: bool,
    /// Change only the target: the file stays as it is, and the next application of a file, or the end of the target, ends
    /// the changes.
    #[serde(default)]
    pub runtime: bool,
}

/// An edit of one object.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ObjectEdit {
    /// Kind of the object.
    pub kind: ObjectKind,
    /// Name, or NQN of a subsystem, also that of a namespace.
    pub name: Option<String>,
    /// Namespace ID.
    pub nsid: Option<u32>,
    /// The change.
    pub action: EditAction,
    /// Keys with their values, in TOML or as a text. An empty text removes a key.
    #[serde(default)]
    pub keys: Map<String, Value>,
}

/// Kind of an object of a configuration file.
#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ObjectKind {
    Server,
    Port,
    Host,
    Referral,
    Subsystem,
    Namespace,
}

impl ObjectKind {
    /// Returns the name in text.
    pub fn name(self) -> &'static str {
        match self {
            ObjectKind::Server => "server",
            ObjectKind::Port => "port",
            ObjectKind::Host => "host",
            ObjectKind::Referral => "referral",
            ObjectKind::Subsystem => "subsystem",
            ObjectKind::Namespace => "namespace",
        }
    }
}

/// Change of an object of a configuration file.
#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EditAction {
    Add,
    Remove,
    Set,
}

/// Names of the connections that end. One of the fields is set.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Disconnect {
    /// NQN of a host: all of its associations end.
    pub host: Option<String>,
    /// Address of a host with its port, as 10.0.0.2:41000: this connection ends, and with an admin queue its association.
    #[schemars(with = "Option<String>")]
    pub address: Option<SocketAddr>,
}

/// All namespaces.
#[derive(Serialize, JsonSchema)]
pub struct NamespaceList {
    /// NQNs of the subsystems.
    pub subsystems: Vec<String>,
    /// The namespaces, by subsystem and ID.
    pub namespaces: Vec<NamespaceEntry>,
    /// Volumes that are closed once their operations end.
    pub closing: Vec<ClosingVolume>,
}

/// A namespace.
#[derive(Serialize, JsonSchema)]
pub struct NamespaceEntry {
    /// NQN of its subsystem.
    pub subsystem: String,
    /// Namespace ID.
    pub nsid: u32,
    /// `online`, `stalled`, `failed`, or `offline`.
    pub state: &'static str,
    /// Cause of the state.
    pub reason: Option<String>,
    /// Name of the volume.
    pub volume: String,
    /// Size in bytes; 0 if no volume was open.
    pub bytes: u64,
    /// Size of a block in bytes; 0 if no volume was open.
    pub block_size: u32,
    /// Writes are rejected.
    pub read_only: bool,
    /// Age of the oldest command that the volume has not completed, in milliseconds.
    pub oldest_command_ms: Option<u64>,
    /// Changes whose operations are still at the volume although they were answered.
    pub orphans: Vec<OrphanEntry>,
    /// Maximum speeds per second.
    #[schemars(with = "Option<std::collections::BTreeMap<String, u64>>")]
    pub qos: Option<Value>,
    /// A fault that an operator has set: `stall` or `fail`.
    pub fault: Option<FaultKind>,
}

/// A change whose operation is still at its volume.
#[derive(Serialize, JsonSchema)]
pub struct OrphanEntry {
    /// Name of the operation.
    pub operation: &'static str,
    /// First block.
    pub first_block: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Age in milliseconds.
    pub age_ms: u64,
}

/// A volume that is no longer served.
#[derive(Serialize, JsonSchema)]
pub struct ClosingVolume {
    /// NQN of its subsystem.
    pub subsystem: String,
    /// Namespace ID that it had.
    pub nsid: u32,
    /// Name of the volume.
    pub volume: String,
}

/// A volume that is served.
#[derive(Serialize, JsonSchema)]
pub struct Opened {
    /// Namespace ID.
    pub nsid: u32,
    /// Description of the volume.
    pub volume: String,
}

/// A volume that is no longer served.
#[derive(Serialize, JsonSchema)]
pub struct Closed {
    /// Namespace ID.
    pub nsid: u32,
    /// The volume is closed. Otherwise it is once its operations end.
    pub closed: bool,
}

/// The size of a namespace.
#[derive(Serialize, JsonSchema)]
pub struct Resized {
    /// Namespace ID.
    pub nsid: u32,
    /// Size in bytes.
    pub bytes: u64,
}

/// The write protection of a namespace.
#[derive(Serialize, JsonSchema)]
pub struct Protected {
    /// Namespace ID.
    pub nsid: u32,
    /// Writes are rejected.
    pub read_only: bool,
}

/// The configuration of a running target.
#[derive(Serialize, JsonSchema)]
pub struct RunningConfig {
    /// Path of its file; none if it was started with volumes.
    pub file: Option<PathBuf>,
    /// Text of a file with which another target would serve the same.
    pub text: String,
}

/// Changes that were made, or would be.
#[derive(Serialize, JsonSchema)]
pub struct AppliedChanges {
    /// The changes.
    pub changes: Vec<AppliedChange>,
    /// All volumes that are no longer served are closed.
    pub closed: bool,
}

/// A change of the target.
#[derive(Clone, Serialize, JsonSchema)]
pub struct AppliedChange {
    /// Description.
    pub change: String,
    /// Time at which it takes effect.
    pub effect: String,
}

/// The program of the target.
#[derive(Serialize, JsonSchema)]
pub struct ProgramInfo {
    /// Number of upgrades of this process.
    pub upgrades: u64,
    /// Version of the program.
    pub version: &'static str,
    /// Process ID.
    pub pid: u32,
    /// Path of its configuration file, if it was started with one.
    pub file: Option<PathBuf>,
}

/// All connections.
#[derive(Serialize, JsonSchema)]
pub struct ConnectionList {
    /// The connections, by address.
    pub connections: Vec<ConnectionEntry>,
}

/// A connection.
#[derive(Serialize, JsonSchema)]
pub struct ConnectionEntry {
    /// Address of the host.
    pub address: String,
    /// Name of the port that accepted it, if it has one.
    pub port: Option<String>,
    /// NQN of the host, once it has connected its queue.
    pub host: Option<String>,
    /// NQN of the subsystem, once the queue is connected.
    pub subsystem: Option<String>,
    /// Controller ID, once the queue is connected.
    pub cntlid: Option<u16>,
    /// Queue ID, once it is connected; 0 is the admin queue.
    pub qid: Option<u16>,
    /// `connecting`, `authenticating`, `connected`, or `closing`.
    pub state: &'static str,
    /// The host has proved its identity on this connection.
    pub authenticated: bool,
    /// Core that serves it.
    pub core: Option<usize>,
    /// Age in seconds, since the last upgrade.
    pub age_s: u64,
    /// Number of commands at volumes, or waiting for one.
    pub commands: u32,
    /// Bytes received and sent.
    pub moved_bytes: u64,
}

/// Connections that end.
#[derive(Serialize, JsonSchema)]
pub struct DisconnectedCount {
    /// Number of associations, with all of their connections.
    pub associations: usize,
    /// Number of other connections.
    pub connections: usize,
}

/// A level of the log.
#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogLevel {
    /// Least severe level whose lines are logged.
    pub level: Level,
}

/// Levels of the log.
#[derive(Clone, Copy, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// An error of RFC 9457.
#[derive(Serialize, JsonSchema)]
pub struct Problem {
    /// `about:blank`.
    pub r#type: String,
    /// Status of HTTP.
    pub status: u16,
    /// Kind of the error.
    pub title: String,
    /// Culprit, cause, and remedy.
    pub detail: String,
}

/// Returns the name of a state.
pub fn state_name(state: NamespaceState) -> &'static str {
    match state {
        NamespaceState::Online => "online",
        NamespaceState::Stalled => "stalled",
        NamespaceState::Failed => "failed",
        NamespaceState::Offline => "offline",
        NamespaceState::Closing => "closing",
    }
}

/// Returns a response with this body.
pub fn reply(status: u16, body: &impl Serialize) -> Reply {
    match serde_json::to_value(body) {
        Ok(body) => Reply { status, body },
        Err(error) => Reply::problem(500, "internal error", error),
    }
}

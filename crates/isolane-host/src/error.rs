//! Errors of connecting and of requests.
//!
//! [`ConnectError`] means that there is no connection, [`RequestError`] that one request failed. Every text names
//! the culprit, the cause, and the remedy if one is known. The caller need not retry: the host already has.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use isolane_wire::Status;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::codec::EncodedStatus;
use crate::difference::Difference;

/// A step of connecting, as named in errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The TCP connection.
    Tcp,
    /// ICReq and ICResp.
    Initialize,
    /// Fabrics Connect of the admin queue.
    ConnectAdmin,
    /// Authentication Send and Receive.
    Authenticate,
    /// Property Get and Property Set: CAP, CC, CSTS.
    Enable,
    /// Identify.
    Identify,
    /// Set Features.
    Features,
    /// Fabrics Connect of an I/O queue.
    ConnectIo,
    /// Get Log Page.
    Log,
    /// Shutdown of the controller.
    Shutdown,
}

impl std::fmt::Display for Step {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Step::Tcp => "TCP connect",
            Step::Initialize => "NVMe/TCP handshake (ICReq)",
            Step::ConnectAdmin => "Connect of the admin queue",
            Step::Authenticate => "authentication",
            Step::Enable => "enabling the controller",
            Step::Identify => "Identify",
            Step::Features => "Set Features",
            Step::ConnectIo => "Connect of an I/O queue",
            Step::Log => "Get Log Page",
            Step::Shutdown => "controller shutdown",
        })
    }
}

/// Reason why there is no connection.
#[derive(Clone, thiserror::Error)]
pub enum ConnectError {
    /// The host name has no address.
    #[error("cannot resolve {host}: {source}; check the name")]
    Resolve {
        /// The name.
        host: String,
        /// Error of the resolver.
        source: Arc<io::Error>,
    },
    /// A socket operation failed.
    #[error("{address}: {step} failed: {source}; {}", remedy_of_system(source))]
    Socket {
        /// The target.
        address: SocketAddr,
        /// The step that failed.
        step: Step,
        /// Error of the system.
        source: Arc<io::Error>,
    },
    /// A socket option is not available.
    #[error(transparent)]
    SocketOption(#[from] isolane_reactor::SocketOptionError),
    /// No response in time.
    #[error(
        "{address}: no response to {step} within {waited:.1?}; check that it is a reachable NVMe/TCP target"
    )]
    Timeout {
        /// The target.
        address: SocketAddr,
        /// The step without a response.
        step: Step,
        /// Time since the connection was opened.
        waited: Duration,
    },
    /// The target closed the connection.
    #[error("{address}: connection closed by the target during {step}; see its log")]
    Closed {
        /// The target.
        address: SocketAddr,
        /// The step in progress.
        step: Step,
    },
    /// The target violated the protocol.
    #[error("{address}: protocol violation during {step}: {what}")]
    ProtocolViolation {
        /// The target.
        address: SocketAddr,
        /// The step in progress.
        step: Step,
        /// Description of the violation.
        what: String,
    },
    /// The target refused a command.
    #[error("{address}: {step} refused: {status}{}{}", named(*field), remedy(*step, *status, *field))]
    Refused {
        /// The target.
        address: SocketAddr,
        /// The step refused.
        step: Step,
        /// Status of the completion.
        status: Status,
        /// The invalid field, if the target reports it.
        field: Option<&'static str>,
    },
    /// The target requires authentication, and this host has no key.
    #[error(
        "{0}: the target requires authentication; give the key of this host with `--key FILE` (`key=FILE` in a URI)"
    )]
    NoKey(SocketAddr),
    /// A key cannot be used.
    #[error("{0}")]
    Key(String),
    /// The target refuses this host, or this host the target.
    #[error("{address}: authentication failed: {reason}")]
    Authentication {
        /// The target.
        address: SocketAddr,
        /// Reason, for the user.
        reason: String,
    },
    /// The controller did not become ready.
    #[error("{address}: controller not ready: {reason}")]
    NotReady {
        /// The target.
        address: SocketAddr,
        /// State of its registers.
        reason: String,
    },
    /// More lanes than the controller grants.
    #[error("the controller grants {granted} I/O queues, {requested} lanes requested; lower `--lanes`")]
    Lanes {
        /// Lanes requested.
        requested: usize,
        /// I/O queues granted.
        granted: usize,
    },
    /// A depth that exceeds the queue size.
    #[error(
        "the controller's queues hold {max} commands, depth {requested} requested; lower `--depth` or add lanes"
    )]
    Depth {
        /// Depth requested.
        requested: u16,
        /// Maximum depth: entries − 1.
        max: u16,
    },
    /// No NQN was given, and discovery found none.
    #[error(
        "{address}: no NVM subsystem is offered to host {host}; allow that host at the target, choose another one \
         with `--host-nqn` (`Options::host_nqn`), or give the NQN of the subsystem"
    )]
    NoSubsystem {
        /// The target.
        address: SocketAddr,
        /// NQN of this host.
        host: String,
    },
    /// No NQN was given, and discovery found several.
    #[error("several subsystems found; give one of these NQNs: {}", .0.join(", "))]
    AmbiguousSubsystem(Vec<String>),
    /// The subsystem has no namespace.
    #[error("the subsystem has no namespace")]
    NoNamespace,
    /// No namespace ID was given, and there are several.
    #[error("several namespaces found; give one of these: {}", nsids(.0))]
    AmbiguousNamespace(Vec<u32>),
    /// The namespace does not exist.
    #[error("namespace {nsid} does not exist; available: {}", nsids(present))]
    UnknownNamespace {
        /// Namespace requested.
        nsid: u32,
        /// Namespaces of the subsystem.
        present: Vec<u32>,
    },
    /// A feature that this host does not support.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// Writes must be repeated after a timeout, and the controller does not report when it ends.
    #[error(
        "{0}: the controller reports no command quiesce time (CQT 0), so no timeout proves that its writes have \
         ended; give one with `--quiesce` (`Reconnect::quiesce`), or do not use `--replay after-timeout`"
    )]
    NoQuiesceTime(SocketAddr),
    /// The volume was a different one after a reconnect, or after a notice of changed namespaces.
    #[error("the target now serves a different volume: {0}; reconnect if that is intended")]
    VolumeChanged(Difference),
    /// The connection was lost, and reconnecting is off or has failed.
    #[error("{address}: {reason}")]
    Lost {
        /// The target.
        address: SocketAddr,
        /// Cause of the loss.
        reason: String,
    },
    /// Error of the association of one of several cores.
    #[error("core {core}: {source}")]
    OnCore {
        /// The core.
        core: usize,
        /// Its error.
        source: Box<ConnectError>,
    },
    /// The association of another core has a different volume than the first one.
    #[error("the first association has a different volume: {0}; give an address of a single target")]
    DifferentVolume(Difference),
    /// This process cannot run on a core.
    #[error("cannot run on core {core}: {source}; choose cores that exist and that this process may use")]
    Core {
        /// The core.
        core: usize,
        /// Error of the system.
        source: Arc<io::Error>,
    },
    /// No isolated engine can be used.
    #[error("engine: {reason}")]
    Attach {
        /// Reason, with the remedy.
        reason: String,
        /// Error of the system, or the closest one.
        raw_os_error: Option<i32>,
    },
    /// The isolated engine did not connect to the volume.
    #[error("engine: {0}")]
    Engine(String),
    /// The system refused a resource.
    #[error("cannot get {what}: {source}")]
    System {
        /// The resource.
        what: &'static str,
        /// Error of the system.
        source: Arc<io::Error>,
    },
}

impl ConnectError {
    /// Returns the error of a resource that the system refused.
    pub(crate) fn system(what: &'static str, source: io::Error) -> ConnectError {
        ConnectError::System { what, source: Arc::new(source) }
    }

    pub(crate) fn no_default_lane() -> ConnectError {
        ConnectError::Unsupported(
            "a client without a lane of the default class; request at least one".to_owned(),
        )
    }

    /// Returns the number of the system's error, or of the closest one.
    pub fn raw_os_error(&self) -> i32 {
        let closest = match self {
            ConnectError::Resolve { .. } => Errno::HOSTUNREACH,
            ConnectError::Timeout { .. } => Errno::TIMEDOUT,
            ConnectError::Refused { field: Some(SUBNQN), .. } => Errno::NOENT,
            ConnectError::Refused { .. }
            | ConnectError::NoKey(_)
            | ConnectError::Key(_)
            | ConnectError::Authentication { .. } => Errno::ACCESS,
            ConnectError::NoNamespace
            | ConnectError::NoSubsystem { .. }
            | ConnectError::UnknownNamespace { .. } => Errno::NOENT,
            ConnectError::AmbiguousSubsystem(_) | ConnectError::AmbiguousNamespace(_) => Errno::INVAL,
            ConnectError::Closed { .. } | ConnectError::ProtocolViolation { .. } => Errno::PROTO,
            ConnectError::Unsupported(_) => Errno::OPNOTSUPP,
            ConnectError::OnCore { source, .. } => return source.raw_os_error(),
            ConnectError::Attach { raw_os_error: Some(number), .. } => return *number,
            ConnectError::Socket { source, .. }
            | ConnectError::Core { source, .. }
            | ConnectError::System { source, .. } => Errno::from_io_error(source).unwrap_or(Errno::IO),
            _ => Errno::IO,
        };
        closest.raw_os_error()
    }

    /// Returns whether a later attempt can succeed with the same options.
    pub(crate) fn is_transient(&self) -> bool {
        use ConnectError::{NoQuiesceTime, Unsupported, VolumeChanged};
        !matches!(self, VolumeChanged(_) | Unsupported(_) | NoQuiesceTime(_))
    }
}

/// Reason why a request failed. An engine encodes it for the application.
#[derive(Clone, Deserialize, Serialize, thiserror::Error)]
pub enum RequestError {
    /// The controller completed the command with an error.
    #[error("the target refused the command: {0}{remedy}", remedy = remedy_of_command(*.0))]
    Status(#[serde(with = "EncodedStatus")] Status),
    /// The data digest was wrong, also after retries.
    #[error("data digest error: the data was damaged in transit; check the network")]
    DataDigest,
    /// The range is not on the volume.
    #[error("the range of {blocks} blocks at block {lba} ends beyond the volume of {capacity} blocks")]
    OutOfRange {
        /// First block.
        lba: u64,
        /// Length in blocks.
        blocks: u64,
        /// Size of the volume in blocks.
        capacity: u64,
    },
    /// A length or an offset is not a multiple of the block size.
    #[error("{bytes} bytes are not whole blocks of {block_bytes} bytes")]
    Unaligned {
        /// The length or offset.
        bytes: u64,
        /// The block size.
        block_bytes: u32,
    },
    /// The buffer is empty, or shared.
    #[error("{0}")]
    Buffer(#[serde(skip, default = "rejected_payload")] &'static str),
    /// Too many ranges, or a range that is too long.
    #[error("at most 256 ranges of less than 2^32 blocks each can be deallocated in one request")]
    InvalidRanges,
    /// The lane does not exist.
    #[error("lane {lane} does not exist: the client has {lanes}")]
    Lane {
        /// Lane requested.
        lane: usize,
        /// Lanes of the class.
        lanes: usize,
    },
    /// Too many requests are outstanding.
    #[error("{0} requests are outstanding; wait for completions")]
    TooMany(usize),
    /// The connection was lost and the write may or may not have reached the volume.
    #[error(
        "connection lost after the write was sent: the data may or may not be on the volume; rewrite the range"
    )]
    FateUnknown,
    /// An earlier write to the same blocks has an unknown fate.
    #[error(
        "an earlier write to these blocks was lost with its connection and may still reach the volume; rewrite \
         the range once the target has ended that controller"
    )]
    Fenced,
    /// A flush failed because acknowledged writes that no flush had covered are lost, or may be.
    #[error("{cause}: {} {}", lost_writes(*writes, *cause), cause.remedy())]
    WritesLost {
        /// Commands that were acknowledged and are not durable.
        writes: u64,
        /// Cause of the loss.
        cause: LossCause,
    },
    /// The connection was lost and not restored.
    #[error("{0}")]
    Lost(#[serde(skip, default = "lost_by_engine")] Arc<ConnectError>),
    /// The client was closed before the request completed.
    #[error("the volume was closed")]
    Closed,
}

impl RequestError {
    /// Returns the number of the closest error of the system.
    pub fn raw_os_error(&self) -> i32 {
        let closest = match self {
            RequestError::Status(status) if status.is(Status::CAPACITY_EXCEEDED) => Errno::NOSPC,
            RequestError::Status(status) if status.is(Status::NAMESPACE_WRITE_PROTECTED) => Errno::ROFS,
            RequestError::OutOfRange { .. }
            | RequestError::Unaligned { .. }
            | RequestError::Buffer(_)
            | RequestError::InvalidRanges
            | RequestError::Lane { .. } => Errno::INVAL,
            RequestError::TooMany(_) => Errno::AGAIN,
            RequestError::Lost(_) => Errno::NOTCONN,
            RequestError::Closed => Errno::CONNABORTED,
            RequestError::Status(_)
            | RequestError::DataDigest
            | RequestError::FateUnknown
            | RequestError::Fenced
            | RequestError::WritesLost { .. } => Errno::IO,
        };
        closest.raw_os_error()
    }
}

/// Cause of the loss of acknowledged writes.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, thiserror::Error)]
pub enum LossCause {
    /// The target's machine restarted, and its caches were lost.
    #[error("the target's machine restarted and lost its cache")]
    Cache,
    /// The target restarted, and the volume was in its memory.
    #[error("the target restarted and lost its memory volume")]
    Content,
    /// The association was lost, and the target does not report whether it kept its cache.
    #[error("the connection was lost and the target may have lost its cache")]
    Unknown,
}

impl LossCause {
    fn remedy(self) -> &'static str {
        match self {
            LossCause::Cache | LossCause::Content => "are lost; write their data again",
            LossCause::Unknown => "may be lost; write their data again, or choose flush-after-loss=trust",
        }
    }
}

fn lost_writes(writes: u64, cause: LossCause) -> String {
    let unflushed = if cause == LossCause::Content { "" } else { "unflushed " };
    format!("{writes} acknowledged {unflushed}writes")
}

fn named(field: Option<&str>) -> String {
    field.map_or(String::new(), |field| format!(", field {field}"))
}

/// Field of a Connect to a subsystem that does not exist.
const SUBNQN: &str = "SUBNQN";

fn remedy(step: Step, status: Status, field: Option<&str>) -> &'static str {
    match field {
        Some(SUBNQN) => "; the subsystem does not exist, list them with discover",
        _ if step == Step::Authenticate && status.is(Status::INVALID_OPCODE) => {
            "; the target cannot prove its identity, so leave out its key, or give a key to the target"
        }
        Some("HOSTNQN") => "; the target does not allow this host's NQN",
        _ if status.is(Status::CONNECT_INVALID_HOST) => "; ask the target to allow this host's NQN",
        _ if step == Step::ConnectAdmin && status.is(Status::CONNECT_CONTROLLER_BUSY) => "; try again later",
        _ => "",
    }
}

fn remedy_of_system(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE) => "raise the limit of open files of this process, as with `ulimit -n`",
        _ => "is a target listening there?",
    }
}

fn remedy_of_command(status: Status) -> &'static str {
    match status {
        _ if status.is(Status::CAPACITY_EXCEEDED) => "; free space on the target's storage",
        _ if status.is(Status::NAMESPACE_WRITE_PROTECTED) => "; let the target serve the volume for writing",
        _ => "",
    }
}

fn nsids(list: &[u32]) -> String {
    list.iter().map(|nsid| format!("nsid={nsid}")).collect::<Vec<_>>().join(", ")
}

/// Returns the reason of a decoded [`RequestError::Lost`]; the engine logs the original one.
fn lost_by_engine() -> Arc<ConnectError> {
    let lost = "the engine has lost its connection to the target; see its log";
    Arc::new(ConnectError::Engine(lost.to_owned()))
}

/// Returns the text of a decoded [`RequestError::Buffer`].
fn rejected_payload() -> &'static str {
    "the engine rejects the offset of the payload"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lack_of_descriptors_has_local_remedy() {
        let error = |errno: Errno| ConnectError::Socket {
            address: "127.0.0.1:4420".parse().unwrap(),
            step: Step::Tcp,
            source: Arc::new(errno.into()),
        };
        let text = error(Errno::MFILE).to_string();
        assert!(
            text.ends_with("raise the limit of open files of this process, as with `ulimit -n`"),
            "{text}"
        );
        let text = error(Errno::CONNREFUSED).to_string();
        assert!(text.ends_with("is a target listening there?"), "{text}");
    }

    #[test]
    fn errors_have_numbers_of_the_system() {
        let lost =
            ConnectError::Lost { address: "127.0.0.1:4420".parse().unwrap(), reason: "gone".to_owned() };
        for (error, number) in [
            (RequestError::Status(Status::CAPACITY_EXCEEDED), Errno::NOSPC),
            (RequestError::Status(Status::INTERNAL_ERROR), Errno::IO),
            (RequestError::Unaligned { bytes: 1, block_bytes: 512 }, Errno::INVAL),
            (RequestError::Lost(Arc::new(lost)), Errno::NOTCONN),
        ] {
            assert_eq!(error.raw_os_error(), number.raw_os_error(), "{error}");
        }
        let refused = ConnectError::system("a thread", Errno::MFILE.into());
        let on_core = ConnectError::OnCore { core: 1, source: Box::new(refused) };
        assert_eq!(on_core.raw_os_error(), Errno::MFILE.raw_os_error());
        assert_eq!(ConnectError::NoNamespace.raw_os_error(), Errno::NOENT.raw_os_error());
    }

    #[test]
    fn errors_of_target_include_remedy() {
        let full = RequestError::Status(Status::CAPACITY_EXCEEDED.with_dnr(true)).to_string();
        assert!(full.ends_with("(0/81h, do not retry); free space on the target's storage"), "{full}");
        let protected = RequestError::Status(Status::NAMESPACE_WRITE_PROTECTED).to_string();
        assert!(protected.ends_with("; let the target serve the volume for writing"), "{protected}");
        let other = RequestError::Status(Status::INTERNAL_ERROR).to_string();
        assert!(other.ends_with("internal error (0/06h)"), "{other}");
    }
}

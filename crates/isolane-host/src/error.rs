//! What can go wrong, and who did it.
//!
//! [`ConnectError`]: there is no connection. [`RequestError`]: one request failed. Every text says what
//! failed, why, and what to do where that is known. Nothing here is retried by the reader: what can be
//! retried was.

mod any;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use isolane_wire::Status;

use crate::difference::Difference;

pub use self::any::Error;

/// A step of setting up an association; names the place in errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The TCP connection.
    Tcp,
    /// ICReq and ICResp.
    Initialize,
    /// Fabrics Connect of the admin queue.
    ConnectAdmin,
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
    /// The orderly end.
    Shutdown,
}

impl std::fmt::Display for Step {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Step::Tcp => "the TCP connection",
            Step::Initialize => "the NVMe/TCP handshake (ICReq)",
            Step::ConnectAdmin => "Connect of the admin queue",
            Step::Enable => "enabling the controller",
            Step::Identify => "Identify",
            Step::Features => "Set Features",
            Step::ConnectIo => "Connect of an I/O queue",
            Step::Log => "Get Log Page",
            Step::Shutdown => "shutting the controller down",
        })
    }
}

/// Why there is no connection.
#[derive(Clone, thiserror::Error)]
pub enum ConnectError {
    /// The host's name leads to no address.
    #[error("cannot resolve {host}: {source}; check the name")]
    Resolve {
        /// The name.
        host: String,
        /// What the resolver said.
        source: Arc<io::Error>,
    },
    /// TCP failed.
    #[error("{step} with {address} failed: {source}; {}", remedy_of_system(source))]
    Socket {
        /// The target.
        address: SocketAddr,
        /// When.
        step: Step,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// An option of the sockets cannot be had.
    #[error(transparent)]
    SocketOption(#[from] isolane_reactor::SocketOptionError),
    /// No answer in time.
    #[error("{step} with {address}: no answer within {waited:.1?}; is it an NVMe/TCP target, and reachable?")]
    Timeout {
        /// The target.
        address: SocketAddr,
        /// When.
        step: Step,
        /// How long was waited.
        waited: Duration,
    },
    /// The target closed the connection.
    #[error("{address} closed the connection during {step}; its log may say why")]
    Closed {
        /// The target.
        address: SocketAddr,
        /// When.
        step: Step,
    },
    /// The target broke the protocol.
    #[error("{address} broke the protocol during {step}: {what}")]
    Misbehaved {
        /// The target.
        address: SocketAddr,
        /// When.
        step: Step,
        /// What it did.
        what: String,
    },
    /// The target refused a command.
    #[error("{address} refused {step}: {status}{}{}", named(*field), remedy(*step, *status, *field))]
    Refused {
        /// The target.
        address: SocketAddr,
        /// Which.
        step: Step,
        /// The status of its answer.
        status: Status,
        /// The field that it dislikes, where it tells.
        field: Option<&'static str>,
    },
    /// The controller did not become ready.
    #[error("the controller at {address} is not ready: {why}")]
    NotReady {
        /// The target.
        address: SocketAddr,
        /// What its registers say.
        why: String,
    },
    /// More lanes than the controller grants.
    #[error("{asked} lanes were asked for, and the controller grants {granted}: ask for fewer")]
    Lanes {
        /// The wish.
        asked: usize,
        /// The limit.
        granted: usize,
    },
    /// A depth that the queue cannot hold.
    #[error(
        "a depth of {asked} on one lane does not fit: the controller's queues hold at most {max} commands in flight; \
         give a smaller depth, or more lanes"
    )]
    Depth {
        /// The wish.
        asked: u16,
        /// The limit, entries − 1.
        max: u16,
    },
    /// No NQN was given and discovery found none.
    #[error("{0} has no NVM subsystem to offer; if it is not a discovery controller, give the NQN")]
    NoSubsystem(SocketAddr),
    /// No NQN was given and discovery found several.
    #[error("several subsystems to choose from, give one of these NQNs: {}", .0.join(", "))]
    ManySubsystems(Vec<String>),
    /// The subsystem has no namespace.
    #[error("the subsystem has no namespace")]
    NoNamespace,
    /// No namespace id was given and there are several.
    #[error("several namespaces to choose from, give one of these: {}", nsids(.0))]
    ManyNamespaces(Vec<u32>),
    /// No such namespace.
    #[error("there is no namespace {nsid}; there is: {}", nsids(present))]
    UnknownNamespace {
        /// The wish.
        nsid: u32,
        /// What there is.
        present: Vec<u32>,
    },
    /// Something that this host does not do.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// Writes are to be repeated after a timeout, and the end of that timeout is not known.
    #[error(
        "the controller at {0} reports no command quiesce time (CQT 0): no timeout tells when its writes have \
         ended; give one with `--quiesce` (`Reconnect::quiesce`), or do without `--replay after-timeout`"
    )]
    NoQuiesceTime(SocketAddr),
    /// After a reconnect, or after a notice of changed namespaces, the volume was not the same.
    #[error("the target serves another volume than before: {0}; connect anew if that is right")]
    VolumeChanged(Difference),
    /// The connection broke, and none was to be made anew.
    #[error("the connection to {address} broke: {why}")]
    Lost {
        /// The target.
        address: SocketAddr,
        /// What happened.
        why: String,
    },
    /// The association of one of several cores.
    #[error("for core {core}: {source}")]
    OfCore {
        /// Which.
        core: usize,
        /// What is wrong.
        source: Box<ConnectError>,
    },
    /// What it leads to is another volume than that of the first core.
    #[error(
        "it has another volume than the first association: {0}; give an address that leads to one target alone"
    )]
    OtherVolume(Difference),
    /// No thread of this process can run on a core.
    #[error(
        "cannot run on core {core}: {source}; choose cores that this machine has and this process may use"
    )]
    Core {
        /// Which.
        core: usize,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// An isolated engine, which was to connect to the volume, does not.
    #[error("through the engine: {0}")]
    Engine(String),
    /// This system refused what the client needs.
    #[error("the system refused {what}: {source}")]
    System {
        /// What was needed.
        what: &'static str,
        /// Why not.
        source: Arc<io::Error>,
    },
}

impl ConnectError {
    pub(crate) fn without_default_lane() -> ConnectError {
        let without = "a client without a lane of the default class; ask for one at least";
        ConnectError::Unsupported(without.to_owned())
    }

    /// Whether a later attempt can succeed without anybody changing the options.
    pub(crate) fn is_transient(&self) -> bool {
        use ConnectError::{NoQuiesceTime, Unsupported, VolumeChanged};
        !matches!(self, VolumeChanged(_) | Unsupported(_) | NoQuiesceTime(_))
    }
}

/// Why a request failed.
#[derive(Clone, thiserror::Error)]
pub enum RequestError {
    /// The controller answered with an error.
    #[error("the target refused the command: {0}{remedy}", remedy = remedy_of_command(*.0))]
    Status(Status),
    /// The data arrived damaged, also when asked for again.
    #[error("data digest error: the data was damaged on its way; check the network")]
    Damaged,
    /// The range is not on the volume.
    #[error("the range of {blocks} blocks at block {lba} ends beyond the volume of {capacity} blocks")]
    OutOfRange {
        /// First block.
        lba: u64,
        /// Blocks.
        blocks: u64,
        /// Size of the volume in blocks.
        capacity: u64,
    },
    /// A length or an offset that is no multiple of the block size.
    #[error("{bytes} bytes are not whole blocks of {block_bytes} bytes")]
    Unaligned {
        /// The length or offset.
        bytes: u64,
        /// The block size.
        block_bytes: u32,
    },
    /// A buffer that somebody else still refers to, or an empty one.
    #[error("{0}")]
    Buffer(&'static str),
    /// Too many ranges, or too long a one.
    #[error("at most 256 ranges of less than 2^32 blocks each can be deallocated in one request")]
    Ranges,
    /// No such lane.
    #[error("there is no lane {lane}: the client has {lanes}")]
    Lane {
        /// The wish.
        lane: usize,
        /// What there is.
        lanes: usize,
    },
    /// Too many requests outstanding.
    #[error("{0} requests are outstanding already: wait for some to complete")]
    TooMany(usize),
    /// The connection broke and the write may or may not have reached the volume.
    #[error(
        "the connection broke after this write was sent: it may or may not be on the volume; write the range again"
    )]
    Uncertain,
    /// An earlier write to the same blocks has an unknown fate.
    #[error(
        "an earlier write to these blocks was lost with its connection and may still land; write the range again once the target has ended that controller"
    )]
    HeldBack,
    /// A flush: acknowledged writes that no flush had covered are lost, or may be.
    #[error("{cause}: {} {}", lost_writes(*writes, *cause), cause.remedy())]
    WritesLost {
        /// Commands that were acknowledged and are not durable.
        writes: u64,
        /// What took them away.
        cause: LossCause,
    },
    /// The connection broke and did not come back.
    #[error("{0}")]
    Lost(Arc<ConnectError>),
    /// The client was closed before the request was complete.
    #[error("the volume was closed")]
    Closed,
}

/// What took acknowledged writes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossCause {
    /// The machine of the target restarted, and its caches were lost.
    Cache,
    /// The target restarted, and had the volume in memory.
    Content,
    /// The association was lost, and the target does not report whether it kept its cache.
    Unknown,
}

impl std::fmt::Display for LossCause {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            LossCause::Cache => "the target's machine restarted and lost its cache",
            LossCause::Content => "the target restarted and lost its memory volume",
            LossCause::Unknown => "the connection was lost and the target may have lost its cache",
        })
    }
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

fn remedy(step: Step, status: Status, field: Option<&str>) -> &'static str {
    match field {
        Some("SUBNQN") => "; it has no subsystem of this NQN, discover tells which there are",
        Some("HOSTNQN") => "; it does not accept this host's NQN",
        _ if status.is(Status::CONNECT_INVALID_HOST) => "; ask the target to allow this host's NQN",
        _ if step == Step::ConnectAdmin && status.is(Status::CONNECT_CONTROLLER_BUSY) => "; try again later",
        _ => "",
    }
}

fn remedy_of_system(error: &io::Error) -> &'static str {
    match rustix::io::Errno::from_io_error(error) {
        Some(rustix::io::Errno::MFILE) => {
            "raise the limit of open files of this process, as with `ulimit -n`"
        }
        _ => "is a target listening there?",
    }
}

fn remedy_of_command(status: Status) -> &'static str {
    match status {
        _ if status.is(Status::CAPACITY_EXCEEDED) => "; make room where the target keeps the volume",
        _ if status.is(Status::NAMESPACE_WRITE_PROTECTED) => "; let the target serve the volume for writing",
        _ => "",
    }
}

fn nsids(list: &[u32]) -> String {
    list.iter().map(|nsid| format!("nsid={nsid}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_descriptors_is_no_fault_of_the_target() {
        let error = |errno: rustix::io::Errno| ConnectError::Socket {
            address: "127.0.0.1:4420".parse().unwrap(),
            step: Step::Tcp,
            source: Arc::new(errno.into()),
        };
        let said = error(rustix::io::Errno::MFILE).to_string();
        assert!(
            said.ends_with("raise the limit of open files of this process, as with `ulimit -n`"),
            "{said}"
        );
        let said = error(rustix::io::Errno::CONNREFUSED).to_string();
        assert!(said.ends_with("is a target listening there?"), "{said}");
    }

    #[test]
    fn what_the_targets_side_can_mend_has_its_remedy() {
        let full = RequestError::Status(Status::CAPACITY_EXCEEDED.with_dnr(true)).to_string();
        assert!(
            full.ends_with("(0/81h, do not retry); make room where the target keeps the volume"),
            "{full}"
        );
        let protected = RequestError::Status(Status::NAMESPACE_WRITE_PROTECTED).to_string();
        assert!(protected.ends_with("; let the target serve the volume for writing"), "{protected}");
        let other = RequestError::Status(Status::INTERNAL_ERROR).to_string();
        assert!(other.ends_with("internal error (0/06h)"), "{other}");
    }
}

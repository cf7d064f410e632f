//! Reasons why a target cannot start, each with its remedy, and the result of its shutdown.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use isolane_proto::subsystem::ConfigError;
use isolane_proto::target::StateError;
use isolane_reactor::{ReactorError, SocketOptionError};
use isolane_wire::Nqn;

/// Reason why a namespace could not be changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NamespaceError {
    /// No namespace has this ID.
    #[error("namespace {0} does not exist; use an ID that `isolane serve` printed")]
    Unknown(u32),
    /// A namespace has this ID.
    #[error("namespace {0} exists; choose another ID, or replace its volume")]
    Exists(u32),
    /// The target has ended.
    #[error("the target is stopping; start it again")]
    Ended,
    /// The namespace has no volume at present.
    #[error("namespace {0} is offline; bring it online first (isolane ctl namespace online)")]
    Offline(u32),
    /// All IDs are in use.
    #[error("the subsystem has no free namespace ID; remove a namespace")]
    Full,
    /// The volumes of many removed namespaces cannot be closed yet.
    #[error("too many removed volumes have operations that do not end; check their storage")]
    Closing,
    /// Another namespace has the identity of the volume.
    #[error("{volume} has the identity of namespace {nsid}; give it its own with uuid=")]
    SameIdentity {
        /// The other namespace.
        nsid: u32,
        /// Name of the volume.
        volume: String,
    },
    /// The volume is smaller than the one before.
    #[error(
        "namespace {nsid}: {volume} has {bytes} bytes, and the volume before {before}; allow that with --shrink"
    )]
    Smaller {
        /// The namespace.
        nsid: u32,
        /// Name of the volume.
        volume: String,
        /// Its size in bytes.
        bytes: u64,
        /// The size before, in bytes.
        before: u64,
    },
    /// The volume has a fixed size, or another reason of its own.
    #[error("{0}")]
    Volume(String),
    /// The volume accepts no writes.
    #[error("namespace {nsid}: {volume} is read-only; open the volume for writing")]
    ReadOnlyVolume {
        /// The namespace.
        nsid: u32,
        /// Name of its volume.
        volume: String,
    },
    /// No subsystem has this name.
    #[error("this target has no subsystem {0}")]
    UnknownSubsystem(Box<Nqn>),
    /// The subsystem does not accept the new list of namespaces.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// Reason why changes of a target were not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError<E> {
    /// One of them is not possible.
    #[error(transparent)]
    Change(#[from] NamespaceError),
    /// The caller's part failed.
    #[error("{0}")]
    Commit(E),
}

/// Reason why a port could not be added.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The target cannot listen there.
    #[error(transparent)]
    Listen(#[from] StartError),
    /// The name is in use, or the target has ended.
    #[error(transparent)]
    Change(#[from] NamespaceError),
}

/// Reason why ports could not change.
#[derive(Debug, thiserror::Error)]
#[error("{}{error}", of_port(name.as_deref()))]
pub struct PortsError {
    /// Name of the port; `None`: of all.
    pub name: Option<String>,
    /// The reason.
    pub error: PortError,
}

impl PortsError {
    pub(crate) fn new(name: Option<String>, error: impl Into<PortError>) -> PortsError {
        PortsError { name, error: error.into() }
    }
}

/// Reason why a target could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The target cannot listen on the address.
    #[error("cannot listen on {address}: {error}; {}", remedy(error))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Error of the kernel.
        error: io::Error,
    },
    /// An address is given more than once.
    #[error("{0} is given twice: name every address once")]
    SameAddress(SocketAddr),
    /// A listener that closes later has this address, and cannot share it.
    #[error(
        "cannot listen on {address}: {error}; the listener on {other} has this address until the change: choose another \
         port number, or restart the target"
    )]
    Shared {
        /// The address.
        address: SocketAddr,
        /// Address of the listener.
        other: SocketAddr,
        /// Error of the kernel.
        error: io::Error,
    },
    /// A listener does not support a socket option.
    #[error("cannot listen on {address}: {error}")]
    SocketOption {
        /// The address.
        address: SocketAddr,
        /// The option, the error of the kernel, and the remedy.
        error: SocketOptionError,
    },
    /// A reactor could not be set up.
    #[error(transparent)]
    Reactor(#[from] ReactorError),
    /// A thread could not be started.
    #[error("cannot start a reactor thread: {0}; raise the limit of processes (ulimit -u)")]
    Thread(io::Error),
    /// A reactor cannot accept connections.
    #[error("cannot accept connections: {0}; raise the limit of open files (ulimit -n)")]
    Begin(io::Error),
    /// Not even one host could connect.
    #[error(
        "the limit of {limit} open files is too low: one host needs {needed}; raise it with `ulimit -n \
         {wanted}`, or LimitNOFILE= of a systemd unit"
    )]
    OpenFiles {
        /// The limit.
        limit: usize,
        /// Minimum for one host.
        needed: usize,
        /// Enough for all configured connections.
        wanted: usize,
    },
    /// Two namespaces have the same identity.
    #[error("{first} and {second} have the same identity; give one of them its own with uuid=")]
    SameIdentity {
        /// Name of one volume.
        first: String,
        /// Name of the other.
        second: String,
    },
    /// The configuration cannot be served.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The state of another process is not valid.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Result of a shutdown; all zero if it was clean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShutdownReport {
    /// Commands still at volumes at the deadline.
    pub commands_aborted: usize,
    /// Volumes whose final flush failed.
    pub flushes_failed: usize,
    /// Cores that failed instead of stopping.
    pub cores_failed: usize,
    /// Cores with operations that hang at volumes. Their threads keep these volumes, and the locks of their
    /// files, until the operations or the process end.
    pub cores_stuck: usize,
}

impl ShutdownReport {
    /// # Errors
    /// The report itself, unless the shutdown was clean.
    pub fn into_result(self) -> Result<(), ShutdownReport> {
        if self == ShutdownReport::default() { Ok(()) } else { Err(self) }
    }

    pub(crate) fn add(&mut self, core: ShutdownReport) {
        self.commands_aborted += core.commands_aborted;
        self.flushes_failed += core.flushes_failed;
        self.cores_failed += core.cores_failed;
    }
}

impl std::error::Error for ShutdownReport {}

impl fmt::Display for ShutdownReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            (self.commands_aborted, "commands aborted at the deadline"),
            (self.flushes_failed, "volume flushes failed"),
            (self.cores_failed, "cores failed"),
            (self.cores_stuck, "cores wait for hung volumes"),
        ];
        let nonzero = parts.iter().filter(|(count, _)| *count > 0);
        let texts: Vec<_> = nonzero.map(|(count, text)| format!("{count} {text}")).collect();
        f.write_str(&if texts.is_empty() { String::from("clean shutdown") } else { texts.join(", ") })
    }
}

fn of_port(name: Option<&str>) -> String {
    name.map_or_else(String::new, |name| format!("port {name}: "))
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "stop the program that uses it, or choose another port",
        io::ErrorKind::PermissionDenied => {
            "choose a port from 1024, or give the program CAP_NET_BIND_SERVICE"
        }
        io::ErrorKind::AddrNotAvailable => "choose an address of this machine (ip address shows them)",
        _ => "choose another address",
    }
}

//! Errors of the application side.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use isolane_shm::{InvalidIndex, MemoryError};

use isolane_engine_api::start_command;
use isolane_engine_api::{PacketError, hint};
use rustix::io::Errno;

/// Error of a session or one of its objects.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// No engine is running.
    #[error("no engine listens on {path}: {source}; start one with `{}`", start_command(path))]
    NoEngine {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// This user has no access to the socket, so an engine may be running or not.
    #[error(
        "cannot reach the engine's socket {path}: {source}; if an engine runs there, start it with --allow-uid \
         {uid}, in a directory that this user can enter"
    )]
    Forbidden {
        /// Path of the socket.
        path: PathBuf,
        /// User of this process.
        uid: u32,
        /// Error of the system.
        source: io::Error,
    },
    /// No engine is running, and none can be started.
    #[error(
        "no engine listens on {path}, and none can be started: {reason}; start one with `{}`",
        start_command(path)
    )]
    NotStarted {
        /// Path of the socket.
        path: PathBuf,
        /// Reason why the start failed.
        reason: String,
    },
    /// The engine belongs to another user, who could read all data that passes through it.
    #[error(
        "the engine on {path} belongs to user {uid}, who is neither this process's user nor root; choose another \
         path, or add {uid} to ISOLANE_TRUSTED_UIDS if that engine may read all data"
    )]
    Untrusted {
        /// Path of the socket.
        path: PathBuf,
        /// User of the engine, according to the kernel.
        uid: u32,
    },
    /// The engine refused a request.
    #[error("the engine refuses {what}: {reason}")]
    Refused {
        /// The request.
        what: &'static str,
        /// Reason given by the engine.
        reason: String,
    },
    /// The peer is not an engine, or has another version.
    #[error(
        "the peer on {path} is not an engine of this version: {reason}; use the same version on both sides"
    )]
    NotAnEngine {
        /// Path of the socket.
        path: PathBuf,
        /// Protocol violation.
        reason: String,
    },
    /// The engine does not reply.
    #[error(
        "the engine on {path} has not replied within {timeout:?}; check that its process is not stopped and has CPU \
         time, or restart it"
    )]
    Timeout {
        /// Path of the socket.
        path: PathBuf,
        /// Time limit.
        timeout: Duration,
    },
    /// The session is closed: its supervisor has exited, or the engine has disconnected this client.
    #[error(
        "the session with the engine is closed: {0}; attach again. Its streams can be taken back without loss \
         (`into_std`, `isolane_stream_into_fd`)"
    )]
    SessionClosed(String),
    /// The session belongs to the parent of this forked process.
    #[error("the session belongs to process {pid}, which forked this one; open a session in this process")]
    Forked {
        /// Process that opened the session.
        pid: u32,
    },
    /// The session's memory is used up.
    #[error(
        "{bytes} consecutive bytes are not free in the session's memory of {of} bytes; attach with more memory"
    )]
    OutOfMemory {
        /// Requested bytes.
        bytes: usize,
        /// Size of the memory in bytes.
        of: usize,
    },
    /// The engine violated the protocol of a ring.
    #[error(transparent)]
    InvalidIndex(#[from] InvalidIndex),
    /// Shared memory is not available.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The connection to the engine failed.
    #[error("connection to the engine: {0}")]
    Socket(#[from] PacketError),
    /// A system call failed.
    #[error("{what}: {source}{}", hint(source))]
    System {
        /// The failed operation.
        what: &'static str,
        /// Error of the system.
        source: io::Error,
    },
}

impl AttachError {
    pub(crate) fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> AttachError {
        move |source| AttachError::System { what, source: source.into() }
    }

    /// Returns the error of the system, or the closest one.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            AttachError::NoEngine { source, .. }
            | AttachError::Forbidden { source, .. }
            | AttachError::System { source, .. }
            | AttachError::Memory(MemoryError::System { source, .. })
            | AttachError::Socket(PacketError::System(source)) => source.raw_os_error(),
            AttachError::NotStarted { .. } => Some(Errno::NOENT.raw_os_error()),
            AttachError::Untrusted { .. } | AttachError::Refused { .. } => Some(Errno::PERM.raw_os_error()),
            AttachError::Timeout { .. } => Some(Errno::TIMEDOUT.raw_os_error()),
            AttachError::OutOfMemory { .. } => Some(Errno::NOMEM.raw_os_error()),
            _ => None,
        }
    }

    pub(crate) fn from_bell_error(source: io::Error) -> AttachError {
        match source.kind() {
            io::ErrorKind::ConnectionAborted => AttachError::SessionClosed("the engine has exited".into()),
            _ => AttachError::system("cannot wait for the engine")(source),
        }
    }
}

impl From<AttachError> for io::Error {
    fn from(error: AttachError) -> io::Error {
        let kind = match &error {
            AttachError::NoEngine { source, .. }
            | AttachError::Forbidden { source, .. }
            | AttachError::System { source, .. } => source.kind(),
            AttachError::NotStarted { .. } => io::ErrorKind::NotFound,
            AttachError::Untrusted { .. } | AttachError::Refused { .. } => io::ErrorKind::PermissionDenied,
            AttachError::Timeout { .. } => io::ErrorKind::TimedOut,
            AttachError::OutOfMemory { .. } => io::ErrorKind::OutOfMemory,
            AttachError::SessionClosed(_)
            | AttachError::Socket(PacketError::Closed)
            | AttachError::Forked { .. } => io::ErrorKind::ConnectionAborted,
            _ => io::ErrorKind::InvalidData,
        };
        io::Error::new(kind, error)
    }
}

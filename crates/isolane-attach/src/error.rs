//! Why something is not to be had of an engine.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use isolane_ring::{Impossible, MemoryError};

use crate::control::{WireError, remedy};
use crate::default_path;

/// Why something is not to be had of an engine.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// There is none.
    #[error("no engine listens on {path}: {source}; start one with `{}`", command(path))]
    NoEngine {
        /// Where one was looked for.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Whether there is one cannot be seen: this user may not go there.
    #[error(
        "cannot reach the engine's socket {path}: {source}; if an engine runs there, it has to be started with \
         --allow-uid {uid}, in a folder that this user may enter"
    )]
    Forbidden {
        /// Where it was looked for.
        path: PathBuf,
        /// Who this process is.
        uid: u32,
        /// What the system said.
        source: io::Error,
    },
    /// There is none, and none can be started.
    #[error(
        "no engine listens on {path}, and none can be started: {why}; start one with `{}`",
        command(path)
    )]
    NotStarted {
        /// Where one was looked for.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// It is somebody's who might want to see what goes through it.
    #[error(
        "the engine on {path} is of user {uid}, who is neither this process's nor root: choose another path, or add \
         the number {uid} to ISOLANE_TRUST_UIDS if the engine may see all that goes through it"
    )]
    Untrusted {
        /// Where it listens.
        path: PathBuf,
        /// Who has started it, says the kernel.
        uid: u32,
    },
    /// It does not want to.
    #[error("the engine refuses {what}: {why}")]
    Refused {
        /// What was asked for.
        what: &'static str,
        /// What it said.
        why: String,
    },
    /// It is no engine, or none of this version.
    #[error("the engine on {path} does not speak as it should: {why}; attach with its own version")]
    Stranger {
        /// Where it listens.
        path: PathBuf,
        /// What it did.
        why: String,
    },
    /// It does not answer.
    #[error(
        "the engine on {path} has not answered within {patience:?}: see whether its process is stopped or has no \
         processor to run on, else end it and start it again"
    )]
    Silent {
        /// Where it listens.
        path: PathBuf,
        /// How long it had.
        patience: Duration,
    },
    /// The session is over: its supervisor has ended, or it has dropped this client.
    #[error(
        "the session with the engine is over: {0}; attach again. Its streams can be taken back without loss \
         (`into_std`, `isolane_stream_into_fd`)"
    )]
    Over(String),
    /// A process that was forked from the session's own cannot use it.
    #[error(
        "the session belongs to process {pid}, which has forked this one; open a session in this process"
    )]
    Forked {
        /// The process that has opened the session.
        pid: u32,
    },
    /// The session's memory is used up.
    #[error(
        "{bytes} bytes in a row are not free in the session's memory of {of} bytes; attach with more memory"
    )]
    NoRoom {
        /// Bytes wanted.
        bytes: usize,
        /// Bytes of the memory.
        of: usize,
    },
    /// The engine broke the rules of the shared memory.
    #[error(transparent)]
    Impossible(#[from] Impossible),
    /// There is no shared memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The connection to the engine failed.
    #[error("the connection to the engine: {0}")]
    Wire(#[from] WireError),
    /// The system refuses.
    #[error("{what}: {source}{}", remedy(source))]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl AttachError {
    pub(crate) fn system(what: &'static str, source: impl Into<io::Error>) -> AttachError {
        AttachError::System { what, source: source.into() }
    }

    /// What a bell's error says.
    pub(crate) fn of_bell(source: io::Error) -> AttachError {
        match source.kind() {
            io::ErrorKind::ConnectionAborted => AttachError::Over("the engine has gone".into()),
            _ => AttachError::system("cannot wait for the engine", source),
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
            AttachError::Silent { .. } => io::ErrorKind::TimedOut,
            AttachError::NoRoom { .. } => io::ErrorKind::OutOfMemory,
            AttachError::Over(_) | AttachError::Wire(WireError::Closed) | AttachError::Forked { .. } => {
                io::ErrorKind::ConnectionAborted
            }
            _ => io::ErrorKind::InvalidData,
        };
        io::Error::new(kind, error)
    }
}

/// What starts an engine that listens there.
fn command(path: &Path) -> String {
    match path == Path::new("") || path == default_path() {
        true => "isolane engine".into(),
        false => format!("isolane engine --socket {}", path.display()),
    }
}

//! Errors of finding and reading a snapshot.

use std::fmt::Write;
use std::path::PathBuf;

use super::find::ControlSocket;

/// Failure to find or read a snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// No program has a control socket.
    #[error("no running program found in {}; start one, or name its socket or a file with `--from`", list(.0))]
    None(Vec<PathBuf>),
    /// Several programs have one.
    #[error("{} programs are running; name the socket of one:{}", .0.len(), sockets(.0))]
    Several(Vec<ControlSocket>),
    /// The address of a target on the network.
    #[error("{}: cannot read a target over the network; run the command on its machine, or use `--from` with a file of `isolane snapshot`", .0.display())]
    Remote(PathBuf),
    /// A file or socket cannot be read.
    #[error("{}: {reason}", .path.display())]
    Unreadable {
        /// The file or socket.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The document is not a snapshot.
    #[error("{}: {field}: {reason}; use a file of `isolane snapshot` of the same version", .path.display())]
    Malformed {
        /// The file or socket.
        path: PathBuf,
        /// Path of the field, or the line.
        field: String,
        /// The reason.
        reason: String,
    },
}

fn list(paths: &[PathBuf]) -> String {
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    paths.join(", ")
}

fn sockets(found: &[ControlSocket]) -> String {
    found.iter().fold(String::new(), |mut text, ControlSocket { path, kind, pid, .. }| {
        let _ = write!(text, "\n  {}  {kind}, process {pid}", path.display());
        text
    })
}

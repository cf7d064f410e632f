//! Source of commands that read the data of a running program.

use std::path::PathBuf;

use isolane_inspect::source::Source;

use crate::failure::Failure;

/// The program, or a file with its data.
#[derive(Clone, Debug, clap::Args)]
pub struct SourceArgs {
    /// Control socket of the program (default: the only one that is found)
    #[arg(value_name = "SOCKET")]
    socket: Option<PathBuf>,
    /// Read this file of `isolane snapshot` instead
    #[arg(long, value_name = "FILE", conflicts_with = "socket")]
    from: Option<PathBuf>,
}

impl SourceArgs {
    /// Returns the source.
    pub fn source(&self) -> Result<Source, Failure> {
        Source::choose(self.socket.as_deref(), self.from.as_deref()).map_err(Failure::from_error)
    }
}

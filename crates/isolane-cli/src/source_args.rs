//! Source of commands that read the data of a running program.

use std::path::PathBuf;
use std::sync::Arc;

use clap_complete::engine::ArgValueCompleter;
use isolane_host::Options;
use isolane_inspect::source::Source;

use crate::completions::names;
use crate::failure::Failure;
use crate::host_args::{self, IdentityArgs};
use crate::remote::RemoteTarget;

/// The program, or a file with its data.
#[derive(Clone, Debug, clap::Args)]
pub struct SourceArgs {
    /// Control socket of the program (default: the only one that is found), or nvme+tcp:// URI of an Isolane target,
    /// which shows a host its own connections and slow operations
    #[arg(value_name = "SOCKET|URI", add = ArgValueCompleter::new(names::sockets))]
    program: Option<PathBuf>,
    /// Read this file of `isolane snapshot` instead
    #[arg(long, value_name = "FILE", conflicts_with = "program")]
    from: Option<PathBuf>,
    #[command(flatten)]
    identity: IdentityArgs,
}

impl SourceArgs {
    /// Returns the source.
    pub fn source(&self) -> Result<Source, Failure> {
        match self.remote()? {
            Some(target) => Ok(Source::Remote(Arc::new(target))),
            None => self.local(),
        }
    }

    /// Returns the source, which has recorded steps and is not a target on another machine.
    pub fn local(&self) -> Result<Source, Failure> {
        Source::choose(self.program.as_deref(), self.from.as_deref()).map_err(Failure::from_error)
    }

    /// Returns the target, if the program is named by a URI.
    pub fn remote(&self) -> Result<Option<RemoteTarget>, Failure> {
        let name = self.program.as_ref().map(|name| name.to_string_lossy());
        let Some(name) = name.filter(|name| name.contains("://")) else {
            if self.identity.is_given() {
                let reason = "they are for the URI of a target; a control socket or a file shows all hosts";
                return Err(Failure::new("--host-nqn, --host-id, --key, --ctrl-key", reason));
            }
            return Ok(None);
        };
        let mut options = Options::default();
        self.identity.apply(&mut options)?;
        Ok(Some(RemoteTarget::new(host_args::parse_uri(&name)?, options)))
    }
}

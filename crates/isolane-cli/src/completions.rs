//! `isolane completions`: completions for a shell, generated from the definition of the command line.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Cli;
use crate::failure::Failure;

/// Print completions for a shell
///
/// For example: `isolane completions bash > ~/.local/share/bash-completion/completions/isolane`
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "isolane", &mut script);
    crate::output::write_stdout(&script)
}

//! `isolane completions`: completions for a shell, generated from the definition of the command line.

use clap_complete::Shell;

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

/// Runs the subcommand with the definition of the command line.
pub fn run(args: &Args, mut cli: clap::Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli, "isolane", &mut script);
    crate::output::write_stdout(&script)
}

//! `isolane verbs env`: prints the environment of unmodified RDMA programs.

use super::environment::{Environment, Options};
use crate::failure::Failure;
use crate::output;

/// Print shell lines that give programs RDMA devices over TCP
///
/// The lines set the environment of `isolane verbs run`, for job files and containers: `eval "$(isolane verbs env)"`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    options: Options,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<(), Failure> {
    output::write_stdout(Environment::new(&args.options)?.to_shell().as_bytes())
}

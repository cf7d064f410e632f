//! `isolane verbs`: RDMA verbs over TCP.

mod bench;
mod client;
mod devices;
mod env;
mod environment;
mod libraries;
mod libs;
mod run;
mod server;
mod session;

use clap::Subcommand;

use crate::failure::Failure;

/// RDMA verbs over TCP
///
/// Queue pairs, completion queues, and registered memory, over ordinary TCP connections.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Subcommand
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Bench(bench::Args),
    Devices(devices::Args),
    Env(env::Args),
    Libs(libs::Args),
    Run(run::Args),
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        Command::Bench(args) => bench::run(args),
        Command::Devices(args) => devices::run(args),
        Command::Env(args) => env::run(args),
        Command::Libs(args) => libs::run(args),
        Command::Run(args) => run::run(args),
    }
}

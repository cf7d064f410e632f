//! `isolane verbs`: RDMA verbs over TCP.

mod bench;
mod client;
mod devices;
mod env;
mod environment;
mod libraries;
mod libs;
mod provider;
mod run;
mod serve;
mod server;
mod session;
mod transfer;

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
    Read(transfer::ReadArgs),
    Run(run::Args),
    Serve(serve::Args),
    Write(transfer::WriteArgs),
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        Command::Bench(args) => bench::run(args),
        Command::Devices(args) => devices::run(args),
        Command::Env(args) => env::run(args),
        Command::Libs(args) => libs::run(args),
        Command::Read(args) => transfer::read(args),
        Command::Run(args) => run::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Write(args) => transfer::write(args),
    }
}

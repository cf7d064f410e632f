//! The `isolane` command: one file per subcommand, no protocol logic.
//!
//! `main` parses, dispatches, and turns a [`failure::Failure`] into one line on stderr and an exit status.

#![forbid(unsafe_code)]

mod args;
mod bench;
mod choice;
mod completions;
mod copy;
mod cores;
mod discover;
mod engine;
mod failure;
mod host_args;
mod info;
mod invocation;
mod man;
mod output;
mod sections;
mod serve;
mod signals;
mod units;
mod verbs;

use std::process::ExitCode;

use args::{Cli, Command};
use clap::{CommandFactory, Parser};

fn main() -> ExitCode {
    let cli = Cli::parse();
    args::start_logging(cli.log_level.unwrap_or_else(|| cli.command.log_level()));
    let outcome = match cli.command {
        Command::Serve(args) => serve::run(*args),
        Command::Discover(args) => discover::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Copy(args) => copy::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Engine(args) => engine::run(&args),
        Command::Verbs(args) => verbs::run(&args),
        Command::Man(args) => man::run(&args, Cli::command()),
        Command::Completions(args) => completions::run(&args, Cli::command()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("isolane: {failure}");
            ExitCode::from(failure.status())
        }
    }
}

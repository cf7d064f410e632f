//! `minimal-host`: a minimal NVMe/TCP host that reads, with or without batching of its capsules.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use isolane_bench::minimal_host::{Options, hold, run};
use isolane_bench::{Report, print};

/// Read from an NVMe/TCP target with a minimal host
///
/// Spins over its connections, ignores the data, and sends all commands that became possible in one batch, or each
/// alone, as hosts do whose applications submit one at a time.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: Options,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Read once over each connection, print `idle`, and keep the connections open until a signal
    #[arg(long)]
    idle: bool,
}

fn main() -> ExitCode {
    let Arguments { options, json, idle } = Arguments::parse();
    match idle {
        true => print(json, hold(&options).map(|never| -> Report { match never {} })),
        false => print(json, run(&options)),
    }
}

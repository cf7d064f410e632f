//! `floor`: rate and round trip of plain TCP with the byte counts of NVMe/TCP.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use isolane_bench::floor::{Options, run};

/// Measure plain loopback TCP with exactly the bytes of NVMe/TCP
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: Options,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let Arguments { options, json } = Arguments::parse();
    isolane_bench::print(json, run(&options))
}

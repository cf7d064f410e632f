//! `streams`: the cost of a stream of messages, by native socket calls or through an engine.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use isolane_bench::streams::{Options, run};

/// Measure a stream of messages over loopback, natively or through an isolated engine
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

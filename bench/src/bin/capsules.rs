//! `capsules`: a plain NVMe/TCP host that reads, with a choice of how its capsules leave.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use isolane_bench::capsules::{Options, hold, run};

/// Read from an NVMe/TCP target with as little of a host as there can be
///
/// It spins over its connections, does nothing with the data, and sends the commands that became possible in
/// one batch, or each on its own, as hosts do whose applications submit one at a time.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: Options,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Read once over each connection, print `idle`, and keep the connections until this program is ended
    #[arg(long)]
    idle: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.idle {
        return ended(hold(&arguments.options).map(|never| match never {}));
    }
    ended(run(&arguments.options).map(|report| match arguments.json {
        true => println!("{}", serde_json::to_string(&report).expect("plain numbers")),
        false => println!("{:.0} IOPS, mean round trip {:.2} µs", report.iops, report.latency_us.mean),
    }))
}

fn ended(result: std::io::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("capsules: {error}");
            ExitCode::FAILURE
        }
    }
}

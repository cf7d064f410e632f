//! `floor`: the rate and the round trip of bare TCP for the byte counts of NVMe/TCP.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use isolane_bench::floor::{self, Options};

/// Measure bare loopback TCP with exactly the bytes that NVMe/TCP would carry
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: Options,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match floor::run(&arguments.options) {
        Ok(report) if arguments.json => {
            println!("{}", serde_json::to_string(&report).expect("plain numbers"));
            ExitCode::SUCCESS
        }
        Ok(report) => {
            let (iops, mean) = (report.iops, report.latency_us.mean);
            println!("{iops:.0} IOPS, {:.1} MiB/s, mean round trip {mean:.2} µs", report.mib_per_s);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!(
                "floor: cannot measure: {error}; it needs loopback TCP and the cores it is told to use"
            );
            ExitCode::FAILURE
        }
    }
}

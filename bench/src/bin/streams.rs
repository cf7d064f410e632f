//! `streams`: what a stream of messages costs, by a program's own socket calls or through an engine.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use isolane_bench::streams::{self, Options};

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
    let arguments = Arguments::parse();
    match streams::run(&arguments.options) {
        Ok(report) if arguments.json => {
            println!("{}", serde_json::to_string(&report).expect("plain numbers"));
            ExitCode::SUCCESS
        }
        Ok(report) => {
            let (rate, app, total) = (report.mb_per_s, report.app_ns, report.total_ns);
            println!("{rate:.1} MB/s, {app:.0} ns a message in the application, {total:.0} in all");
            if let Some([mean, median, most]) = report.round_trip_us {
                println!("round trips: mean {mean:.2} µs, median {median:.2}, p99 {most:.2}");
            }
            if let Some(share) = report.compute_share {
                println!("a thread that computes beside it has {:.1} % of its speed alone", share * 100.0);
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!(
                "streams: cannot measure: {error}; it needs loopback TCP, the cores it is told to use, and `isolane` (--isolane PATH) for an engine"
            );
            ExitCode::FAILURE
        }
    }
}

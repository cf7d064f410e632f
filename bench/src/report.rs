//! Rates and round trips, as text and in the JSON shape of `isolane bench`.

use std::fmt::{self, Display};
use std::io;
use std::process::ExitCode;

use clap::Parser;
use serde::Serialize;

/// The result of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Operations per second.
    pub iops: f64,
    /// Payload per second.
    pub mib_per_s: f64,
    /// Round trips.
    pub latency_us: Latency,
    /// Send buffer of the floor's sockets in bytes, 0 for the kernel's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_buffer: Option<usize>,
}

/// Round trips in microseconds; percentiles are measured by the floor at depth 1 only.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Latency {
    /// By Little's law: operations in flight divided by the rate.
    pub mean: f64,
    /// Median.
    pub p50: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// 99.9th percentile.
    pub p99_9: Option<f64>,
}

impl Report {
    /// Returns the rates of a run with `in_flight` operations of `bytes` each.
    pub fn new(iops: f64, bytes: usize, in_flight: f64) -> Report {
        let latency_us = Latency { mean: in_flight * 1e6 / iops, ..Latency::default() };
        let mib_per_s = iops * bytes as f64 / f64::from(1 << 20);
        Report { iops, mib_per_s, latency_us, send_buffer: None }
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { iops, mib_per_s, latency_us, .. } = self;
        write!(f, "{iops:.0} IOPS, {mib_per_s:.1} MiB/s, mean round trip {:.2} µs", latency_us.mean)
    }
}

// Without a doc comment, the help text starts with the doc comment of `O`.
#[derive(clap::Parser)]
struct Arguments<O: clap::Args> {
    #[command(flatten)]
    options: O,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Runs a program: parses its options, measures, and prints the report or the error.
pub fn main<O: clap::Args, R: Serialize + Display>(run: impl FnOnce(&O) -> io::Result<R>) -> ExitCode {
    let Arguments { options, json } = Arguments::parse();
    match run(&options) {
        Ok(report) if json => println!("{}", serde_json::to_string(&report).expect("plain numbers")),
        Ok(report) => println!("{report}"),
        Err(error) => {
            eprintln!("cannot measure: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
